"""One layer's tuples on disk: zarr arrays whose shards are the blocks of its memory.

A full shard is written once. The last one is written again at each commit that added to it, and its
earlier rows are the same then, so a reader of any commit finds its rows right.

Rows that are changed in place make a new version of the shard: a file of its own below `versions/`,
which the commit names, and which becomes what zarr sees (a second name of the same file) only once
the commit has happened. The version before stays as long as a commit that is kept names it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from streamlearn.errors import FormatError, RunStateError, ShapeError

from .codec import Summing, group_metadata, rows_checksum
from .columns import StoredColumn, new_array
from .manifest import ColumnEntry, LayerEntry, ShardVersion
from .metadata import METADATA_NAME, seal_metadata

if TYPE_CHECKING:  # torch, numpy and zarr take a second that no reader of manifests needs
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from streamlearn.memory import Memory

    from .layout import Layout
    from .objects import RunPath
    from .table import ShardTable
    from .writing import Writing

__all__ = [
    "Placed",
    "StoredLayer",
    "check_fits",
    "describe",
    "write_group",
]


def describe(name: str, memory: Memory) -> LayerEntry:
    """The entry of a memory of which nothing is committed yet."""
    return LayerEntry(
        name=name,
        rows=0,
        live=0,
        row_bytes=memory.row_bytes,
        block_rows=memory.block_rows,
        dtype=str(memory.dtype).removeprefix("torch."),
        max_key_square=0.0,
        columns={
            column: ColumnEntry(facts.width, facts.dtype)
            for column, facts in memory.columns().items()
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


def write_group(path: RunPath, attributes: dict[str, Any], writing: Writing) -> None:
    """Make the directory of a zarr group.

    Raises:
        StorageError: the system refused.
    """
    writing.make_directory(path)
    writing.replace(path / METADATA_NAME, seal_metadata(group_metadata(attributes)))


class Placed(NamedTuple):
    """A shard that was written: its column, its place, its file's version, how many rows.

    replaces: the version, named by commits up to `last`, that it replaces.
    """

    column: str
    shard: int
    version: ShardVersion
    rows: int
    replaces: int | None
    last: int


class StoredLayer:
    """The arrays of one layer and the table of their shards.

    Args:
        layout: of the run.
        entry: what is committed, or `describe`d, of it.

    Attributes:
        name: of the layer.
        replaced: versions of shards (column, shard, version) that later ones have replaced, and the
            last commit that names them.
        own: whether this process alone writes the run, so that a checksum need not be compared each
            time that a block passes.
    """

    def __init__(self, layout: Layout, entry: LayerEntry) -> None:
        self.name = entry.name
        self._layout = layout
        self._entry = entry
        self._table: ShardTable | None = None
        self._turn = threading.Lock()  # those who read ahead and who commits meet here
        self.columns = {name: StoredColumn(layout, entry, name) for name in entry.columns}
        self.first_version = entry.first_version
        self.replaced: list[tuple[int, str, int, int]] = []
        self.own = False

    @property
    def table(self) -> ShardTable:
        """What the shards hold, read when it is first needed.

        Raises:
            FormatError: its file is missing or damaged; names it.
        """
        with self._turn:
            if self._table is None:
                from .table import ShardTable

                self._table = ShardTable(self._layout.path, self._entry)
            return self._table

    @property
    def loaded(self) -> bool:
        """Whether the table has been read."""
        return self._table is not None

    @classmethod
    def create(cls, layout: Layout, entry: LayerEntry, writing: Writing) -> StoredLayer:
        """Make the arrays without rows, all in one step."""
        path = layout.layer(entry.name)
        building = writing.building(path)
        write_group(building, {"dtype": entry.dtype}, writing)
        for name in entry.columns:
            writing.make_directory(building / name)
            data = seal_metadata(new_array(entry, name))
            writing.replace(building / name / METADATA_NAME, data)
        writing.remove_tree(layout.versions(entry.name))  # of a commit that was never finished
        writing.built(building, path)
        return cls(layout, entry)

    def put(
        self,
        name: str,
        shard: int,
        rows: NDArray[Any],
        *,
        rewritten: bool,
        last: int,
        writing: Writing,
    ) -> Placed | None:
        """Write a column of a block; it has its name when `writing` is finished.

        Args:
            name: of the column.
            shard: the block.
            rows: all of its rows.
            rewritten: whether rows were changed that the shard had before.
            last: the number of the last commit, which may name what is replaced.
            writing: where the file goes through.

        Returns:
            What is to be given to `placed` then; None if the shard has these very rows.

        Raises:
            RunStateError: rows that the shard has are other ones, and `rewritten` does not say so.
            StorageError: the system refused.
        """
        import numpy as np

        column = self.columns[name]
        rows = np.ascontiguousarray(rows)
        known = self.table.get(name, shard)
        version, start, total = self.first_version, 0, 0
        replaces = None
        if known is not None:
            (before, count), version = known, known[0].version
            if rewritten:
                replaces, version = version, version + 1
            else:
                total, start = rows_checksum(rows[:count]), count
                if len(rows) < count or total != int(before.checksum, 16):
                    raise RunStateError(
                        f"layer {self._entry.name!r} has other tuples in block {shard} than are "
                        "committed; load the run before you go on with it"
                    )
                if start == len(rows):
                    return None
        path = column.version_path(shard, version) if version else column.shown_path(shard)
        writing.make_directory(path.parent)
        summing = Summing(rows[start:], total)
        writing.later(path, column.codec.encode(rows, summing.result))
        checksum = f"{summing.result():08x}"
        return Placed(name, shard, ShardVersion(version, checksum), len(rows), replaces, last)

    def placed(self, shards: Iterable[Placed]) -> None:
        """Note that shards have their names."""
        table = self.table
        with self._turn:
            for name, shard, version, rows, replaces, last in shards:
                table.put(name, shard, version, rows)
                if replaces is not None:
                    self.replaced.append((last, name, shard, replaces))

    def read(self, name: str, shard: int, out: NDArray[Any]) -> None:
        """Fill `out` with the rows of a column of a shard; any thread may.

        Args:
            name: of the column.
            shard: which one.
            out: of the stored dtype, contiguous, as many rows as are known of the shard.

        Raises:
            FormatError: the file is missing or damaged; names it.
        """
        table = self.table
        with self._turn:
            known = table.get(name, shard)
        if known is None or known[1] != len(out):
            raise FormatError(
                f"{str(self.columns[name].shown_path(shard))!r} is said to have "
                f"{known[1] if known else 0} rows where {len(out)} are asked for; verify the run"
            )
        column, once = self.columns[name], self.own
        try:
            column.read(shard, known[0], out, once=once)
        except FormatError:
            with self._turn:
                now = table.get(name, shard)
            if now is None or now == known:
                raise
            column.read(shard, now[0], out, once=once)  # replaced, and put away, just now

    def read_column(self, entry: LayerEntry, name: str, shard: int) -> NDArray[Any]:
        """The committed rows of one column of a shard, in the stored dtype.

        Raises:
            FormatError: the file is missing or damaged; names it.
        """
        import numpy as np

        column = entry.columns[name]
        row = () if column.width is None else (column.width,)
        rows = np.empty((entry.rows_in(shard), *row), column.stored)
        self.read(name, shard, rows)
        return rows

    def publications(self, rows: int, writing: Writing) -> int:
        """By how many bytes `publish` will let the `zarr.json` files grow."""
        grown = 0
        for stored in self.columns.values():
            data = stored.metadata_for(rows)
            if data is not None:
                grown += len(data) - writing.size_of(stored.path / METADATA_NAME)
        return grown

    def publish(self, rows: int, writing: Writing) -> None:
        """Let every reader of zarr see this many rows, and no others."""
        for stored in self.columns.values():
            stored.publish(rows, writing)

    def show(self, shards: Iterable[Placed], writing: Writing) -> None:
        """Let every reader of zarr see the versions of these shards."""
        for placed in shards:
            if placed.version.version:
                column = self.columns[placed.column]
                column.show(placed.shard, placed.version.version, writing)

    def show_all(self, writing: Writing) -> None:
        """Let every reader of zarr see the versions that count."""
        for name, column in self.columns.items():
            for shard, version, _ in list(column.aside()):
                known = self.table.get(name, shard)
                if known is not None and known[0].version == version:
                    column.show(shard, version, writing)

    def keep_first(self, writing: Writing) -> None:
        """Let the first versions that were replaced stay, for a commit that is kept names them."""
        for _, name, shard, version in self.replaced:
            if version == 0:
                self.columns[name].keep_first(shard, writing)

    def freed(self, shards: Iterable[Placed], oldest: int, count: int, writing: Writing) -> int:
        """How many bytes will be freed by `show` of these shards, and by `clean`.

        Where there are no links, also by deleting the `strays` past so many shards.
        """
        if not writing.links:
            return self._freed_copies(shards, oldest, count, writing)
        freed = 0
        for last, name, shard, version in self.replaced:
            column = self.columns[name]
            sizes = [writing.size_of(path) for path in column.paths(shard, version)]
            freed += max(sizes) if last < oldest else 0
        for placed in shards:
            if placed.version.version and placed.replaces is None:
                freed += writing.own_size(self.columns[placed.column].shown_path(placed.shard))
        return freed

    def _freed_copies(
        self, shards: Iterable[Placed], oldest: int, count: int, writing: Writing
    ) -> int:
        """The same where what zarr sees of a version is a copy of it."""
        freed = sum(
            writing.size_of(self.columns[name].version_path(shard, version))
            for last, name, shard, version in self.replaced
            if last < oldest
        )
        strays = {(name, shard) for _, name, shard, _ in self.replaced if shard >= count}
        freed += sum(
            writing.size_of(self.columns[name].shown_path(shard)) for name, shard in strays
        )
        for placed in shards:
            if placed.version.version:
                column = self.columns[placed.column]
                aside = column.version_path(placed.shard, placed.version.version)
                freed += writing.size_of(column.shown_path(placed.shard)) - writing.size_of(aside)
        return freed

    def clean(self, oldest: int, writing: Writing) -> None:
        """Delete the versions that no commit from this one on names."""
        staying = []
        for item in self.replaced:
            last, name, shard, version = item
            if last >= oldest:
                staying.append(item)
            else:
                path = self.columns[name].version_path(shard, version)
                if writing.has(path):
                    writing.remove(path)
        self.replaced = staying

    def sweep(self, holders: Mapping[int, StoredLayer]) -> list[RunPath]:
        """Take stock of what lies aside after the run was opened.

        Args:
            holders: this layer as each commit that is kept has it, by the commit's number.

        Returns:
            What no commit needs there.
        """
        gone = []
        self.replaced = []
        for name, column in self.columns.items():
            for shard, version, path in column.aside():
                naming = []
                for number, layer in holders.items():
                    known = layer.table.get(name, shard)
                    if known is not None and known[0].version == version:
                        naming.append(number)
                newest = naming and max(naming) == max(holders)
                if not naming or (newest and version == 0):
                    # A first version that counts again, and that zarr sees again, needs no other
                    # name; with one, rows that are added to it would leave that behind.
                    gone.append(path)
                elif not newest:
                    self.replaced.append((max(naming), name, shard, version))
        return gone

    def strays(self, shards: int) -> Iterator[RunPath]:
        """Shards past the committed ones, left by a commit that was never finished."""
        for stored in self.columns.values():
            yield from stored.strays(shards)
