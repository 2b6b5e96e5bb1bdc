"""The one writer of a run: commits that are whole or did not happen.

The order of a commit is what makes it one:

1. the shards with new rows, the state file and the manifest of the commit before, where it is to
   be kept, each written aside, synced and renamed;
2. the event log and every directory with a new name are synced;
3. the manifest moves: this is the commit;
4. only now do the zarr arrays show the new rows, and what is not kept goes.

Whatever fails, `_settle` brings the run back to what the manifest says.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from streamlearn import __version__
from streamlearn.errors import RunStateError

from . import documents, files
from .creation import build_run, make_directories, run_exists
from .events import EventLog
from .files import Writing
from .kept import check_keep, keep_commit, named_files, read_kept
from .layers import StoredLayer, check_fits, describe
from .layout import Layout, check_name, read_header
from .lock import RunLock
from .manifest import Commit, KeptCommit, LayerEntry, Manifest, Status
from .reader import RunReader, read_manifest

if TYPE_CHECKING:
    from types import TracebackType

    from streamlearn.memory import Memory
    from streamlearn.state import StateTree

__all__ = ["RunStore"]

_Revisions: TypeAlias = "dict[str, tuple[weakref.ref[Memory], tuple[int, ...]]]"


class RunStore:
    """A run that is open for writing; a context manager that closes it.

    Made by `create` or `open`.

    Attributes:
        path: the directory of the run, absolute.
        manifest: the newest commit, None if there is none yet.
    """

    def __init__(self, layout: Layout, lock: RunLock) -> None:
        self.path = layout.path
        self.manifest: Manifest | None = None
        self._layout = layout
        self._lock = lock
        self._layers: dict[str, StoredLayer] = {}
        # What the blocks were when they were committed, for the newest commit and the one that is
        # being made: whichever the manifest turns out to name, its blocks are known.
        self._revisions: dict[int, _Revisions] = {}
        self._other_bytes = 0  # of all files but the manifest and the event log
        self._settled = False  # whether all this is known to be what the disk says
        self._settle()
        self._log = EventLog(layout.events, *_committed_events(self.manifest))

    @classmethod
    def create(
        cls, runs: Path, name: str, *, scenario: Mapping[str, Any], scenario_name: str
    ) -> RunStore:
        """Make a run and open it.

        Args:
            runs: the folder of runs, made if it is missing.
            name: of the run, a plain name without folders.
            scenario: the resolved scenario, to be kept with the run.
            scenario_name: what it is called.

        Raises:
            RunExistsError: a run of this name is already there.
            ConfigError: the name cannot be a run's.
            FormatError: something in the scenario has no place in JSON.
            StorageError: the system refused; nothing of the run is left.
        """
        check_name(name, "run.name")
        settings = documents.encode(documents.plain(scenario), indent=1)
        runs = Path(runs).absolute()
        target = runs / name
        if os.path.lexists(target):
            raise run_exists(target)
        header = {
            "id": uuid.uuid4().hex,
            "name": name,
            "scenario": scenario_name,
            "created": time.time(),
            "program": __version__,
            "scenario_checksum": f"{files.checksum(settings):08x}",
        }
        make_directories(runs)
        made = runs / f".making-{uuid.uuid4().hex}"
        lock = None
        try:
            lock = build_run(Layout(made), header, settings)
            with files.translated("write", target):
                try:
                    files.rename(made, target)
                except OSError as error:
                    if os.path.lexists(target):  # made by somebody else in the meantime
                        raise run_exists(target) from error
                    raise
            made = target
            files.sync_directory(runs)
            return cls(Layout(target), lock)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            if lock is not None:
                lock.release()
            raise

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """Open a run to go on with it, at its newest commit.

        Whatever a crash left behind after that commit is put away: event lines, shards, states and
        files without a name.

        Raises:
            RunNotFoundError: there is no such directory, or it is not a run.
            RunLockedError: another process writes to it; names its pid.
            FormatError: a file of it is damaged or of a newer version; names the file.
            StorageError: the system refused.
        """
        layout = Layout(Path(path).absolute())
        read_header(layout)
        lock = RunLock(layout.lock)
        try:
            return cls(layout, lock)
        except BaseException:
            lock.release()
            raise

    def commit(
        self,
        *,
        step: int,
        samples: int,
        status: Status,
        state: StateTree,
        memories: Mapping[str, Memory],
        summary: Mapping[str, Any],
        keep: int = 1,
    ) -> Commit:
        """Make everything up to now durable, in one step.

        Args:
            step: mini-batches learnt.
            samples: scored so far.
            status: "running", "stopped" or "finished".
            state: all that is needed to go on, beside the memories.
            memories: the memory of each growing layer, by its name; only what was appended since
                the last commit is written.
            summary: what `inspect` and others show without loading anything.
            keep: how many of the newest commits can be gone back to, this one among them.

        Raises:
            ConfigError: a layer's name cannot be a directory's, the status is unknown, or `keep`
                is less than one.
            ShapeError: a memory is of another kind than the one that is committed.
            RunStateError: a committed layer or row is missing; or the run is closed.
            FormatError: something in the state or the summary cannot be saved.
            StorageError: the system refused; the last commit is whole and a later one may succeed.
        """
        from .states import encode_state

        self._log.require_open()
        check_keep(keep)
        started = time.perf_counter()
        event_bytes_before = self.manifest.event_bytes if self.manifest else 0
        if not self._settled:
            self._settle()
        self._check_layers(memories)
        data = encode_state(state)
        draft = self._draft(step, samples, status, data, documents.plain(summary))

        self._settled = False
        writing = Writing(self._layout.scratch)
        revisions: _Revisions = {}
        layers: dict[str, LayerEntry] = {}
        for name, memory in memories.items():
            layers[name], revisions[name] = self._write_layer(name, memory, writing)
        writing.replace(self.path / draft.state_file, data)
        kept: tuple[KeptCommit, ...] = ()
        if self.manifest and keep > 1:
            entry_before = keep_commit(self._layout, self.manifest, writing)
            kept = (*self.manifest.kept, entry_before)[1 - keep :]
        self._log.sync()
        writing.sync_directories()

        draft = dataclasses.replace(
            draft,
            layers=layers,
            kept=kept,
            event_bytes=self._log.size,
            event_checksum=f"{self._log.checksum:08x}",
        )
        named = named_files(self._layout, draft)
        gone = sorted(named_files(self._layout, self.manifest) - named)
        grown = writing.bytes_grown - sum(map(files.size_of, gone))
        grown += sum(self._layers[name].publications(entry) for name, entry in layers.items())
        manifest, text = _with_disk_bytes(draft, self._other_bytes + grown + self._log.size)
        self._revisions[manifest.commit] = revisions
        writing.replace(self._layout.manifest, text)
        self.manifest = manifest
        writing.sync_directories()

        for name, entry in layers.items():
            self._layers[name].publish(entry, writing)
        writing.sync_directories()
        for path in gone:
            writing.remove(path)
        self._revisions = {manifest.commit: revisions}
        self._other_bytes += grown
        self._settled = True
        return Commit(
            bytes_written=writing.bytes_written + max(0, self._log.size - event_bytes_before),
            disk_bytes=manifest.disk_bytes,
            seconds=time.perf_counter() - started,
            time=manifest.time,
        )

    def rewind(self, commit: int) -> None:
        """Go back to an older commit that is kept; everything after it is gone for good.

        What was loaded from that commit is known to be as it is committed.

        Args:
            commit: the number of it.

        Raises:
            RunStateError: it is not kept, or the run is closed.
            FormatError: its manifest is damaged; names the file.
            StorageError: the system refused; the run is at the newest commit or at that one.
        """
        self._log.require_open()
        if not self._settled:
            self._settle()
        if self.manifest is None:
            raise RunStateError(
                f"the run {str(self.path)!r} has never committed, so it cannot go back; "
                "start it again under another name"
            )
        manifest = read_kept(self._layout, self.manifest, commit)
        writing = Writing(self._layout.scratch)
        if manifest != self.manifest:
            self._settled = False
            for name, entry in manifest.layers.items():
                self._layers[name].publish(entry, writing)  # no plain reader sees what will go
            writing.sync_directories()
            # From here on the newer commits are no more, and not before that is durable (which
            # `_settle` sees to) is anything written or deleted that one of them named.
            writing.replace(self._layout.manifest, manifest.to_bytes())
            self._settle()
        self._revisions = {commit: self._revisions.get(commit, {})}
        self._log.cut(*_committed_events(manifest))
        self.manifest, text = _with_disk_bytes(manifest, self._other_bytes + self._log.size)
        writing.replace(self._layout.manifest, text)
        writing.sync_directories()

    def log(self, record: Mapping[str, Any]) -> None:
        """Add a line to the event log, with the time; readers see it at once.

        It is durable from the next commit on.

        Raises:
            FormatError: something in the record has no place in JSON.
            RunStateError: the run is closed.
            StorageError: the system refused; the log is as it was.
        """
        self._log.append(record)

    def read(self, *, at: int | None = None) -> RunReader:
        """A reader of this run; a memory that it loads is not written again.

        Args:
            at: the number of an older commit that is kept, to be gone back to.
        """
        return _OwnReader(self, at)

    def close(self) -> None:
        """Let the next writer in; what was not committed is lost. Harmless if it is closed."""
        self._log.close()
        self._lock.release()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _settle(self) -> None:
        """Take the manifest on the disk for the truth and put away whatever it does not name."""
        self._settled = False
        layout = self._layout
        self.manifest = read_manifest(layout)
        self._layers = {}
        writing = Writing(layout.scratch)
        # It may be there without being durable yet; nothing is deleted on its word before it is.
        files.sync_directory(self.path)
        files.remove_tree(layout.scratch)
        writing.make_directory(layout.scratch)
        layers = self.manifest.layers if self.manifest else {}
        writing.make_directory(layout.commits)
        named = named_files(layout, self.manifest)
        for path in (*_entries(layout.states), *_entries(layout.commits)):
            if path not in named:
                files.remove_tree(path)
        for path in _entries(layout.layers):
            if path.is_dir() and path.name not in layers:
                files.remove_tree(path)
        for name, entry in layers.items():
            layer = self._layers[name] = StoredLayer(layout.layer(name), entry)
            for path in list(layer.strays(entry)):
                files.remove_tree(path)
            layer.publish(entry, writing)
        writing.sync_directories()
        counted = (layout.manifest, layout.events)
        self._other_bytes = files.tree_bytes(self.path) - sum(map(files.size_of, counted))
        self._settled = True

    def _check_layers(self, memories: Mapping[str, Memory]) -> None:
        committed = self.manifest.layers if self.manifest else {}
        for name in memories:
            check_name(name, "layer")
        for name, entry in committed.items():
            if name not in memories:
                raise RunStateError(
                    f"layer {name!r} is committed but not among the memories "
                    f"({', '.join(map(repr, memories)) or 'none'}); give all of them to a commit"
                )
            check_fits(entry, memories[name])

    def _draft(
        self, step: int, samples: int, status: Status, state: bytes, summary: dict[str, Any]
    ) -> Manifest:
        before = self.manifest
        number = before.commit + 1 if before else 1
        state_file = f"state/{step:012d}.safetensors"
        if before and state_file in before.state_files:
            # A state that a commit names is never written over.
            state_file = f"state/{step:012d}-{number}.safetensors"
        return Manifest(
            commit=number,
            step=step,
            samples=samples,
            status=status,
            time=time.time(),
            state_file=state_file,
            state_checksum=f"{files.checksum(state):08x}",
            event_bytes=0,
            event_checksum="",
            layers={},
            summary=summary,
        )

    def _write_layer(
        self, name: str, memory: Memory, writing: Writing
    ) -> tuple[LayerEntry, tuple[weakref.ref[Memory], tuple[int, ...]]]:
        entry = self.manifest.layers.get(name) if self.manifest else None
        if entry is None:
            entry = describe(name, memory)
            self._layers[name] = StoredLayer.create(self._layout.layer(name), entry, writing)
        known: tuple[int, ...] = ()
        if self.manifest:
            owner, revisions = self._revisions.get(self.manifest.commit, {}).get(
                name, (lambda: None, ())
            )
            known = revisions if owner() is memory else ()
        now = tuple(block.count for block in memory.blocks)
        entry = self._layers[name].write(entry, memory, known, writing)
        return entry, (weakref.ref(memory), now)

    def _loaded(self, commit: int, name: str, memory: Memory) -> None:
        revisions = tuple(block.count for block in memory.blocks)
        self._revisions.setdefault(commit, {})[name] = weakref.ref(memory), revisions


class _OwnReader(RunReader):
    """The writer's own reader: it tells the writer what it loaded."""

    def __init__(self, store: RunStore, at: int | None) -> None:
        super().__init__(store.path, at=at)
        self._store = store

    def load_memory(self, name: str, memory: Memory) -> None:
        super().load_memory(name, memory)
        if self._commit is not None:
            self._store._loaded(self._commit.commit, name, memory)


def _with_disk_bytes(manifest: Manifest, others: int) -> tuple[Manifest, bytes]:
    """The manifest that counts itself, and its text: a digit more may need another round."""
    text = manifest.to_bytes()
    for _ in range(4):
        manifest = dataclasses.replace(manifest, disk_bytes=others + len(text))
        longer = manifest.to_bytes()
        if len(longer) == len(text):
            return manifest, longer
        text = longer
    return manifest, text


def _committed_events(manifest: Manifest | None) -> tuple[int, int]:
    """How many bytes of the event log are committed, and their checksum."""
    return (manifest.event_bytes, int(manifest.event_checksum, 16)) if manifest else (0, 0)


def _entries(path: Path) -> list[Path]:
    with files.translated("read", path):
        return sorted(path.iterdir())
