"""The event log of a run: one JSON object a line, only ever appended to.

Readers see a line when `append` returns; it is durable from the next commit on. What was said after
the last commit goes away when the run is opened again, since its steps are learnt again. In an
object store readers see a line from the next commit on: see `segments`.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.errors import RunStateError

from . import files
from .documents import encode, plain
from .files import translated
from .lease import Lease
from .objects import ObjectPath, RunPath, as_file, as_object
from .segments import SegmentLog, read_segments

if TYPE_CHECKING:
    from .lock import HeldLock

__all__ = ["EventLog", "open_log", "read_events", "read_some_events"]

_WHOLE = 1 << 20


class EventLog:
    """The log, open for its one writer.

    Args:
        path: of the file, which is made if it is missing.
        size: the committed bytes; whatever follows them is cut off.
        checksum: the CRC-32 of the committed bytes.

    Attributes:
        size: the bytes of all complete lines.
        checksum: the CRC-32 of these bytes.

    Raises:
        StorageError: the system refused.
    """

    def __init__(self, path: Path, size: int, checksum: int) -> None:
        self.path = path
        self.size = size
        self.checksum = checksum
        self._torn = False  # whether something that is no line may follow them
        with translated("write", path):
            self._descriptor: int | None = files.open_file(path)
        try:
            self.cut(size, checksum)
        except BaseException:
            self.close()
            raise

    def cut(self, committed: int, checksum: int) -> None:
        """Go back to the committed bytes, whose CRC-32 is given.

        Raises:
            StorageError: the system refused.
            RunStateError: the log is closed.
        """
        # Nothing is computed from the log, so a run does not end with it; but damage is said.
        text = None
        with translated("write", self.path):
            found = os.fstat(self.require_open()).st_size
            self.size = committed if found >= committed else read_events(self.path)[1]
            self._cut(self.require_open())
            self.checksum = files.checksum_of(self.require_open(), self.size)
        if found < committed:
            lost = committed - self.size
            text = f"the event log lost {lost} of the {committed} bytes that were committed"
        elif self.checksum != checksum:
            text = f"the event log is damaged within the {committed} bytes that were committed"
        if text is not None:
            self.append({"event": "notice", "text": text})

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line; its "time" is now unless the record has one.

        Raises:
            FormatError: something in the record has no place in JSON.
            StorageError: the system refused; the log is as it was.
            RunStateError: the log is closed.
        """
        line = encode(plain({"time": time.time(), **record}))
        with translated("write", self.path):
            descriptor = self.require_open()
            if self._torn:
                self._cut(descriptor)
            self._torn = True  # until it is whole, however it may be interrupted
            files.write_all(descriptor, line, self.size)
            self.size += len(line)
            self.checksum = files.checksum(line, self.checksum)
            self._torn = False

    def sync(self) -> None:
        """Make every line so far durable.

        Raises:
            StorageError: the system refused.
        """
        with translated("write", self.path):
            files.sync(self.require_open())

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def require_open(self) -> int:
        """The descriptor of the file.

        Raises:
            RunStateError: the log is closed.
        """
        if self._descriptor is None:
            raise RunStateError(
                f"the run {str(self.path.parent)!r} is closed; open it again to write to it"
            )
        return self._descriptor

    def _cut(self, descriptor: int) -> None:
        files.truncate(descriptor, self.size)
        self._torn = False


def open_log(path: RunPath, lock: HeldLock, size: int, checksum: int) -> EventLog | SegmentLog:
    """The log of a run whose lock is held, wherever it lies.

    Args:
        path: of the file that it is, or would be.
        lock: of the run.
        size: the committed bytes; whatever follows them is cut off.
        checksum: the CRC-32 of the committed bytes.

    Raises:
        StorageError: the system or the store refused.
    """
    if isinstance(lock, Lease):
        return SegmentLog(as_object(path), size, checksum, lock)
    return EventLog(as_file(path), size, checksum)


def read_events(path: RunPath, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The complete lines of a log from an offset on, and the offset to go on from.

    A last line without its end is left for the next time. If the log was cut since the offset was
    returned (the run was opened again), reading starts over at 0. A line that is no JSON object is
    left out: the log is told to people, nothing is computed from it.

    Raises:
        StorageError: the system refused.
    """
    data, offset = _bytes_from(path, offset)
    whole = data[: data.rfind(b"\n") + 1]
    return _records(whole.split(b"\n")), offset + len(whole)


def read_some_events(path: RunPath, most: int, always: str) -> list[dict[str, Any]]:
    """About `most` of a log's events, spread evenly over its bytes, and all that have a word.

    The log of a long run has so many that a look at the run should not wait for all of them to be
    parsed. One that is no longer than a megabyte, or lies in an object store, is read whole.

    Raises:
        StorageError: the system refused.
    """
    if isinstance(path, ObjectPath):
        return read_events(path)[0]
    lines: list[bytes] = []
    word, line, taken, offset = always.encode(), b"", 0, 0
    try:
        with translated("read", path, missing=True), path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            every = 0 if size <= _WHOLE else size // most
            for line in file:
                offset += len(line)
                if offset >= taken or word in line:
                    lines.append(line)
                    taken = offset + every if offset >= taken else taken
    except FileNotFoundError:
        return []
    if lines and lines[-1] is not line:
        lines.append(line)
    return _records(line for line in lines if line.endswith(b"\n"))


def _records(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The JSON objects among lines."""
    records = []
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records


def _bytes_from(path: RunPath, offset: int) -> tuple[bytes, int]:
    """What follows an offset that a line ended at, or everything if none ends there any more."""
    if isinstance(path, ObjectPath):
        return read_segments(path, offset)
    try:
        with translated("read", path, missing=True), path.open("rb") as file:
            # An offset follows the end of a line; where it does not, the log is another by now.
            if offset > 0:
                file.seek(offset - 1)
                if file.read(1) != b"\n":
                    offset = 0
            file.seek(offset)
            return file.read(), offset
    except FileNotFoundError:
        return b"", 0
