"""Curves, bars and sparklines drawn with characters: braille and blocks, or ASCII.

Each curve is told apart by its shape (solid or dotted) and its label, colour comes on top.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from .series import Series

__all__ = ["Curve", "area", "bar", "plot", "sparkline", "styled"]

_BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.-=+*#@"
_DOT_SPACING = 2
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25)


@dataclass(frozen=True, slots=True)
class Curve:
    """One column of a series: its label, rich style, and whether it is dotted or solid."""

    column: int
    label: str
    style: str
    dotted: bool = False


_MARK = Curve(0, "", "red", dotted=True)
"""How a mark looks."""


def styled(text: str = "", style: str = "") -> Text:
    """Text to be appended to: its own style does not spread to what comes after it."""
    return Text(no_wrap=True, end="").append(text, style)


def bar(fraction: float, width: int, unicode: bool = True) -> tuple[str, str]:
    """A progress bar of `width` characters, as its done part and the rest."""
    share = min(1.0, max(0.0, fraction)) if math.isfinite(fraction) else 0.0
    if not unicode:
        inner = max(0, width - 2)
        full = int(share * inner)
        return ("[" + "#" * full, "-" * (inner - full) + "]") if inner else ("", " " * width)
    halves = int(share * width * 2)
    done = "━" * (halves // 2) + ("╸" if halves % 2 else "")
    return done, "─" * (width - len(done))


def sparkline(series: Series, width: int, column: int = 1, unicode: bool = True) -> str:
    """A series from zero to its largest value in one line of `width` characters."""
    return area(series, width, 1, column, unicode)[0]


def area(
    series: Series, width: int, height: int, column: int = 1, unicode: bool = True
) -> list[str]:
    """A series from zero to its largest value as a filled area of `height` lines."""
    points = series.points
    if width < 1 or not points:
        return [" " * max(0, width)] * height
    values = series.sample(_grid(points[0][0], points[-1][0], width), column)
    marks = _BLOCKS if unicode else _ASCII_LEVELS
    top = max((value for value in values if value is not None), default=0.0)
    levels = [
        0 if value is None or top <= 0 else min(1.0, max(0.0, value / top)) * height * len(marks)
        for value in values
    ]
    lines = []
    for row in range(height):
        below = (height - 1 - row) * len(marks)
        # The lowest line shows a mark for every value, so that a small one is still seen.
        least = 0 if row == height - 1 else -1
        cells = (min(len(marks) - 1, max(least, int(level - below) - 1)) for level in levels)
        lines.append("".join(marks[cell] if cell >= 0 else " " for cell in cells))
    return lines


def _grid(first: float, last: float, count: int) -> list[float]:
    if count == 1 or last <= first:
        return [last] * count
    step = (last - first) / (count - 1)
    # The last point exactly, whatever rounding does to the sum.
    return [first + step * index for index in range(count - 1)] + [last]


def plot(
    series: Series,
    curves: Sequence[Curve],
    width: int,
    height: int,
    unicode: bool = True,
    *,
    fractions: bool = True,
    marks: Iterable[float] = (),
) -> list[Text]:
    """Numbers over x as `height` lines of exactly `width` columns, axes and labels included.

    Args:
        series: (x, y₁, …), each y a fraction in [0, 1], or any number from 0 on.
        curves: which columns to draw, the later ones on top.
        width: columns, at least 24 for a curve to be seen.
        height: lines, the last of them the x axis.
        unicode: whether anything but ASCII may be used.
        fractions: whether they are fractions, shown as percentages.
        marks: where dotted lines stand, below the curves.
    """
    gutter = 5 if fractions else 10
    rows, margin = height - 1, 1 + max((len(curve.label) for curve in curves), default=0)
    columns = width - gutter - margin
    points = series.points
    if rows < 2 or columns < 8 or len(points) < 2 or points[-1][0] <= points[0][0]:
        return _empty(width, height)
    first, last = points[0][0], points[-1][0]
    low, high = _range(series, curves, fractions)
    across, down = (2, 4) if unicode else (1, 1)
    canvas = _Canvas(columns, rows, across, down)
    labels: dict[int, Curve] = {}
    grid = _grid(first, last, columns * across)
    for mark in marks:
        if first <= mark <= last:
            place = round((mark - first) / (last - first) * (columns * across - 1))
            canvas.mark(place, len(curves))
    for index, curve in enumerate(curves):
        values = series.sample(grid, curve.column)
        heights = [_height(value, low, high, rows * down) for value in values]
        canvas.draw(heights, index, curve.dotted)
        _place(labels, curve, heights[-1], rows, down)
    ticks = _ticks(low, high, rows, down, fractions)
    lines = []
    for row in range(rows):
        line = styled(_tick(ticks.get(row), gutter - 1, fractions), "dim")
        line.append("┤" if unicode else "|", "dim")
        _append_cells(line, canvas, row, [*curves, _MARK], unicode)
        label = labels.get(row)
        line.append(" ")
        if label is not None:
            line.append(f"{label.label:<{margin - 1}}", label.style)
        else:
            line.append(" " * (margin - 1))
        lines.append(line)
    lines.append(_axis(first, last, gutter, columns, margin, unicode))
    return lines


def _empty(width: int, height: int) -> list[Text]:
    note = "the plot begins with the first scored samples"
    lines = [styled(" " * width) for _ in range(max(0, height))]
    if lines and len(note) <= width:
        lines[(height - 1) // 2] = styled(note.center(width), "dim")
    return lines


def _range(series: Series, curves: Sequence[Curve], fractions: bool) -> tuple[float, float]:
    """A range that holds the curves, ends at round numbers, and is not too narrow."""
    points = series.points
    # The very first samples swing between 0 and 1 and would flatten all that follows.
    settled = points[0][0] + 0.04 * (points[-1][0] - points[0][0])
    values = [
        point[curve.column]
        for point in points
        if point[0] >= settled or point is points[-1]
        for curve in curves
    ]
    low, high = min(values), max(values)
    step = _step(low, high, 4, fractions)
    if not fractions:
        low = math.floor(low / step + 1e-9) * step
        return low, max(math.ceil(high / step - 1e-9) * step, low + step)
    low = max(0.0, math.floor(low / step + 1e-9) * step)
    high = min(1.0, math.ceil(high / step - 1e-9) * step)
    if high - low < 0.02:
        low, high = max(0.0, high - 0.02), min(1.0, max(high, 0.02))
    return low, high


def _step(low: float, high: float, most: int, fractions: bool) -> float:
    """The least round step that goes at most so often into a range."""
    if fractions:
        return next((step for step in _STEPS if (high - low) / step <= most), _STEPS[-1])
    # A range of no width is as wide as a hundredth of where it lies.
    least = max(high - low, 0.01 * abs(high), 1e-12) / most
    power = 10.0 ** math.floor(math.log10(least))
    return power * next(factor for factor in (1, 2, 5, 10, 20) if factor * power >= least)


def _height(value: float | None, low: float, high: float, cells: int) -> int | None:
    """The row of dots, from the top, of a value; the nearest edge where it is outside."""
    if value is None or not math.isfinite(value):
        return None
    share = (high - min(high, max(low, value))) / (high - low)
    return min(cells - 1, int(share * (cells - 1) + 0.5))


class _Canvas:
    """Dots in cells, and for each cell the curve that was drawn there last."""

    def __init__(self, columns: int, rows: int, across: int, down: int) -> None:
        self.columns, self.across, self.down = columns, across, down
        self.masks = [[0] * columns for _ in range(rows)]
        self.owner = [[-1] * columns for _ in range(rows)]

    def draw(self, heights: Sequence[int | None], curve: int, dotted: bool) -> None:
        previous: int | None = None
        for x, y in enumerate(heights):
            if y is None or (dotted and self.across > 1 and x % _DOT_SPACING):
                previous = None
                continue
            stretch = range(y, y + 1)
            if not dotted and previous is not None:
                # From next to the neighbour's dot to this one, so that a steep line is whole.
                low, high = min(y, previous), max(y, previous)
                stretch = range(low + (y > previous), high + (y >= previous))
            for dot in stretch:
                self._set(x, dot, curve)
            previous = y

    def mark(self, x: int, owner: int) -> None:
        """A dotted line from top to bottom."""
        for y in range(0, len(self.masks) * self.down, _DOT_SPACING):
            self._set(x, y, owner)

    def _set(self, x: int, y: int, curve: int) -> None:
        row, column = y // self.down, x // self.across
        self.masks[row][column] |= _BRAILLE[y % self.down][x % self.across]
        self.owner[row][column] = curve


def _append_cells(
    line: Text, canvas: _Canvas, row: int, curves: Sequence[Curve], unicode: bool
) -> None:
    masks, owners = canvas.masks[row], canvas.owner[row]
    start = 0
    for stop in range(1, canvas.columns + 1):
        if stop < canvas.columns and owners[stop] == owners[start]:
            continue
        owner = owners[start]
        if owner < 0:
            line.append(" " * (stop - start))
        elif unicode:
            line.append(
                "".join(chr(0x2800 + mask) for mask in masks[start:stop]), curves[owner].style
            )
        else:
            mark = "." if curves[owner].dotted else "*"
            line.append(mark * (stop - start), curves[owner].style)
        start = stop


def _place(
    labels: dict[int, Curve], curve: Curve, height: int | None, rows: int, down: int
) -> None:
    """Put a curve's label beside its end, or on the nearest free line."""
    wanted = 0 if height is None else height // down
    free = [row for row in range(rows) if row not in labels]
    if free:
        labels[min(free, key=lambda row: abs(row - wanted))] = curve


def _ticks(low: float, high: float, rows: int, down: int, fractions: bool) -> dict[int, float]:
    """Round numbers and the lines that they fall on, at least three lines apart."""
    most = max(1, rows // 3)
    step = _step(low, high, most, fractions)
    if fractions and (high - low) / step > most:
        step = high - low
    first = math.ceil(low / step - 1e-9)
    values = [low, high, *(step * index for index in range(first, int(high / step + 1e-9) + 1))]
    ticks: dict[int, float] = {}
    for value in values:
        row = (_height(value, low, high, rows * down) or 0) // down
        if all(abs(row - taken) >= min(3, rows - 1) for taken in ticks):
            ticks[row] = value
    return ticks


def _tick(value: float | None, width: int, fractions: bool) -> str:
    if value is None:
        return " " * width
    if fractions:
        return f"{100 * value:3.0f}%"
    return f"{value:{width},.0f}" if 999.5 <= value < 999999.5 else f"{value:{width}.3g}"


def _axis(first: float, last: float, gutter: int, columns: int, margin: int, unicode: bool) -> Text:
    left, right = f"{first:,.0f}", f"{last:,.0f} samples"
    line = styled(" " * (gutter - 1) + ("└" if unicode else "+"), "dim")
    room = columns + margin - len(left) - len(right) - 2
    dash = "─" if unicode else "-"
    if room < 1:
        return line.append(dash * (columns + margin), "dim")
    return line.append(f"{left} {dash * room} {right}", "dim")
