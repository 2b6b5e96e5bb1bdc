"""Text records out of files, and out of pipes, which a thread reads as far as there is room."""

import contextlib
import os
import queue
import stat
import threading
import time
from pathlib import Path
from typing import BinaryIO

from streamlearn.errors import DataError
from streamlearn.state import StateTree

from .base import Cursor, Item
from .formats import TextFormat
from .text import TextCursor, TextReader

__all__ = ["TextFile", "TextPipe", "is_regular"]

_CHUNK = 64 * 1024
_HELD_CHUNKS = 16
"""With `_CHUNK`, the most bytes that wait to be read: 1 MiB. Whoever writes more has to wait."""

OLDEST_SECONDS = 0.5
IDLE_SECONDS = 1.0


def is_regular(file: BinaryIO) -> bool:
    """Whether a file can be read at any place: no pipe, terminal or device."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (OSError, AttributeError):  # held in memory
        return file.seekable()


class _TextSource:
    """What files and pipes have in common."""

    count: int | None = None
    regression: bool | None = None

    def __init__(self, file: BinaryIO | None, text_format: TextFormat, name: str) -> None:
        self.name = name
        self._file = file
        self._reader = TextReader(text_format, name)
        self._done = False
        self.hints: dict[str, str] = {}

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The header, where there is one."""
        return self._reader.format.columns

    @property
    def ended(self) -> bool:
        """Whether all rows were pulled."""
        return self._done and not self._reader.items

    def _taken(self, count: int) -> list[Item]:
        items = self._reader.items
        return [items.popleft() for _ in range(min(count, len(items)))]

    def _finish(self) -> None:
        self._done = True
        self._reader.finish()

    def state(self, cursor: Cursor, position: int) -> StateTree:
        """The byte offset, the line number and checksums of what was read."""
        return self._reader.state(cursor or TextCursor())


class TextFile(_TextSource):
    """A regular file: what comes out depends on its bytes alone.

    Args:
        file: opened for reading, standing where the text begins.
        text_format: of its rows.
        name: for people.
        own: whether it is closed with this source.
    """

    waits = False

    def __init__(
        self, file: BinaryIO, text_format: TextFormat, name: str, *, own: bool = True
    ) -> None:
        super().__init__(file, text_format, name)
        self._own = own
        self._lock = threading.Lock()  # read ahead in a thread, while another asks for the state
        self._base = file.tell()
        self._next = 0

    def pull(self, count: int, *, wait: bool = True) -> list[Item]:
        """The next rows; it looks one further, so as to know the last one."""
        while not self._done and len(self._reader.items) <= count:
            data = self._read(self._next, _CHUNK)
            self._next += len(data)
            if data:
                self._reader.feed(data)
            else:
                self._finish()
        return self._taken(count)

    def _read(self, offset: int, count: int) -> bytes:
        file = self._file
        if file is None:
            raise DataError(f"{self.name} was closed; open it again")
        try:
            with self._lock:
                file.seek(self._base + offset)
                return file.read(count)
        except OSError as error:
            raise DataError(
                f"{self.name} cannot be read at byte {offset:,} ({error.strerror}); mend the disk "
                "or give a copy"
            ) from error

    def restore(self, state: StateTree, position: int) -> Cursor:
        """Go to the byte after the last row that was handed out."""
        size = self._size()
        cursor = self._reader.restore(state, size, self._read)
        self._next = cursor.offset
        self._done = False
        return cursor

    def _size(self) -> int:
        if self._file is None:
            return 0
        with self._lock:
            return self._file.seek(0, os.SEEK_END) - self._base

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and self._own:
            self._file.close()
        self._file = None


class TextPipe(_TextSource):
    """A pipe, a terminal or a named pipe, read by a thread into at most 1 MiB.

    Once that is full nothing more is read, so whoever writes waits. A pipe cannot go back: one that
    resumes goes on with what comes, and a header that comes again is none of the rows. What the
    earlier run had taken in and not handed out, and what the writer sends again, it cannot know; so
    resume from a file where every row counts.

    Args:
        file: opened for reading, or the path of a named pipe, which is opened by the thread.
        text_format: of its rows.
        name: for people.
    """

    waits = True

    def __init__(self, file: BinaryIO | Path, text_format: TextFormat, name: str) -> None:
        super().__init__(None, text_format, name)
        self._chunks: queue.Queue[tuple[float, bytes | OSError]] = queue.Queue(_HELD_CHUNKS)
        self._closed = threading.Event()
        self._oldest = 0.0  # when the first row that waits came
        self._before: StateTree | None = None  # of the pipe that an earlier run read
        thread = threading.Thread(target=self._fill, args=(file,), name="read-records", daemon=True)
        thread.start()

    def _fill(self, file: BinaryIO | Path) -> None:
        """Until the end: bytes as they come, then none."""
        data: bytes | OSError = b"-"
        with contextlib.ExitStack() as stack:
            try:
                if isinstance(file, Path):
                    file = stack.enter_context(open(file, "rb", buffering=0))
                # Not by the file object: a thread that waits in one holds its lock at exit.
                number = _number_of(file)
            except OSError as error:
                self._put(error)
                return
            while data and not isinstance(data, OSError):
                try:
                    data = file.read(_CHUNK) if number is None else os.read(number, _CHUNK)
                except OSError as error:
                    data = error
                if not self._put(data):
                    return

    def _put(self, data: bytes | OSError) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._chunks.put((time.monotonic(), data), timeout=0.2)
                return True
        return False

    def pull(self, count: int, *, wait: bool = True) -> list[Item]:
        """The rows that came, see `Source.pull`."""
        items = self._reader.items
        idle = time.monotonic() + IDLE_SECONDS
        while not self._done and len(items) < count:
            until = self._oldest + OLDEST_SECONDS if items else idle
            left = until - time.monotonic() if wait else 0.0
            try:
                when, data = self._chunks.get(left > 0, max(left, 0.001))
            except queue.Empty:
                break
            if isinstance(data, OSError):
                raise DataError(f"{self.name} cannot be read ({data.strerror}); give it again")
            if not items:
                self._oldest = when
            if data:
                self._reader.feed(data)
            else:
                self._finish()
        return self._taken(count)

    def state(self, cursor: Cursor, position: int) -> StateTree:
        """The place in this pipe, or that in the one before until a row of this one was used."""
        return super().state(cursor, position) if cursor or not self._before else self._before

    def restore(self, state: StateTree, position: int) -> Cursor:
        """Go on with what comes."""
        self._before = state
        if not self._reader.begun:
            self._reader.go_on(state)
        return None

    def close(self) -> None:
        """Let the thread end; one that waits for a writer ends with the program."""
        self._closed.set()


def _number_of(file: BinaryIO) -> int | None:
    try:
        return file.fileno()
    except (OSError, AttributeError):
        return None
