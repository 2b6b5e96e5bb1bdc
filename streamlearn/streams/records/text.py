"""Bytes in pieces of any size as items, and the place of each, whichever way the bytes come."""

import hashlib
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from streamlearn.errors import FormatError
from streamlearn.state import StateTree

from .base import BadRow, Item
from .formats import TextFormat

__all__ = ["TextCursor", "TextReader"]

LONGEST_ROW = 128 * 1024
"""Bytes of a row of several lines; a quote that stays open for longer is an error."""

LONGEST_LINE = 16 * 1024 * 1024
_KEPT = 64 * 1024
_HEAD = 4096
_UNCLOSED = "a quote that it opens is not closed"


@dataclass(frozen=True, slots=True)
class TextCursor:
    """Where a text is after a row.

    offset: of the byte after it. line: number of the line after it, counted from 1. start, check:
    of the row's first byte, and the CRC-32 of its bytes, at most 65,536.
    """

    offset: int = 0
    line: int = 1
    start: int = 0
    check: int = 0


class TextReader:
    r"""Takes bytes in, gives items out; how the bytes were cut into pieces changes nothing.

    Lines end with \n only, as JSON Lines and CSV want it, so other separators that Unicode knows
    may stand in text.

    Attributes:
        items: those that are complete.
    """

    def __init__(self, text_format: TextFormat, where: str) -> None:
        self.format = text_format
        self.where = where
        self.items: deque[Item] = deque()
        self._head = b""  # the first bytes of all
        self.seek(TextCursor())

    @property
    def begun(self) -> bool:
        """Whether any bytes came."""
        return self._at > 0

    def seek(self, cursor: TextCursor) -> None:
        """Expect the bytes from that place on, and forget what is incomplete."""
        self.items.clear()
        self._cursor = cursor
        self._at = cursor.offset  # of the next byte that comes
        self._rest = bytearray()
        self._cut = 0  # bytes of an endless line that were let go
        self._row: list[tuple[bytes, int]] = []  # lines of an incomplete row, and their lengths
        self._length = 0  # of these together

    def feed(self, data: bytes) -> None:
        """The next bytes.

        Raises:
            DataError: they are no file of this format at all.
        """
        known = len(self._head)
        if self._at <= known < _HEAD:
            self._head += data[known - self._at : _HEAD - self._at]
        self._at += len(data)
        self._rest += data
        if b"\n" in data:
            lines = bytes(self._rest).split(b"\n")
            self._rest = bytearray(lines.pop())
            self._take(deque((line + b"\n", len(line) + 1) for line in lines))
        if len(self._rest) > LONGEST_LINE:
            self._cut += len(self._rest) - _KEPT
            del self._rest[_KEPT:]

    def finish(self) -> None:
        """There are no more bytes: what is left is the last row."""
        lines: deque[tuple[bytes, int]] = deque()
        if self._rest:
            lines.append((bytes(self._rest), len(self._rest)))
            self._rest = bytearray()
        self._take(lines)
        while self._row:
            self._give_up(lines, _UNCLOSED)
            self._take(lines)

    def _take(self, lines: deque[tuple[bytes, int]]) -> None:
        """Make rows of lines."""
        while lines:
            line, length = lines.popleft()
            if self._cut:  # only the first line of all can be one that was cut
                length, self._cut = length + self._cut, 0
            self._row.append((line, length))
            self._length += length
            if length > LONGEST_LINE:
                first = len(self._row) == 1
                reason = f"the line is longer than {LONGEST_LINE >> 20} MiB" if first else _UNCLOSED
                self._give_up(lines, reason)
            elif not self.format.goes_on(line, len(self._row) > 1):
                row = line if len(self._row) == 1 else b"".join(part for part, _ in self._row)
                length, count = self._length, len(self._row)
                self._row, self._length = [], 0
                self._emit(row, length, count)
            elif self._length > LONGEST_ROW:
                self._give_up(lines, f"{_UNCLOSED} within {LONGEST_ROW >> 10} KiB")

    def _give_up(self, lines: deque[tuple[bytes, int]], reason: str) -> None:
        """Leave out the first line of the row, and read those after it again."""
        (line, length), *later = self._row
        lines.extendleft(reversed(later))
        self._row, self._length = [], 0
        self._emit(line[:_KEPT] if length > LONGEST_LINE else line, length, 1, reason)

    def _emit(self, row: bytes, length: int, lines: int, reason: str = "") -> None:
        """One row is complete: an item, unless it is a header."""
        before = self._cursor
        kept = row if len(row) <= _KEPT else row[:_KEPT]
        self._cursor = cursor = TextCursor(
            before.offset + length, before.line + lines, before.offset, zlib.crc32(kept)
        )
        values: dict[str, Any] | None = None
        if not reason:
            try:
                values = self.format.values(row)
                if values is None:
                    return
            except BadRow as error:
                reason = str(error)
        self.items.append(
            Item(
                values,
                f"line {before.line} of {self.where}",
                reason,
                row.removesuffix(b"\n").removesuffix(b"\r"),
                cursor,
            )
        )

    def state(self, cursor: TextCursor) -> StateTree:
        """The place, and checksums of the first bytes and of those of the row before it."""
        first = self._head[: cursor.offset]
        return {
            "offset": cursor.offset,
            "line": cursor.line,
            "start": cursor.start,
            "check": cursor.check,
            "first": len(first),
            "digest": hashlib.sha256(first).hexdigest(),
            "format": self.format.state(),
        }

    def restore(self, state: StateTree, size: int, read: Callable[[int, int], bytes]) -> TextCursor:
        """Stand at the place of a state, in bytes that can be read anywhere.

        Args:
            state: from `state`.
            size: how many bytes there are.
            read: given where and how many.

        Raises:
            FormatError: they are not the bytes that were read until there.
        """
        cursor = cursor_of(state)
        first, offset = int(state["first"]), cursor.offset
        head = read(0, min(_HEAD, size))
        last = read(cursor.start, min(offset - cursor.start, _KEPT))
        if offset > size:
            raise self._other(f"has {size:,} bytes but {offset:,} were read")
        if hashlib.sha256(head[:first]).hexdigest() != state["digest"]:
            raise self._other("begins with other bytes than it did")
        if zlib.crc32(last) != cursor.check:
            raise self._other(f"has other bytes before byte {offset:,} than it had")
        after = read(offset - 1, 3) if offset else b"\n"
        if after[:1] != b"\n" and len(after) > 1:  # a last line without an end has one now
            ended = next((end for end in (b"\n", b"\r\n") if after[1:].startswith(end)), None)
            if ended is None:
                raise self._other(f"has had more written to line {cursor.line - 1:,}, its last")
            cursor = replace(cursor, offset=offset + len(ended), check=zlib.crc32(last + ended))
        self.format.restore(state["format"], again=offset == 0)
        self.seek(cursor)
        self._head = head
        return cursor

    def go_on(self, state: StateTree) -> None:
        """Begin with other bytes, in the format that a state knows."""
        cursor_of(state)
        self.format.restore(state["format"], again=True)

    def _other(self, problem: str) -> FormatError:
        return FormatError(
            f"{self.where} {problem}; give back the data that the run was learning, or pipe other "
            "rows into it (cat FILE | … data.path=-)"
        )


def cursor_of(state: StateTree) -> TextCursor:
    """The place that a state says.

    Raises:
        FormatError: it says none.
    """
    try:
        cursor = TextCursor(*(int(state[key]) for key in ("offset", "line", "start", "check")))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            "the state has no place in a text to resume at; it is damaged or of another kind of "
            "data, fall back to an earlier commit"
        ) from error
    if not 0 <= cursor.start <= cursor.offset:
        raise FormatError(
            f"the cursor stands at byte {cursor.offset} of a row that begins at {cursor.start}; "
            "the state is damaged, fall back to an earlier commit"
        )
    return cursor
