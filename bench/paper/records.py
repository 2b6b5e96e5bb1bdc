"""Finished measurements as JSON lines: appended at once, so that a stopped measurement goes on."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Record", "append", "find", "read"]

Record = dict[str, Any]


def append(path: Path, record: Record) -> None:
    """Add a record and see it on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = path.exists() and not path.read_bytes().endswith(b"\n")  # by a crash
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * cut + json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Record]:
    """All records, none where there is no file; a last line cut short by a crash is left out."""
    return list(_lines(path)) if path.exists() else []


def _lines(path: Path) -> Iterator[Record]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record


def find(records: Sequence[Record], row: str, words: Sequence[str], seed: int) -> Record | None:
    """The record of these words and seed, if it was made."""
    for record in records:
        if (record["row"], record["words"], record["seed"]) == (row, list(words), seed):
            return record
    return None
