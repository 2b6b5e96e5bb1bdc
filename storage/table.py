"""What the shards of a layer hold: a table in memory, and its append-only file.

For each column and shard the table knows the version of the file that counts, how many of its rows
are known and the CRC-32C of these. A shard that is full never changes in its version, so the file
only takes a record when a shard fills up or gets a new version: a commit costs what changed. What
the last, partly filled shard holds stands in the manifest itself. A commit is a number of records.

A record is four little-endian uint32: shard, column (by its place), version, CRC-32C. The last
record of a shard and column counts. A file with more old records than new ones is begun anew, under
another name, so that it stays as long as the layer, not as the run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from streamlearn.errors import FormatError, RunStateError

from . import files
from .manifest import LayerEntry, ShardVersion, TableEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .objects import RunPath
    from .writing import Writing

__all__ = ["RECORD_BYTES", "ShardTable", "read_records"]

RECORD_BYTES = 16
_RECORD = np.dtype([("shard", "<u4"), ("column", "<u4"), ("version", "<u4"), ("checksum", "<u4")])
_SPARE = 4096
"""Records that a file may always have beside those that count."""


def read_records(path: RunPath, entry: TableEntry) -> NDArray[Any]:
    """The committed records of a table's file.

    Raises:
        FormatError: the file is missing or damaged; names it.
        StorageError: the system refused.
    """
    if not entry.records:
        return np.empty(0, _RECORD)
    size = entry.records * RECORD_BYTES
    try:
        data = files.read_bytes(path)
    except FileNotFoundError as error:
        raise FormatError(f"{str(path)!r} is missing; put back a copy of this file") from error
    if len(data) < size or f"{files.checksum(data[:size]):08x}" != entry.checksum:
        raise FormatError(
            f"{str(path)!r} is damaged (its checksum does not fit); put back a copy of this file"
        )
    return np.frombuffer(data[:size], _RECORD)


class ShardTable:
    """The table of one layer.

    Args:
        root: the run.
        entry: the layer as it is committed.

    Raises:
        FormatError: the file is missing or damaged, or does not cover the committed rows.
    """

    def __init__(self, root: RunPath, entry: LayerEntry) -> None:
        self._root = root
        self._block_rows = entry.block_rows
        self._columns = list(entry.columns)
        self._versions = np.zeros((len(self._columns), 0), np.uint32)
        self._checksums = np.zeros_like(self._versions)
        self._rows = np.zeros_like(self._versions)
        self._entry = entry.table
        self._pending: list[tuple[int, int, int, int]] = []
        self._covered = 0  # of these, those that the last `save` took in
        records = read_records(root / entry.table.file, entry.table)
        self._reserve(entry.shards)
        known = records[records["shard"] < entry.shards]
        at = known["column"], known["shard"]
        if known.size and int(known["column"].max()) >= len(self._columns):
            raise FormatError(_foreign(root / entry.table.file))
        self._versions[at], self._checksums[at] = known["version"], known["checksum"]
        self._rows[at] = entry.block_rows
        for name, tail in entry.tail.items():
            last = entry.shards - 1
            self._set(self._columns.index(name), last, tail, entry.rows_in(last))
        if self._gap(entry) is not None:
            raise FormatError(_foreign(root / (entry.table.file or "manifest.json")))

    def get(self, column: str, shard: int) -> tuple[ShardVersion, int] | None:
        """The version of a shard that counts and how many rows are known; None if there is none."""
        index = self._columns.index(column)
        if shard >= self._rows.shape[1] or not self._rows[index, shard]:
            return None
        version = int(self._versions[index, shard])
        checksum = f"{int(self._checksums[index, shard]):08x}"
        return ShardVersion(version, checksum), int(self._rows[index, shard])

    def put(self, column: str, shard: int, version: ShardVersion, rows: int) -> None:
        """Note what the file of a shard holds; part of a commit once `save` was called."""
        index = self._columns.index(column)
        self._reserve(shard + 1)
        self._set(index, shard, version, rows)
        if rows == self._block_rows:
            checksum = int(version.checksum, 16)
            self._pending.append((shard, index, version.version, checksum))

    def save(self, entry: LayerEntry, name: str, writing: Writing) -> LayerEntry:
        """Make the records that are missing durable.

        Args:
            entry: the layer, whose `rows` are those of the new commit.
            name: a file name below the run that no commit has, for a file begun anew.
            writing: where the file goes through.

        Returns:
            The entry with its table and its last shard.

        Raises:
            RunStateError: rows that the entry counts were never written.
            StorageError: the system refused.
        """
        gap = self._gap(entry)
        if gap is not None:
            raise RunStateError(
                f"block {gap} of layer {entry.name!r} was never written, so it cannot be "
                "committed; load the run before you go on with it"
            )
        self._covered = len(self._pending)
        live = len(self._columns) * (entry.rows // entry.block_rows)
        table = self._entry
        grown = table.records + len(self._pending)
        if grown and (not table.file or grown > 2 * live + _SPARE):
            records = np.array(self._live(entry.rows // entry.block_rows), _RECORD)
            data = records.tobytes()
            writing.make_directory((self._root / name).parent)
            writing.replace(self._root / name, data)
            table = TableEntry(name, len(records), f"{files.checksum(data):08x}")
        elif self._pending:
            data = np.array(self._pending, _RECORD).tobytes()
            writing.append(self._root / table.file, data, table.records * RECORD_BYTES)
            checksum = files.checksum(data, int(table.checksum, 16))
            records_now = table.records + len(self._pending)
            table = dataclasses.replace(table, records=records_now, checksum=f"{checksum:08x}")
        tail: dict[str, ShardVersion] = {}
        if entry.rows % entry.block_rows:
            for column in self._columns:
                found = self.get(column, entry.rows // entry.block_rows)
                if found is not None:
                    tail[column] = found[0]
        return dataclasses.replace(entry, table=table, tail=tail)

    def saved(self, entry: LayerEntry) -> None:
        """The commit of this entry happened."""
        self._entry = entry.table
        # Blocks that were written since it was made wait for the next one.
        del self._pending[: self._covered]
        self._covered = 0

    def _gap(self, entry: LayerEntry) -> int | None:
        """The first shard of which fewer rows are known than the entry counts."""
        if self._rows.shape[1] < entry.shards:
            return self._rows.shape[1]
        wanted = np.full(entry.shards, entry.block_rows)
        if entry.shards:
            wanted[-1] = entry.rows_in(entry.shards - 1)
        missing = np.nonzero((self._rows[:, : entry.shards] < wanted).any(0))[0]
        return int(missing[0]) if len(missing) else None

    def _live(self, shards: int) -> Sequence[tuple[int, int, int, int]]:
        return [
            (shard, column, int(self._versions[column, shard]), int(self._checksums[column, shard]))
            for shard in range(shards)
            for column in range(len(self._columns))
        ]

    def _set(self, column: int, shard: int, version: ShardVersion, rows: int) -> None:
        self._versions[column, shard] = version.version
        self._checksums[column, shard] = int(version.checksum, 16)
        self._rows[column, shard] = rows

    def _reserve(self, shards: int) -> None:
        room = self._rows.shape[1]
        if shards <= room:
            return
        more = ((0, 0), (0, max(shards, 2 * room, 16) - room))
        self._versions, self._checksums, self._rows = (
            np.pad(table, more) for table in (self._versions, self._checksums, self._rows)
        )


def _foreign(path: RunPath) -> str:
    return (
        f"{str(path)!r} is damaged (it does not cover the committed rows); "
        "put back a copy of this file"
    )
