"""The lock that keeps a run to one writer.

The operating system holds it (flock), so it goes with the process, however that ends; the file's
text only says who it is. It is never deleted: a deleted lock could be held twice. A run in an
object store has a `Lease` instead.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from typing import TypeAlias

from streamlearn.errors import RunLockedError

from . import files
from .files import translated
from .layout import Layout
from .lease import Lease, lease_writer
from .object_writing import ObjectWriting
from .objects import ObjectPath, RunPath, as_file
from .signatures import TEXT_BYTES, Writer, is_lock_text, signed, who
from .writing import Writing

__all__ = [
    "HeldLock",
    "RunLock",
    "Writer",
    "current_writer",
    "is_lock_text",
    "new_writing",
    "take_lock",
]

_PATIENCE = 0.5


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
                files.write_all(descriptor, signed(owner))
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
        raise RunLockedError(
            f"the run {str(self.path.parent)!r} is being written by "
            f"{who(_read_owner(descriptor))}; "
            "stop that one first, or watch it with `streamlearn watch`"
        )

    def release(self) -> None:
        """Let the next writer in; harmless if it is done already."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


HeldLock: TypeAlias = RunLock | Lease
"""The lock of a run, wherever that lies."""


def take_lock(path: RunPath) -> HeldLock:
    """Take the lock of a run.

    Args:
        path: of the lock.

    Raises:
        RunLockedError: another process holds it; names its pid.
        StorageError: the system or the store refused.
    """
    return Lease(path) if isinstance(path, ObjectPath) else RunLock(path)


def new_writing(layout: Layout, lock: HeldLock) -> Writing:
    """What the files of a run go through, for one commit or another change of it."""
    return ObjectWriting(lock) if isinstance(lock, Lease) else Writing(as_file(layout.scratch))


def current_writer(path: RunPath) -> Writer | None:
    """Who holds a lock now, None if nobody does; changes nothing.

    Args:
        path: of the lock.

    Raises:
        StorageError: the system or the store refused.
    """
    if isinstance(path, ObjectPath):
        return lease_writer(path)
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


def _try_lock(descriptor: int, kind: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        return True
    return False


def _read_owner(descriptor: int) -> Writer | None:
    try:
        found = json.loads(os.pread(descriptor, TEXT_BYTES, 0))
        return Writer(int(found["pid"]), str(found["host"]))
    except (ValueError, KeyError, TypeError):  # taken this moment, not signed yet
        return None
