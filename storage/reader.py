"""Reading a run, also while it is written: always a committed state, and nothing is changed.

Rows and states that the manifest names are never changed by the next commit; only the state file
and the replaced shards of a commit that is no longer kept go away, and a reader that meets that
looks at the manifest again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from streamlearn.errors import (
    ConfigError,
    FormatError,
    RunStateError,
    ShapeError,
    StreamlearnError,
)

from . import files
from .events import read_events, read_some_events
from .kept import find_commit, read_kept
from .layers import StoredLayer, check_fits
from .layout import Layout, RunHeader, read_header
from .lock import Writer, current_writer
from .manifest import LayerEntry, Manifest, ShardVersion, is_no_commit
from .objects import RunPath, resolve
from .tier import CommittedLayer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamlearn.memory import Columns, Memory
    from streamlearn.state import StateTree

__all__ = ["RunReader", "read_manifest", "widened"]


def read_manifest(layout: Layout) -> Manifest | None:
    """The newest commit of a run, None if there is none yet.

    Raises:
        FormatError: the file is damaged or of a newer version; names it.
        StorageError: the system refused.
    """
    try:
        data = files.read_bytes(layout.manifest)
    except FileNotFoundError:
        return None
    if is_no_commit(layout.manifest, data):
        return None
    return Manifest.from_bytes(layout.manifest, data)


class RunReader:
    """One of any number of readers of a run.

    `manifest` and `state` look for the newest commit; `load_memory` and `columns` read the commit
    that the last of these calls found, so a state and the memories that are read after it belong
    together also while the run goes on.

    Args:
        path: the directory of the run, or its place in an object store.
        at: the number of an older commit that is kept, to read it instead of the newest.

    Attributes:
        path: the same, absolute.
        header: what the run was from its first moment.
        scenario: the resolved scenario.

    Raises:
        RunNotFoundError: there is no such directory, or it is not a run.
        FormatError: a file of it is damaged or of a newer version; names the file.
        StorageError: the system refused.
    """

    def __init__(self, path: str | RunPath, *, at: int | None = None) -> None:
        self.path: RunPath = resolve(path).absolute()
        self._at = at
        self._layout = Layout(self.path)
        self.header: RunHeader
        self.scenario: dict[str, Any]
        self.header, self.scenario = read_header(self._layout)
        self._commit: Manifest | None = None
        self._layers: dict[str, tuple[LayerEntry, StoredLayer]] = {}

    def manifest(self) -> Manifest | None:
        """The newest commit, or the one chosen; None if the run has never committed.

        Raises:
            RunStateError: the one chosen is not kept any more.
            FormatError: the file is damaged or of a newer version; names it.
            StorageError: the system refused.
        """
        self._commit = read_manifest(self._layout)
        if self._commit is not None and self._at is not None:
            self._commit = read_kept(self._layout, self._commit, self._at)
        return self._commit

    @property
    def number(self) -> int:
        """The number of the commit that was found last.

        Raises:
            RunStateError: the run has never committed.
        """
        return (self._commit or self._newest()).commit

    def find_commit(self, step: int) -> Manifest:
        """The commit of a step to go on from: the newest of this step that is not finished.

        Raises:
            RunStateError: none is kept; lists the steps that there are.
            FormatError: a file is missing or damaged; names it.
            StorageError: the system refused.
        """
        return find_commit(self._layout, self._newest(), step)

    def state(self) -> StateTree:
        """The state tree of the newest commit, to the bit.

        Raises:
            RunStateError: the run has never committed.
            FormatError: the file is missing or damaged; names it.
            StorageError: the system refused.
        """
        from .states import decode_state

        commit = self._newest()
        while True:
            path = self.path / commit.state_file
            try:
                data = files.read_bytes(path)
                reason = "its checksum does not fit"
            except FileNotFoundError:
                data = b""
                reason = "it is missing"
            if data and f"{files.checksum(data):08x}" == commit.state_checksum:
                return decode_state(path, data)
            seen, commit = commit, self._newest()
            if commit == seen:
                raise FormatError(
                    f"{str(path)!r} is damaged ({reason}); put back a copy of this file"
                )

    def load_memory(self, name: str, memory: Memory) -> None:
        """Fill an empty memory with a layer's committed rows, all of them now, to the bit.

        Raises:
            ConfigError: the run has no such layer.
            ShapeError: the memory is not empty or not of the kind that was stored.
            FormatError: a file is missing or damaged; names it.
            RunStateError: the run has never committed.
            StorageError: the system refused.
        """
        entry = self.entry(name)
        self.check_empty(entry, memory)
        for shard in range(entry.shards):
            memory.load_columns(self._read(entry, shard))
        # A key that was dropped since may have been the largest.
        memory.max_key_square = entry.max_key_square

    def open_memory(self, name: str, memory: Memory) -> None:
        """Let an empty memory have a layer's committed rows; blocks come in when they are needed.

        Raises:
            ConfigError: the run has no such layer.
            ShapeError: the memory is not empty or not of the kind that was stored.
            FormatError: a file is missing or damaged; names it.
            RunStateError: the run has never committed.
        """
        entry = self.entry(name)
        self.check_empty(entry, memory)
        layer = self._layer(entry)
        _ = layer.table  # its file may be gone when it is first needed
        memory.open(
            entry.rows,
            max_key_square=entry.max_key_square,
            live=entry.live,
            store=CommittedLayer(
                layer, str(self.path), partial(self._explained, read=self._commit)
            ),
        )

    def check_memory(self, name: str) -> None:
        """Read every committed row of a layer and compare it with its checksum.

        Raises:
            FormatError: a file is missing or damaged; names it.
            StorageError: the system refused.
        """
        entry = self.entry(name)
        for shard in range(entry.shards):
            self._read(entry, shard)

    def entry(self, name: str) -> LayerEntry:
        """What is committed of a layer.

        Raises:
            ConfigError: the run has no such layer.
            RunStateError: the run has never committed.
        """
        commit = self._commit or self._newest()
        if name not in commit.layers:
            raise ConfigError(
                f"the run {str(self.path)!r} has no layer {name!r}; "
                f"it has {', '.join(map(repr, commit.layers)) or 'none'}"
            )
        return commit.layers[name]

    @staticmethod
    def check_empty(entry: LayerEntry, memory: Memory) -> None:
        """Refuse a memory that cannot take a layer's rows.

        Raises:
            ShapeError: it is not empty or not of the kind that was stored.
        """
        check_fits(entry, memory)
        if len(memory):
            raise ShapeError(
                f"the memory for layer {entry.name!r} has {len(memory)} tuples already; "
                "load into an empty one"
            )

    def columns(self, name: str, start: int, stop: int) -> Columns:
        """A layer's committed rows from `start` up to `stop`, by column.

        As in a slice, rows past the committed ones are left out. bfloat16 comes as the float32 that
        it equals.

        Raises:
            ConfigError: the run has no such layer.
            ShapeError: `start` is negative.
            FormatError: a file is missing or damaged; names it.
            RunStateError: the run has never committed.
            StorageError: the system refused.
        """
        import numpy as np

        entry = self.entry(name)
        if start < 0:
            raise ShapeError(f"start={start} must not be negative; count rows from 0")
        stop = min(stop, entry.rows)
        parts: dict[str, list[Any]] = {
            key: [np.empty((0,) if column.width is None else (0, column.width), column.stored)]
            for key, column in entry.columns.items()
        }
        while start < stop:
            shard, first = divmod(start, entry.block_rows)
            rows = slice(first, first + min(stop - start, entry.block_rows - first))
            for key, column in self._read(entry, shard).items():
                parts[key].append(column[rows])
            start += rows.stop - rows.start
        return {
            key: widened(np.concatenate(arrays), entry.columns[key].dtype)
            for key, arrays in parts.items()
        }

    def shard(self, name: str, column: str, shard: int) -> NDArray[Any]:
        """The committed rows of one shard of one column of a layer; bfloat16 as float32.

        Raises:
            ConfigError: the run has no such layer.
            FormatError: a file is missing or damaged; names it.
            RunStateError: the run has never committed.
            StorageError: the system refused.
        """
        entry = self.entry(name)
        return widened(self._read_column(entry, column, shard), entry.columns[column].dtype)

    def events(self, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """The complete lines of the event log from a byte offset on, and the next offset.

        A torn last line is left for later. If the log was cut since (the run was opened again),
        reading starts over at 0.

        Raises:
            StorageError: the system refused.
        """
        return read_events(self._layout.events, offset)

    def some_events(self, most: int, always: str) -> list[dict[str, Any]]:
        """About so many of the events, spread evenly over the log, and all that have a word.

        Of a log of up to a megabyte all.

        Raises:
            StorageError: the system refused.
        """
        return read_some_events(self._layout.events, most, always)

    def version(self, name: str, column: str, shard: int) -> ShardVersion:
        """Which version of a shard of a column the commit names, and the checksum of its rows.

        Raises:
            ConfigError: the run has no such layer.
            FormatError: the table of the layer is missing or damaged, or says nothing of the shard.
        """
        known = self._layer(self.entry(name)).table.get(column, shard)
        if known is None:
            raise FormatError(f"shard {shard} of {name}/{column} is not committed; verify the run")
        return known[0]

    def writer(self) -> Writer | None:
        """The process that is writing to the run now, None if none is.

        Raises:
            StorageError: the system refused.
        """
        return current_writer(self._layout.lock)

    def _newest(self) -> Manifest:
        commit = self.manifest()
        if commit is None:
            raise RunStateError(
                f"the run {str(self.path)!r} has never committed, so there is nothing to read; "
                "start it again under another name"
            )
        return commit

    def _read(self, entry: LayerEntry, shard: int) -> Columns:
        return {name: self._read_column(entry, name, shard) for name in entry.columns}

    def _read_column(self, entry: LayerEntry, column: str, shard: int) -> NDArray[Any]:
        try:
            return self._layer(entry).read_column(entry, column, shard)
        except FormatError as error:
            raise self._explained(error, self._commit) from None

    def _explained(self, error: FormatError, read: Manifest | None) -> StreamlearnError:
        """What a damaged or missing file means: the commit may be there no more."""
        newest = read_manifest(self._layout)
        if newest is None or read is None or newest == read:
            return error
        if read.commit in (kept.commit for kept in newest.kept):
            return error
        went = "went back to an older one" if newest.commit <= read.commit else "went on"
        return RunStateError(
            f"commit {read.commit} of the run {str(self.path)!r} was dropped while it was read, "
            f"for the run {went}; read it again"
        )

    def _layer(self, entry: LayerEntry) -> StoredLayer:
        known = self._layers.get(entry.name)
        if known is None or known[0] != entry:
            known = self._layers[entry.name] = entry, StoredLayer(self._layout, entry)
        return known[1]


def widened(rows: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Stored numbers as numbers: the bits of a bfloat16 as the float32 that it equals."""
    if dtype != "bfloat16":
        return rows
    import numpy as np

    return (rows.astype(np.uint32) << 16).view(np.float32)
