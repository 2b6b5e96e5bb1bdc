"""What the loop says while it learns: frozen records that dashboard, log and checkpoint consume.

`as_json` turns an event into the one JSON object a line that `--json` prints and that the event log
keeps: `{"event": "progress", "step": 12, …}`. Fractions are fractions (0.72), times are seconds,
sizes are bytes. `metrics` has the figures of `agreement` where targets are classes. Where they are
numbers, accuracies are None and errors are in `metrics`, in the targets' own unit; elsewhere
`outputs` is left out of the JSON, as empty `metrics` are.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

__all__ = [
    "CheckpointSaved",
    "ClassArrived",
    "DriftDetected",
    "EncoderFitted",
    "Event",
    "ExperienceEnded",
    "Finished",
    "LayerStatus",
    "MemoryStatus",
    "Notice",
    "Paused",
    "Progress",
    "Skipped",
    "Started",
    "Stopped",
    "Tested",
    "Testing",
    "as_json",
]


@dataclass(frozen=True, slots=True)
class LayerStatus:
    """One growing layer: its stored tuples and the bytes that their columns take."""

    name: str
    tuples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Where bytes live: tuples on the device and in host memory, the process, the run on disk."""

    device_bytes: int
    host_bytes: int
    rss_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class Started:
    """The loop begins; `step` and `samples` are where it begins (0 unless resumed).

    outputs: numbers of a target, where these are no classes.
    """

    event: ClassVar[str] = "started"
    run: str
    scenario: str
    step: int
    samples: int
    total_samples: int | None
    classes: int
    device: str
    dtype: str
    seed: int
    outputs: int | None = None


@dataclass(frozen=True, slots=True)
class EncoderFitted:
    """The encoder was fitted on the first samples and is frozen from here on."""

    event: ClassVar[str] = "encoder_fitted"
    step: int
    samples: int
    encoder: str
    width: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """One mini-batch was scored and then learnt.

    `samples` counts scored samples, `position` the consumed items of the stream (skipped ones too);
    `accuracy` is cumulative prequential, `windowed_accuracy` over the last window, `loss` the mean
    loss of this batch, `seconds` the time learnt so far over all sessions of the run,
    `learner_bytes` what the learner needs to predict and to go on learning, tuples included.
    `waiting` samples were answered to and wait for their labels.
    `metrics` are kappa, no_change_accuracy, …, or mae, rmse, r2, windowed_mae, no_change_mae, …
    where targets are numbers. `bounds` of the memory are rows, the most of each growing layer,
    left, tuples of each that went for others, and budget and used, in bytes; empty where there are
    none, and then left out of the JSON.
    """

    event: ClassVar[str] = "progress"
    step: int
    samples: int
    position: int
    total_samples: int | None
    skipped: int
    seconds: float
    rate: float
    loss: float
    accuracy: float | None
    windowed_accuracy: float | None
    layers: tuple[LayerStatus, ...]
    memory: MemoryStatus | None = None
    learner_bytes: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    waiting: int = 0
    bounds: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExperienceEnded:
    """All samples of one class group or domain of the stream were learnt.

    experience, experiences: its number, from 1, and how many there are. classes: their names, or
    that of the domain.
    accuracies: held-out, on each experience of the stream in turn, as far as that is measured.
    average_accuracy, forgetting: after this experience, see `continual`.
    """

    event: ClassVar[str] = "experience"
    step: int
    samples: int
    experience: int
    experiences: int
    classes: tuple[str, ...]
    accuracies: tuple[float, ...] | None = None
    average_accuracy: float | None = None
    forgetting: float | None = None


@dataclass(frozen=True, slots=True)
class ClassArrived:
    """A class was among the targets for the first time, after the beginning of the stream.

    samples: the number of its sample, from 1. label: its name.
    """

    event: ClassVar[str] = "class_arrived"
    step: int
    samples: int
    label: str


@dataclass(frozen=True, slots=True)
class DriftDetected:
    """The error has risen: the share of wrong answers, or the mean absolute error of numbers.

    samples: the number of the sample at which it was found. before, after: mean errors before and
    in the detector's window, of `window` samples. action: what was done, "none" too where the
    encoder was not fitted yet.
    """

    event: ClassVar[str] = "drift"
    step: int
    samples: int
    detector: str
    before: float
    after: float
    window: int
    action: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """An item of the stream could not be used; it was named, counted and left out.

    raw: what it was, where that is text.
    """

    event: ClassVar[str] = "skipped"
    item: str
    reason: str
    skipped: int
    raw: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A commit is durable: a crash from here on loses nothing up to `step`.

    seconds: that it took. waited: of these, those in which nothing was learnt.
    """

    event: ClassVar[str] = "checkpoint"
    step: int
    samples: int
    bytes_written: int
    disk_bytes: int
    seconds: float
    time: float
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something worth a line in the list of events."""

    event: ClassVar[str] = "notice"
    text: str


@dataclass(frozen=True, slots=True)
class Paused:
    """Nothing is learnt until whoever asked for a pause ends it; said again and again meanwhile."""

    event: ClassVar[str] = "paused"
    step: int
    samples: int


@dataclass(frozen=True, slots=True)
class Testing:
    """Part of the held-out test is scored."""

    event: ClassVar[str] = "testing"
    samples: int
    total_samples: int


@dataclass(frozen=True, slots=True)
class Tested:
    """The held-out test is scored: accuracy, or mae, rmse and r2, and mean loss.

    metrics: those of `Progress` that do not depend on the order of samples.
    """

    event: ClassVar[str] = "tested"
    samples: int
    accuracy: float | None
    loss: float
    seconds: float
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    linearised: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run was interrupted, checkpointed, and can be resumed."""

    event: ClassVar[str] = "stopped"
    step: int
    samples: int
    reason: str
    resume: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The stream is at its end and the run is complete.

    metrics: test_kappa, …, and prequential_kappa, …, or test_mae, … where targets are numbers.
    continual: the accuracy matrix and its figures, see `continual`, where classes came in turn;
    left out of the JSON elsewhere. bounds: as of `Progress`.
    """

    event: ClassVar[str] = "finished"
    test_accuracy: float | None
    prequential_accuracy: float | None
    samples: int
    skipped: int
    seconds: float
    peak_rss_bytes: int
    tuples: int
    tuple_bytes: int
    run: str
    layers: tuple[LayerStatus, ...] = field(default=())
    learner_bytes: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    continual: Mapping[str, Any] | None = None
    bounds: Mapping[str, int] = field(default_factory=dict)


_SELDOM = ("metrics", "outputs", "linearised", "continual", "waiting", "raw", "bounds")
"""What events say only where there is something to say."""

Event = (
    Started
    | EncoderFitted
    | Progress
    | ExperienceEnded
    | ClassArrived
    | DriftDetected
    | Skipped
    | CheckpointSaved
    | Notice
    | Paused
    | Testing
    | Tested
    | Stopped
    | Finished
)


def as_json(event: Event) -> dict[str, Any]:
    """The event as a dictionary that `json.dumps` can write, its name first."""
    fields = dataclasses.asdict(event)
    for name in _SELDOM:
        if not fields.get(name, True):
            del fields[name]
    return {"event": event.event, **fields}
