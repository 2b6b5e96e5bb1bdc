"""One layer's tuples on disk: four zarr arrays whose shards are the blocks of its memory.

A full shard is written once. The last one is written again at each commit that added to it, and its
earlier rows are the same then, so a reader of any commit finds its rows right.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from streamlearn.errors import FormatError, RunStateError, ShapeError

from . import files
from .codec import array_metadata, codec_for, group_metadata
from .manifest import ColumnEntry, LayerEntry
from .metadata import METADATA_NAME, read_metadata, seal_metadata

if TYPE_CHECKING:  # torch, numpy and zarr take a second that no reader of manifests needs
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from streamlearn.memory import Memory

    from .codec import ArrayMetadata
    from .files import Writing

__all__ = [
    "StoredColumn",
    "StoredLayer",
    "check_fits",
    "describe",
    "new_array",
    "rows_checksum",
    "write_group",
]


def describe(name: str, memory: Memory) -> LayerEntry:
    """The entry of a memory of which nothing is committed yet."""
    kind = str(memory.dtype).removeprefix("torch.")
    stored = "float32" if kind == "bfloat16" else kind  # zarr knows no bfloat16
    wide = "float64" if kind == "float64" else "float32"
    dtypes = {"key": stored, "weight": wide, "value": stored, "born": "int64"}
    return LayerEntry(
        name=name,
        rows=0,
        row_bytes=memory.row_bytes,
        block_rows=memory.block_rows,
        dtype=kind,
        columns={
            name: ColumnEntry(column.width, dtypes[name])
            for name, column in memory.columns().items()
        },
    )


def check_fits(entry: LayerEntry, memory: Memory) -> None:
    """Refuse a memory that is not of the kind that was committed.

    Raises:
        ShapeError: names what differs.
    """
    here = describe(entry.name, memory)
    differences = {
        "dtype": (entry.dtype, here.dtype),
        "block_rows": (entry.block_rows, here.block_rows),
        "columns": (entry.widths, here.widths),
    }
    for what, (stored, given) in differences.items():
        if stored != given:
            raise ShapeError(
                f"layer {entry.name!r} was stored with {what} {stored} but the memory has "
                f"{given}; build it with the settings that the run began with"
            )


def write_group(path: Path, attributes: dict[str, Any], writing: Writing) -> None:
    """Make the directory of a zarr group.

    Raises:
        StorageError: the system refused.
    """
    writing.make_directory(path)
    writing.replace(path / METADATA_NAME, seal_metadata(group_metadata(attributes)))


def new_array(entry: LayerEntry, name: str) -> ArrayMetadata:
    """The metadata of a column of which no rows are shown yet."""
    column = entry.columns[name]
    # A bfloat16 is stored as the float32 that it equals; the attribute says so.
    narrow = entry.dtype if name in ("key", "value") else column.dtype
    return array_metadata(column.dtype, entry.block_rows, column.width, {"dtype": narrow})


class StoredColumn:
    """One zarr array.

    Raises:
        FormatError: its `zarr.json` is missing or damaged, or is not what the entry says.
    """

    def __init__(self, path: Path, entry: LayerEntry, column: ColumnEntry) -> None:
        self.path = path
        file = path / METADATA_NAME
        self._metadata: ArrayMetadata = read_metadata(file)
        try:
            self._codec = codec_for(self._metadata)
            row = () if column.width is None else (column.width,)
            expected = (entry.block_rows, *row), column.dtype
            if (self._codec.shape, str(self._codec.dtype)) != expected:
                raise ValueError(f"it is not an array of {expected}")
        except ValueError as error:
            raise FormatError(
                f"{str(file)!r} is damaged ({error}); put back a copy of this file"
            ) from error

    @property
    def shown_rows(self) -> int:
        """How many rows a plain reader of zarr is shown."""
        rows: int = self._metadata["shape"][0]
        return rows

    def shard_path(self, index: int) -> Path:
        """Where a shard lies."""
        return self.path / self._codec.name.format(index)

    def encode(self, rows: NDArray[Any]) -> bytes:
        """The bytes of a shard that begins with these rows and is zero after them."""
        return self._codec.encode(rows)

    def read(self, index: int, count: int, checksum: str) -> NDArray[Any]:
        """The committed rows of a shard.

        Raises:
            FormatError: the file is missing or damaged; names it.
        """
        rows = self.decode(index, count)
        if rows_checksum(rows) != int(checksum, 16):
            raise FormatError(
                f"{str(self.shard_path(index))!r} is damaged (its rows are not those that were "
                "committed); put back a copy of this file"
            )
        return rows

    def decode(self, index: int, count: int) -> NDArray[Any]:
        """The first rows of a shard, of which only the codec's own checksums are looked at.

        Raises:
            FormatError: the file is missing or damaged; names it.
        """
        path = self.shard_path(index)
        try:
            return self._codec.decode(files.read_bytes(path), count)
        except FileNotFoundError as error:
            raise FormatError(f"{str(path)!r} is missing; put back a copy of this file") from error
        except ValueError as error:
            raise FormatError(
                f"{str(path)!r} is damaged ({error}); put back a copy of this file"
            ) from error

    def metadata_for(self, rows: int) -> bytes | None:
        """The text of `zarr.json` with this many rows, None if it says so already."""
        if self.shown_rows == rows:
            return None
        return seal_metadata(self._with_rows(rows))

    def publish(self, rows: int, writing: Writing) -> None:
        """Let every reader of zarr see this many rows."""
        data = self.metadata_for(rows)
        if data is not None:
            writing.replace(self.path / METADATA_NAME, data)
            self._metadata = self._with_rows(rows)

    def _with_rows(self, rows: int) -> ArrayMetadata:
        return {**self._metadata, "shape": [rows, *self._metadata["shape"][1:]]}


class StoredLayer:
    """The arrays of one layer.

    Args:
        path: of the layer's zarr group.
        entry: what is committed, or `describe`d, of it.
    """

    def __init__(self, path: Path, entry: LayerEntry) -> None:
        self.columns = {
            name: StoredColumn(path / name, entry, column) for name, column in entry.columns.items()
        }

    @classmethod
    def create(cls, path: Path, entry: LayerEntry, writing: Writing) -> StoredLayer:
        """Make the arrays without rows, all in one step."""
        building = writing.scratch / "layer"
        files.remove_tree(building)
        write_group(building, {"dtype": entry.dtype}, writing)
        for name in entry.columns:
            writing.make_directory(building / name)
            writing.make_directory(building / name / "c")
            data = seal_metadata(new_array(entry, name))
            writing.replace(building / name / METADATA_NAME, data)
        writing.sync_directories()
        files.remove_tree(path)  # of a commit that was never finished
        writing.rename(building, path)
        return cls(path, entry)

    def write(
        self,
        entry: LayerEntry,
        memory: Memory,
        revisions: Sequence[int],
        writing: Writing,
    ) -> LayerEntry:
        """Write the shards of the blocks that are not as they were committed.

        Args:
            entry: what is committed.
            memory: what is to be.
            revisions: of the memory's blocks when they were committed, as far as it is known;
                such a block is not looked at again.
            writing: where the files go through.

        Returns:
            The entry of what the shards now hold.

        Raises:
            RunStateError: committed rows are not in the memory as they were.
            StorageError: the system refused.
        """
        from streamlearn.bits import widen

        checksums = {name: list(column.checksums) for name, column in entry.columns.items()}
        if len(memory) < entry.rows:
            raise RunStateError(
                f"layer {entry.name!r} has {len(memory)} tuples but {entry.rows} are committed; "
                "load the run before you go on with it"
            )
        for index, block in enumerate(memory.blocks):
            committed = entry.rows_in(index)
            unchanged = index < len(revisions) and revisions[index] == block.count
            if unchanged and committed == block.count:
                continue
            columns = {
                name: widen(rows) if rows.dtype == "uint16" else rows
                for name, rows in memory.host_columns(index).items()
            }
            for name, stored in self.columns.items():
                rows, known = columns[name], checksums[name]
                total = rows_checksum(rows[:committed])
                if committed and total != int(known[index], 16):
                    raise RunStateError(
                        f"layer {entry.name!r} has other tuples in block {index} than are "
                        "committed; load the run before you go on with it"
                    )
                if committed == block.count:
                    continue
                # The checksum goes on from the rows that were there to all of them.
                known[index:] = [f"{rows_checksum(rows[committed:], total):08x}"]
                path = stored.shard_path(index)
                if path.parent != stored.path / "c":
                    writing.make_directory(path.parent)
                writing.replace(path, stored.encode(rows))
        return dataclasses.replace(
            entry,
            rows=len(memory),
            columns={
                name: dataclasses.replace(column, checksums=tuple(checksums[name]))
                for name, column in entry.columns.items()
            },
        )

    def read_column(self, entry: LayerEntry, column: str, shard: int) -> NDArray[Any]:
        """The committed rows of one column of a shard.

        Raises:
            FormatError: the file is missing or damaged; names it.
        """
        checksum = entry.columns[column].checksums[shard]
        return self.columns[column].read(shard, entry.rows_in(shard), checksum)

    def publications(self, entry: LayerEntry) -> int:
        """By how many bytes `publish` will let the files grow."""
        grown = 0
        for stored in self.columns.values():
            data = stored.metadata_for(entry.rows)
            if data is not None:
                grown += len(data) - files.size_of(stored.path / METADATA_NAME)
        return grown

    def publish(self, entry: LayerEntry, writing: Writing) -> None:
        """Let every reader of zarr see the committed rows, and no others."""
        for stored in self.columns.values():
            stored.publish(entry.rows, writing)

    def strays(self, entry: LayerEntry) -> Iterator[Path]:
        """Shards past the committed ones, left by a commit that was never finished."""
        for stored in self.columns.values():
            with files.translated("read", stored.path):
                for path in sorted((stored.path / "c").iterdir()):
                    if path.name.isdecimal() and int(path.name) >= entry.shards:
                        yield path


def rows_checksum(rows: NDArray[Any], start: int = 0) -> int:
    """The CRC-32 of the numbers of rows, continued from that of the rows before them."""
    return files.checksum(rows.data.cast("B") if rows.size else b"", start)
