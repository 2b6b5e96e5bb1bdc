"""What a run has on the disk, as its one writer knows it, and the making of commits.

The order of a commit is what makes it one:

1. the shards with new or changed rows, the state file and the manifest of the commit before, where
   it is to be kept, each written aside, synced and renamed; then the tables of full shards;
2. the event log and every directory with a new name are synced;
3. the manifest moves: this is the commit;
4. only now does zarr see changed shards and new rows, and what is not kept goes.

Whatever fails, `settle` brings the run back to what the manifest says.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from . import files
from .compaction import compacted
from .kept import keep_commit, named_files, read_kept
from .layers import StoredLayer, describe
from .manifest import Commit, Manifest
from .reader import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from streamlearn.memory import Columns, Memory, MemorySnapshot

    from .layers import Placed
    from .layout import Layout
    from .manifest import KeptCommit, LayerEntry
    from .objects import RunPath
    from .writing import Writing

__all__ = ["Commits"]


class Commits:
    """The committed state of a run, and blocks that were written ahead of their commit.

    One thread at a time may change it; `read_block` may be called from any.

    Args:
        layout: of the run, which this process has locked.
        new_writing: makes what its files go through.

    Attributes:
        manifest: the newest commit, None if there is none yet.
        settled: whether all that is known here is known to be what the disk says.
    """

    def __init__(self, layout: Layout, new_writing: Callable[[], Writing]) -> None:
        self.manifest: Manifest | None = None
        self.settled = False
        self._layout = layout
        self._new_writing = new_writing
        self._layers: dict[str, StoredLayer] = {}
        # Names given to blocks ahead of their commit, to be made durable with it.
        self._early = new_writing()
        self._other_bytes = 0  # of all files but the manifest and the event log
        self._compacting = False  # the layers here may be those of a commit that failed
        self.open()

    def open(self) -> None:
        """Take the manifest on the disk for the truth and put away whatever it does not name.

        Raises:
            FormatError: a file is damaged or of a newer version; names it.
            StorageError: the system refused.
        """
        self._layers = {}
        self._compacting = False
        self._early = self._new_writing()
        self._restore(fresh=True)

    def settle(self) -> None:
        """After something failed: find out what the manifest says, and make it so.

        Blocks that were written ahead stay.

        Raises:
            FormatError: a file is damaged; names it.
            StorageError: the system refused.
        """
        if self._compacting:
            self.open()
        elif not self.settled:
            self._restore(fresh=False)

    def write(
        self,
        draft: Manifest,
        state: bytes,
        memories: Mapping[str, Memory],
        snapshots: Mapping[str, MemorySnapshot],
        *,
        keep: int,
        sync_events: Callable[[], None],
        started: float,
    ) -> Commit:
        """Make a commit.

        Args:
            draft: the manifest, without layers and commits that are kept.
            state: the bytes of the state file.
            memories: of the layers.
            snapshots: of these memories; what is committed.
            keep: how many of the newest commits can be gone back to.
            sync_events: makes the event log durable.
            started: when it was begun, by `time.perf_counter`.

        Raises:
            RunStateError: a memory has other rows than are committed.
            StorageError: the system refused; the last commit is whole.
        """
        self.settled = False
        writing, self._early = self._early, self._new_writing()
        before = self.manifest
        retired = before.layers.keys() - snapshots.keys() if before else set()
        try:
            commit = self._write(
                draft,
                state,
                memories,
                snapshots,
                1 if retired else keep,
                sync_events,
                started,
                writing,
            )
            if retired:
                self.settled = False
                self._retire(retired, writing)
                self.count_bytes(draft.event_bytes)
                self.settled = True
            return commit
        except BaseException:
            # Names that were given ahead of a commit still wait to be durable.
            self._early.join(writing, counts=False)
            raise

    def _write(
        self,
        draft: Manifest,
        state: bytes,
        memories: Mapping[str, Memory],
        snapshots: Mapping[str, MemorySnapshot],
        keep: int,
        sync_events: Callable[[], None],
        started: float,
        writing: Writing,
    ) -> Commit:
        layout, before = self._layout, self.manifest
        placed: dict[str, list[Placed]] = {}
        for name, snapshot in snapshots.items():
            if name not in self._layers:
                entry = describe(name, memories[name])
                self._layers[name] = StoredLayer.create(layout, entry, writing)
            placed[name] = []
            for block in snapshot.blocks:
                columns = block.columns()
                placed[name] += self._put(name, block.index, columns, block.rewritten, writing)
        writing.later(layout.path / draft.state_file, [state])
        kept: tuple[KeptCommit, ...] = ()
        if before and keep > 1:
            kept = (*before.kept, keep_commit(layout, before, writing))[1 - keep :]
        writing.finish()
        layers: dict[str, LayerEntry] = {}
        for index, (name, snapshot) in enumerate(snapshots.items()):
            layer = self._layers[name]
            layer.placed(placed[name])
            if kept:
                layer.keep_first(writing)
            known = before.layers.get(name) if before else None
            entry = dataclasses.replace(
                known or describe(name, memories[name]),
                rows=snapshot.rows,
                live=snapshot.live,
                max_key_square=snapshot.max_key_square,
            )
            table = f"{layout.tables.name}/{draft.commit:08d}-{index}.table"
            layers[name] = layer.table.save(entry, table, writing)
        draft = dataclasses.replace(draft, layers=layers, kept=kept)
        return self._move(draft, placed, sync_events, started, writing)

    def _move(
        self,
        draft: Manifest,
        placed: Mapping[str, list[Placed]],
        sync_events: Callable[[], None],
        started: float,
        writing: Writing,
    ) -> Commit:
        """From everything written to everything shown: the commit itself is in the middle."""
        layout, before = self._layout, self.manifest
        sync_events()
        writing.sync_directories()
        oldest = min((commit.commit for commit in draft.kept), default=draft.commit)
        gone = sorted(named_files(layout, before) - named_files(layout, draft))
        grown = writing.bytes_grown - sum(map(writing.size_of, gone))
        for name, entry in draft.layers.items():
            layer = self._layers[name]
            grown += layer.publications(entry.rows, writing)
            grown -= layer.freed(placed[name], oldest, entry.shards, writing)
        manifest = self._manifest(draft, grown, draft.event_bytes, writing)
        writing.sync_directories()
        self.manifest = manifest
        for name, entry in manifest.layers.items():
            layer = self._layers[name]
            layer.table.saved(entry)
            layer.show(placed[name], writing)
            layer.publish(entry.rows, writing)
        writing.sync_directories()
        for path in gone:
            writing.remove(path)
        for name in manifest.layers:
            self._layers[name].clean(oldest, writing)
        self.settled = True
        events = manifest.event_bytes - (before.event_bytes if before else 0)
        return Commit(
            bytes_written=writing.bytes_written + max(0, events),
            disk_bytes=manifest.disk_bytes,
            seconds=time.perf_counter() - started,
            time=manifest.time,
        )

    def _retire(self, names: Iterable[str], writing: Writing) -> None:
        """Delete layers that no commit names any more; `open` does so after a crash."""
        for name in sorted(names):
            del self._layers[name]
            writing.remove_tree(self._layout.layer(name))
            writing.remove_tree(self._layout.versions(name))

    def compact(self, draft: Manifest, *, sync_events: Callable[[], None]) -> None:
        """Make a commit of the newest one's rows without those that are dead.

        Args:
            draft: the manifest of the newest commit, with its own number.
            sync_events: makes the event log durable.

        Raises:
            FormatError: a file is damaged; names it.
            StorageError: the system refused; the last commit is whole.
        """
        before = self.manifest
        if before is None:
            return
        started = time.perf_counter()
        self.settled = False
        self._compacting = True
        writing = self._new_writing()
        kept: tuple[KeptCommit, ...] = ()
        if before.kept:
            kept = (*before.kept[1:], keep_commit(self._layout, before, writing))
        layers: dict[str, LayerEntry] = {}
        placed: dict[str, list[Placed]] = {}
        for index, (name, entry) in enumerate(before.layers.items()):
            table = f"{self._layout.tables.name}/{draft.commit:08d}-{index}.table"
            old = self._layers[name]
            if entry.live == entry.rows:
                layers[name], placed[name] = entry, []
                continue
            new, placed[name], rows = compacted(self._layout, old, entry, before.commit, writing)
            if kept:
                new.keep_first(writing)
            new.publish(rows, writing)  # no plain reader sees what will go
            counts = dataclasses.replace(entry, rows=rows, live=rows)
            counts = dataclasses.replace(counts, first_version=new.first_version)
            layers[name] = new.table.save(counts, table, writing)
            self._layers[name] = new
        draft = dataclasses.replace(draft, layers=layers, kept=kept)
        self._move(draft, placed, sync_events, started, writing)
        for name, entry in layers.items():
            _remove(list(self._layers[name].strays(entry.shards)), writing)
        self._compacting = False

    def rewind(self, manifest: Manifest) -> None:
        """Make an older commit the newest; what came after it is gone.

        Raises:
            StorageError: the system refused; the run is at one commit or the other.
        """
        if manifest == self.manifest:
            return
        self.settled = False
        writing = self._new_writing()
        for name, entry in manifest.layers.items():
            # No plain reader sees what will go.
            shown = min(entry.rows, self.manifest.layers[name].rows) if self.manifest else 0
            self._layers[name].publish(shown, writing)
        writing.sync_directories()
        # From here on the newer commits are no more, and not before that is durable (which `open`
        # sees to) is anything written or deleted that one of them named.
        manifest = dataclasses.replace(manifest, writer=writing.writer)
        writing.replace(self._layout.manifest, manifest.to_bytes())
        self.open()

    def count_bytes(self, events: int) -> None:
        """Count all files anew, and let the newest manifest say how large the run is.

        Args:
            events: the bytes of the event log.

        Raises:
            StorageError: the system refused.
        """
        if self.manifest is not None:
            writing = self._new_writing()
            self._other_bytes = writing.other_bytes(self._layout)
            self.manifest = self._manifest(self.manifest, 0, events, writing)
            writing.sync_directories()

    def read_block(self, name: str, index: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill arrays with the rows of a block as it was last written.

        Raises:
            FormatError: a file is missing or damaged; names it.
            StorageError: the system refused.
        """
        layer = self._layers[name]
        layer.own = True
        for column, array in out.items():
            layer.read(column, index, array)

    def write_block(
        self, name: str, index: int, columns: Columns, rewritten: frozenset[str]
    ) -> None:
        """Write a full block ahead of the commit that will name it.

        Raises:
            StorageError: the system refused; what was committed is whole.
        """
        self.write_blocks(name, [(index, columns, rewritten)])

    def write_blocks(
        self, name: str, blocks: Iterable[tuple[int, Columns, frozenset[str]]]
    ) -> None:
        """Write full blocks of a layer ahead of the commit that will name them.

        The system writes one while the next is made; all of them are waited for at the end.

        Args:
            name: of the layer.
            blocks: the number of each, its changed columns, and those that were rewritten.

        Raises:
            StorageError: the system refused; what was committed is whole.
        """
        self.settle()
        writing = self._new_writing()
        placed: list[Placed] = []
        for index, columns, rewritten in blocks:
            placed += self._put(name, index, columns, rewritten, writing)
        writing.finish()
        self._layers[name].placed(placed)
        self._early.join(writing)

    def _put(
        self,
        name: str,
        index: int,
        columns: Columns,
        rewritten: frozenset[str],
        writing: Writing,
    ) -> list[Placed]:
        last = self.manifest.commit if self.manifest else 0
        found = (
            self._layers[name].put(
                column, index, rows, rewritten=column in rewritten, last=last, writing=writing
            )
            for column, rows in columns.items()
        )
        return [placed for placed in found if placed is not None]

    def _manifest(self, draft: Manifest, grown: int, events: int, writing: Writing) -> Manifest:
        """Write a manifest that says how large the run is, itself counted."""
        self._other_bytes += grown
        others = self._other_bytes + events
        draft = dataclasses.replace(draft, writer=writing.writer)
        text = draft.to_bytes()
        for _ in range(4):  # a digit more may need another round
            draft = dataclasses.replace(draft, disk_bytes=others + len(text))
            longer = draft.to_bytes()
            if len(longer) == len(text):
                break
            text = longer
        writing.replace(self._layout.manifest, longer)
        return draft

    def _restore(self, *, fresh: bool) -> None:
        self.settled = False
        layout, before = self._layout, self.manifest
        writing = self._new_writing()
        # It may be there without being durable yet; nothing is deleted on its word before it is.
        writing.settle(layout)
        self.manifest = manifest = read_manifest(layout)
        layers = manifest.layers if manifest else {}
        writing.remove_tree(layout.scratch)
        for folder in (layout.scratch, layout.commits, layout.tables):
            writing.make_directory(folder)
        named = named_files(layout, manifest)
        for folder in (layout.states, layout.commits, layout.tables):
            _remove((path for path in _entries(folder) if path not in named), writing)
        for folder in (layout.layers, layout.all_versions):
            others = (path for path in _entries(folder) if path.name not in layers)
            _remove((path for path in others if path.is_dir()), writing)
        self._layers = {name: layer for name, layer in self._layers.items() if name in layers}
        for name, entry in layers.items():
            layer = self._layers.setdefault(name, StoredLayer(layout, entry))
            if fresh:
                _remove(list(layer.strays(entry.shards)), writing)
            elif manifest != before and layer.loaded:
                layer.table.saved(entry)  # the commit that failed had happened
            if layout.versions(name).is_dir():
                # The layer here may know versions that no commit names, which are not to be shown.
                (layer if fresh else StoredLayer(layout, entry)).show_all(writing)
                if fresh and manifest is not None:
                    writing.sync_directories()
                    _remove(layer.sweep(_holders(layout, manifest, layer)), writing)
            layer.publish(entry.rows, writing)
        writing.sync_directories()
        self._other_bytes = writing.other_bytes(layout)
        self.settled = True


def _holders(layout: Layout, newest: Manifest, layer: StoredLayer) -> dict[int, StoredLayer]:
    """A layer as each commit that is kept has it."""
    holders: dict[int, StoredLayer] = {}
    for kept in newest.kept:
        entry = read_kept(layout, newest, kept.commit).layers.get(layer.name)
        if entry is not None:
            holders[kept.commit] = StoredLayer(layout, entry)
    return {**holders, newest.commit: layer}


def _remove(paths: Iterable[RunPath], writing: Writing) -> None:
    for path in paths:
        writing.remove_tree(path)


def _entries(path: RunPath) -> list[RunPath]:
    if not path.is_dir():
        return []
    with files.translated("read", path):
        return sorted(path.iterdir())
