"""Streams of records by their settings."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from streamlearn.errors import ConfigError, DataError, DataNotFoundError
from streamlearn.streams.base import OnError
from streamlearn.streams.splits import given_path, unknown_word

from .base import Source
from .formats import Delimited, JsonLines, TextFormat, check_delimiter
from .generators import TARGET, RiverGenerator
from .inputs import TextFile, TextPipe, is_regular
from .parquet import ParquetFiles
from .schema import Targets, TaskName
from .stream import RecordStream
from .watch import EXTENSIONS, WatchedFolder

__all__ = ["RECORD_KINDS", "RecordKind", "open_records"]

RecordKind = Literal["jsonl", "csv", "parquet", "watch", "generator"]
RECORD_KINDS: tuple[str, ...] = get_args(RecordKind)


def open_records(
    kind: RecordKind,
    *,
    path: str | None = None,
    target: str | None = None,
    task: TaskName = "auto",
    name: str | None = None,
    seed: int = 0,
    limit: int | None = None,
    on_error: OnError = "skip",
    ignore: tuple[str, ...] = (),
    delimiter: str | None = None,
    idle_seconds: float | None = None,
    stdin: BinaryIO | None = None,
) -> RecordStream:
    """A stream of records.

    The schema of files and generators is known at once; that of pipes and of a watched folder when
    the first rows have come, see `RecordStream.settle`.

    Args:
        kind: "jsonl", "csv", "parquet", "watch" (a folder of these) or "generator".
        path: of the file or folder; "-" is standard input, for jsonl and csv. A file that is
            redirected there is read as a file.
        target: the column to learn.
        task: "classes", "numbers", or "auto": numbers if all labels of the first rows are and one
            is no integer.
        name: of a generator, see `RiverGenerator`.
        seed: of a generator.
        limit: stop after this many items.
        on_error: what happens with bad rows.
        ignore: columns to leave out, nested objects with all that is in them.
        delimiter: of CSV; None finds it in the header.
        idle_seconds: a watched folder ends when nothing has come for so long; None: never.
        stdin: standard input, None for that of the process.

    Raises:
        ConfigError: settings that mean nothing together, or a target that is none of the columns.
        DataNotFoundError: there is no such file or folder.
        DataError: it is empty, or cannot be read.
    """
    if kind not in RECORD_KINDS:
        raise unknown_word("data", kind, RECORD_KINDS)
    if delimiter is not None and kind not in ("csv", "watch"):
        raise ConfigError(
            f"data.delimiter={delimiter!r} means nothing for data={kind}; set data=csv"
        )
    if idle_seconds is not None and kind != "watch":
        raise ConfigError(
            f"data.idle_seconds={idle_seconds} means nothing for data={kind}; set data=watch"
        )
    delimiter = check_delimiter(delimiter)
    source: Source
    if kind == "generator":
        if name is None:
            raise ConfigError("data=generator needs data.name, such as SEA or RandomRBFDrift")
        if target not in (None, TARGET):
            raise ConfigError(
                f"data.target={target} means nothing for data=generator; leave it out"
            )
        target = TARGET
        source = RiverGenerator(name, seed)
    elif path is None:
        what = "FOLDER" if kind == "watch" else "FILE"
        raise ConfigError(f"data={kind} needs data.path={what}")
    elif kind == "watch":
        source = _watched(_there(path), delimiter, idle_seconds)
    elif kind == "parquet":
        source = _parquet(path)
    elif path == "-":
        if stdin is None and sys.stdin is None:
            raise ConfigError("standard input is closed; pipe rows into it, or give data.path=FILE")
        if stdin is None and sys.stdin.isatty():
            raise ConfigError(
                "data.path=- reads standard input, which is this terminal; pipe rows into it, or "
                "give data.path=FILE"
            )
        file = sys.stdin.buffer if stdin is None else stdin
        text_format = _format(kind, "standard input", delimiter)
        source = (
            TextFile(file, text_format, "standard input", own=False)
            if is_regular(file)
            else TextPipe(file, text_format, "standard input")
        )
    else:
        source = _text(_there(path), kind, delimiter)
    stream = RecordStream(source, Targets(target, task, ignore), limit=limit, on_error=on_error)
    if not source.waits:
        try:
            stream.settle()
        except BaseException:
            stream.close()
            raise
    return stream


def _format(kind: str, where: str, delimiter: str | None) -> TextFormat:
    return Delimited(where, delimiter) if kind == "csv" else JsonLines(where)


def _there(path: str) -> Path:
    """A path that exists.

    Raises:
        DataNotFoundError: it does not.
    """
    place = given_path(Path(path))
    if not place.exists():
        raise DataNotFoundError(f"there is no {place}; give data that is there by data.path=…")
    return place


def _text(path: Path, kind: str, delimiter: str | None) -> Source:
    if path.is_dir():
        raise DataError(
            f"{path} is a folder; give a file, or set data=watch to learn what comes into it"
        )
    text_format = _format(kind, path.name, delimiter)
    if not path.is_file():  # a named pipe, or what a shell makes of <(command)
        return TextPipe(path, text_format, str(path))
    try:
        return TextFile(open(path, "rb"), text_format, path.name)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); allow reading it") from error


def _parquet(path: str) -> Source:
    if path == "-":
        raise ConfigError(
            "Parquet files cannot be read from standard input, since their end says where rows "
            "are; give data.path=FILE"
        )
    place = _there(path)
    if not place.is_dir():
        return ParquetFiles(place.name, [place])
    try:
        files = sorted(
            found
            for found in place.iterdir()
            if found.suffix.lower() == ".parquet" and not found.name.startswith(".")
        )
    except OSError as error:
        raise DataError(f"{place} cannot be read ({error.strerror}); allow reading it") from error
    if not files:
        raise DataError(f"there are no .parquet files in {place}; give a folder that has some")
    return ParquetFiles(place.name, files)


def _watched(folder: Path, delimiter: str | None, idle_seconds: float | None) -> Source:
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; to learn one file set data=jsonl, csv or parquet")
    if idle_seconds is not None and not idle_seconds >= 0:
        raise ConfigError(f"data.idle_seconds={idle_seconds} must be 0 or more seconds")

    def opened(path: Path) -> Source:
        kind = EXTENSIONS[path.suffix.lower()]
        if kind == "parquet":
            return ParquetFiles(path.name, [path])
        return _text(path, kind, delimiter)

    factory: Callable[[Path], Source] = opened
    return WatchedFolder(folder, factory, idle_seconds)
