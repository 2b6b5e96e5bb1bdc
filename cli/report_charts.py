"""Charts drawn by matplotlib: as SVG that takes a page's own colours, or as files."""

import html
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .format import clean
from .series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Drawing", "bars", "curves", "matrices", "picture", "svg"]

COLOURS = ("#3b82c4", "#d9822b", "#3f9a5f", "#b0508f", "#7a6cd0", "#8a7a3a")
"""Of curves; seen on white and on black."""

_INK = "#010203"  # becomes the page's own colour of text
_MARKS = {"drift": "#c0443c", "class arrived": "#3f9a5f", "experience ended": "#888888",
          "resumed": "#b0508f"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart that can be drawn: what it is, and a function for each of its panels.

    width, height: of a panel, in inches.
    """

    label: str
    panels: "tuple[Callable[[Axes], None], ...]"
    width: float = 6.2
    height: float = 3.2


def _drawn(drawing: Drawing, rules: Any) -> "Figure":
    """The figure; panels stand side by side."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(rules):
        count = len(drawing.panels)
        figure = Figure(figsize=(drawing.width * count, drawing.height), layout="constrained")
        for axes, draw in zip(figure.subplots(1, count, squeeze=False)[0], drawing.panels,
                              strict=True):  # fmt: skip
            draw(axes)
        return figure


def _rules(drawing: Drawing, ink: str) -> Any:
    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    # The same picture gets the same names of its parts, whenever it is drawn.
    return dict.fromkeys(inks, ink) | {
        "svg.fonttype": "none",
        "svg.hashsalt": drawing.label,
        "font.size": 9,
        "font.family": "sans-serif",
    }


def svg(drawing: Drawing) -> str:
    """A drawing as an element of a page, without a ground and in the page's colour of text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    rules = _rules(drawing, _INK)
    figure = _drawn(drawing, rules)
    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.patch.set_alpha(0.0)
    data = io.BytesIO()
    with matplotlib.rc_context(rules):
        FigureCanvasSVG(figure)
        figure.savefig(data, format="svg", metadata=_NOTHING)
    text = data.getvalue().decode("utf-8")
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r'font: 9px[^;"]*', "font: 9px sans-serif", text)
    label = html.escape(drawing.label)
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def picture(drawing: Drawing, kind: str) -> bytes:
    """A drawing as the bytes of a file, on white.

    Args:
        drawing: what to draw.
        kind: "png" or "svg".
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    rules = _rules(drawing, "#000000")
    figure = _drawn(drawing, rules)
    figure.suptitle(drawing.label, fontsize=10)
    data = io.BytesIO()
    with matplotlib.rc_context(rules):
        (FigureCanvasSVG if kind == "svg" else FigureCanvasAgg)(figure)
        metadata = _NOTHING if kind == "svg" else {"Software": None}
        figure.savefig(data, format=kind, dpi=160, metadata=metadata)
    return data.getvalue()


_NOTHING: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def curves(
    label: str,
    lines: Sequence[tuple[str, Series, int]],
    unit: str,
    *,
    factor: float = 1.0,
    marks: Mapping[str, Sequence[int]] | None = None,
    each: int = 1,
) -> Drawing:
    """Columns of series against samples.

    Args:
        label: what it is, for who cannot see it.
        lines: of each curve its name, its series and the column.
        unit: what stands beside the axis.
        factor: that values are multiplied by.
        marks: samples of events by their kind; kinds that have no colour are left out.
        each: how many curves in turn are of one run: they differ in style, and runs in colour.
    """

    def draw(axes: "Axes") -> None:
        for place, (name, series, column) in enumerate(lines):
            xs = [point[0] for point in series.points]
            ys = [factor * point[column] for point in series.points]
            run, part = divmod(place, each)
            style = ("-", "--", ":", "-.")[(run // len(COLOURS) + part) % 4]
            colour = COLOURS[(run if len(lines) > each else place) % len(COLOURS)]
            axes.plot(xs, ys, style, label=_plain(name), color=colour, lw=1.4)
        for kind, places in (marks or {}).items():
            for number, place in enumerate(places if kind in _MARKS else ()):
                title = "_" if number else kind  # a label with _ is not in the legend
                axes.axvline(place, color=_MARKS[kind], lw=0.8, ls=":", label=title)
        axes.set_xlabel("samples")
        axes.set_ylabel(unit)
        axes.grid(alpha=0.2)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(fontsize=8, frameon=False)

    return Drawing(label, (draw,))


def bars(
    label: str, names: Sequence[str], values: Mapping[str, Sequence[float]], unit: str
) -> Drawing:
    """A bar for each name, the first one on top; of several runs side by side.

    Args:
        label: what it is.
        names: of the bars.
        values: by run, as many as there are names.
        unit: what stands below the axis.
    """
    thick = 0.8 / len(values)

    def draw(axes: "Axes") -> None:
        for place, (run, lengths) in enumerate(values.items()):
            at = [row - 0.4 + thick * (place + 0.5) for row in range(len(names))]
            colour = COLOURS[place % len(COLOURS)]
            axes.barh(at, lengths, height=thick, color=colour, label=_plain(run))
        axes.set_yticks(range(len(names)), [_short(name) for name in names])
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.grid(axis="x", alpha=0.2)
        if len(values) > 1:
            axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1))

    each = 0.22 if len(values) < 3 else 0.11 * len(values)
    return Drawing(label, (draw,), height=max(1.6, 0.9 + each * len(names)))


def matrices(
    label: str,
    fields: Sequence[tuple[str, Sequence[Sequence[float]], Sequence[str], Sequence[str]]],
    axis_labels: tuple[str, str],
) -> Drawing:
    """Shares in [0, 1] as fields of colours, with their numbers where there is room.

    Args:
        label: what it is.
        fields: of each its title, if any, its rows of shares, the names of its rows and columns.
        axis_labels: what rows and columns are.
    """
    most = max(max(len(rows), len(across)) for _, rows, _, across in fields)
    side = min(7.0, max(2.6, 1.4 + 0.32 * most))
    shown = [
        _matrix(title, rows, (down, across), axis_labels) for title, rows, down, across in fields
    ]
    return Drawing(label, tuple(shown), width=side + 0.8, height=side)


def _matrix(
    title: str,
    rows: Sequence[Sequence[float]],
    names: tuple[Sequence[str], Sequence[str]],
    axis_labels: tuple[str, str],
) -> "Callable[[Axes], None]":
    def draw(axes: "Axes") -> None:
        axes.imshow(rows, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for axis, ticks in ((axes.yaxis, names[0]), (axes.xaxis, names[1])):
            every = math.ceil(len(ticks) / 30)  # names of more would lie on each other
            axis.set_ticks(range(0, len(ticks), every), [_short(name) for name in ticks[::every]])
        axes.tick_params("x", rotation=90 if max(map(len, names[1]), default=0) > 3 else 0)
        axes.set_ylabel(axis_labels[0])
        axes.set_xlabel(axis_labels[1])
        if title:
            axes.set_title(_plain(title), fontsize=9)
        if len(rows) > 12:
            return
        for y, row in enumerate(rows):
            for x, share in enumerate(row):
                ink = "#ffffff" if share > 0.5 else "#103050"
                axes.text(x, y, f"{100 * share:.0f}", ha="center", va="center", color=ink,
                          fontsize=7)  # fmt: skip

    return draw


def _plain(name: str) -> str:
    """A name that is not taken for mathematics or for something to be left out of a legend."""
    return clean(name).replace("$", r"\$").lstrip("_") or "run"


def _short(name: str) -> str:
    shown = clean(name)
    return (shown if len(shown) <= 16 else shown[:15] + "…").replace("$", r"\$")
