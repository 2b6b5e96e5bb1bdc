"""A run while it is going on: the loop, its run directory, and when they are committed together."""

import dataclasses
import os
import resource
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import torch

from streamlearn.errors import (
    ConfigError,
    FormatError,
    NotFiniteError,
    RunExistsError,
    RunStateError,
    StorageError,
    StreamlearnError,
)
from streamlearn.events import (
    CheckpointSaved,
    Event,
    Finished,
    MemoryStatus,
    Notice,
    Progress,
    Skipped,
    Started,
    Stopped,
    Tested,
    Testing,
    as_json,
)
from streamlearn.hardware import resolve_hardware
from streamlearn.jsonlines import JsonLinesFile
from streamlearn.loop import Loop, held_out
from streamlearn.predictions import Answered, records_of
from streamlearn.storage import (
    PendingCommit,
    RunPath,
    RunReader,
    RunStore,
    Status,
    check_name,
    resume_command,
)
from streamlearn.streams.records import Quarantine, Quarantined

from .build import (
    Parts,
    build_loop,
    late_encoder,
    may_widen,
    open_parts,
    open_splits,
    settle_task,
)
from .schema import RECORD_KINDS, Scenario
from .summary import final_metrics, summary_of, width_of
from .words import expanded, override

__all__ = ["Session", "evaluate"]

QUARANTINE = "quarantine.jsonl"
"""The file in a run's directory that has the rows that could not be used."""

_LOG_SECONDS = 0.5


class Session:
    """One process's part of a run, from `start` or `resume` to `Finished` or `Stopped`.

    Args:
        scenario: with concrete device and dtype.
        store: the run directory, locked for writing.
        parts: the loop at its beginning.
    """

    def __init__(self, scenario: Scenario, store: RunStore, parts: Parts) -> None:
        self.scenario = scenario
        self.path = store.path
        self._store = store
        self._loop: Loop[Any] = parts.loop
        self._test = parts.test
        self._stop_reason: str | None = None
        self._loop.should_stop = lambda: self._stop_reason is not None
        self._committed_step = -1
        self._committed_at = time.monotonic()
        self._pending: PendingCommit | None = None
        self._pending_at = 0, 0  # its step and samples
        self._waited = 0.0  # seconds that it has cost learning so far
        self._logged_step = 0
        self._logged_at = 0.0
        self._peak_rss = 0
        self._disk_bytes = 0
        self._process = psutil.Process()
        self._notices: list[str] = []
        # In an object store, where nothing can be appended to, the event log has the rows alone.
        self._quarantine = (
            Quarantine(store.path / QUARANTINE) if isinstance(store.path, Path) else None
        )
        place = scenario.stream.predictions
        self._predictions = None if place is None else JsonLinesFile(place, "predictions")
        if self._predictions is not None:
            self._loop.answered = self._write_answers
        self._is_new = False  # then its beginning is in the log already

    @classmethod
    def start(cls, scenario: Scenario) -> Self:
        """Begin a new run.

        Raises:
            StreamlearnError: data, name or settings cannot be used; no directory is left behind.
        """
        name = scenario.run.name
        place = scenario.run.dir
        runs = expanded(place) if isinstance(place, Path) else place
        if name is not None:
            check_name(name, "run.name")
        # A place that cannot be used is refused before the data is read.
        _check_new(scenario.stream.predictions)
        free = name or _free_name(runs, scenario.name)
        if name and (runs / name).exists():
            raise RunExistsError(
                f"a run called {name!r} is already in {str(runs)!r}; choose another run.name, or "
                f"go on with it: {resume_command(runs / name)}"
            )
        hardware = resolve_hardware(scenario.learner.device, scenario.learner.dtype)
        concrete = scenario.learner.model_copy(
            update={
                "device": hardware.device.type,
                "dtype": str(hardware.dtype).removeprefix("torch."),
            }
        )
        scenario = scenario.model_copy(update={"learner": concrete})
        parts = open_parts(scenario)
        scenario = settle_task(scenario, parts)
        try:
            store = RunStore.create(
                runs, free, scenario=scenario.model_dump(mode="json"), scenario_name=scenario.name
            )
        except BaseException:
            parts.loop.stream.close()
            raise
        session = cls(scenario, store, parts)
        try:
            session._logged(session._started())
            session._commit("running")
        except BaseException:
            parts.loop.stream.close()
            store.discard()  # it holds nothing yet
            raise
        session._notices += parts.schema.splitlines()
        session._notices += late_encoder(scenario, parts.loop.stream.total)
        session._is_new = True
        return session

    @classmethod
    def resume(cls, path: RunPath, words: Sequence[str] = (), *, at: int | None = None) -> Self:
        """Go on with a run from its last commit, to the bit.

        Args:
            path: of the run.
            words: changes that the result does not depend on.
            at: the step of an older commit that is kept, to go on from that one; what came after
                it is gone then.

        Raises:
            StreamlearnError: the run is finished, locked, foreign, damaged or newer, no commit of
                that step is kept, or its data is not there; the run is as it was.
        """
        reader = RunReader(path)
        manifest = reader.manifest() if at is None else reader.find_commit(at)
        if manifest is not None and manifest.status == "finished":
            raise RunStateError(
                f"run {str(path)!r} is finished, so there is nothing to resume; look at it with "
                f"streamlearn inspect, or start a new run"
            )
        scenario = override(reader.scenario, words)
        store = RunStore.open(path)
        parts: Parts | None = None
        try:
            parts = open_parts(scenario)
            session = cls(scenario, store, parts)
            if store.manifest is None:  # killed before its first commit: begin at the beginning
                _check_new(scenario.stream.predictions)
                session._commit("running")
            elif at is None:
                session._restore(store.read())
            else:
                older = store.read(at=store.read().find_commit(at).commit)
                session._restore(older)
                for name in session._loop.learner.memories():
                    older.check_memory(name)  # before anything newer is given up for it
                store.rewind(older.number)
            for name, memory in session._loop.learner.memories().items():
                store.open_memory(name, memory)
        except BaseException:
            if parts is not None:
                parts.loop.stream.close()
            store.close()
            raise
        return session

    def _restore(self, reader: RunReader) -> None:
        state = reader.state()
        self._loop.load_state_dict(state["loop"])
        self._peak_rss = int(state["peak_rss_bytes"])
        if self._quarantine is not None:
            self._quarantine.cut(int(state.get("quarantine_bytes", 0)))
        if self._predictions is not None and "predictions" in state:
            written = state["predictions"]
            self._predictions.cut(int(written["bytes"]), int(written["checksum"]))
        else:
            _check_new(self.scenario.stream.predictions)
        manifest = reader.manifest()
        if manifest is not None:
            self._disk_bytes = manifest.disk_bytes
        self._committed_step = self._loop.step
        for what, then, now in (
            ("threads", state["threads"], torch.get_num_threads()),
            ("PyTorch", state["torch"], torch.__version__),
        ):
            if then != now:
                self._notices.append(
                    f"resumed with {what} {now} instead of {then}: results may differ in the last "
                    "bits"
                )

    # -- the run ---------------------------------------------------------------------------------

    def request_stop(self, reason: str) -> None:
        """Commit and end at the next step; safe to call from a signal handler."""
        self._stop_reason = reason

    def events(self) -> Iterator[Event]:
        """Learn; the last event is `Finished` or `Stopped`.

        Raises:
            StreamlearnError: something cannot be read, learnt or written; says how to go on.
        """
        try:
            yield from self._events()
        except StorageError as error:
            again = StorageError(f"{error}; go on with: {resume_command(self.path)}")
            again.errno = error.errno
            raise again from error

    def _events(self) -> Iterator[Event]:
        yield self._started() if self._is_new else self._logged(self._started())
        for notice in self._notices:
            yield self._logged(Notice(notice))
        self._committed_at = time.monotonic()
        for event in self._learning():
            if isinstance(event, Testing):
                yield event
                if self._stop_reason is not None:  # what was begun is measured anew then
                    yield from self._stop()
                    return
                continue
            if isinstance(event, Skipped):
                event = self._put_aside(event)
            if not isinstance(event, Progress):
                yield self._logged(event)
                continue
            progress = dataclasses.replace(event, memory=self._memory_status())
            self._log_progress(progress)
            yield progress
            if self._stop_reason is not None:
                yield from self._stop()
                return
            if self._pending is not None and self._pending.done:
                yield from self._saved()
            if self._pending is None:
                if self._checkpoint_due():
                    self._begin("running")
                else:
                    self._store.write_ahead(self._loop.learner.memories())
        yield from self._saved()
        if self._loop.step != self._committed_step:
            # The pass is safe before the test, which may take long, begins.
            yield self._commit("running")
        tested: Tested | None = None
        if self._test is not None and self.scenario.evaluation.test:
            began = time.perf_counter()
            for result in held_out(
                self._loop.learner,
                self._test,
                linearise=self.scenario.evaluation.linearise,
                abstain=self.scenario.evaluation.abstain,
            ):
                if isinstance(result, Tested):
                    tested = result
                    yield self._logged(result)
                    continue
                yield result
                if self._stop_reason is not None:
                    yield from self._stop()
                    return
            self._loop.seconds += time.perf_counter() - began
        finished = self._finished(tested)
        self._logged(finished)
        yield self._commit("finished", tested)
        yield finished

    def _put_aside(self, event: Skipped) -> Skipped:
        """Keep the text of a row that could not be used in a file of its own."""
        records = self.scenario.data.kind in RECORD_KINDS  # a blank line has no text, and counts
        if self._quarantine is None or not (event.raw or records):
            return event
        self._quarantine.append([Quarantined(event.item, event.reason, event.raw)])
        return dataclasses.replace(event, raw="")

    def _write_answers(self, parts: list[Answered]) -> None:
        """Keep answers in the file that was asked for."""
        assert self._predictions is not None
        learner = self._loop.learner
        self._predictions.write(records_of(parts, learner.task, learner.labels))

    def _learning(self) -> Iterator[Event]:
        """The loop's events; what ends it badly finds all that was learnt before saved."""
        try:
            yield from self._loop.events()
        except StorageError:
            raise
        except FormatError as error:
            # Nothing is committed on top of damage: that would let older, whole commits go.
            remedy = f"streamlearn verify --repair {shlex.quote(str(self.path))}"
            raise FormatError(
                f"{error}, or go back to the newest whole commit with: {remedy}"
            ) from error
        except StreamlearnError as error:
            kept = f"all before it is saved in {str(self.path)!r}"
            again = f"go on with: {resume_command(self.path)}"
            # The same settings may end the same way, and a run cannot take others.
            if isinstance(error, ConfigError):
                again = "other settings need a new run"
            elif isinstance(error, NotFiniteError):
                again = f"once the data are mended {again}; other settings need a new run"
            message = f"{error}; {kept}, {again}"
            self._logged(Notice(str(error)))
            if self._loop.step != self._committed_step:
                self._commit("stopped")
            raise type(error)(message) from error

    def _stop(self) -> Iterator[Event]:
        yield from self._saved()
        stopped = Stopped(
            step=self._loop.step,
            samples=self._loop.evaluation.samples,
            reason=self._stop_reason or "",
            resume=resume_command(self.path),
        )
        # Logged before the commit, which then holds it: what follows a commit is cut at resume.
        self._logged(stopped)
        yield self._commit("stopped")
        yield stopped

    def _checkpoint_due(self) -> bool:
        settings = self.scenario.checkpoint
        steps = self._loop.step - self._committed_step
        return steps > 0 and (
            time.monotonic() - self._committed_at >= settings.every_seconds
            or (settings.every_steps is not None and steps >= settings.every_steps)
        )

    def _commit(self, status: Status, tested: Tested | None = None) -> CheckpointSaved:
        """Commit and wait for it."""
        for _ in self._saved():
            pass
        self._begin(status, tested)
        (event,) = self._saved()
        return event

    def _begin(self, status: Status, tested: Tested | None = None) -> None:
        """Begin a commit of what there is now; a thread makes it while learning goes on."""
        began = time.perf_counter()
        loop = self._loop
        self._peak_rss = max(self._peak_rss, _peak_rss_bytes())
        if self._quarantine is not None:
            self._quarantine.sync()
        written: dict[str, Any] = {}
        if (answers := self._predictions) is not None:
            answers.sync()
            written = {"predictions": {"bytes": answers.size, "checksum": answers.checksum}}
        memories = loop.learner.memories()
        committed = self._store.manifest.layers if self._store.manifest else {}
        self._pending = self._store.begin(
            step=loop.step,
            samples=loop.evaluation.samples,
            status=status,
            state={
                "loop": loop.state_dict(),
                "peak_rss_bytes": self._peak_rss,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "quarantine_bytes": 0 if self._quarantine is None else self._quarantine.size,
                **written,
            },
            memories=memories,
            # A network that was made wider has other layers.
            retired=set(committed) - set(memories) if may_widen(loop.learner) else (),
            summary=summary_of(loop, self.scenario.learner.kind, tested),
            keep=self.scenario.checkpoint.keep,
        )
        self._pending_at = loop.step, loop.evaluation.samples
        self._committed_step = loop.step
        self._committed_at = time.monotonic()
        self._waited = time.perf_counter() - began

    def _saved(self) -> Iterator[CheckpointSaved]:
        """The end of the commit that was begun, if one was."""
        if self._pending is None:
            return
        began = time.perf_counter()
        pending, self._pending = self._pending, None
        try:
            commit = pending.result()
        except BaseException:
            self._committed_step = -1
            raise
        self._disk_bytes = commit.disk_bytes
        blocked, self._store.waited = self._store.waited, 0.0
        step, samples = self._pending_at
        event = CheckpointSaved(
            step=step,
            samples=samples,
            bytes_written=commit.bytes_written,
            disk_bytes=commit.disk_bytes,
            seconds=commit.seconds,
            waited=self._waited + blocked + time.perf_counter() - began,
            time=commit.time,
        )
        self._store.log(as_json(event))
        yield event

    def _started(self) -> Started:
        learner = self._loop.learner
        return Started(
            run=str(self.path),
            scenario=self.scenario.name,
            step=self._loop.step,
            samples=self._loop.evaluation.samples,
            total_samples=self._loop.stream.total,
            classes=len(learner.classes),
            device=learner.hardware.device.type,
            dtype=str(learner.hardware.dtype).removeprefix("torch."),
            seed=self.scenario.seed,
            outputs=width_of(learner.task).get("outputs"),
        )

    def _finished(self, tested: Tested | None) -> Finished:
        loop = self._loop
        layers = loop.layers()
        return Finished(
            test_accuracy=None if tested is None else tested.accuracy,
            prequential_accuracy=loop.evaluation.accuracy,
            samples=loop.evaluation.samples,
            skipped=loop.skipped,
            seconds=loop.seconds,
            peak_rss_bytes=max(self._peak_rss, _peak_rss_bytes()),
            tuples=sum(layer.tuples for layer in layers),
            tuple_bytes=sum(layer.bytes for layer in layers),
            run=str(self.path),
            layers=layers,
            learner_bytes=loop.learner.nbytes,
            metrics=final_metrics(loop, tested),
            continual=None if loop.matrix is None else loop.matrix.summary(),
        )

    def _memory_status(self) -> MemoryStatus:
        tiers = self._loop.learner.tiers
        return MemoryStatus(
            device_bytes=tiers.device_bytes,
            host_bytes=tiers.host_bytes,
            rss_bytes=self._process.memory_info().rss,
            disk_bytes=self._disk_bytes,
        )

    def _log_progress(self, progress: Progress) -> None:
        """About twice a second, and often enough that a quick run has a curve too."""
        now = time.monotonic()
        steps = progress.step - self._logged_step
        if now - self._logged_at >= _LOG_SECONDS or steps > progress.step // 50:
            self._logged_at, self._logged_step = now, progress.step
            self._store.log(as_json(progress))

    def _logged(self, event: Event) -> Event:
        self._store.log(as_json(event))
        return event

    def close(self) -> None:
        """Let go of the data and of the run directory."""
        self._loop.stream.close()
        if self._quarantine is not None:
            self._quarantine.close()
        if self._predictions is not None:
            self._predictions.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def evaluate(path: RunPath, words: Sequence[str] = ()) -> Iterator[Testing | Tested]:
    """Score the held-out test set with the last commit of a run; nothing is written.

    Raises:
        StreamlearnError: the run or its data cannot be read, or there is no test set.
    """
    reader = RunReader(path)
    if reader.manifest() is None:
        raise RunStateError(
            f"run {str(path)!r} was never committed, so there is nothing to evaluate yet"
        )
    scenario = override(reader.scenario, words)
    splits = open_splits(scenario)
    if splits.test is None:
        raise ConfigError(
            f"the data of run {str(path)!r} has no test set (data.holdout=0); "
            "its prequential accuracy is all there is: streamlearn inspect"
        )
    loop = build_loop(scenario, splits).loop
    loop.load_state_dict(reader.state()["loop"])
    for name, memory in loop.learner.memories().items():
        reader.open_memory(name, memory)
    settings = scenario.evaluation
    yield from held_out(
        loop.learner, splits.test, linearise=settings.linearise, abstain=settings.abstain
    )


def _check_new(place: Path | None) -> None:
    """Refuse a file that predictions cannot begin in, before anything is made.

    Raises:
        ConfigError: there is something already, or no folder that can be written.
    """
    if place is None:
        return
    if place.is_dir() or (place.exists() and (not place.is_file() or place.stat().st_size)):
        raise ConfigError(
            f"stream.predictions={place} is there already and is not written over; name a new "
            "file, or move that one away"
        )
    folder = place.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        why = "cannot be written to" if folder.is_dir() else "is no folder"
        raise ConfigError(
            f"stream.predictions={place} cannot be used: {folder} {why}; name a file in a folder "
            "that there is"
        )


def _free_name(runs: RunPath, scenario: str) -> str:
    """Scenario and time, with a number where that is taken."""
    stem = f"{scenario}-{time.strftime('%Y%m%d-%H%M%S')}"
    name, number = stem, 2
    while (runs / name).exists():
        name, number = f"{stem}-{number}", number + 1
    return name


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
