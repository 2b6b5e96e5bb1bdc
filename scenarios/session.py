"""A run while it is going on: the loop, its run directory, and when they are committed together."""

import dataclasses
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
    Paused,
    Progress,
    Skipped,
    Started,
    Stopped,
    Tested,
    Testing,
    as_json,
)
from streamlearn.hardware import resolve_hardware
from streamlearn.loop import Loop, held_out
from streamlearn.predictions import Answered
from streamlearn.storage import (
    RunPath,
    RunReader,
    RunStore,
    Status,
    check_name,
    resume_command,
)
from streamlearn.streams.records import Quarantined

from .build import (
    Parts,
    build_loop,
    late_encoder,
    may_widen,
    open_parts,
    open_splits,
    settle_task,
)
from .checkpoints import Checkpoints, Standing
from .schema import RECORD_KINDS, Scenario
from .sides import SideFiles, check_new
from .summary import final_metrics, summary_of, width_of
from .words import expanded, override

__all__ = ["Session", "evaluate"]

_LOG_SECONDS = 0.5
_REST_SECONDS = 0.05


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
        self._paused = False
        self._loop.should_stop = lambda: self._stop_reason is not None
        self._checkpoints = Checkpoints(store, scenario.checkpoint)
        self._logged_step = 0
        self._logged_at = 0.0
        self._peak_rss = 0
        self._process = psutil.Process()
        self._notices: list[str] = []
        self._sides = SideFiles(scenario, store.path)
        if self._sides.keeps_answers:
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
        check_new(scenario.stream.predictions)
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
                check_new(scenario.stream.predictions)
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
        self._sides.cut(state)
        manifest = reader.manifest()
        if manifest is not None:
            self._checkpoints.disk_bytes = manifest.disk_bytes
        self._checkpoints.step = self._loop.step
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

    def pause(self, paused: bool) -> None:
        """Learn nothing from the next step on, or go on; checkpoints and stops are made as ever."""
        self._paused = paused

    def request_checkpoint(self) -> None:
        """Begin a commit after the next step, or now in a pause, if anything is new."""
        self._checkpoints.wanted = True

    def facts(self) -> dict[str, Any]:
        """What a commit would note of the run as it stands between two events.

        Returns:
            summary: of the manifest; dead: by layer, rows that are no tuples any more.
        """
        memories = self._loop.learner.memories()
        return {
            "summary": summary_of(self._loop, self.scenario.learner.kind, None),
            "dead": {name: len(memory) - memory.live for name, memory in memories.items()},
        }

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
        self._checkpoints.restart_clock()
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
            yield from self._between_steps()
            if self._stop_reason is not None:
                yield from self._stop()
                return
        yield from self._saved()
        if self._loop.step != self._checkpoints.step:
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

    def _between_steps(self) -> Iterator[Event]:
        """See to commits; in a pause over and over, until it or the run is to end."""
        began, resting = time.perf_counter(), False
        while self._stop_reason is None:
            if self._checkpoints.done:
                yield from self._saved()
            if not self._checkpoints.under_way:
                if self._checkpoints.due(self._loop.step):
                    self._begin("running")
                elif not resting:
                    self._store.write_ahead(self._loop.learner.memories())
            if not self._paused:
                break
            paused = Paused(self._loop.step, self._loop.evaluation.samples)
            yield paused if resting else self._logged(paused)
            resting = True
            time.sleep(_REST_SECONDS)
        if resting:
            self._loop.rest(time.perf_counter() - began)

    def _put_aside(self, event: Skipped) -> Skipped:
        """Keep the text of a row that could not be used in a file of its own."""
        records = self.scenario.data.kind in RECORD_KINDS  # a blank line has no text, and counts
        row = Quarantined(event.item, event.reason, event.raw)
        if (event.raw or records) and self._sides.put_aside(row):
            return dataclasses.replace(event, raw="")
        return event

    def _write_answers(self, parts: list[Answered]) -> None:
        """Keep answers in the file that was asked for."""
        self._sides.write_answers(parts, self._loop.learner)

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
            if self._loop.step != self._checkpoints.step:
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
        part = Standing(
            step=loop.step,
            samples=loop.evaluation.samples,
            status=status,
            state={
                "loop": loop.state_dict(),
                "peak_rss_bytes": self._peak_rss,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                **self._sides.sync(),
            },
            memories=loop.learner.memories(),
            summary=summary_of(loop, self.scenario.learner.kind, tested),
            widens=may_widen(loop.learner),
        )
        self._checkpoints.begin(part, began)

    def _saved(self) -> Iterator[CheckpointSaved]:
        """The end of the commit that was begun, if one was."""
        event = self._checkpoints.end()
        if event is not None:
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
            bounds=loop.learner.bounds(),
        )

    def _memory_status(self) -> MemoryStatus:
        tiers = self._loop.learner.tiers
        return MemoryStatus(
            device_bytes=tiers.device_bytes,
            host_bytes=tiers.host_bytes,
            rss_bytes=self._process.memory_info().rss,
            disk_bytes=self._checkpoints.disk_bytes,
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
        self._sides.close()
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
