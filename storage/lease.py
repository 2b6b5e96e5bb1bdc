"""The one writer of a run in an object store: a lock with a lease, and writes on condition.

No store holds a lock for a process, so the lock is an object that its writer writes anew while it
lives (every `RENEWAL` seconds). One that has not been for `TAKEOVER` seconds, by the store's own
clock, may be taken over; so may one whose process is known to have ended on this very machine.

A lease alone keeps nobody out: a writer may sleep through the end of it and wake up in the middle
of a commit. So everything it writes is written on condition that the object is as this writer knows
it. Where it is not, the writer asks for its lock: if that is lost, it stops; if it is still held,
the object was written by one that lost it, and is written over. The manifest is never written over
in that way: whoever finds another than it read has lost, and no commit is ever overwritten.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.errors import FormatError, RunLockedError, StreamlearnError

from .objects import ObjectPath, Stat, Version
from .signatures import TEXT_BYTES, Writer, signed, who

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Lease", "lease_writer"]

RENEWAL = 15.0
"""Seconds between two signs of life."""

LEASE = 60.0
"""Seconds without one after which the writer itself asks before it writes anything."""

TAKEOVER = 90.0
"""Seconds without one after which another may take over; a request under way then has ended."""

_ATTEMPTS = 3
_HANDS = 4  # that write at a time
_WAITING = 8  # writes that may be begun, whose bytes are in memory


@dataclass(frozen=True, slots=True)
class _Owner:
    """What the text of a lock says; machine and started are empty where they cannot be known."""

    writer: Writer
    machine: str
    started: str
    released: bool


class Lease:
    """The held lock of a run, and all writing that it covers; `release` lets it go.

    Args:
        path: of the lock; the run is what lies beside it.

    Attributes:
        path: the same.
        root: the run.
        token: a word of its own, 32 hexadecimal digits.
        taken_over: whether it was taken from one that never let it go and may still think it
            holds it. `fence` must then come before anything else is written.

    Raises:
        RunLockedError: another process holds it; names its pid.
        StorageError: the store refused.
    """

    def __init__(self, path: ObjectPath) -> None:
        self.path = path
        self.root = path.parent
        self.taken_over = False
        self._known: dict[ObjectPath, tuple[int, Version]] = {}
        self._lost = False
        self._renewals = 0
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []
        self.token = uuid.uuid4().hex
        self._owner = {
            "pid": os.getpid(),
            "host": socket.gethostname()[:64],
            "machine": _machine()[:128],
            "started": _started(os.getpid())[:32],
            "token": self.token,
        }
        self._lock = threading.Lock()
        self._seen = _now()
        self._version = self._take()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=_beat, args=(self, self._stop), name="streamlearn-lease", daemon=True
        )
        self._thread.start()

    # -- the lock ----------------------------------------------------------------------------

    def confirm(self) -> None:
        """Make sure, by writing the lock anew, that it is still held.

        Raises:
            RunLockedError: another process has it now, or it was let go.
            StorageError: the store refused.
        """
        with self._lock:
            if not self._lost:
                seen = _now()
                version = self.path.put_if_unchanged(self._text(), self._version)
                if version is None:
                    self._lost = True
                else:
                    self._version, self._seen = version, seen
            if self._lost:
                raise self.lost()

    def check(self) -> None:
        """Make sure that the lock is held, asking the store only if the last answer is too old.

        Raises:
            RunLockedError: another process has it now, or it was let go.
            StorageError: the store refused.
        """
        if self._lost or _since(self._seen) > LEASE:
            self.confirm()

    def lost(self) -> RunLockedError:
        """The refusal to write any more."""
        return RunLockedError(
            f"the run {str(self.root)!r} was taken over by another process, or closed; "
            "what was not committed here is lost, stop the other and open the run again"
        )

    def release(self) -> None:
        """Let the next writer in at once; harmless if it is done already or the store is away."""
        self._stop.set()
        self._wait(0)
        if self._pool is not None:
            self._pool.shutdown()
        with self._lock:
            if not self._lost:
                self._lost = True
                # Never deleted, for a deletion knows no condition. If it fails, the lease runs out.
                with contextlib.suppress(StreamlearnError):
                    self.path.put_if_unchanged(self._text(released=True), self._version)

    # -- what it covers ----------------------------------------------------------------------

    def refresh(self) -> dict[ObjectPath, int]:
        """Look at what the run consists of now; the sizes of all its objects but the lock.

        To be called before the manifest is read: if a commit comes between, the next one of this
        writer is refused, where the other way round it would overwrite that commit.

        Raises:
            StorageError: the store refused.
        """
        self._wait(0)  # for what a commit that failed had begun
        self._known = {
            path: (stat.st_size, stat.version)
            for path, stat in self.root.walk()
            if path != self.path
        }
        return {path: size for path, (size, _) in self._known.items()}

    def size_of(self, path: ObjectPath) -> int:
        """The size of an object of the run as this writer knows it, 0 where there is none."""
        return self._known[path][0] if path in self._known else 0

    def knows(self, path: ObjectPath) -> bool:
        """Whether there is such an object as far as this writer knows."""
        return path in self._known

    def alike(self, one: ObjectPath, other: ObjectPath) -> bool:
        """Whether two objects are known to have the same bytes; not every store lets us know."""
        if one not in self._known or other not in self._known:
            return False
        (size, first), (same_size, second) = self._known[one], self._known[other]
        return size == same_size and first.e_tag is not None and first.e_tag == second.e_tag

    @property
    def total_bytes(self) -> int:
        """The bytes of all objects of the run that this writer knows of, and of the lock."""
        return TEXT_BYTES + sum(size for size, _ in list(self._known.values()))

    def known_below(self, path: ObjectPath) -> list[ObjectPath]:
        """The objects at or below a name that this writer knows of, in order."""
        return sorted(known for known in list(self._known) if known.is_relative_to(path))

    def fence(self, path: ObjectPath, marked: Callable[[ObjectPath, bytes | None], bytes]) -> None:
        """Put the manifest with other bytes, so that no commit of the last writer comes any more.

        Args:
            path: of the manifest.
            marked: what is to be put where these bytes are, or nothing is.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        for _ in range(_ATTEMPTS):
            self.check()
            known = None
            try:
                data, stat = path.read()
                text, known = marked(path, data), stat.version
            except FileNotFoundError:
                text = marked(path, None)
            if _put(path, text, known) is not None:
                self.taken_over = False
                return
        raise self.lost()

    def put(self, path: ObjectPath, data: bytes | memoryview, *, final: bool = False) -> None:
        """Write an object of the run.

        Args:
            path: of it.
            data: all its bytes.
            final: whether it is the manifest (or what else makes the writing before it count),
                which is never written over if it is not what this writer knows.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused; the object is as it was.
        """
        self.check()
        version = _put(path, data, self._known[path][1] if path in self._known else None)
        while version is None:
            if final:
                with self._lock:
                    self._lost = True
                raise self.lost()
            self.confirm()
            try:
                version = _put(path, data, path.stat().version)
            except FileNotFoundError:
                version = _put(path, data, None)
        self._known[path] = (len(data), version)

    def begin(self, path: ObjectPath, data: bytes | memoryview) -> Future[None]:
        """Begin to `put` an object; a few are under way at a time.

        Returns:
            What tells when it is there, and raises what `put` does.
        """
        from concurrent.futures import Future, ThreadPoolExecutor

        self._wait(_WAITING - 1)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_HANDS, thread_name_prefix="streamlearn-put")
        try:
            future = self._pool.submit(self.put, path, data)
        except RuntimeError:  # the process is ending and has no new threads
            future = Future()
            self.put(path, data)
            future.set_result(None)
        self._under_way.append(future)
        return future

    def copy(self, source: ObjectPath, target: ObjectPath) -> None:
        """Let the store copy an object of the run, over whatever has that name.

        Raises:
            FormatError: there is no such object any more.
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        self.check()
        try:
            source.copy_to(target)
            stat = target.stat()
        except FileNotFoundError as error:
            raise FormatError(
                f"{str(source)!r} is missing; put back a copy of this file"
            ) from error
        self._known[target] = (stat.st_size, stat.version)

    def remove(self, path: ObjectPath) -> None:
        """Delete an object of the run.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        self.check()
        path.remove()
        self._known.pop(path, None)

    # -- how ---------------------------------------------------------------------------------

    def _wait(self, most: int) -> None:
        """Wait until at most so many writes are under way; their failures are their futures'."""
        while len(self._under_way) > most:
            self._under_way.pop(0).exception()

    def _text(self, *, released: bool = False) -> bytes:
        # No two are alike: a store may tell contents apart by nothing but their checksum.
        self._renewals += 1
        return signed({**self._owner, "renewals": self._renewals, "released": released})

    def _take(self) -> Version:
        owner = None
        for _ in range(_ATTEMPTS):
            self._seen = _now()
            version = self.path.put_if_absent(self._text())
            if version is not None:
                return version
            try:
                data, stat = self.path.read()
            except FileNotFoundError:
                continue
            owner, wait = _owner(data), 0.0
            if not _has_ended(owner):
                wait = TAKEOVER - self._age(stat)
            if wait > 0:
                raise _refusal(self.root, owner, wait)
            self._seen = _now()
            version = self.path.put_if_unchanged(self._text(), stat.version)
            if version is not None:
                self.taken_over = owner is None or not owner.released
                return version
        raise _refusal(self.root, owner, TAKEOVER)

    def _age(self, stat: Stat) -> float:
        """Seconds since an object was written, both ends by the store's clock."""
        probe = self.root / "tmp" / f"clock-{uuid.uuid4().hex}"
        probe.put(b"")
        try:
            return probe.stat().st_mtime - stat.st_mtime
        except FileNotFoundError:  # put away by a writer, which therefore lives
            return 0.0
        finally:
            probe.remove()


def lease_writer(path: ObjectPath) -> Writer | None:
    """Who holds a lock now as far as can be told without writing, None if nobody does.

    Raises:
        StorageError: the store refused.
    """
    try:
        data, stat = path.read()
    except FileNotFoundError:
        return None
    owner = _owner(data)
    # Only told to people, so this machine's clock is good enough.
    if _has_ended(owner) or time.time() - stat.st_mtime > TAKEOVER:
        return None
    return owner.writer if owner else Writer(0, "unknown")


def _beat(lease: Lease, stop: threading.Event) -> None:
    while not stop.wait(RENEWAL):
        try:
            lease.confirm()
        except RunLockedError:
            return
        except StreamlearnError:
            continue  # the next write finds out, if it lasts


def _put(path: ObjectPath, data: bytes | memoryview, known: Version | None) -> Version | None:
    return path.put_if_absent(data) if known is None else path.put_if_unchanged(data, known)


def _refusal(root: ObjectPath, owner: _Owner | None, wait: float) -> RunLockedError:
    return RunLockedError(
        f"the run {str(root)!r} is being written by {who(owner.writer if owner else None)}; stop "
        "that one first, or watch it with `streamlearn watch`; if it has crashed, "
        f"its lock runs out in {max(1, round(wait))} s"
    )


def _owner(data: bytes) -> _Owner | None:
    try:
        found: dict[str, Any] = json.loads(data)
        return _Owner(
            Writer(int(found["pid"]), str(found["host"])),
            str(found["machine"]),
            str(found["started"]),
            found["released"] is True,
        )
    except (ValueError, KeyError, TypeError):
        return None  # not a text of ours


def _has_ended(owner: _Owner | None) -> bool:
    """Whether a lock is known to be held by nobody: let go, or by a process of here that ended."""
    if owner is None:
        return False
    if owner.released:
        return True
    here = owner.machine != "" and owner.machine == _machine()
    return here and owner.started != _started(owner.writer.pid)


def _machine() -> str:
    """What no other machine, boot or namespace of processes shares; empty if it cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')} {socket.gethostname()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process of this machine started, in ticks since the boot; empty if it has ended."""
    try:
        # The name, in brackets, may hold anything; after it come the state and numbers.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")
    except (OSError, IndexError):
        return ""


def _now() -> tuple[float, float]:
    return time.monotonic(), time.time()


def _since(then: tuple[float, float]) -> float:
    """Seconds that have passed; a machine that slept knows it by one of its clocks."""
    return max(now - before for now, before in zip(_now(), then, strict=True))
