"""An explanation as a PNG picture, drawn by matplotlib."""

import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.storage import files

from .format import MISSING, clean, percent, shortened

if TYPE_CHECKING:
    from streamlearn.scenarios.explain import Explanation, Witness

__all__ = ["write_png"]

_TEXT = 120
"""Letters of a record."""

_MOST = 8
"""Tuples in a row."""


def write_png(path: Path, told: "Explanation") -> None:
    """Draw helpers and hurters, what layers attend to, and attention by class and by time.

    Raises:
        StorageError: the file cannot be written; one that was there before is as it was.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows: list[tuple[str, list[Witness], bool]] = []
    for case in told.cases:
        rows += [(f"for {case.name}", case.helpers, True), (f"against {case.name}", case.hurters,
                                                            True)]  # fmt: skip
    rows += [(f"layer {layer.name}", layer.attended, False) for layer in told.layers]
    figure = Figure(figsize=(11, 1.7 * len(rows) + 3.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    label = "" if told.truth is None else f", label {told.truth}"
    figure.suptitle(_plain(f"{told.asked}: {told.prediction}{label}"))
    upper, lower = figure.subfigures(  # type: ignore[misc]
        2, 1, height_ratios=[1.7 * len(rows), 3.0]
    )
    grid = upper.subplots(len(rows), _MOST + 1, squeeze=False)
    for cells, (title, witnesses, signed) in zip(grid, rows, strict=True):
        for axes in cells:
            axes.axis("off")
        cells[0].text(0.0, 0.5, _plain(title), va="center", fontsize=9, wrap=True)
        for axes, one in zip(cells[1:], witnesses[:_MOST], strict=False):
            _draw(axes, told, one, signed)
    _shares(lower, told)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    files.write_whole(path.absolute(), data.getvalue())


def _draw(axes: Any, told: "Explanation", one: "Witness", signed: bool) -> None:
    score = f"{one.score:+.3f}" if signed else percent(one.score, 2)
    sample = MISSING if one.sample is None else str(one.sample)
    record = "" if one.sample is None else told.texts.get(one.sample, "")
    lines = textwrap.wrap(shortened(record, _TEXT), 24)
    text = _plain(
        "\n".join([f"{one.label or MISSING} {score}", f"#{sample}, {one.age} ago", *lines])
    )
    picture = None if one.sample is None else told.pictures.get(one.sample)
    if picture is None:
        axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=7)
        return
    grey = picture.shape[0] == 1
    axes.imshow(picture[0] if grey else picture.transpose(1, 2, 0), cmap="gray" if grey else None)
    axes.set_title(text, fontsize=6)


def _shares(figure: Any, told: "Explanation") -> None:
    left, right = figure.subplots(1, 2)
    for layer in told.layers:
        if layer.by_class:
            names = [_plain(name) for name in layer.by_class]
            places = range(len(names))
            left.plot(places, [100 * v for v in layer.by_class.values()], "o-", label=layer.name)
            left.set_xticks(list(places), names, rotation=45, ha="right", fontsize=7)
        tenths = [10 * i + 5 for i in range(len(layer.by_time))]
        right.plot(tenths, [100 * value for value in layer.by_time], "o-", label=layer.name)
    left.set_title("attention by class in %", fontsize=9)
    right.set_title("attention by time of writing in %", fontsize=9)
    right.set_xlabel("% of the run", fontsize=8)
    right.legend(fontsize=7)
    for axes in (left, right):
        axes.grid(alpha=0.3)


def _plain(text: str) -> str:
    """Text that is not taken for mathematics."""
    return "\n".join(clean(line) for line in text.split("\n")).replace("$", r"\$")
