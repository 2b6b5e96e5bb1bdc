"""What the dashboard knows of a run: fed by events or by records of the log, read by `render`.

`update` costs microseconds, so it may see every event; only drawing is throttled.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamlearn.events import (
    CheckpointSaved,
    ClassArrived,
    DriftDetected,
    EncoderFitted,
    Event,
    ExperienceEnded,
    Finished,
    MemoryStatus,
    Paused,
    Progress,
    Skipped,
    Started,
    Stopped,
    Tested,
    Testing,
)

from .describe import are_numbers, describe
from .format import layer_title
from .records import to_event
from .series import Series

__all__ = ["Layer", "Line", "Model"]

_LINES = 200


@dataclass(slots=True)
class Layer:
    """A growing layer: tuples, their bytes, and growth as (position, tuples)."""

    tuples: int = 0
    bytes: int = 0
    growth: Series = field(default_factory=lambda: Series(128))


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the list of events; whether it is about an item that was left out."""

    time: float
    text: str
    skips: bool = False


@dataclass(slots=True)
class Model:
    """The state of a run as a person wants to see it.

    run: its path as text. phase: one word for what it is doing. curve: (samples, cumulative,
    windowed) prequential accuracy, or mean absolute error where targets are numbers. pace:
    (position, seconds). stopping: the signal that was heard. watching: whether another process does
    the learning. drifts: samples at which drift was detected. checkpoints, drifted, arrived: the
    latest events of these kinds. experience: the last one. settings: the run's scenario. summary:
    what a commit notes of the run, and dead its layers' rows that are no tuples any more; as of
    the last commit, or of the moment where this process learns. pausing: whether a pause is asked
    for. The rest are the numbers of the last
    event that carried them, None before.
    """

    run: str = ""
    scenario: str = ""
    phase: str = "starting"
    device: str = ""
    dtype: str = ""
    seed: int | None = None
    classes: int | None = None
    step: int = 0
    samples: int = 0
    position: int = 0
    total_samples: int | None = None
    skipped: int = 0
    waiting: int = 0
    seconds: float = 0.0
    rate: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    windowed_accuracy: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)
    learner_bytes: int = 0
    memory: MemoryStatus | None = None
    bounds: Mapping[str, int] = field(default_factory=dict)
    disk_bytes: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    dead: Mapping[str, int] = field(default_factory=dict)
    encoder: EncoderFitted | None = None
    experience: ExperienceEnded | None = None
    pausing: bool = False
    checkpoint_time: float | None = None
    checkpoint_step: int | None = None
    testing: Testing | None = None
    tested: Tested | None = None
    finished: Finished | None = None
    stopped: Stopped | None = None
    stopping: str | None = None
    watching: bool = False
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=_LINES))
    drifts: deque[int] = field(default_factory=lambda: deque(maxlen=_LINES))
    checkpoints: deque[CheckpointSaved] = field(default_factory=lambda: deque(maxlen=_LINES))
    drifted: deque[DriftDetected] = field(default_factory=lambda: deque(maxlen=_LINES))
    arrived: deque[ClassArrived] = field(default_factory=lambda: deque(maxlen=_LINES))
    curve: Series = field(default_factory=Series)
    pace: Series = field(default_factory=lambda: Series(128))

    @property
    def over(self) -> bool:
        """Whether the run ended, for good or until it is resumed."""
        return self.phase in ("finished", "stopped", "crashed")

    def replay(self, record: Mapping[str, Any]) -> Event | None:
        """Take in a record of the event log; gives the event that it stood for, if known."""
        event = to_event(record)
        if event is not None:
            time = record.get("time")
            self.update(event, float(time) if isinstance(time, (int, float)) else 0.0)
        return event

    def update(self, event: Event, time: float) -> None:
        """Take in an event that happened at this unix time."""
        match event:
            case Progress():
                self._progress(event)
                return  # numbers, not news: no line in the list of events
            case Testing():
                self.testing = event
                self.phase = "testing"
                return
            case Paused():
                if self.phase == "paused":
                    return  # it is said again and again
                self.phase = "paused"
            case Started():
                self._started(event)
            case EncoderFitted():
                self.encoder = event
                self.phase = "learning"
            case ExperienceEnded():
                self.experience = event
                self.testing = None
                self.phase = "learning"
            case DriftDetected():
                self.drifts.append(event.samples)
                self.drifted.append(event)
            case ClassArrived():
                self.arrived.append(event)
            case Skipped():
                self.skipped = max(self.skipped, event.skipped)
                if self.lines and self.lines[-1].skips:
                    self.lines.pop()  # it counts those before, which would crowd out all else
            case CheckpointSaved():
                self.checkpoints.append(event)
                self.checkpoint_time = event.time
                self.checkpoint_step = event.step
                self.disk_bytes = event.disk_bytes
            case Tested():
                self.tested = event
                self.testing = None
            case Stopped():
                self._stopped(event)
            case Finished():
                self._finished(event)
            case _:
                pass
        self.note(describe(event), time, skips=isinstance(event, Skipped))

    def note(self, text: str, time: float, *, skips: bool = False) -> None:
        """Add a line to the list of events."""
        self.lines.append(Line(time, text, skips))

    def time_left(self) -> float | None:
        """Seconds until the stream ends, None where that is unknown.

        Retrieval reads the whole memory, so a sample costs more the later it comes: the cost is
        taken to rise linearly, with the slope seen between the two halves of the run so far.
        """
        if self.total_samples is None or not self.rate or self.rate <= 0:
            return None
        left = max(0, self.total_samples - self.position)
        cost = 1 / self.rate  # seconds a sample, now
        return left * (cost + 0.5 * self._cost_slope() * left)

    def _cost_slope(self) -> float:
        points = self.pace.points
        if len(points) < 8:
            return 0.0
        (start, begun), (middle, halfway), (end, now) = (
            (point[0], point[1]) for point in (points[0], points[len(points) // 2], points[-1])
        )
        if not start < middle < end:
            return 0.0
        early = (halfway - begun) / (middle - start)
        late = (now - halfway) / (end - middle)
        return max(0.0, (late - early) / (0.5 * (end - start)))

    def _started(self, event: Started) -> None:
        self.run, self.scenario = event.run, event.scenario
        self.device, self.dtype = event.device, event.dtype
        self.seed, self.classes = event.seed, event.classes
        self.total_samples = event.total_samples
        # A run that goes on from a checkpoint has lost what it did after it.
        self.step, self.samples = event.step, event.samples
        self.position = min(self.position, event.samples) if self.position else event.samples
        self.curve.cut(event.samples)
        while self.drifts and self.drifts[-1] > event.samples:
            self.drifts.pop()
        for late in (self.drifted, self.arrived):
            while late and late[-1].samples > event.samples:
                late.pop()
        for series in (self.pace, *(layer.growth for layer in self.layers.values())):
            series.cut(self.position)
        self.finished = self.stopped = self.testing = self.tested = self.stopping = None
        self.phase = "learning" if event.step else "starting"

    def _progress(self, event: Progress) -> None:
        self.phase = "learning"
        self.step, self.samples, self.position = event.step, event.samples, event.position
        self.total_samples = event.total_samples
        self.skipped, self.waiting = event.skipped, event.waiting
        self.seconds, self.rate, self.loss = event.seconds, event.rate, event.loss
        self.accuracy, self.windowed_accuracy = event.accuracy, event.windowed_accuracy
        self.metrics = event.metrics
        whole, recent = event.accuracy, event.windowed_accuracy
        if are_numbers(event.metrics):
            whole, recent = event.metrics.get("mae"), event.metrics.get("windowed_mae")
        # A log may say null where a number was none.
        if whole is not None and recent is not None and math.isfinite(whole + recent):
            self.curve.add(event.samples, whole, recent)
        self.learner_bytes = event.learner_bytes
        self.bounds = event.bounds
        self.pace.add(event.position, event.seconds)
        for status in event.layers:
            layer = self.layers.setdefault(layer_title(status.name), Layer())
            layer.tuples, layer.bytes = status.tuples, status.bytes
            layer.growth.add(event.position, status.tuples)
        if event.memory is not None:
            self.memory = event.memory
            self.disk_bytes = event.memory.disk_bytes

    def _stopped(self, event: Stopped) -> None:
        self.stopped = event
        self.phase = "stopped"
        # The log has only some of the progress; the last of it may be a little behind.
        self.step, self.samples = event.step, event.samples
        self.position = max(self.position, event.samples + self.skipped)

    def _finished(self, event: Finished) -> None:
        self.finished = event
        self.phase = "finished"
        self.samples, self.seconds = event.samples, event.seconds
        self.position = max(self.position, event.samples + event.skipped)
        self.accuracy = event.prequential_accuracy
        self.skipped = max(self.skipped, event.skipped)
        self.bounds = event.bounds or self.bounds
        for status in event.layers:
            layer = self.layers.setdefault(layer_title(status.name), Layer())
            layer.tuples, layer.bytes = status.tuples, status.bytes
