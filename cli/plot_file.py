"""`plot`: one chart of runs as a PNG or SVG file."""

from collections.abc import Sequence
from pathlib import Path

from streamlearn.errors import ConfigError
from streamlearn.storage import RunPath, files, find_run

from .chart_names import CHARTS
from .figures import MOST_CLASSES, draw, names_of
from .output import Output
from .output_file import check_output_file, need_matplotlib
from .report_charts import picture
from .report_facts import facts_of

__all__ = ["plot_runs"]

_KINDS = (".png", ".svg")
_NEEDS = {
    "by-class": f"classes, {MOST_CLASSES} at most",
    "confusion": f"classes, {MOST_CLASSES} at most",
    "accuracy-matrix": "accuracies of experiences, which data.order=classes or domains gives",
}


def plot_runs(runs: Sequence[str], chart: str, to: Path, output: Output) -> None:
    """Draw a chart of runs, all of them on one axis, or a matrix beside the other.

    Args:
        runs: directories or names.
        chart: a name of `CHARTS`.
        to: the file, which ends in .png or .svg.
        output: where its name is printed.

    Raises:
        StreamlearnError: there is no such chart or run, the runs have nothing of it, or the file
            cannot be written; one that was there before is as it was.
    """
    if chart not in CHARTS:
        raise ConfigError(
            f"chart {chart!r} is unknown; end the command with one of {', '.join(CHARTS)}"
        )
    check_output_file(to, kinds=_KINDS)
    need_matplotlib("plot")
    paths: list[RunPath] = [find_run(run) for run in runs]
    facts = [facts_of(path) for path in paths]
    drawing = draw(chart, facts, names_of(facts))
    if drawing is None:
        needs = _NEEDS.get(chart, "progress in its event log")
        raise ConfigError(f"nothing to draw for {chart!r}: no run given has {needs}")
    files.write_whole(to.absolute(), picture(drawing, to.suffix.lower().lstrip(".")))
    output.line(f"{chart}  {to}")
