"""The event log of a run in an object store, where nothing can be appended to an object.

The log is what the objects `events/<first byte, 16 digits>.jsonl` are one after the other. Lines
are held back until the next commit. The last object is then put anew, longer, until it has
`SEGMENT_BYTES`; after that another begins. So the bytes of a committed prefix never change, an
object that is full is never touched, and there are as many objects as the log has such pieces.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from streamlearn.errors import RunStateError

from . import files
from .documents import encode, plain
from .lease import Lease
from .objects import ObjectPath

if TYPE_CHECKING:
    from .writing import Writing

__all__ = ["SegmentLog", "read_segments", "segment_folder", "segments", "write_segments"]

SEGMENT_BYTES = 1 << 18
_NAME = re.compile(r"(\d{16})\.jsonl", re.ASCII)


def segment_folder(path: ObjectPath) -> ObjectPath:
    """Where the pieces lie of a log that would be `path` if it were a file."""
    return path.parent / path.name.partition(".")[0]


class SegmentLog:
    """The log, open for its one writer: `events.EventLog` for a run in an object store.

    Args:
        path: of the file that the log would be.
        size: the committed bytes; whatever follows them is cut off.
        checksum: the CRC-32 of the committed bytes.
        lease: of the run; `refresh`ed.

    Attributes:
        size: the bytes of all lines.
        checksum: the CRC-32 of these bytes.

    Raises:
        StorageError: the store refused.
    """

    def __init__(self, path: ObjectPath, size: int, checksum: int, lease: Lease) -> None:
        self.path = path
        self.size = size
        self.checksum = checksum
        self._folder = segment_folder(path)
        self._lease = lease
        self._turn = threading.Lock()  # lines come while a commit puts those before them
        self._open = True
        self._start = 0  # where the last piece begins
        self._last = b""  # its bytes
        self._stored = 0  # how many of them are in the store
        self.cut(size, checksum)

    def cut(self, committed: int, checksum: int) -> None:
        """Go back to the committed bytes, whose CRC-32 is given.

        Raises:
            StorageError: the store refused.
            RunStateError: the log is closed.
        """
        self.require_open()
        pieces = self._pieces()
        for start in [start for start in sorted(pieces, reverse=True) if start >= committed]:
            self._lease.remove(self._piece(start))
            del pieces[start]
        self._start, self._last = 0, b""
        end = 0
        for start in sorted(pieces):
            if start != end:
                break
            self._start, end = start, start + pieces[start]
        if end:
            self._last = self._piece(self._start).read_bytes()
        # A piece that lost its end is good up to the last whole line; nothing is computed from it.
        whole = self._last[: max(0, committed - self._start)]
        whole = whole[: whole.rfind(b"\n") + 1]
        if whole != self._last:
            self._lease.put(self._piece(self._start), whole)
        self._last, self._stored = whole, len(whole)
        self.size, self.checksum = self._start + len(whole), checksum
        if self.size < committed:
            for start in [start for start in pieces if start > self._start]:
                self._lease.remove(self._piece(start))
            self.checksum = 0
            for data in segments(self._folder, self.size):
                self.checksum = files.checksum(data, self.checksum)
            lost = committed - self.size
            text = f"the event log lost {lost} of the {committed} bytes that were committed"
            self.append({"event": "notice", "text": text})
        self._seal()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line; its "time" is now unless the record has one.

        Raises:
            FormatError: something in the record has no place in JSON.
            RunStateError: the log is closed.
        """
        self.require_open()
        line = encode(plain({"time": time.time(), **record}))
        with self._turn:
            self._last += line
            self.size += len(line)
            self.checksum = files.checksum(line, self.checksum)

    def sync(self) -> None:
        """Put every line so far into the store.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused; the lines are kept for the next time.
        """
        self.require_open()
        data = self._last
        if self._stored != len(data):
            self._lease.put(self._piece(self._start), data)
            self._stored = len(data)
        self._seal()

    def close(self) -> None:
        """Take no more lines; harmless if it is closed."""
        self._open = False

    def require_open(self) -> None:
        """Refuse to go on with a closed log.

        Raises:
            RunStateError: the log is closed.
        """
        if not self._open:
            raise RunStateError(
                f"the run {str(self.path.parent)!r} is closed; open it again to write to it"
            )

    def _seal(self) -> None:
        with self._turn:
            if self._stored >= SEGMENT_BYTES:
                self._start += self._stored
                self._last, self._stored = self._last[self._stored :], 0

    def _piece(self, start: int) -> ObjectPath:
        return self._folder / f"{start:016d}.jsonl"

    def _pieces(self) -> dict[int, int]:
        known = self._lease.known_below(self._folder)
        return {
            int(found.group(1)): self._lease.size_of(path)
            for path in known
            if (found := _NAME.fullmatch(path.name))
        }


def segments(folder: ObjectPath, stop: int | None = None, start: int = 0) -> Iterator[bytes]:
    """The bytes of a log from one offset up to another, in pieces, as far as they are there.

    Args:
        folder: of the pieces.
        stop: the end, None for all.
        start: the beginning.

    Raises:
        StorageError: the store refused.
    """
    sizes = {
        int(found.group(1)): stat.st_size
        for path, stat in folder.walk()
        if (found := _NAME.fullmatch(path.name))
    }
    place = 0
    for first in sorted(sizes):
        if first != place or (stop is not None and place >= stop):
            return
        if first + sizes[first] <= start and max(sizes) != first:
            place += sizes[first]
            continue
        try:
            data = (folder / f"{first:016d}.jsonl").read_bytes()
        except FileNotFoundError:  # cut this moment
            return
        place += len(data)
        end = len(data) if stop is None else stop - first
        yield data[max(0, start - first) : max(0, end)]


def write_segments(path: ObjectPath, data: bytes, writing: Writing) -> None:
    """Let a log hold these bytes and no others.

    Args:
        path: of the file that the log would be.
        data: all of its lines.
        writing: where the objects go through.

    Raises:
        StorageError: the store refused; what is left is a damaged log.
    """
    folder = segment_folder(path)
    writing.remove_tree(folder)
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + SEGMENT_BYTES) + 1 or len(data)
        writing.replace(folder / f"{start:016d}.jsonl", data[start:end])
        start = end


def read_segments(path: ObjectPath, offset: int = 0) -> tuple[bytes, int]:
    """The bytes of a log from an offset on, and the offset that they begin at.

    That is 0 if the log was cut since the offset was returned, which no line ends at any more.

    Args:
        path: of the file that the log would be.
        offset: 0, or one that a line ended at.

    Raises:
        StorageError: the store refused.
    """
    if offset > 0:
        data = b"".join(segments(segment_folder(path), start=offset - 1))
        if data[:1] == b"\n":
            return data[1:], offset
    return b"".join(segments(segment_folder(path))), 0
