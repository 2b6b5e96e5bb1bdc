"""The lock that keeps a run to one writer.

The operating system holds it (flock), so it goes with the process, however that ends; the file's
text only says who it is. It is never deleted: a deleted lock could be held twice.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlearn.errors import RunLockedError

from . import files
from .files import translated

__all__ = ["RunLock", "Writer", "current_writer", "is_lock_text"]

# Always the same number of bytes in one write, so that no reader meets half of another text.
_TEXT_BYTES = 512
_PATIENCE = 0.5


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that is writing to a run."""

    pid: int
    host: str


class RunLock:
    """The held lock of a run; `release` lets it go.

    Raises:
        RunLockedError: another process holds it; names its pid.
        StorageError: the system refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with translated("write", path):
            descriptor = files.open_file(path)
        try:
            self._take(descriptor)
            owner = {"pid": os.getpid(), "host": socket.gethostname()[:64]}
            with translated("write", path):
                files.write_all(descriptor, _signed(owner))
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor: int | None = descriptor

    def _take(self, descriptor: int) -> None:
        # A reader that asks who is writing holds the lock, shared, for some microseconds.
        deadline = time.monotonic() + _PATIENCE
        while True:
            with translated("lock", self.path):
                if _try_lock(descriptor, fcntl.LOCK_EX):
                    return
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        owner = _read_owner(descriptor)
        who = f"process {owner.pid} on {owner.host}" if owner else "another process"
        raise RunLockedError(
            f"the run {str(self.path.parent)!r} is being written by {who}; "
            "stop that one first, or watch it with `streamlearn watch`"
        )

    def release(self) -> None:
        """Let the next writer in; harmless if it is done already."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def current_writer(path: Path) -> Writer | None:
    """Who holds a lock now, None if nobody does; changes nothing.

    Args:
        path: of the lock file.

    Raises:
        StorageError: the system refused.
    """
    try:
        with translated("read", path, missing=True):
            descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        with translated("lock", path):
            if _try_lock(descriptor, fcntl.LOCK_SH):
                return None
            return _read_owner(descriptor) or Writer(0, "unknown")
    finally:
        os.close(descriptor)


def is_lock_text(data: bytes) -> bool:
    """Whether a lock file holds what a writer writes, or nothing (as after a loss of power)."""
    if not data.strip(b"\0"):
        return True
    try:
        found = json.loads(data)
        del found["checksum"]
        return data == _signed(found)
    except (ValueError, KeyError, TypeError):
        return False


def _signed(owner: dict[str, Any]) -> bytes:
    """The text of the file: who holds the lock, and a checksum of that."""
    checksum = f"{files.checksum(json.dumps(owner).encode('ascii')):08x}"
    return json.dumps({**owner, "checksum": checksum}).encode("ascii").ljust(_TEXT_BYTES)


def _try_lock(descriptor: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def _read_owner(descriptor: int) -> Writer | None:
    try:
        found = json.loads(os.pread(descriptor, _TEXT_BYTES, 0))
        return Writer(int(found["pid"]), str(found["host"]))
    except (ValueError, KeyError, TypeError):  # taken this moment, not signed yet
        return None
