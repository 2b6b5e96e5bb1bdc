"""Accuracy by class and by experience, what was forgotten, drift, arrivals, and late labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import set_cell_size
from rich.text import Text

from streamlearn.cli.describe import CONTINUAL, FORMULAS, are_numbers, drift_sizes
from streamlearn.cli.format import MISSING, clean, count, percent
from streamlearn.cli.plot import bar, styled

from .page import SIDE_BY_SIDE, Page, facts_in, rule, side_by_side

__all__ = ["classes"]

_NAME, _BAR = 16, 24
_FIGURE = 26
"""Columns of a figure's name and value, before its formula."""
_SEEN = 3
"""The last drifts and arrivals that are named."""


def classes(page: Page, width: int, room: int) -> list[Text]:
    """Recall of each class; the accuracy matrix where classes or domains come in turn."""
    changes = _changes(page, width)
    room -= len(changes)
    matrix = page.model.summary.get("matrix")
    if not matrix:
        return [*_by_class(page, width, room), *changes]
    if width >= SIDE_BY_SIDE:
        left = (width - 2) // 2
        right = _matrix(page, width - left - 2, room)
        both = side_by_side(page, _by_class(page, left, room), right, left)
        return [*both[:room], *_blank(room - len(both)), *changes]
    forgotten = _matrix(page, width, max(0, room - 6))
    return [*_by_class(page, width, room - len(forgotten)), *forgotten, *changes]


def _blank(lines: int) -> list[Text]:
    return [Text() for _ in range(lines)]


def _by_class(page: Page, width: int, room: int) -> list[Text]:
    """A line a class; where there are too many, those that are known worst."""
    lines = [rule(page, "accuracy by class", width)]
    columns = page.model.summary.get("by_class")
    if not isinstance(columns, Mapping) or not columns.get("class"):
        why = "not known before a checkpoint" if page.model.watching else "none came yet"
        if are_numbers(page.model.metrics):
            why = "targets are numbers, not classes"
        return [*lines, styled(why, "dim"), *_blank(room - 2)]
    rows = list(
        zip(*(columns[key] for key in ("class", "samples", "recall", "first_seen")), strict=True)
    )
    head = f"{'class':<{_NAME}} {'samples':>11} {'recall':>7} {'first at':>11}"
    across = 2 if width >= 2 * (len(head) + 2) and len(rows) > room - 2 else 1
    free = max(0, room - 2) * across
    if len(rows) > free:
        # The worst first; which have no samples says less.
        rows.sort(key=lambda row: (row[2] is None, row[2] or 0.0))
        more = len(rows) - max(0, free - across)
        lines[0] = rule(page, f"accuracy by class: the worst, {count(more)} more", width)
        rows = rows[: max(0, free - across)]
    column = (width - 2 * (across - 1)) // across
    lines.append(styled("  ".join(f"{head:<{column}}" for _ in range(across)).rstrip(), "dim"))
    drawn = [_class(page, row, column - len(head) - 2) for row in rows]
    if across == 2:
        half = -(-len(drawn) // 2)
        drawn = side_by_side(page, drawn[:half], drawn[half:], column)
    return [*lines, *drawn, *_blank(room - 2 - len(drawn))]


def _class(page: Page, row: Sequence[Any], free: int) -> Text:
    name, samples, recall, first = row
    line = styled(set_cell_size(page.text(clean(str(name))).plain, _NAME))
    line.append(f" {count(samples):>11} {percent(recall, 1):>7} ")
    line.append(f"{count(first) if first else MISSING:>11}  ", "dim")
    if recall is not None and free >= 4:
        done, rest = bar(recall, min(_BAR, free), page.unicode)
        line.append(done, "cyan").append(rest, "dim")
    return line


def _matrix(page: Page, width: int, room: int) -> list[Text]:
    """The accuracies after each experience, and the figures that follow from them."""
    summary = page.model.summary
    rows: Sequence[Sequence[float]] = summary["matrix"]
    lines = [rule(page, "accuracy by experience, a row after each", width)]
    figures = [(name, percent(summary.get(key), 1)) for name, key in CONTINUAL]
    below = facts_in(figures, width)
    free = room - len(lines)
    if free >= len(rows) + len(CONTINUAL):  # room for a line each, with the formulas if all fit
        formulas = all(len(FORMULAS[key]) + _FIGURE <= width for _, key in CONTINUAL)
        below = [_figure(name, percent(summary.get(key), 1), FORMULAS[key] if formulas else "")
                 for name, key in CONTINUAL]  # fmt: skip
    most = max(0, free - len(below))
    first = max(0, len(rows) - most)
    fit = max(1, (width - 6) // 5)
    start = max(0, min(len(rows), len(rows[-1])) - fit) if len(rows[-1]) > fit else 0
    for number, row in list(enumerate(rows, start=1))[first:]:
        line = styled(f"{number:>4}  ", "dim")
        for place, value in enumerate(row[start : start + fit], start=start + 1):
            line.append(f"{percent(value, 0):>4} ", "bold" if place == number else _shade(value))
        lines.append(line)
    return [*lines, *below]


def _shade(value: float) -> str:
    return "green" if value >= 0.7 else "yellow" if value >= 0.3 else "red"


def _figure(name: str, value: str, formula: str) -> Text:
    line = styled(f"{name:<17} ", "dim")
    line.append(f"{value:>6}  ", "bold")
    return line.append(formula, "dim")


def _changes(page: Page, width: int) -> list[Text]:
    """Drift, classes that came late, and labels that are late."""
    model = page.model
    lines: list[Text] = []
    if model.drifted:
        told = "; ".join(
            f"{count(drift.samples)} ({drift_sizes(drift.before, drift.after)})"
            for drift in list(model.drifted)[: -_SEEN - 1 : -1]
        )
        lines.append(_told(page, "drift", f"{count(len(model.drifted))} of late: at {told}"))
    if model.arrived:
        told = "; ".join(
            f"{arrival.label} at {count(arrival.samples)}"
            for arrival in list(model.arrived)[: -_SEEN - 1 : -1]
        )
        lines.append(_told(page, "new classes", f"{count(len(model.arrived))} of late: {told}"))
    if model.experience is not None:
        event = model.experience
        last = f"{event.experience} of {event.experiences}: {', '.join(event.classes)}"
        lines.append(_told(page, "experience", last))
    delay = page.setting("stream", "delay")
    if delay:
        # The log's last progress may be before the end; the last commit knows it.
        late = model.summary.get("waiting", model.waiting) if model.over else model.waiting
        waiting = f"{count(delay)} samples late, {count(late)} wait for theirs"
        lines.append(_told(page, "labels", waiting))
    return [rule(page, "changes", width), *lines] if lines else []


def _told(page: Page, name: str, text: str) -> Text:
    line = styled(f"{name:<11} ", "dim")
    return line.append_text(page.text(text))
