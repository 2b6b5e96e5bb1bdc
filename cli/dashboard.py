"""The picture of a run: a pure function from a `Model` and a size to text.

Every line is built to the width of the screen, so nothing wraps and nothing is cut that matters:
when room is short the plot shrinks first, then the list of events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.text import Text

from .describe import are_numbers
from .format import MISSING, clean, clock, count, duration, figure, number, percent, rate, size
from .model import Layer, Model
from .plot import Curve, area, bar, plot, sparkline, styled

__all__ = ["WIDE", "render"]

WIDE = 110
"""From this width on, the plot and the memory stand side by side."""

_CUMULATIVE, _WINDOWED = "cyan", "yellow"
_PHASE_STYLES = {
    "learning": "green",
    "testing": "cyan",
    "finished": "bold green",
    "stopped": "yellow",
    "stopping": "yellow",
    "crashed": "bold red",
}
_SHORT_PLOT, _FEW_LINES = 4, 3


@dataclass(frozen=True, slots=True)
class _Page:
    """What all parts need: the model, the moment, and which characters may be used."""

    model: Model
    now: float
    unicode: bool

    def text(self, text: str, style: str = "") -> Text:
        """Text from outside, made safe for this terminal."""
        safe = clean(text)
        if not self.unicode:
            safe = safe.encode("ascii", "replace").decode("ascii")
        return styled(safe, style)


def render(
    model: Model, width: int, height: int, now: float, unicode: bool = True
) -> RenderableType:
    """The dashboard as at most `height` lines of exactly `width` columns.

    Args:
        model: what is known of the run.
        width: columns of the screen.
        height: lines of the screen.
        now: unix time, for ages.
        unicode: whether anything but ASCII may be used.
    """
    page = _Page(model, now, unicode)
    width, height = max(1, width), max(1, height)
    head = [_title(page, width), _progress(page, width)]
    foot = [_footer(page, width)]
    room = height - len(head) - len(foot)
    body = _wide(page, width, room) if width >= WIDE and room >= 14 else _tall(page, width, room)
    lines = [*head, *body[: max(0, room)], *foot]
    return Group(*(_line(text, width, unicode) for text in lines[:height]))


# -- the arrangement ---------------------------------------------------------------------------


def _tall(page: _Page, width: int, room: int) -> list[Text]:
    """Accuracy above memory above events."""
    memory = _memory(page, width, room)
    room -= len(memory)
    plot_rows = max(_SHORT_PLOT, (room - 3) * 2 // 3)
    events = room - 2 - plot_rows
    if events < 1 + _FEW_LINES:
        plot_rows = max(_SHORT_PLOT, room - 2 - 1 - _FEW_LINES)
        events = room - 2 - plot_rows
    return [
        *_accuracy(page, width, plot_rows),
        *memory,
        *(_events(page, width, events) if events >= 2 else []),
    ]


def _wide(page: _Page, width: int, room: int) -> list[Text]:
    """Accuracy beside memory, events below both."""
    right = min(76, max(48, width * 2 // 5))
    left = width - right - 2
    events = max(1 + _FEW_LINES, room // 4)
    upper = room - events
    memory = _memory(page, right, upper, tall=True)
    accuracy = _accuracy(page, left, upper - 2)
    rows = []
    for index in range(upper):
        line = _line(accuracy[index] if index < len(accuracy) else Text(), left, page.unicode)
        line.end = ""
        line.append("  ")
        line.append_text(memory[index] if index < len(memory) else Text())
        rows.append(line)
    return [*rows, *_events(page, width, events)]


# -- the parts -----------------------------------------------------------------------------------


def _title(page: _Page, width: int) -> Text:
    model = page.model
    phase = f"stopping ({model.stopping})" if model.stopping and not model.over else model.phase
    left = page.text("streamlearn", "bold")
    if model.scenario:
        left.append("  ")
        left.append_text(page.text(model.scenario, "bold cyan"))
    name = PurePath(model.run).name
    if name and name != model.scenario:
        left.append("  ")
        left.append_text(page.text(name))
    machine = " ".join(part for part in (model.device, model.dtype) if part)
    if left.cell_len + len(machine) + len(phase) + 4 > width:
        machine = ""
    right = styled(f"{machine}  " if machine else "", "dim")
    right.append(phase, _PHASE_STYLES.get(phase.split()[0], ""))
    return _spread(left, right, width, page.unicode)


def _progress(page: _Page, width: int) -> Text:
    model = page.model
    if model.testing is not None:
        done, total = model.testing.samples, model.testing.total_samples
        facts = [f"{count(done)}/{count(total)} test samples"]
    else:
        done, total = model.position, model.total_samples or 0
        facts = [f"{count(done)}/{count(total)}" if total else f"{count(done)} samples"]
        facts.append(rate(model.rate))
        if model.over:
            facts.append(f"in {duration(model.seconds)}")
        elif model.total_samples is not None:
            facts.append(f"{duration(model.time_left())} left")
        else:
            facts.append(f"for {duration(model.seconds)}")
    fraction = done / total if total else 0.0
    if total:
        facts.insert(0, percent(fraction, 1))
    right = "  ".join(facts)
    length = width - cell_len(right) - 2
    if length < 6 or not total:
        return styled(right, "bold")
    filled, rest = bar(fraction, length, page.unicode)
    line = styled(filled, "green")
    line.append(rest, "dim")
    line.append("  " + right)
    return line


def _accuracy(page: _Page, width: int, plot_rows: int) -> list[Text]:
    model = page.model
    if are_numbers(model.metrics):
        return _errors(page, width, plot_rows)
    facts = [
        ("cumulative", percent(model.accuracy), _CUMULATIVE),
        ("windowed", percent(model.windowed_accuracy), _WINDOWED),
        ("loss", number(model.loss), ""),
    ]
    if model.tested is not None:
        facts.append(("test", percent(model.tested.accuracy), "green"))
    curves = [
        Curve(2, f"windowed {percent(model.windowed_accuracy, 1)}", _WINDOWED, dotted=True),
        Curve(1, f"cumulative {percent(model.accuracy, 1)}", _CUMULATIVE),
    ]
    beside = _beside(model, width) if plot_rows > _SHORT_PLOT else []
    rows = plot_rows - len(beside)
    return [
        _rule(page, "prequential accuracy", width),
        _bold_facts(facts),
        *beside,
        *plot(model.curve, curves, width, rows, page.unicode, marks=model.drifts),
    ]


def _beside(model: Model, width: int) -> list[Text]:
    """A line with the figures of the baselines, and what a classifier has above them."""
    metrics = model.metrics
    if are_numbers(metrics):
        names = (("no-change mae", "no_change_mae"), ("running-mean mae", "running_mean_mae"))
        facts = [(title, figure(metrics[name])) for title, name in names if name in metrics]
    else:
        sure = (("coverage", "coverage"), ("selective", "selective_accuracy"))
        facts = [
            *((title, percent(metrics[name], 1)) for title, name in sure if name in metrics),
            ("no-change", percent(metrics.get("no_change_accuracy"), 1)),
            ("majority", percent(metrics.get("majority_accuracy"), 1)),
            *((name, number(metrics.get(name), 2)) for name in ("kappa", "kappa_t", "kappa_m")),
        ]
    fit = [n for n in range(1, len(facts) + 1) if _facts(facts[:n]).cell_len <= width]
    return [_facts(facts[: fit[-1]])] if metrics and fit else []


def _errors(page: _Page, width: int, plot_rows: int) -> list[Text]:
    """The same where targets are numbers: errors in their unit."""
    model, metrics = page.model, page.model.metrics
    facts = [
        ("mae", figure(metrics.get("mae")), _CUMULATIVE),
        ("windowed", figure(metrics.get("windowed_mae")), _WINDOWED),
        ("rmse", figure(metrics.get("rmse")), ""),
        ("loss", number(model.loss), ""),
    ]
    if model.tested is not None:
        test = model.tested.metrics
        facts[2:2] = [(f"test {name}", figure(test.get(name)), "green") for name in ("mae", "rmse")]
    curves = [
        Curve(2, f"windowed {figure(metrics.get('windowed_mae'))}", _WINDOWED, dotted=True),
        Curve(1, f"cumulative {figure(metrics.get('mae'))}", _CUMULATIVE),
    ]
    beside = _beside(model, width) if plot_rows > _SHORT_PLOT else []
    rows, marks = plot_rows - len(beside), model.drifts
    return [
        _rule(page, "prequential absolute error", width),
        _bold_facts(facts),
        *beside,
        *plot(model.curve, curves, width, rows, page.unicode, fractions=False, marks=marks),
    ]


def _bold_facts(facts: Sequence[tuple[str, str, str]]) -> Text:
    line = styled()
    for name, value, style in facts:
        if line:
            line.append("   ")
        line.append(f"{name} ", "dim")
        line.append(value, f"bold {style}".strip())
    return line


def _memory(page: _Page, width: int, room: int, tall: bool = False) -> list[Text]:
    model = page.model
    layers = list(model.layers.items())
    facts = [*_places(page, width), *_safety(page, width)]
    # Everything else wants at least a heading, a short plot, and the last events.
    others = 0 if tall else (2 + _SHORT_PLOT) + (1 + _FEW_LINES)
    free = room - 2 - len(facts) - others
    shown = max(1, min(len(layers), free))
    names = max((cell_len(clean(name)) for name, _ in layers), default=5)
    names = min(max(names, 5), max(5, width // 4))
    lines = [_rule(page, "memory", width)]
    if layers:
        growth = "" if tall else "  growth"
        head = f"{'layer':<{names}} {'tuples':>12} {'bytes':>10}{growth}"
        lines.append(styled(head, "dim"))
    elif model.learner_bytes:
        line = styled("nothing grows; the learner takes ", "dim")
        lines.append(line.append(size(model.learner_bytes)))
    rows = layers if len(layers) <= shown else layers[: max(0, shown - 1)]
    chart = min(5, free // len(layers) - 1) if tall and layers else 0
    for name, layer in rows:
        lines.append(_layer(page, name, layer, names, width, spark=chart < 1))
        if chart >= 1:
            drawn = area(layer.growth, width, chart, unicode=page.unicode)
            lines.extend(styled(line, "magenta") for line in drawn)
    if len(layers) > len(rows):
        lines.append(_rest([layer for _, layer in layers[len(rows) :]], names))
    return [*lines, *facts]


def _layer(page: _Page, name: str, layer: Layer, names: int, width: int, spark: bool) -> Text:
    line = styled(set_cell_size(page.text(name).plain, names))
    line.append(f" {count(layer.tuples):>12} {size(layer.bytes):>10}  ")
    length = min(48, width - cell_len(line.plain)) if spark else 0
    return line.append(sparkline(layer.growth, length, unicode=page.unicode), "magenta")


def _rest(layers: Sequence[Layer], names: int) -> Text:
    tuples, held = (sum(layer.tuples for layer in layers), sum(layer.bytes for layer in layers))
    head = f"{len(layers)} more"
    return styled(f"{head:<{names}} {count(tuples):>12} {size(held):>10}")


def _places(page: _Page, width: int) -> list[Text]:
    model, memory = page.model, page.model.memory
    facts = [
        ("device", size(memory.device_bytes) if memory else MISSING),
        ("host", size(memory.host_bytes) if memory else MISSING),
        ("process", size(memory.rss_bytes) if memory else MISSING),
        ("disk", size(model.disk_bytes)),
    ]
    line = _facts(facts)
    return [line] if line.cell_len <= width else [_facts(facts[:2]), _facts(facts[2:])]


def _safety(page: _Page, width: int) -> list[Text]:
    model = page.model
    if model.checkpoint_time is None:
        age = "none yet"
    else:
        # A clock that was set back must not make a checkpoint younger than now.
        age = f"{duration(page.now - model.checkpoint_time)} ago"
        if model.checkpoint_step is not None:
            age += f", step {count(model.checkpoint_step)}"
    waiting = [("waiting", count(model.waiting))] if model.waiting else []
    counts = [("skipped", count(model.skipped)), *waiting]
    line = _facts([("checkpoint", age), *counts])
    return [line] if line.cell_len <= width else [_facts([("checkpoint", age)]), _facts(counts)]


def _facts(facts: Sequence[tuple[str, str]]) -> Text:
    line = styled()
    for name, value in facts:
        if line:
            line.append("   ")
        line.append(f"{name} ", "dim")
        line.append(value)
    return line


def _events(page: _Page, width: int, rows: int) -> list[Text]:
    lines = [_rule(page, "events", width)]
    last = list(page.model.lines)[-(rows - 1) :] if rows > 1 else []
    for entry in last:
        line = styled(f"{clock(entry.time)}  ", "dim")
        line.append_text(page.text(entry.text))
        lines.append(line)
    return [*lines, *(Text() for _ in range(rows - len(lines)))]


def _footer(page: _Page, width: int) -> Text:
    model = page.model
    if model.over:
        return page.text(model.run, "dim")
    if model.stopping:
        return page.text("saving a checkpoint; the same again stops at once", "dim")
    if model.watching:
        return page.text("watching; Ctrl-C leaves the run alone", "dim")
    return page.text("Ctrl-C saves a checkpoint and stops", "dim")


# -- lines ---------------------------------------------------------------------------------------


def _rule(page: _Page, title: str, width: int) -> Text:
    dash = "─" if page.unicode else "-"
    line = styled(f"{dash}{dash} ", "dim")
    line.append(title, "bold")
    return line.append(" " + dash * (width - len(title) - 4), "dim")


def _spread(left: Text, right: Text, width: int, unicode: bool) -> Text:
    """Left and right parts at the two ends of a line; the left one gives way."""
    room = width - right.cell_len - 1
    if room < 1:
        return right
    line = _line(left, room, unicode)
    line.end = ""
    line.append(" ")
    return line.append_text(right)


def _line(text: Text, width: int, unicode: bool) -> Text:
    """The text on a line of exactly this width; where it is cut, it says so."""
    line = text.copy()
    line.no_wrap, line.overflow, line.end = True, "crop", "\n"
    if unicode or line.cell_len <= width or width < 4:
        line.truncate(width, overflow="ellipsis" if unicode else "crop", pad=True)
        return line
    line.truncate(width - 3, overflow="crop", pad=True)
    return line.append("...")
