"""One column of a layer on disk: a zarr array, and other versions of its shards.

A version that is not the first lies below `versions/`. It becomes what zarr sees, a second name of
the same file, once the commit that names it has happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlearn.errors import FormatError

from . import files
from .codec import array_metadata, codec_for, rows_checksum
from .metadata import METADATA_NAME, read_metadata, seal_metadata

if TYPE_CHECKING:  # torch, numpy and zarr take a second that no reader of manifests needs
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .codec import ArrayMetadata
    from .layout import Layout
    from .manifest import LayerEntry, ShardVersion
    from .objects import RunPath
    from .writing import Writing

__all__ = ["StoredColumn", "new_array"]


def new_array(entry: LayerEntry, name: str) -> ArrayMetadata:
    """The metadata of a column of which no rows are shown yet."""
    column = entry.columns[name]
    return array_metadata(column.stored, entry.block_rows, column.width, {"dtype": column.dtype})


class StoredColumn:
    """One zarr array, and other versions of its shards.

    Raises:
        FormatError: its `zarr.json` is missing or damaged, or is not what the entry says.
    """

    def __init__(self, layout: Layout, entry: LayerEntry, name: str) -> None:
        self.name = name
        self.path = layout.column(entry.name, name)
        self._versions = layout.versions(entry.name, name)
        self._seen: set[tuple[int, int, str]] = set()  # rows that were compared with their checksum
        file = self.path / METADATA_NAME
        self._metadata: ArrayMetadata = read_metadata(file)
        column = entry.columns[name]
        try:
            self.codec = codec_for(self._metadata)
            row = () if column.width is None else (column.width,)
            expected = (entry.block_rows, *row), column.stored
            if (self.codec.shape, self.codec.dtype) != expected:
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

    def shown_path(self, shard: int) -> RunPath:
        """Where zarr looks for a shard."""
        return self.path / self.codec.name(shard)

    def version_path(self, shard: int, version: int) -> RunPath:
        """Where a version of a shard lies that zarr does not see, or not only zarr."""
        return self._versions / f"{shard}.{version}"

    def paths(self, shard: int, version: int) -> tuple[RunPath, ...]:
        """Where a version of a shard may lie.

        The first version is what zarr sees, until there is another.
        """
        aside = self.version_path(shard, version)
        return (aside,) if version else (self.shown_path(shard), aside)

    def read(
        self, shard: int, version: ShardVersion, out: NDArray[Any], *, once: bool = False
    ) -> None:
        """Fill `out` with the first rows of a shard, all of those that its checksum is of.

        Args:
            shard: which one.
            version: of it.
            out: to be filled.
            once: compare the checksum only when these rows are read for the first time. For the
                process that alone writes the run: nobody else can have put other rows there.

        Raises:
            FormatError: the file is missing or damaged; names it.
        """
        problem = ""
        for path in self.paths(shard, version.version):
            try:
                files.read_into(path, [out.data.cast("B")])
            except FileNotFoundError:
                problem = problem or f"{str(path)!r} is missing"
                continue
            except ValueError as error:
                problem = problem or f"{str(path)!r} is damaged ({error})"
                continue
            seen = shard, version.version, version.checksum
            if (once and seen in self._seen) or rows_checksum(out) == int(version.checksum, 16):
                self._seen.add(seen)
                return
            problem = f"{str(path)!r} is damaged (its rows are not those that were committed)"
        raise FormatError(f"{problem}; put back a copy of this file")

    def find(self, shard: int, version: int) -> RunPath:
        """Where a version of a shard lies for certain."""
        shown, aside = self.shown_path(shard), self.version_path(shard, version)
        return aside if version or aside.is_file() else shown

    def decode(self, path: RunPath, count: int) -> NDArray[Any]:
        """The first rows in the file of a shard, all checksums in which are looked at.

        Raises:
            FormatError: the file is missing or damaged; names it.
        """
        try:
            return self.codec.decode(files.read_bytes(path), count)
        except FileNotFoundError as error:
            raise FormatError(f"{str(path)!r} is missing; put back a copy of this file") from error
        except ValueError as error:
            raise FormatError(
                f"{str(path)!r} is damaged ({error}); put back a copy of this file"
            ) from error

    def right(self, path: RunPath, count: int, checksum: str) -> bool:
        """Whether the first rows in the file of a shard have a checksum, whatever else is wrong."""
        import numpy as np

        rows = np.empty((count, *self.codec.shape[1:]), self.codec.dtype)
        try:
            files.read_into(path, [rows.data.cast("B")])
        except (FileNotFoundError, ValueError):
            return False
        return rows_checksum(rows) == int(checksum, 16)

    def mend(self, shard: int, path: RunPath, count: int, writing: Writing) -> None:
        """Write the file of a shard anew, with the first rows that it has and no others."""
        import numpy as np

        rows = np.empty((count, *self.codec.shape[1:]), self.codec.dtype)
        files.read_into(path, [rows.data.cast("B")])
        shown = self.shown_path(shard)
        seen = path != shown and writing.has(shown) and writing.same(shown, path)
        writing.replace(path, b"".join(self.codec.encode(rows)))
        if seen:
            writing.copy(path, shown)

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

    def show(self, shard: int, version: int, writing: Writing) -> None:
        """Let every reader of zarr see a version of a shard."""
        shown, aside = self.shown_path(shard), self.version_path(shard, version)
        if not writing.has(aside) or writing.same(shown, aside):
            return  # the first version that nothing has replaced, or done already
        writing.make_directory(shown.parent)
        writing.copy(aside, shown)

    def keep_first(self, shard: int, writing: Writing) -> None:
        """Give the first version of a shard a second name, for another is about to be shown."""
        shown, aside = self.shown_path(shard), self.version_path(shard, 0)
        if writing.has(shown) and not writing.has(aside):
            writing.make_directory(aside.parent)
            writing.copy(shown, aside)

    def strays(self, shards: int) -> Iterator[RunPath]:
        """What zarr could see of shards past these many."""
        with files.translated("read", self.path):
            paths: list[RunPath] = sorted(self.path.iterdir())
            for path in paths:
                shard = self.codec.shard(path.name)
                if shard is not None and shard >= shards:
                    yield path

    def aside(self) -> Iterator[tuple[int, int, RunPath]]:
        """The shards and versions that lie aside."""
        with files.translated("read", self._versions):
            there = self._versions.is_dir()
            paths: list[RunPath] = sorted(self._versions.iterdir()) if there else []
            for path in paths:
                shard, _, version = path.name.partition(".")
                if shard.isdecimal() and version.isdecimal():
                    yield int(shard), int(version), path

    def _with_rows(self, rows: int) -> ArrayMetadata:
        return {**self._metadata, "shape": [rows, *self._metadata["shape"][1:]]}
