"""The one writer of a run: commits that are whole or did not happen.

`Commits` makes them; here is what a program holds: the lock, the event log, and the thread that a
commit may be left to while learning goes on.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from streamlearn import __version__
from streamlearn.errors import RunStateError

from . import documents, files
from .ahead import Ahead
from .commits import Commits
from .creation import create_run, delete_run
from .events import open_log
from .kept import check_keep, read_kept
from .layers import check_fits
from .layout import Layout, check_name, read_header
from .lock import HeldLock, new_writing, take_lock
from .manifest import Commit, Compaction, Manifest, Status
from .objects import RunPath, resolve
from .pending import Pending, PendingCommit
from .reader import RunReader
from .tier import LayerStore

if TYPE_CHECKING:
    from types import TracebackType

    from numpy.typing import NDArray

    from streamlearn.memory import Columns, Memory, MemorySnapshot
    from streamlearn.state import StateTree

__all__ = ["RunStore"]


class RunStore:
    """A run that is open for writing; a context manager that closes it.

    Made by `create` or `open`.

    Attributes:
        path: the directory of the run, absolute, or its place in an object store.
        epoch: how often rows were numbered anew, by going back or by compacting.
        waited: seconds that learning waited to write a block, for a commit was being made.
    """

    def __init__(self, layout: Layout, lock: HeldLock) -> None:
        self.path = layout.path
        self._layout = layout
        self._lock = lock
        self._turn = threading.Lock()  # one commit, or one block, is written at a time
        self._pending: Pending[Any] | None = None
        self._ahead = Ahead(self._turn)
        self.epoch = 0
        self.waited = 0.0
        self._commits = Commits(layout, functools.partial(new_writing, layout, lock))
        self._log = open_log(layout.events, lock, *_committed_events(self.manifest))

    @property
    def manifest(self) -> Manifest | None:
        """The newest commit, None if there is none yet."""
        return self._commits.manifest

    @classmethod
    def create(
        cls, runs: RunPath, name: str, *, scenario: Mapping[str, Any], scenario_name: str
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
        runs = resolve(runs).absolute()
        header = {
            "id": uuid.uuid4().hex,
            "name": name,
            "scenario": scenario_name,
            "created": time.time(),
            "program": __version__,
            "scenario_checksum": f"{files.checksum(settings):08x}",
        }
        layout, lock = create_run(runs, header, settings)
        try:
            return cls(layout, lock)
        except BaseException:
            delete_run(layout.path)
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | RunPath) -> RunStore:
        """Open a run to go on with it, at its newest commit.

        Whatever a crash left behind after that commit is put away: event lines, shards, states and
        files without a name.

        Raises:
            RunNotFoundError: there is no such directory, or it is not a run.
            RunLockedError: another process writes to it; names its pid.
            FormatError: a file of it is damaged or of a newer version; names the file.
            StorageError: the system refused.
        """
        layout = Layout(resolve(path).absolute())
        read_header(layout)
        lock = take_lock(layout.lock)
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
        retired: Collection[str] = (),
    ) -> Commit:
        """Make everything up to now durable, in one step.

        Args:
            step: mini-batches learnt.
            samples: scored so far.
            status: "running", "stopped" or "finished".
            state: all that is needed to go on, beside the memories.
            memories: the memory of each growing layer, by its name; only what has changed since
                the last commit is written.
            summary: what `inspect` and others show without loading anything.
            keep: how many of the newest commits can be gone back to, this one among them.
            retired: committed layers that are no more; their rows go, and with them all older
                commits.

        Raises:
            ConfigError: a layer's name cannot be a directory's, the status is unknown, or `keep`
                is less than one.
            ShapeError: a memory is of another kind than the one that is committed.
            RunStateError: a committed layer or row is missing; or the run is closed.
            FormatError: something in the state or the summary cannot be saved.
            StorageError: the system refused; the last commit is whole and a later one may succeed.
        """
        pending = self.begin(
            step=step,
            samples=samples,
            status=status,
            state=state,
            memories=memories,
            summary=summary,
            keep=keep,
            retired=retired,
            wait=True,
        )
        return pending.result()

    def begin(
        self,
        *,
        step: int,
        samples: int,
        status: Status,
        state: StateTree,
        memories: Mapping[str, Memory],
        summary: Mapping[str, Any],
        keep: int = 1,
        retired: Collection[str] = (),
        wait: bool = False,
    ) -> PendingCommit:
        """Begin what `commit` does and let a thread end it; what is committed is what is there now.

        The commit has happened once `result` of what is returned has said so; until then nothing
        else is begun. The first commit of a memory is waited for here.

        Args:
            step: as for `commit`.
            samples: as for `commit`.
            status: as for `commit`.
            state: as for `commit`.
            memories: as for `commit`.
            summary: as for `commit`.
            keep: as for `commit`.
            retired: as for `commit`.
            wait: do all of it now.

        Raises:
            StreamlearnError: as `commit` does; what only the writing shows is raised by `result`.
        """
        from .states import encode_state

        started = time.perf_counter()
        self._log.require_open()
        check_keep(keep)
        if self._pending is not None:
            self._pending.wait()
        snapshots: dict[str, MemorySnapshot] = {}
        self._turn.acquire()
        try:
            self._commits.settle()
            self._check_layers(memories, retired)
            data = encode_state(state)
            draft = self._draft(step, samples, status, data, documents.plain(summary))
            new = {name for name, memory in memories.items() if not self._knows(name, memory)}
            for name, memory in memories.items():
                if name in new:
                    memory.touch_all()
                snapshots[name] = memory.snapshot()
        except BaseException:
            for name, snapshot in snapshots.items():
                memories[name].restore(snapshot)
            self._turn.release()
            raise

        def write() -> Commit:
            # The turn is handed over: no block that is newer than the snapshots gets in between.
            try:
                return self._commits.write(
                    draft,
                    data,
                    memories,
                    snapshots,
                    keep=keep,
                    sync_events=self._log.sync,
                    started=started,
                )
            finally:
                self._turn.release()

        def end(happened: bool) -> None:
            for name, memory in memories.items():
                if not happened:
                    memory.restore(snapshots[name])
                    continue
                if name in new:  # everything of it is here now, wherever it was before
                    memory.store = LayerStore(self, name)
                memory.saved(snapshots[name])

        self._ahead.refused = False
        self._pending = pending = Pending(write, end)
        if wait or new:
            pending.run()
        else:
            pending.start()
        return pending

    def write_ahead(self, memories: Mapping[str, Memory]) -> None:
        """Let a thread write blocks that are full by now; the next commit names them.

        So a commit has little left to write. To be called after every step: it does nothing while
        there is little to write, or a commit or other blocks are being written.

        Args:
            memories: as for `commit`.
        """
        if self._pending is not None:
            if not self._pending.done:
                return
            self._pending.wait()
        known = {name: memory for name, memory in memories.items() if self._knows(name, memory)}
        self._pending = self._ahead.begin(self._commits, known)

    def open_memory(self, name: str, memory: Memory) -> None:
        """Let an empty memory have a layer's committed rows; blocks come in when they are needed.

        Raises:
            ConfigError: the run has no such layer.
            ShapeError: the memory is not empty or not of the kind that was stored.
            RunStateError: the run has never committed.
        """
        reader = self.read()
        entry = reader.entry(name)
        reader.check_empty(entry, memory)
        memory.open(
            entry.rows,
            max_key_square=entry.max_key_square,
            live=entry.live,
            store=LayerStore(self, name),
        )

    def read_block(self, name: str, index: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill arrays with the rows of a block as it was last written; any thread may.

        Raises:
            FormatError: a file is missing or damaged; names it.
            StorageError: the system refused.
        """
        self._commits.read_block(name, index, out)

    def write_block(
        self, name: str, index: int, columns: Columns, rewritten: frozenset[str]
    ) -> None:
        """Write a full block before its commit, which will name it.

        Raises:
            RunStateError: the run is closed.
            StorageError: the system refused; what was committed is whole.
        """
        self._log.require_open()
        began = time.perf_counter()
        with self._turn:
            self.waited += time.perf_counter() - began
            self._commits.write_block(name, index, columns, rewritten)

    def rewind(self, commit: int) -> None:
        """Go back to an older commit that is kept; everything after it is gone for good.

        Args:
            commit: the number of it.

        Raises:
            RunStateError: it is not kept, or the run is closed.
            FormatError: its manifest is damaged; names the file.
            StorageError: the system refused; the run is at the newest commit or at that one.
        """
        self._log.require_open()
        if self._pending is not None:
            self._pending.wait()
        self._commits.settle()
        if self.manifest is None:
            raise RunStateError(
                f"the run {str(self.path)!r} has never committed, so it cannot go back; "
                "start it again under another name"
            )
        manifest = read_kept(self._layout, self.manifest, commit)
        self.epoch += 1  # memories that were opened before have other rows
        self._commits.rewind(manifest)
        self._log.cut(*_committed_events(manifest))
        self._commits.count_bytes(self._log.size)

    def compact(self) -> Compaction:
        """Leave dead rows out; the others keep their order, in new shards, by a commit of its own.

        Retrieval then adds up other blocks, so results may differ in their last bits.

        Raises:
            RunStateError: the run has never committed, or is closed, or takes rows in turn.
            FormatError: a file is damaged; names it.
            StorageError: the system refused; the last commit is whole.
        """
        self._log.require_open()
        memory = self.read().scenario.get("memory", {})
        bound = next((key for key in ("rows", "budget") if memory.get(key) is not None), None)
        if bound is not None:
            raise RunStateError(
                f"the run {str(self.path)!r} has memory.{bound}={memory[bound]}, so that new "
                "tuples take the rows of dead ones in their turn; there is nothing to compact"
            )
        with self._turn:
            self._commits.settle()
            before = self.manifest
            if before is None:
                raise RunStateError(
                    f"the run {str(self.path)!r} has never committed, so there is nothing to "
                    "compact; start it again under another name"
                )
            dead = sum(entry.rows - entry.live for entry in before.layers.values())
            rows = sum(entry.live for entry in before.layers.values())
            if dead:
                self.log({"event": "notice", "text": f"compacted: {dead} dead tuples left out"})
                draft = dataclasses.replace(
                    before,
                    commit=before.commit + 1,
                    time=time.time(),
                    event_bytes=self._log.size,
                    event_checksum=f"{self._log.checksum:08x}",
                )
                self.epoch += 1
                self._commits.compact(draft, sync_events=self._log.sync)
                self._commits.count_bytes(self._log.size)
            after = self.manifest or before
        return Compaction(rows, dead, before.disk_bytes, after.disk_bytes, len(after.kept))

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
        """A reader of this run.

        Args:
            at: the number of an older commit that is kept, to be gone back to.
        """
        return RunReader(self.path, at=at)

    def close(self) -> None:
        """Let the next writer in; what was not committed is lost. Harmless if it is closed."""
        if self._pending is not None:
            self._pending.wait()
        self._log.close()
        self._lock.release()

    def discard(self) -> None:
        """Close it and delete all of it, as far as that can be done."""
        self.close()
        delete_run(self.path)

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _knows(self, name: str, memory: Memory) -> bool:
        """Whether a memory's changes since the last commit are all that is to be written."""
        store = memory.store
        return isinstance(store, LayerStore) and store.belongs_to(self, name)

    def _check_layers(self, memories: Mapping[str, Memory], retired: Collection[str]) -> None:
        committed = self.manifest.layers if self.manifest else {}
        for name in memories:
            check_name(name, "layer")
        for name, entry in committed.items():
            if name not in memories and name in retired:
                continue
            if name not in memories:
                raise RunStateError(
                    f"layer {name!r} is committed but not among the memories "
                    f"({', '.join(map(repr, memories)) or 'none'}); give all of them to a commit"
                )
            check_fits(entry, memories[name])
            if len(memories[name]) < entry.rows:
                raise RunStateError(
                    f"layer {name!r} has {len(memories[name])} tuples but {entry.rows} are "
                    "committed; load the run before you go on with it"
                )

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
            event_bytes=self._log.size,
            event_checksum=f"{self._log.checksum:08x}",
            layers={},
            summary=summary,
        )


def _committed_events(manifest: Manifest | None) -> tuple[int, int]:
    """How many bytes of the event log are committed, and their checksum."""
    return (manifest.event_bytes, int(manifest.event_checksum, 16)) if manifest else (0, 0)
