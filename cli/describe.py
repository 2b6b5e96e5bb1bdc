"""Events in words: the one line each that plain output and the dashboard's list of events show."""

from collections.abc import Mapping

from streamlearn.events import (
    CheckpointSaved,
    EncoderFitted,
    Event,
    Finished,
    Notice,
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

__all__ = ["ERRORS", "describe", "summary", "tuple_totals"]

ERRORS = ("mae", "rmse", "r2")
"""What is shown of answers that are numbers, by the names that events have for it."""


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
            total = "an endless stream" if event.total_samples is None else (
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


def _targets(event: Started) -> str:
    if event.outputs is None:
        return f"{event.classes} classes"
    return f"{event.outputs} output{'' if event.outputs == 1 else 's'}"


def _quality(accuracy: float | None, metrics: Mapping[str, float | None], prefix: str = "") -> str:
    """How good answers are: their accuracy, or their errors where targets are numbers."""
    if not metrics:
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
    if event.skipped:
        parts.append(f"skipped {count(event.skipped)}")
    return ", ".join(parts)


def _both(event: Progress) -> list[str]:
    """The quality of all answers so far and of the last ones."""
    metrics = event.metrics
    if not metrics:
        return [
            f"accuracy {percent(event.accuracy)}",
            f"windowed {percent(event.windowed_accuracy)}",
        ]
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
    if event.metrics:
        quality = [
            (f"{part} {name}", figure(event.metrics.get(f"{part}_{name}")))
            for part in ("test", "prequential")
            for name in ERRORS
        ]
    rows = [
        *quality,
        ("samples", f"{count(event.samples)} in {span(event.seconds)}"),
        *skipped,
        ("tuples", f"{count(event.tuples)} ({size(event.tuple_bytes)})")
        if event.layers or not event.learner_bytes
        else ("learner", size(event.learner_bytes)),
        ("peak memory", size(event.peak_rss_bytes)),
        ("run", clean(path)),
    ]
    return ["finished", *(f"  {name:<21} {value}" for name, value in rows)]


def _how(tested: Tested) -> str:
    return "with 1 + x for e^x, " if tested.linearised else ""
