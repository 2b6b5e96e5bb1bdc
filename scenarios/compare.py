"""Several learners on one stream: each batch is read once and given to every learner in turn.

Nothing of the stream is kept, and each learner has the loop that a run has, so its figures are
those of a run alone. A learner that fails is left out from there on; the others go on.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeAlias

import torch

from streamlearn.errors import StreamlearnError
from streamlearn.events import EncoderFitted, LayerStatus, Progress, Skipped, Tested
from streamlearn.loop import Loop, held_out
from streamlearn.streams import Splits, Stream
from streamlearn.streams.base import Batch

from .build import build_loop, build_stream, open_splits
from .curves import Curve, Point
from .entrants import Entrant, entrants
from .metrics import CURVES, first_there, measured
from .schema import Scenario

__all__ = [
    "Compared",
    "Comparison",
    "ComparisonEvent",
    "ComparisonProgress",
    "ComparisonStarted",
    "LearnerFailed",
    "LearnerFitted",
    "LearnerResult",
    "LearnerTested",
    "comparison_json",
]

State: TypeAlias = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class ComparisonStarted:
    """The stream begins."""

    event: ClassVar[str] = "started"
    scenario: str
    learners: tuple[str, ...]
    total_samples: int
    classes: int
    batch: int
    window: int
    seed: int


@dataclass(frozen=True, slots=True)
class ComparisonProgress:
    """One mini-batch was given to every learner that is still there, or a part of a test.

    position: items of the stream so far. testing: the learner whose test goes on.
    values: by learner the figures so far. learner_bytes: by learner.
    """

    event: ClassVar[str] = "progress"
    position: int
    total_samples: int
    seconds: float
    values: dict[str, dict[str, float]]
    learner_bytes: dict[str, int]
    testing: str | None = None


@dataclass(frozen=True, slots=True)
class LearnerFitted:
    """The encoder of a learner was fitted, and the samples held back for it were learnt."""

    event: ClassVar[str] = "encoder_fitted"
    learner: str
    encoder: str
    width: int
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LearnerFailed:
    """A learner is left out from here on."""

    event: ClassVar[str] = "learner_failed"
    learner: str
    reason: str
    position: int


@dataclass(frozen=True, slots=True)
class LearnerTested:
    """A learner was scored on the held-out test."""

    event: ClassVar[str] = "tested"
    learner: str
    samples: int
    values: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class LearnerResult:
    """What came of one learner.

    words: its own. values: its figures by name. samples: scored.
    learner_bytes: what it needs to predict and to go on learning, tuples included, encoder not.
    equal_bytes: a size at which all can be compared: that of the smallest learner at its end, or,
    where some learner never was so small, the smallest that each of them once had. equal_value,
    equal_samples: the curve's figure, and the samples, at the last moment (to one percent of size)
    when this learner took no more than that.
    fit_seconds: fitting the encoder and learning what was held back for it. learn_seconds: scoring
    and learning the rest. test_seconds: of the held-out test. rate: samples a second of fitting
    and learning together.
    curve: points (samples, the curve's figure, bytes).
    """

    event: ClassVar[str] = "result"
    learner: str
    words: tuple[str, ...]
    state: State
    reason: str | None
    values: dict[str, float]
    samples: int
    tuples: int
    tuple_bytes: int
    learner_bytes: int
    equal_bytes: int | None
    equal_value: float | None
    equal_samples: int | None
    fit_seconds: float
    learn_seconds: float
    test_seconds: float
    rate: float
    curve_of: str
    curve: tuple[tuple[int, float, int], ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison is over; stopped: the reason if that was before its end."""

    event: ClassVar[str] = "compared"
    finished: int
    failed: int
    samples: int
    skipped: int
    seconds: float
    read_seconds: float
    stopped: str | None


ComparisonEvent: TypeAlias = (
    ComparisonStarted
    | ComparisonProgress
    | LearnerFitted
    | LearnerFailed
    | LearnerTested
    | LearnerResult
    | Compared
    | Skipped
)


def comparison_json(event: ComparisonEvent) -> dict[str, Any]:
    """The event as a dictionary for JSON, its name first."""
    return {"event": event.event, **asdict(event)}


class _Handed(Stream):
    """A stream whose batches somebody else reads and hands over, each before it is asked for."""

    def __init__(self, source: Stream) -> None:
        vars(self).update(vars(source))  # the same items, not a copy of them
        self._source = source
        self.position = 0
        self.next: Batch | None = None

    @property
    def total(self) -> int | None:
        """The source's."""
        return self._source.total

    def batches(self, size: int, *, ahead: bool = False) -> Iterator[Batch]:
        """What was handed over; at an end when nothing was."""
        while self.next is not None:
            batch, self.next = self.next, None
            self.position = batch.position
            yield batch


@dataclass(slots=True)
class _Seat:
    """One learner while the stream goes by."""

    entrant: Entrant
    loop: Loop[Any] | None
    stream: _Handed
    events: Iterator[Any]
    curve: Curve = field(default_factory=Curve)
    values: dict[str, float] = field(default_factory=dict)
    layers: tuple[LayerStatus, ...] = ()
    samples: int = 0
    learner_bytes: int = 0
    fit_seconds: float = 0.0
    learn_seconds: float = 0.0
    test_seconds: float = 0.0
    tested: bool = False
    reason: str | None = None

    @property
    def name(self) -> str:
        """The learner's."""
        return self.entrant.name

    def learn(self, batch: Batch | None) -> Iterator[LearnerFitted]:
        """Score and learn a batch, or with None what is left at the end of the stream."""
        self.stream.next = batch
        while True:
            began = time.perf_counter()
            event = next(self.events, None)
            self.learn_seconds += time.perf_counter() - began
            if event is None:
                return
            if isinstance(event, EncoderFitted):
                self.fit_seconds += event.seconds
                self.learn_seconds -= event.seconds
                yield LearnerFitted(
                    self.name, event.encoder, event.width, event.samples, event.seconds
                )
            if not isinstance(event, Progress):
                continue
            self._note(event)
            # A fit comes before the batch is taken, and one that is given up comes again and again.
            if (batch is not None and self.stream.next is None) or self._stops():
                return

    def _stops(self) -> bool:
        return self.loop is not None and self.loop.should_stop()

    def _note(self, event: Progress) -> None:
        self.layers, self.samples = event.layers, event.samples
        self.learner_bytes = event.learner_bytes
        self.values |= measured(event)
        self.curve.add(Point(event.samples, event.learner_bytes, dict(measured(event))))

    def leave(self, reason: str) -> None:
        """Give up, and let go of all memory."""
        self.reason = reason
        self.loop = None
        self.events = iter(())


class Comparison:
    """Learners that sit before one stream; `events` lets it go by.

    Args:
        found: the learners, which agree about the stream.
        splits: its data.

    Raises:
        ConfigError: a learner that cannot take such data; names it.
    """

    def __init__(self, found: Sequence[Entrant], splits: Splits) -> None:
        self.scenario: Scenario = found[0].scenario
        self._splits = splits
        self._stream = build_stream(self.scenario, splits)
        self._reason: str | None = None
        self._seats = [self._seat(entrant) for entrant in found]
        self._skipped = 0
        self._began = 0.0
        self._reading = 0.0

    @classmethod
    def start(cls, words: Sequence[str], learners: Sequence[str]) -> Self:
        """A comparison from the words of a command line; see `entrants`.

        Raises:
            StreamlearnError: words or data cannot be used.
        """
        found = entrants(words, learners)
        return cls(found, open_splits(found[0].scenario))

    def _seat(self, entrant: Entrant) -> _Seat:
        stream = _Handed(self._stream)
        try:
            loop = build_loop(entrant.scenario, self._splits, stream).loop
        except StreamlearnError as error:
            raise type(error)(f"learner {entrant.name!r}: {error}") from error
        loop.should_stop = lambda: self._reason is not None
        return _Seat(entrant, loop, stream, loop.events())

    def request_stop(self, reason: str) -> None:
        """End at the next batch with the figures of what there is; safe from a signal handler."""
        self._reason = reason

    def events(self) -> Iterator[ComparisonEvent]:
        """Learn and test; a `LearnerResult` for each learner and `Compared` come last.

        Raises:
            StreamlearnError: the stream cannot be read on; the results came before.
        """
        self._began = time.perf_counter()
        settings = self.scenario
        yield ComparisonStarted(
            scenario=settings.name,
            learners=tuple(seat.name for seat in self._seats),
            total_samples=len(self._stream),
            classes=len(self._splits.train.classes),
            batch=settings.learner.batch,
            window=settings.evaluation.window,
            seed=settings.seed,
        )
        unread: StreamlearnError | None = None
        try:
            yield from self._learning()
        except StreamlearnError as error:
            unread = error
            self._reason = "data that cannot be read"
        if self._reason is None and settings.evaluation.test and self._splits.test is not None:
            for seat in self._present():
                yield from self._test(seat)
        yield from self._results()
        if unread is not None:
            raise unread

    def _present(self) -> list[_Seat]:
        return [seat for seat in self._seats if seat.loop is not None]

    def _learning(self) -> Iterator[ComparisonEvent]:
        batches = self._stream.batches(self.scenario.learner.batch, ahead=True)
        with contextlib.closing(batches):  # type: ignore[type-var]
            while self._reason is None and self._present():
                began = time.perf_counter()
                batch = next(batches, None)
                self._reading += time.perf_counter() - began
                if batch is not None:
                    for item in batch.rows.skipped:
                        self._skipped += 1
                        yield Skipped(item.item, item.reason, self._skipped)
                for seat in self._present():
                    yield from self._guarded(seat, seat.learn(batch))
                yield self._progress()
                if batch is None:
                    return

    def _guarded(
        self, seat: _Seat, events: Iterator[LearnerFitted | ComparisonProgress | LearnerTested]
    ) -> Iterator[ComparisonEvent]:
        """Let a learner work; what goes wrong there ends it alone."""
        try:
            yield from events
            return
        except StreamlearnError as error:
            reason = str(error)
        except (MemoryError, torch.OutOfMemoryError):
            reason = "out of memory; give it less (memory.host_budget, data.limit) or leave it out"
        seat.leave(reason)
        yield LearnerFailed(seat.name, reason, self._stream.position)

    def _test(self, seat: _Seat) -> Iterator[ComparisonEvent]:
        if self._reason is None:
            yield from self._guarded(seat, self._testing(seat))

    def _testing(self, seat: _Seat) -> Iterator[ComparisonProgress | LearnerTested]:
        loop, test = seat.loop, self._splits.test
        if loop is None or test is None:
            return
        settings = seat.entrant.scenario.evaluation
        for event in held_out(
            loop.learner, test, linearise=settings.linearise, abstain=settings.abstain
        ):
            if isinstance(event, Tested):
                seat.test_seconds = event.seconds
                seat.values |= measured(event)
                seat.tested = True
                yield LearnerTested(seat.name, event.samples, measured(event), event.seconds)
            else:
                yield self._progress(seat.name)
            if self._reason is not None:
                return

    def _progress(self, testing: str | None = None) -> ComparisonProgress:
        return ComparisonProgress(
            position=self._stream.position,
            total_samples=len(self._stream),
            seconds=time.perf_counter() - self._began,
            values={seat.name: dict(seat.values) for seat in self._seats},
            learner_bytes={seat.name: seat.learner_bytes for seat in self._seats},
            testing=testing,
        )

    def _results(self) -> Iterator[ComparisonEvent]:
        equal = _equal_bytes(self._present())
        shown = first_there((seat.values for seat in self._seats), CURVES).name
        results = [self._result(seat, equal, shown) for seat in self._seats]
        yield from results
        yield Compared(
            finished=sum(result.state == "finished" for result in results),
            failed=sum(result.state == "failed" for result in results),
            samples=max(result.samples for result in results),
            skipped=self._skipped,
            seconds=time.perf_counter() - self._began,
            read_seconds=self._reading,
            stopped=self._reason,
        )

    def _result(self, seat: _Seat, equal: int | None, shown: str) -> LearnerResult:
        state: State = "finished"
        if seat.reason is not None:
            state = "failed"
        elif self._reason is not None and not seat.tested:
            state = "stopped"
        then = None if equal is None else seat.curve.at_size(equal)
        worked = seat.fit_seconds + seat.learn_seconds
        return LearnerResult(
            learner=seat.name,
            words=seat.entrant.words,
            state=state,
            reason=seat.reason,
            values=seat.values,
            samples=seat.samples,
            tuples=sum(layer.tuples for layer in seat.layers),
            tuple_bytes=sum(layer.bytes for layer in seat.layers),
            learner_bytes=seat.learner_bytes,
            equal_bytes=equal,
            equal_value=None if then is None else then.values.get(shown),
            equal_samples=None if then is None else then.samples,
            fit_seconds=seat.fit_seconds,
            learn_seconds=seat.learn_seconds,
            test_seconds=seat.test_seconds,
            rate=seat.samples / worked if worked > 0 else 0.0,
            curve_of=shown,
            curve=tuple(
                (point.samples, point.values[shown], point.learner_bytes)
                for point in seat.curve.points
                if shown in point.values
            ),
        )


def _equal_bytes(seats: Sequence[_Seat]) -> int | None:
    """The size for `LearnerResult.equal_bytes`, of the learners that did not fail."""
    curves = {seat.learner_bytes: seat.curve.smallest for seat in seats}
    smallest = [size for size in curves.values() if size is not None]
    return max(min(curves), *smallest) if smallest else None
