"""The pictures of a report as SVG that takes the page's own colours, drawn by matplotlib."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bars", "curves", "matrix"]

COLOURS = ("#3b82c4", "#d9822b", "#3f9a5f", "#b0508f", "#7a6cd0", "#8a7a3a")
"""Of curves; seen on white and on black."""

_INK = "#010203"  # becomes the page's own colour of text
_MARKS = {"drift": "#c0443c", "class arrived": "#3f9a5f", "experience ended": "#888888",
          "resumed": "#b0508f"}  # fmt: skip


def _svg(
    draw: Callable[["Axes"], None], label: str, width: float = 6.2, height: float = 3.2
) -> str:
    """What is drawn on axes, as an element of a page."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    # The same picture gets the same names of its parts, whenever it is drawn.
    rules: Any = dict.fromkeys(inks, _INK) | {
        "svg.fonttype": "none",
        "svg.hashsalt": label,
        "font.size": 9,
        "font.family": "sans-serif",
    }
    with matplotlib.rc_context(rules):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0.0)
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        axes.patch.set_alpha(0.0)
        draw(axes)
        data = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(data, format="svg", metadata=nothing)
    text = data.getvalue().decode("utf-8")
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r'font: 9px[^;"]*', "font: 9px sans-serif", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def curves(
    label: str,
    lines: Sequence[tuple[str, Series, int]],
    unit: str,
    *,
    factor: float = 1.0,
    marks: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Columns of series against samples.

    Args:
        label: what it is, for who cannot see it.
        lines: of each curve its name, its series and the column.
        unit: what stands beside the axis.
        factor: that values are multiplied by.
        marks: samples of events by their kind; kinds that have no colour are left out.
    """

    def draw(axes: "Axes") -> None:
        for place, (name, series, column) in enumerate(lines):
            xs = [point[0] for point in series.points]
            ys = [factor * point[column] for point in series.points]
            style = ("-", "--", ":", "-.")[place // len(COLOURS) % 4]
            axes.plot(xs, ys, style, label=name, color=COLOURS[place % len(COLOURS)], lw=1.4)
        for kind, places in (marks or {}).items():
            for number, place in enumerate(places if kind in _MARKS else ()):
                title = "_" if number else kind  # a label with _ is not in the legend
                axes.axvline(place, color=_MARKS[kind], lw=0.8, ls=":", label=title)
        axes.set_xlabel("samples")
        axes.set_ylabel(unit)
        axes.grid(alpha=0.2)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize=8, frameon=False)

    return _svg(draw, label)


def bars(label: str, names: Sequence[str], values: Sequence[float], unit: str) -> str:
    """A bar for each name, the first one on top."""

    def draw(axes: "Axes") -> None:
        places = range(len(names))
        axes.barh(places, values, color=COLOURS[0])
        axes.set_yticks(places, [_short(name) for name in names])
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.grid(axis="x", alpha=0.2)

    return _svg(draw, label, height=max(1.6, 0.9 + 0.22 * len(names)))


def matrix(
    label: str,
    rows: Sequence[Sequence[float]],
    names: tuple[Sequence[str], Sequence[str]],
    axis_labels: tuple[str, str],
) -> str:
    """Shares in [0, 1] as a field of colours, with its numbers where there is room.

    Args:
        label: what it is.
        rows: of shares.
        names: of the rows and of the columns.
        axis_labels: what rows and columns are.
    """

    def draw(axes: "Axes") -> None:
        axes.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for axis, ticks in ((axes.yaxis, names[0]), (axes.xaxis, names[1])):
            axis.set_ticks(range(len(ticks)), [_short(name) for name in ticks])
        axes.tick_params("x", rotation=90 if max(map(len, names[1]), default=0) > 3 else 0)
        axes.set_ylabel(axis_labels[0])
        axes.set_xlabel(axis_labels[1])
        if len(rows) > 12:
            return
        for y, row in enumerate(rows):
            for x, share in enumerate(row):
                ink = "#ffffff" if share > 0.5 else "#103050"
                axes.text(x, y, f"{100 * share:.0f}", ha="center", va="center", color=ink,
                          fontsize=7)  # fmt: skip

    side = min(7.0, max(2.6, 1.4 + 0.32 * len(rows)))
    return _svg(draw, label, width=side + 0.8, height=side)


def _short(name: str) -> str:
    return name if len(name) <= 16 else name[:15] + "…"
