"""`sweep`: a grid of runs, and the table of what came of them."""

import csv
import io
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Group, RenderableType

from streamlearn.errors import ConfigError, RunStateError
from streamlearn.scenarios.grid import grid_of, written
from streamlearn.scenarios.metrics import METRICS, Metric, metric_named
from streamlearn.scenarios.sweep import SEED, Row, Sweep, find_sweep
from streamlearn.scenarios.sweep import Group as SeedGroup
from streamlearn.scenarios.workers import (
    CellEnded,
    CellProgress,
    CellStarted,
    SweepEnded,
    SweepEvent,
    Sweeping,
    SweepStarted,
    sweep_json,
)
from streamlearn.storage import files

from .compare import metric_text
from .format import MISSING, clean, count, percent, size, span
from .json_lines import to_json
from .learn import Options
from .live import can_draw
from .output import Output, output_code
from .output_file import check_output_file
from .signals import StopSignals
from .tables import LiveView, columns_of_screen, lines_of, note, progress_line, table

__all__ = ["Choices", "sweep"]

_PAUSE = 5.0


class Choices:
    """What `sweep` was told beside its words."""

    def __init__(
        self,
        folder: str | None = None,
        jobs: int = 1,
        retry: bool = False,
        metric: str | None = None,
        csv_file: Path | None = None,
    ) -> None:
        self.folder, self.jobs, self.retry = folder, jobs, retry
        self.metric, self.csv_file = metric, csv_file


def sweep(words: Sequence[str], choices: Choices, options: Options) -> int:
    """Run what is left of a sweep, or show the one whose folder is the only word.

    Gives the exit code: 0 if any run is finished; 130, 143 or 129 when stopped by a signal.

    Raises:
        StreamlearnError: wrong words or folder; or that no run finished, after the table.
        Interrupted: a signal before anything was begun.
    """
    if choices.metric is not None:
        metric_named(choices.metric)
    if choices.csv_file is not None:
        check_output_file(choices.csv_file, "--csv")
    if len(words) == 1 and "=" not in words[0]:
        if choices.folder is not None or choices.retry or choices.jobs != 1:
            raise ConfigError(
                f"{words[0]!r} alone shows a sweep, and --dir, --jobs and --retry run one; give "
                "the words of its grid to run it"
            )
        output = Output(sys.stdout)
        _report(Sweep(find_sweep(words[0])), choices, options, output)
        return output_code(output.failed)
    with StopSignals() as signals, Sweep.begin(grid_of(words), choices.folder) as found:
        sweeping = Sweeping(found, _program(), jobs=choices.jobs, retry=choices.retry)
        display = _display(options)

        def stop(name: str) -> None:
            sweeping.request_stop(name)
            display.stopping(name)

        signals.attach(stop, display.restore)
        over = _follow(sweeping, display)
        output = Output(sys.stdout)
        if display.failed is None:
            _report(found, choices, options, output)
        if signals.received is not None:
            return signals.exit_code
        if display.failed is not None or output.failed is not None:
            return output_code(display.failed or output.failed)
        if over is not None and not over.finished:
            raise RunStateError(
                f"none of the {over.failed + over.open} runs finished; once mended, run the sweep "
                "again with --retry"
            )
        return 0


def _follow(sweeping: Sweeping, display: "_Display") -> SweepEnded | None:
    over: SweepEnded | None = None
    display.open()
    try:
        for event in sweeping.events():
            display.show(event)
            if isinstance(event, SweepEnded):
                over = event
            if display.failed is not None:
                sweeping.request_stop("SIGPIPE")
    finally:
        display.close()
    return over


def _program() -> list[str]:
    """This very program, for a process of its own: the same interpreter finds the same modules."""
    start = "from streamlearn.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {start}"]


# -- while it goes on ------------------------------------------------------------------------------


class _Display(Protocol):
    @property
    def failed(self) -> OSError | None: ...
    def open(self) -> None: ...
    def show(self, event: SweepEvent) -> None: ...
    def stopping(self, name: str) -> None: ...
    def restore(self) -> None: ...
    def close(self) -> None: ...


def _display(options: Options) -> _Display:
    if options.json or options.plain or options.quiet or not can_draw():
        return _Lines(options)
    return _Live()


class _Lines:
    """JSON lines on stdout, or plain lines on stderr."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._output = Output(sys.stdout if options.json else sys.stderr)
        self._next = -math.inf
        self._cells = 0

    @property
    def failed(self) -> OSError | None:
        return self._output.failed

    def open(self) -> None: ...

    def show(self, event: SweepEvent) -> None:
        if isinstance(event, SweepStarted):
            self._cells = event.cells
        if isinstance(event, CellProgress):
            if self._options.quiet or self._clock() < self._next:
                return
            self._next = self._clock() + (0.5 if self._options.json else _PAUSE)
        if self._options.json:
            self._output.line(to_json(sweep_json(event)))
        elif not self._options.quiet:
            self._output.line(clean(_describe(event, self._cells)))

    def stopping(self, name: str) -> None:
        if not self._options.quiet:
            _say_stopping(name)

    def restore(self) -> None: ...
    def close(self) -> None: ...


class _Live:
    """The runs that are going on, and how many are done."""

    def __init__(self) -> None:
        self._view = LiveView(self._picture)
        self._cells = 1
        self._done = 0
        self._last = ""
        self._stopping = ""
        self._going: dict[str, CellProgress | None] = {}

    @property
    def failed(self) -> OSError | None:
        return self._view.failed

    def open(self) -> None:
        self._view.open()

    def show(self, event: SweepEvent) -> None:
        match event:
            case SweepStarted():
                self._cells = event.cells
                self._done = event.finished
            case CellStarted():
                self._going[event.cell] = None
            case CellProgress():
                self._going[event.cell] = event
            case CellEnded():
                self._going.pop(event.cell, None)
                self._done = event.done
                self._last = _describe(event, self._cells)
            case _:
                pass
        self._view.tick(at_once=not isinstance(event, CellProgress))

    def stopping(self, name: str) -> None:
        self._stopping = f"{name}: every run saves a checkpoint and stops; again stops at once"

    def restore(self) -> None:
        self._view.restore()

    def close(self) -> None:
        self._view.close()

    def _picture(self, width: int, unicode: bool) -> RenderableType:
        facts = f"{count(self._done)}/{count(self._cells)} runs"
        line = progress_line(self._done / self._cells, facts, width, unicode)
        rows = []
        for cell, progress in self._going.items():
            if progress is None:
                rows.append((cell, "starting", ""))
            else:
                share = progress.position / max(1, progress.total_samples or 0)
                rows.append((cell, percent(share, 1), _figures(progress.values)))
        parts: list[RenderableType] = [line]
        if rows:
            parts.append(table(("run", "", ""), rows, left=("run",)))
        return Group(*parts, *(note(text) for text in (self._last, self._stopping) if text))


def _say_stopping(name: str) -> None:
    line = f"{name}: every run saves a checkpoint and stops; the same again stops at once\n"
    try:
        os.write(2, line.encode())
    except OSError:
        return


def _describe(event: SweepEvent, cells: int) -> str:
    match event:
        case SweepStarted():
            left = event.cells - event.finished
            share = f"{event.threads} thread{'s' if event.threads != 1 else ''} each"
            threads = f", {share}" if event.threads is not None else ""
            parts = [
                f"{event.scenario} over {written(event.axes)}: {event.cells:,} runs",
                f"{event.finished:,} finished before" if event.finished else "",
                f"{event.failed:,} failed before" if event.failed else "",
                f"{event.jobs} at a time{threads}" if event.jobs > 1 and left else "",
            ]
            return ", ".join(filter(None, parts)) + f"; in {event.sweep}"
        case CellStarted():
            return f"{event.cell} {'resumed' if event.resumed else 'started'}"
        case CellProgress():
            return f"{event.cell}: {count(event.position)} samples, {_figures(event.values)}"
        case CellEnded():
            head = f"{event.done} of {cells}: {event.cell} {event.state}"
            if event.state == "finished":
                return f"{head} in {span(event.seconds)}: {_figures(event.values)}"
            return f"{head}: {event.reason}"
        case SweepEnded():
            parts = [f"{event.finished} finished"]
            parts += [f"{event.failed} failed"] if event.failed else []
            parts += [f"{event.open} not finished"] if event.open else []
            head = f"stopped by {event.stopped}" if event.stopped else "done"
            return f"{head}: {', '.join(parts)}"


def _figures(values: Mapping[str, float]) -> str:
    shown = [
        f"{metric.title} {metric_text(metric, values[metric.name])}"
        for metric in METRICS.values()
        if metric.in_table and metric.name in values
    ]
    return ", ".join(shown)


# -- what came of it -------------------------------------------------------------------------------


def _report(found: Sweep, choices: Choices, options: Options, output: Output) -> None:
    """The table, the means over seeds, and the file of the same rows."""
    rows, judge = found.rows(choices.metric)
    groups = found.groups(rows, judge)
    if choices.csv_file is not None:
        _write_csv(choices.csv_file, found, rows)
    if options.json:
        for record in (*rows, *groups):
            output.line(to_json(sweep_json(record)))
        return
    for line in _tables(found, rows, groups, judge, columns_of_screen()):
        output.line(line)
    if choices.csv_file is not None:
        output.line(clean(f"table in {choices.csv_file}"))


def _tables(
    found: Sweep, rows: Sequence[Row], groups: Sequence[SeedGroup], judge: Metric, width: int
) -> list[str]:
    metrics = _columns(rows, judge)
    keys = _short(list(found.axes))
    head = [*keys.values(), *(metric.title for metric in metrics), "time", "bytes", "state"]
    body = [
        [
            *(row.choices[key] for key in keys),
            *(metric_text(metric, row.values.get(metric.name)) for metric in metrics),
            span(row.seconds),
            size(row.learner_bytes) if row.learner_bytes else MISSING,
            row.state,
        ]
        for row in rows
    ]
    title = f"{found.scenario}, by {judge.name.replace('_', ' ')}"
    left = (*keys.values(), "state")
    lines = [clean(title), *lines_of(table(head, body, left), width)]
    if any(group.runs for group in groups):
        lines += ["", *_group_lines(found, groups, metrics, width)]
    failed = [f"{row.cell} failed: {row.reason}" for row in rows if row.state == "failed"]
    unfinished = sum(row.state in ("stopped", "waiting", "running") for row in rows)
    notes = [clean(" ".join(note.split())) for note in failed]
    if unfinished:
        notes.append(f"{unfinished} of {len(rows)} runs are not finished; the same words go on")
    notes.append(clean(f"sweep in {found.path}"))
    return [*lines, "", *notes]


def _group_lines(
    found: Sweep, groups: Sequence[SeedGroup], metrics: Sequence[Metric], width: int
) -> list[str]:
    keys = {key: title for key, title in _short(list(found.axes)).items() if key != SEED}
    body = [
        [
            *(group.choices[key] for key in keys),
            f"{group.runs} of {len(found.axes[SEED])}",
            *(_spread(metric, group) for metric in metrics),
        ]
        for group in groups
    ]
    head = [*keys.values(), "seeds", *(metric.title for metric in metrics)]
    title = "mean and standard deviation (n - 1) over seeds"
    return [title, *lines_of(table(head, body, tuple(keys.values())), width)]


def _spread(metric: Metric, group: SeedGroup) -> str:
    mean, deviation = group.mean.get(metric.name), group.deviation.get(metric.name)
    text = metric_text(metric, mean)
    if mean is None:
        return text
    sign = "±" if (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf") else "+-"
    return f"{text.removesuffix('%')} {sign} {metric_text(metric, deviation)}"


def _columns(rows: Sequence[Row], judge: Metric) -> list[Metric]:
    """The figures that any row has, and the one that the table is sorted by, first."""
    there = [
        metric
        for metric in METRICS.values()
        if metric.in_table and any(metric.name in row.values for row in rows)
    ]
    return [judge, *(metric for metric in there if metric != judge)]


def _short(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, the whole key where that would be ambiguous."""
    last = [key.rpartition(".")[2] for key in keys]
    return {
        key: name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)
    }


def _write_csv(path: Path, found: Sweep, rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    facts = ("samples", "seconds", "learner_bytes", "reason", "run")
    writer.writerow(["cell", "state", *found.axes, *METRICS, *facts])
    for row in rows:
        writer.writerow(
            [
                row.cell,
                row.state,
                *(row.choices[key] for key in found.axes),
                *(row.values.get(name) for name in METRICS),
                *(getattr(row, fact) for fact in facts),
            ]
        )
    files.write_whole(path.absolute(), text.getvalue().encode("utf-8", "backslashreplace"))
