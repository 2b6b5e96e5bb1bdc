"""Rows of Parquet files, by pyarrow."""

import hashlib
import importlib
import json
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlearn.errors import ConfigError, DataError, FormatError
from streamlearn.state import StateTree

from .base import Cursor, Item

__all__ = ["ParquetCursor", "ParquetFiles"]

_ROWS = 1024
_HEAD = 4096


@dataclass(frozen=True, slots=True)
class ParquetCursor:
    """Rows that were read of the file of this number, counted from 0."""

    file: int = 0
    row: int = 0


class ParquetFiles:
    """Files in the order given, each row after row, as if they were one.

    Columns go by name, so files may have them in another order or lack some. Decimals are floats,
    timestamps, dates and durations are seconds (since 1970 UTC, where that means something), values
    of dictionaries are themselves; lists, structures, maps and bytes are left out.

    Args:
        name: for people.
        paths: of the files, at least one.

    Raises:
        ConfigError: pyarrow is not there.
        DataError: a file cannot be read as Parquet.
    """

    waits = False
    regression: bool | None = None

    def __init__(self, name: str, paths: list[Path]) -> None:
        try:
            self._arrow: Any = importlib.import_module("pyarrow")
            self._parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise ConfigError(
                "Parquet files are read by pyarrow, which is not installed: pip install "
                "'streamlearn[parquet]'"
            ) from error
        self.name = name
        self._paths = paths
        self._items: deque[Item] = deque()
        self.hints: dict[str, str] = {}
        counts: list[int] = []
        columns: dict[str, None] = {}
        for path in paths:
            with self._open(path) as file:
                counts.append(file.metadata.num_rows)
                for field in file.schema_arrow:
                    columns[field.name] = None
                    if kind := self._hint(field.type):
                        self.hints.setdefault(field.name, kind)
                names = [field.name for field in file.schema_arrow]
                if len(set(names)) < len(names):
                    twice = next(n for place, n in enumerate(names) if n in names[:place])
                    raise DataError(
                        f"{path} has the column {twice!r} twice; give each column another name"
                    )
        self._counts = counts
        self._prints = [_fingerprint(path) for path in paths]
        self.count: int | None = sum(counts)
        self.columns: tuple[str, ...] | None = tuple(columns)
        self._start(ParquetCursor())

    def _open(self, path: Path) -> Any:
        try:
            with open(path, "rb"):  # its own error says what is to be done
                pass
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}); allow reading it"
            ) from error
        try:
            return self._parquet.ParquetFile(path)
        except (OSError, self._arrow.ArrowException) as error:
            raise DataError(
                f"{path} cannot be read as Parquet ({_first_line(error)}); write it again, or "
                "set data=csv or data=jsonl if it is text"
            ) from error

    def _hint(self, kind: Any) -> str | None:
        types = self._arrow.types
        if types.is_dictionary(kind):
            kind = kind.value_type
        if types.is_nested(kind) or any(
            check(kind)
            for check in (
                types.is_binary,
                types.is_large_binary,
                types.is_fixed_size_binary,
            )
        ):
            return "nested"
        return "time" if types.is_temporal(kind) else None

    @property
    def ended(self) -> bool:
        """Whether all rows were pulled."""
        return self._left == 0

    def _start(self, cursor: ParquetCursor) -> None:
        self._items.clear()
        self._left = sum(self._counts[cursor.file :]) - cursor.row
        self._batches = self._read(cursor)

    def pull(self, count: int, *, wait: bool = True) -> list[Item]:
        """The next rows."""
        while len(self._items) < count and (items := next(self._batches, None)) is not None:
            self._items += items
        taken = [self._items.popleft() for _ in range(min(count, len(self._items)))]
        self._left -= len(taken)
        return taken

    def _read(self, cursor: ParquetCursor) -> Generator[list[Item], None, None]:
        """Rows from a place on, row groups before it not even read."""
        for number in range(cursor.file, len(self._paths)):
            path = self._paths[number]
            skip = cursor.row if number == cursor.file else 0
            with self._open(path) as file:
                meta = file.metadata
                groups = list(range(meta.num_row_groups))
                row = 0
                while groups and row + meta.row_group(groups[0]).num_rows <= skip:
                    row += meta.row_group(groups.pop(0)).num_rows
                if not groups:
                    continue
                # Nested columns are read by their roots, of which none is used.
                names = [
                    field.name for field in file.schema_arrow if self._hint(field.type) != "nested"
                ]
                try:
                    for batch in file.iter_batches(_ROWS, row_groups=groups, columns=names):
                        values = self._values(batch)
                        yield [
                            Item(
                                dict(zip(names, fields, strict=True)),
                                f"row {row + place + 1} of {path.name}",
                                "",
                                None,
                                ParquetCursor(number, row + place + 1),
                            )
                            for place, fields in enumerate(values)
                            if row + place >= skip
                        ]
                        row += batch.num_rows
                except (OSError, self._arrow.ArrowException) as error:
                    raise DataError(
                        f"{path} is damaged after row {row} ({_first_line(error)}); write it again"
                    ) from error

    def _values(self, batch: Any) -> Iterator[tuple[Any, ...]]:
        """Rows of a batch of columns, as Python values."""
        types = self._arrow.types
        columns = []
        for column in batch.columns:
            if types.is_dictionary(column.type):
                column = column.dictionary_decode()
            kind = column.type
            if types.is_decimal(kind):
                column = column.cast(self._arrow.float64())
            scale = 1.0
            if types.is_temporal(kind):
                column, scale = self._seconds(column)
            values = column.to_pylist()
            if scale != 1.0:
                values = [None if value is None else value / scale for value in values]
            columns.append(values)
        return zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)

    def _seconds(self, column: Any) -> tuple[Any, float]:
        """A column of times as whole numbers, and how many of them are a second."""
        types, kind = self._arrow.types, column.type
        if types.is_date(kind):
            column = column.cast(self._arrow.timestamp("ms"))
            kind = column.type
        whole = self._arrow.int32() if types.is_time32(kind) else self._arrow.int64()
        return column.cast(whole), {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[kind.unit]

    def state(self, cursor: Cursor, position: int) -> StateTree:
        """The file, the row, and what the file begins with."""
        cursor = cursor or ParquetCursor()
        path = self._paths[cursor.file]
        return {
            "file": cursor.file,
            "row": cursor.row,
            "path": path.name,
            "rows": self._counts[: cursor.file + 1],
            **self._prints[cursor.file],
        }

    def restore(self, state: StateTree, position: int) -> Cursor:
        """Go to the row after the last one that was handed out."""
        try:
            cursor = ParquetCursor(int(state["file"]), int(state["row"]))
            known = str(state["path"])
            print_of = {key: state[key] for key in ("size", "digest")}
            rows = list(state["rows"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                "the state has no place in Parquet files to resume at; it is damaged or of another "
                "kind of data, fall back to an earlier commit"
            ) from error
        path = self._paths[cursor.file] if 0 <= cursor.file < len(self._paths) else None
        if (
            path is None
            or path.name != known
            or self._counts[: cursor.file + 1] != rows
            or self._prints[cursor.file] != print_of
        ):
            raise FormatError(
                f"{self.name} has other data up to {known} than the run was learning; give it back"
            )
        self._start(cursor)
        return cursor

    def close(self) -> None:
        """Close the file that is open."""
        self._batches.close()
        self._items.clear()


def row_as_json(values: dict[str, Any]) -> str:
    """A row as it is shown to people."""
    return json.dumps(values, ensure_ascii=False, default=str)


def _fingerprint(path: Path) -> StateTree:
    """A file's size and its first bytes' checksum: Parquet files are never written to."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
        return {"size": path.stat().st_size, "digest": hashlib.sha256(head).hexdigest()}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give it back") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
