"""How the bytes of a text file become rows: JSON Lines and CSV."""

import csv
import json
from collections.abc import Sequence
from typing import Any, Protocol

from streamlearn.errors import ConfigError, DataError, FormatError
from streamlearn.state import StateTree

from .base import BadRow
from .values import flat

__all__ = ["Delimited", "JsonLines", "TextFormat", "check_delimiter"]

_DELIMITERS = ",;\t|"
_BOM = b"\xef\xbb\xbf"
_FOREIGN = {
    b"\x1f\x8b": "is compressed by gzip; unpack it, such as by gunzip -c FILE | … data.path=-",
    b"\xff\xfe": "is UTF-16; convert it, such as by iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16; convert it, such as by iconv -f UTF-16 -t UTF-8",
    b"PAR1": "is a Parquet file; set data=parquet",
    b"PK\x03\x04": "is a zip file; unpack it",
}


class TextFormat(Protocol):
    """Rows of one text format, each of one line or, where `goes_on` says so, of several."""

    columns: tuple[str, ...] | None

    def goes_on(self, line: bytes, later: bool) -> bool:
        """Whether the row needs the next line too; `later`: this line is not the row's first."""
        ...

    def values(self, row: bytes) -> dict[str, Any] | None:
        """The row's values by column, None for a row that is no item (a header).

        Raises:
            BadRow: it cannot be used.
            DataError: nor can the whole file.
        """
        ...

    def state(self) -> StateTree:
        """What was learnt from the beginning of the file."""
        ...

    def restore(self, state: StateTree, *, again: bool) -> None:
        """Know that; `again`: the file may begin once more."""
        ...


class JsonLines:
    """An object a line.

    Numbers and labels keep their types, whole numbers of any size their digits; NaN and Infinity
    are missing. Nested objects become columns by dotted names, lists are left out by the schema.
    Bad rows: blank lines, broken JSON, what is no object, a name given twice, and text that is no
    Unicode.
    """

    def __init__(self, where: str) -> None:
        self.columns: tuple[str, ...] | None = None
        self._where = where
        self._begun = False

    def goes_on(self, line: bytes, later: bool) -> bool:
        """Never."""
        return False

    def values(self, row: bytes) -> dict[str, Any] | None:
        """The object."""
        if not self._begun:
            row = _without_mark(row, self._where)
            self._begun = True
        text = _decoded(row)
        if not text.strip():
            raise BadRow("the line is blank")
        try:
            record = _DECODER.decode(text)
        except RecursionError:
            raise BadRow("it is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise BadRow(f"it is no JSON ({error.msg} at character {error.pos + 1})") from None
        except ValueError as error:  # a whole number of more digits than Python takes
            raise BadRow(f"it holds a number that cannot be read ({error})") from None
        if not isinstance(record, dict):
            raise BadRow(f"it is {_KINDS[type(record)]}, not an object")
        if "\\u" in text:
            try:
                json.dumps(record, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                raise BadRow("its text has half of a surrogate pair") from None
        return flat(record)

    def state(self) -> StateTree:
        """Nothing."""
        return {}

    def restore(self, state: StateTree, *, again: bool) -> None:
        """Only a file that begins may have a byte order mark."""
        self._begun = not again


class Delimited:
    """CSV as Python's csv module reads it, with a header; values are text, empty ones missing.

    A row may go over several lines inside quotes. Bad rows: blank lines, another number of fields
    than the header has, text that is no UTF-8, and a quote that is not closed within 128 KiB or to
    the end, of which only the first line is lost.

    Args:
        where: the file, for messages.
        delimiter: one character; None finds it in the header, among , ; tab and |.
    """

    def __init__(self, where: str, delimiter: str | None = None) -> None:
        self.columns: tuple[str, ...] | None = None
        self._where = where
        self._delimiter = delimiter
        self._again = False
        self._begun = False

    def goes_on(self, line: bytes, later: bool) -> bool:
        """Whether a quote is open after the line, of which the csv module is asked."""
        if b'"' not in line:
            return later
        text = (line if self._begun else line.removeprefix(_BOM)).decode("latin-1")
        if self._delimiter is None:
            self._delimiter = _delimiter_of(text)
        try:
            # An open quote takes the second line into the same row; a row goes on within one.
            lines = ['"' * later + text, "x"]
            return len(list(csv.reader(lines, delimiter=self._delimiter))) == 1
        except csv.Error:
            return False

    def values(self, row: bytes) -> dict[str, Any] | None:
        """The fields by the header's names."""
        if not self._begun:
            row = _without_mark(row, self._where)
            self._begun = True
            if self.columns is None:
                self.columns = self._header(row)
                return None
        fields = self._fields(_decoded(row))
        columns = self.columns or ()
        if self._again:
            self._again = False
            if sorted(_names(fields)) == sorted(columns):
                self.columns = tuple(_names(fields))
                return None
        if not fields:
            raise BadRow("the line is blank")
        if len(fields) != len(columns):
            raise BadRow(f"it has {len(fields)} fields, the header {len(columns)}")
        return {name: field or None for name, field in zip(columns, fields, strict=True)}

    def _fields(self, text: str) -> list[str]:
        try:
            return next(csv.reader([text], delimiter=self._delimiter or ","), [])
        except csv.Error as error:
            raise BadRow(f"it is no CSV ({error})") from None

    def _header(self, row: bytes) -> tuple[str, ...]:
        try:
            text = _decoded(row)
            if "\r" in text.rstrip("\r\n"):
                raise BadRow("its lines end with carriage returns; convert it by tr '\\r' '\\n'")
            if text.lstrip().startswith("{") and text.rstrip().endswith("}"):
                raise BadRow("it is JSON; set data=jsonl")
            if self._delimiter is None:
                self._delimiter = _delimiter_of(text)
            names = _names(self._fields(text))
        except BadRow as error:
            raise DataError(f"{self._where} has no header that can be read: {error}") from None
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise DataError(
                f"{self._where} has the column {twice[0]!r} twice; give each column another name"
            )
        if len(names) < 2:
            raise DataError(
                f"the header of {self._where} has {len(names)} column, {', '.join(names)!r}, but a "
                "target and a feature are needed; name the separator by data.delimiter"
            )
        return tuple(names)

    def state(self) -> StateTree:
        """The header and the delimiter."""
        return {"header": list(self.columns or ()), "delimiter": self._delimiter}

    def restore(self, state: StateTree, *, again: bool) -> None:
        """Know both; a header that comes again is none of the rows."""
        header = tuple(state.get("header", ())) or None
        if self.columns is not None and header is not None and header != self.columns:
            raise FormatError(
                f"{self._where} has other columns than when the run began: {self.columns}, not "
                f"{header}; give that file back"
            )
        self.columns = header or self.columns
        self._delimiter = state.get("delimiter") or self._delimiter
        self._begun = not again
        self._again = again and header is not None


def check_delimiter(delimiter: str | None) -> str | None:
    r"""A delimiter as the csv module takes it; "tab" and "\t" are one too.

    Raises:
        ConfigError: it is not one character that can be one.
    """
    if delimiter is None:
        return None
    delimiter = {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ConfigError(
            f"data.delimiter={delimiter!r} must be one character such as , ; | or tab; leave it "
            "out to have it found in the header"
        )
    return delimiter


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise BadRow(f"it names {twice!r} twice")
    return record


# A decoder of its own, since json.loads makes one at each call.
_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=lambda _: None)
_KINDS = {
    list: "a list",
    str: "text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _decoded(row: bytes) -> str:
    try:
        return row.decode()
    except UnicodeDecodeError as error:
        raise BadRow(
            f"byte {error.start + 1} of it is {row[error.start]:#04x}, which is no UTF-8"
        ) from None


def _without_mark(row: bytes, where: str) -> bytes:
    """The first row without a byte order mark, if the file is text at all."""
    for mark, remedy in _FOREIGN.items():
        if row.startswith(mark):
            raise DataError(f"{where} {remedy}")
    return row.removeprefix(_BOM)


def _delimiter_of(header: str) -> str:
    """What splits a header into most columns, the earlier of , ; tab | where equally many."""
    line = header.split("\n")[0]

    def columns(delimiter: str) -> int:
        try:
            return len(next(csv.reader([line], delimiter=delimiter, strict=True), []))
        except csv.Error:
            return 0

    return max(_DELIMITERS, key=columns)


def _names(fields: Sequence[str]) -> list[str]:
    return [name.strip() or f"column {place}" for place, name in enumerate(fields, start=1)]
