"""Learning curves as a PNG picture, drawn by matplotlib, which is needed for nothing else."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from streamlearn.scenarios.compare import LearnerResult
from streamlearn.scenarios.metrics import METRICS
from streamlearn.storage import files

from .format import clean, size
from .output_file import check_output_file, need_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_picture", "write_picture"]

_STYLES = ("-", "--", "-.", ":")


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be written, before hours are spent on what it shows.

    Raises:
        ConfigError: no PNG, no such folder, or matplotlib is missing.
    """
    check_output_file(path, "--png", (".png",))
    need_matplotlib(f"--png {str(path)!r}")


def write_picture(path: Path, results: Sequence[LearnerResult], title: str, window: int) -> None:
    """Draw the windowed prequential figure of each learner against samples, and against bytes.

    Raises:
        StorageError: the file cannot be written; one that was there before is as it was.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(_plain(title))
    shown = [result for result in results if result.curve]
    share = all(METRICS[result.curve_of].unit == "share" for result in shown)
    settled: list[float] = []
    first = 0.05 * max((result.curve[-1][0] for result in shown), default=0)
    for index, result in enumerate(shown):
        style = _STYLES[index // 10 % len(_STYLES)]
        points = [(x, 100 * y if share else y, held) for x, y, held in result.curve]
        # The very first samples swing between all and nothing, and would flatten all that follows.
        settled += [y for x, y, _ in points if x >= first]
        label = _plain(result.learner) + (" (failed)" if result.state == "failed" else "")
        left.plot([x for x, _, _ in points], [y for _, y, _ in points], style, label=label)
        grown = [(held, y) for _, y, held in points if held > 0]
        mark = "o" if len({held for held, _ in grown}) == 1 else ""
        grown = grown[-1:] if mark else grown
        right.plot(
            [held for held, _ in grown],
            [y for _, y in grown],
            style,
            marker=mark,
            color=left.lines[-1].get_color(),
        )
    name = shown[0].curve_of.replace("_", " ") if shown else "windowed accuracy"
    left.set_ylabel(f"prequential {name} in %" if share else f"prequential {name}")
    left.set_xlabel(f"samples (window {window:,})")
    right.set_xlabel("bytes of the learner, encoder left out (dot: fixed size)")
    if shown:
        _finish(left, right, settled)
    data = io.BytesIO()
    figure.savefig(data, format="png")
    files.write_whole(path.absolute(), data.getvalue())


def _finish(left: "Axes", right: "Axes", values: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    if values:
        room = 0.05 * (max(values) - min(values)) or 1.0
        left.set_ylim(min(values) - room, max(values) + room)
    left.legend(fontsize="small", loc="lower right")
    right.set_xscale("log", base=2)
    right.xaxis.set_major_locator(LogLocator(2, numticks=7))
    right.xaxis.set_minor_locator(NullLocator())
    right.xaxis.set_major_formatter(lambda value, _: size(value))
    for axes in (left, right):
        axes.grid(alpha=0.3)


def _plain(text: str) -> str:
    """A name that is not taken for mathematics or for something to be left out of a legend."""
    return clean(text).replace("$", r"\$").lstrip("_")
