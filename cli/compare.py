"""`compare`: several learners on one stream, as a table, JSON lines and a picture of the curves."""

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Group, RenderableType

from streamlearn.errors import RunStateError
from streamlearn.events import Skipped
from streamlearn.scenarios.compare import (
    Compared,
    Comparison,
    ComparisonEvent,
    ComparisonProgress,
    ComparisonStarted,
    LearnerFailed,
    LearnerFitted,
    LearnerResult,
    LearnerTested,
    comparison_json,
)
from streamlearn.scenarios.metrics import METRICS, Metric

from .curves_png import check_picture, write_picture
from .format import MISSING, clean, count, number, percent, rate, size, span
from .json_lines import to_json
from .learn import Options
from .live import can_draw
from .output import Output, output_code
from .signals import StopSignals
from .tables import LiveView, columns_of_screen, lines_of, note, progress_line, table

__all__ = ["compare", "metric_text"]

_WIDE = 118
"""From this width on accuracies and costs stand in one table."""
_PAUSE = {"json": 0.5, "plain": 5.0}


def metric_text(metric: Metric, value: float | None) -> str:
    """A figure as its metric is read: a share in percent."""
    return percent(value) if metric.unit == "share" else number(value)


def compare(
    words: Sequence[str], learners: Sequence[str], picture: Path | None, options: Options
) -> int:
    """Compare, show it, and give the exit code: 0 if any learner came to the end.

    Raises:
        StreamlearnError: wrong words, before anything is read; data that cannot be read, or that
            no learner came to the end, after the table of what there is.
        Interrupted: a signal before there was anything to show.
    """
    if picture is not None:
        check_picture(picture)
    with StopSignals() as signals:
        comparison = Comparison.start(words, learners)
        shown = _Shown()
        display = _display(shown, options)

        def stop(name: str) -> None:
            comparison.request_stop(name)
            display.stopping(name)

        signals.attach(stop, display.restore)
        display.open()
        output = Output(sys.stdout)
        try:
            for event in comparison.events():
                shown.take(event)
                display.show(event)
                if display.failed is not None:
                    comparison.request_stop("SIGPIPE")
        finally:
            display.close()
            if not options.json and display.failed is None:
                for line in _tables(shown, columns_of_screen()):
                    output.line(line)
            if picture is not None and shown.started is not None and shown.results:
                write_picture(picture, shown.results, _title(shown), shown.started.window)
                if not options.json and not options.quiet:
                    output.line(clean(f"curves in {picture}"))
        if signals.received is not None:
            return signals.exit_code
        if display.failed is not None or output.failed is not None:
            return output_code(display.failed or output.failed)
        if shown.over is not None and not shown.over.finished:
            raise RunStateError(
                f"none of the {len(shown.results)} learners came to the end; each one's reason is "
                "told above"
            )
        return 0


@dataclass(slots=True)
class _Shown:
    """What is known of a comparison so far."""

    started: ComparisonStarted | None = None
    progress: ComparisonProgress | None = None
    failed: dict[str, str] = field(default_factory=dict)
    results: list[LearnerResult] = field(default_factory=list)
    over: Compared | None = None

    def take(self, event: ComparisonEvent) -> None:
        """Take in an event."""
        match event:
            case ComparisonStarted():
                self.started = event
            case ComparisonProgress():
                self.progress = event
            case LearnerFailed():
                self.failed[event.learner] = event.reason
            case LearnerResult():
                self.results.append(event)
            case Compared():
                self.over = event
            case _:
                pass


class _Display(Protocol):
    @property
    def failed(self) -> OSError | None: ...
    def open(self) -> None: ...
    def show(self, event: ComparisonEvent) -> None: ...
    def stopping(self, name: str) -> None: ...
    def restore(self) -> None: ...
    def close(self) -> None: ...


def _display(shown: _Shown, options: Options) -> _Display:
    if options.json or options.plain or options.quiet or not can_draw():
        return _Lines(shown, options)
    return _Live(shown)


class _Lines:
    """JSON lines on stdout, or plain lines on stderr; progress not too often."""

    def __init__(
        self, shown: _Shown, options: Options, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shown = shown
        self._options = options
        self._clock = clock
        self._output = Output(sys.stdout if options.json else sys.stderr)
        self._next = -math.inf
        self._told = -1

    @property
    def failed(self) -> OSError | None:
        return self._output.failed

    def open(self) -> None: ...

    def show(self, event: ComparisonEvent) -> None:
        if isinstance(event, ComparisonProgress):
            whole = event.position == event.total_samples != self._told
            if self._options.quiet or not (whole or self._clock() >= self._next):
                return
            self._told = event.position
            self._next = self._clock() + _PAUSE["json" if self._options.json else "plain"]
        if self._options.json:
            self._output.line(to_json(comparison_json(event)))
        elif not self._options.quiet:
            text = _describe(event)
            if text:
                self._output.line(clean(text))

    def stopping(self, name: str) -> None:
        if self._options.quiet:
            return
        try:
            os.write(2, f"{name}: stopping after this batch\n".encode())
        except OSError:
            return

    def restore(self) -> None: ...
    def close(self) -> None: ...


class _Live:
    """A table that changes while the stream goes by."""

    def __init__(self, shown: _Shown) -> None:
        self._shown = shown
        self._view = LiveView(self._picture)

    @property
    def failed(self) -> OSError | None:
        return self._view.failed

    def open(self) -> None:
        self._view.open()

    def show(self, event: ComparisonEvent) -> None:
        self._view.tick()

    def stopping(self, name: str) -> None: ...

    def restore(self) -> None:
        self._view.restore()

    def close(self) -> None:
        self._view.close()

    def _picture(self, width: int, unicode: bool) -> RenderableType:
        started, progress = self._shown.started, self._shown.progress
        if started is None or progress is None:
            return note("starting ...")
        share = progress.position / max(1, progress.total_samples)
        facts = f"{count(progress.position)}/{count(progress.total_samples)}"
        if progress.testing is not None:
            facts = clean(f"testing {progress.testing}")
        facts = f"{facts}  {span(progress.seconds)}"
        line = progress_line(share, facts, width, unicode)
        metrics = _metrics(list(progress.values.values()))
        rows = [
            (
                name,
                *(metric_text(metric, values.get(metric.name)) for metric in metrics),
                size(progress.learner_bytes[name]),
                "failed" if name in self._shown.failed else "",
            )
            for name, values in progress.values.items()
        ]
        head = ("learner", *(metric.title for metric in metrics), "bytes", "")
        return Group(line, table(head, rows, left=("learner", "")))


def _describe(event: ComparisonEvent) -> str:
    match event:
        case ComparisonStarted():
            number_of = len(event.learners)
            return (
                f"{event.scenario}: {number_of} learner{'s' if number_of != 1 else ''}, "
                f"{event.total_samples:,} samples in batches of {event.batch:,}, "
                f"{f'{event.classes} classes' if event.classes else 'numbers'}, seed {event.seed}"
            )
        case ComparisonProgress() if event.testing is None:
            done = event.position / max(1, event.total_samples)
            figures = [
                f"{name} {metric_text(metric, values.get(metric.name))}"
                for name, values in event.values.items()
                for metric in _metrics([values])[-1:]
            ]
            return (
                f"{count(event.position)} of {count(event.total_samples)} "
                f"({percent(done, 1)}): {', '.join(figures)}"
            )
        case ComparisonProgress():
            return f"testing {event.testing}"
        case LearnerFitted():
            return (
                f"{event.learner}: encoder {event.encoder} fitted on {event.samples:,} samples in "
                f"{span(event.seconds)}: {event.width:,} features"
            )
        case LearnerFailed():
            return f"{event.learner} failed at sample {event.position:,}: {event.reason}"
        case LearnerTested():
            figures = [
                f"{METRICS[name].name.replace('_', ' ')} {metric_text(METRICS[name], value)}"
                for name, value in event.values.items()
            ]
            return f"{event.learner}: {', '.join(figures)} on {event.samples:,} samples"
        case Skipped():
            return f"skipped {event.item}: {event.reason} ({event.skipped:,} so far)"
        case _:
            return ""


def _metrics(values: Sequence[dict[str, float]]) -> list[Metric]:
    """The columns of a table: the figures that any learner has."""
    return [
        metric
        for metric in METRICS.values()
        if metric.in_table and any(metric.name in figures for figures in values)
    ]


def _title(shown: _Shown) -> str:
    started, over = shown.started, shown.over
    if started is None or over is None:
        return ""
    title = f"{started.scenario}, {count(over.samples)} samples, seed {started.seed}"
    return f"{title}, stopped by {over.stopped}" if over.stopped else title


def _tables(shown: _Shown, width: int) -> list[str]:
    """The results as lines: one table where it fits, else accuracies above costs; then notes."""
    results, over, started = shown.results, shown.over, shown.started
    if over is None or started is None or not results:
        return []
    metrics = _metrics([result.values for result in results])
    equal = results[0].equal_bytes
    curve = METRICS[results[0].curve_of]
    good_head = [metric.title for metric in metrics]
    good = [
        [metric_text(metric, result.values.get(metric.name)) for metric in metrics]
        for result in results
    ]
    if equal is not None:
        good_head += [f"at {size(equal)}", "after"]
        for row, result in zip(good, results, strict=True):
            row += [metric_text(curve, result.equal_value), count(result.equal_samples)]
    cost_head = ["bytes", "tuples", "fit", "learn", "test", "samples/s"]
    if metrics and metrics[0].title == "test":
        cost_head[4] = "testing"
    cost = [
        [
            size(result.learner_bytes),
            count(result.tuples) if result.tuples else MISSING,
            span(result.fit_seconds),
            span(result.learn_seconds),
            span(result.test_seconds) if result.test_seconds else MISSING,
            rate(result.rate),
        ]
        for result in results
    ]
    names = [_name(result) for result in results]
    if width >= _WIDE:
        rows = [[name, *one, *two] for name, one, two in zip(names, good, cost, strict=True)]
        lines = lines_of(table(["learner", *good_head, *cost_head], rows, ["learner"]), width)
    else:
        first = [[name, *row] for name, row in zip(names, good, strict=True)]
        second = [[name, *row] for name, row in zip(names, cost, strict=True)]
        lines = lines_of(table(["learner", *good_head], first, ["learner"]), width)
        lines += ["", *lines_of(table(["learner", *cost_head], second, ["learner"]), width)]
    return [clean(_title(shown)), *lines, *_notes(shown, equal)]


def _name(result: LearnerResult) -> str:
    return result.learner if result.state == "finished" else f"{result.learner} ({result.state})"


def _notes(shown: _Shown, equal: int | None) -> list[str]:
    over, started = shown.over, shown.started
    if over is None or started is None:
        return []
    notes = [
        f"preq.: scored before they were learnt; window: the last {count(started.window)} of these"
    ]
    if equal is not None:
        notes.append(f"at {size(equal)}: the window when the learner last took no more bytes")
    notes += [
        clean(f"{result.learner} failed: {result.reason}")
        for result in shown.results
        if result.state == "failed"
    ]
    if over.skipped:
        notes.append(f"skipped {count(over.skipped)} items")
    if over.failed:
        notes.append(f"{over.failed} of {len(shown.results)} learners failed")
    return ["", *notes]
