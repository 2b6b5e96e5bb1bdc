"""Events in words: the one line each that plain output and the dashboard's list of events show."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from streamlearn.events import (
    CheckpointSaved,
    ClassArrived,
    DriftDetected,
    EncoderFitted,
    Event,
    ExperienceEnded,
    Finished,
    Notice,
    Paused,
    Progress,
    Skipped,
    Started,
    Stopped,
    Tested,
    Testing,
)
from streamlearn.storage import resume_command

from .format import (
    clean,
    count,
    figure,
    number,
    percent,
    rate,
    size,
    span,
)

__all__ = [
    "CONTINUAL",
    "ERRORS",
    "FORMULAS",
    "are_numbers",
    "describe",
    "drift_sizes",
    "matrix_lines",
    "summary",
    "tuple_totals",
]

ERRORS = ("mae", "rmse", "r2")
"""What is shown of answers that are numbers, by the names that events have for it."""

CONTINUAL = (
    ("average accuracy", "average_accuracy"),
    ("anytime accuracy", "anytime_accuracy"),
    ("forgetting", "forgetting"),
    ("backward transfer", "backward_transfer"),
    ("forward transfer", "forward_transfer"),
)
"""What is shown where classes come in turn, by the names that events have for it."""

FORMULAS = {
    "average_accuracy": "mean[j<=n] R[n][j]",
    "anytime_accuracy": "mean[i<=n] of the average accuracy after i",
    "forgetting": "mean[j<n] (max[j<=i<n] R[i][j] - R[n][j])",
    "backward_transfer": "mean[j<n] (R[n][j] - R[j][j])",
    "forward_transfer": "mean[2<=j<=n] (R[j-1][j] - 1/classes)",
}
"""How these follow from the accuracy matrix R after n experiences, see `continual`."""


def are_numbers(metrics: Mapping[str, float | None]) -> bool:
    """Whether metrics are of answers that are numbers, not classes."""
    return _name_numbers(tuple(metrics))


@lru_cache(maxsize=64)
def _name_numbers(names: tuple[str, ...]) -> bool:
    return any(name.endswith("mae") for name in names)  # asked at every step of a run


def drift_sizes(before: float, after: float) -> str:
    """Mean errors before and after a drift; figures say both shares and numbers in any unit."""
    return f"{figure(before)} to {figure(after)}"


def tuple_totals(progress: Progress) -> tuple[int, int]:
    """Stored tuples and their bytes over all layers."""
    return (
        sum(layer.tuples for layer in progress.layers),
        sum(layer.bytes for layer in progress.layers),
    )


def describe(event: Event) -> str:
    """One line without control characters that says what happened."""
    return clean(_describe(event))


def _describe(event: Event) -> str:
    match event:
        case Started():
            begin = f"resumed at step {event.step:,}, sample {event.samples:,}"
            total = "an open-ended stream" if event.total_samples is None else (
                f"{event.total_samples:,} samples"
            )  # fmt: skip
            return (
                f"{begin if event.step else 'started'}: {total}, "
                f"{_targets(event)}, {event.device} {event.dtype}, seed {event.seed}"
            )
        case EncoderFitted():
            return (
                f"encoder {event.encoder} fitted on {event.samples:,} samples in "
                f"{span(event.seconds)}: {event.width:,} features"
            )
        case ExperienceEnded():
            return _experience(event)
        case ClassArrived():
            return f"class {event.label} came with sample {event.samples:,}"
        case DriftDetected():
            action = "" if event.action == "none" else f"; {event.action}"
            return (
                f"drift at sample {event.samples:,}, by {event.detector}: mean error "
                f"{drift_sizes(event.before, event.after)}{action}"
            )
        case Progress():
            return _progress(event)
        case Skipped():
            return f"skipped {event.item}: {event.reason} ({event.skipped:,} so far)"
        case CheckpointSaved():
            return (
                f"checkpoint at step {event.step:,}: "
                f"{size(event.bytes_written)} in {span(event.seconds)}"
            )
        case Notice():
            return event.text
        case Paused():
            return f"paused at step {event.step:,}, sample {event.samples:,}"
        case Testing():
            return f"testing {event.samples:,} of {event.total_samples:,}"
        case Tested():
            return (
                f"test {_how(event)}{_quality(event.accuracy, event.metrics)}, "
                f"loss {number(event.loss)} on {event.samples:,} samples in {span(event.seconds)}"
            )
        case Stopped():
            return f"stopped by {event.reason} at step {event.step:,}, sample {event.samples:,}"
        case Finished():
            return (
                f"finished: {event.samples:,} samples in {span(event.seconds)}, "
                f"test {_quality(event.test_accuracy, event.metrics, 'test_')}"
            )


def _experience(event: ExperienceEnded) -> str:
    line = f"experience {event.experience} of {event.experiences} ({', '.join(event.classes)})"
    if event.accuracies is None:
        return f"{line} learnt"
    parts = [", ".join(percent(value) for value in event.accuracies[: event.experience])]
    if event.experience > 1:
        average = f"average {percent(event.average_accuracy)}"
        parts += [average, f"forgetting {percent(event.forgetting)}"]
    return f"{line}: {', '.join(parts)}"


def matrix_lines(continual: Mapping[str, Any]) -> list[str]:
    """The accuracy matrix, a row for each experience that was learnt, and what follows from it."""
    rows = continual["matrix"]
    return [
        "accuracy of each experience after each:",
        *("  " + "  ".join(f"{percent(value):>7}" for value in row) for row in rows),
        *([f"in turn: {'; '.join(continual['domains'])}"] if continual.get("domains") else []),
        f"row i, column j is R[i][j]; after n = {len(rows)} of them:",
        *(
            f"  {name:<17} {percent(continual.get(key)):>7}  {FORMULAS[key]}"
            for name, key in CONTINUAL
        ),
    ]


def _targets(event: Started) -> str:
    if event.outputs is None:
        return f"{event.classes} classes" if event.classes else "classes as they come"
    return f"{event.outputs} output{'' if event.outputs == 1 else 's'}"


def _quality(accuracy: float | None, metrics: Mapping[str, float | None], prefix: str = "") -> str:
    """How good answers are: their accuracy, or their errors where targets are numbers."""
    if not are_numbers(metrics):
        return f"accuracy {percent(accuracy)}"
    return ", ".join(f"{name} {figure(metrics.get(prefix + name))}" for name in ERRORS)


def _progress(event: Progress) -> str:
    tuples, tuple_bytes = tuple_totals(event)
    done = count(event.position)
    if event.total_samples:
        share = percent(event.position / event.total_samples, 1)
        done = f"{done} of {count(event.total_samples)} ({share})"
    parts = [
        done,
        *_both(event),
        f"loss {number(event.loss)}",
        rate(event.rate),
        f"{count(tuples)} tuples ({size(tuple_bytes)})"
        if event.layers or not event.learner_bytes
        else f"learner {size(event.learner_bytes)}",
    ]
    if event.memory is not None:
        parts.append(f"process {size(event.memory.rss_bytes)}")
    if event.waiting:
        parts.append(f"{count(event.waiting)} wait for labels")
    if event.skipped:
        parts.append(f"skipped {count(event.skipped)}")
    return ", ".join(parts)


def _both(event: Progress) -> list[str]:
    """The quality of all answers so far and of the last ones."""
    metrics = event.metrics
    if not are_numbers(metrics):
        parts = [
            f"accuracy {percent(event.accuracy)}",
            f"windowed {percent(event.windowed_accuracy)}",
        ]
        if metrics:
            parts += [
                f"no-change {percent(metrics.get('no_change_accuracy'))}",
                f"kappa {number(metrics.get('kappa'))}",
            ]
        if "coverage" in metrics:
            parts.append(
                f"selective {percent(metrics['selective_accuracy'])} "
                f"of {percent(metrics['coverage'])} answered"
            )
        return parts
    return [
        f"{name} {figure(metrics.get(name))} (windowed {figure(metrics.get('windowed_' + name))})"
        for name in ("mae", "rmse")
    ]


def summary(event: Finished | Stopped, path: str) -> list[str]:
    """The lines that stay on the screen when a run ends, the run's path in them."""
    if isinstance(event, Stopped):
        return [
            f"stopped by {clean(event.reason)} at step {event.step:,}, sample "
            f"{event.samples:,}; everything up to there is saved",
            f"resume with: {clean(resume_command(path))}",
        ]
    skipped = [("skipped", f"{count(event.skipped)} items")] if event.skipped else []
    quality = [
        ("test accuracy", percent(event.test_accuracy)),
        ("prequential accuracy", percent(event.prequential_accuracy)),
    ]
    metrics = event.metrics
    if are_numbers(metrics):
        quality = [
            (f"{part} {name}", figure(metrics.get(f"{part}_{name}")))
            for part in ("test", "prequential")
            for name in ERRORS
        ]
        quality += _rows(metrics, (("no-change mae", "no_change_mae", figure),
                                   ("running-mean mae", "running_mean_mae", figure)))  # fmt: skip
    quality += _rows(metrics, (("coverage", "coverage", percent),
                               ("selective accuracy", "selective_accuracy", percent),
                               ("no-change accuracy", "no_change_accuracy", percent),
                               ("majority accuracy", "majority_accuracy", percent),
                               ("kappa", "kappa", number),
                               ("kappa_t, no-change", "kappa_t", number),
                               ("kappa_m, majority", "kappa_m", number)))  # fmt: skip
    figures = {} if event.continual is None else event.continual
    rows = [
        *quality,
        *((name, percent(figures[key])) for name, key in CONTINUAL if key in figures),
        ("samples", f"{count(event.samples)} in {span(event.seconds)}"),
        *skipped,
        ("tuples", f"{count(event.tuples)} ({size(event.tuple_bytes)})")
        if event.layers or not event.learner_bytes
        else ("learner", size(event.learner_bytes)),
        ("peak memory", size(event.peak_rss_bytes)),
        ("run", clean(path)),
    ]
    lines = ["finished", *(f"  {name:<21} {value}" for name, value in rows)]
    if event.continual is not None:
        lines += [f"  {line}" for line in matrix_lines(event.continual)]
    return lines


def _rows(
    metrics: Mapping[str, float | None],
    rows: Sequence[tuple[str, str, Callable[[float | None], str]]],
) -> list[tuple[str, str]]:
    """Figures over the whole stream, as far as there are any: title, name, and how they look."""
    return [
        (title, show(metrics[f"prequential_{name}"]))
        for title, name, show in rows
        if f"prequential_{name}" in metrics
    ]


def _how(tested: Tested) -> str:
    return "with 1 + x for e^x, " if tested.linearised else ""
