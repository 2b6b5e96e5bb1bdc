"""The charts of runs, by name: what `report` puts on its page and `plot` into a file."""

from collections.abc import Callable, Sequence

from streamlearn.errors import ConfigError

from . import report_charts as charts
from .report_charts import Drawing
from .report_facts import RunFacts
from .series import Series

__all__ = ["FIGURES", "MOST_CLASSES", "draw", "names_of"]

MOST_CLASSES = 60
"""Of bars and of a matrix; more of them could not be read."""

Runs = Sequence[RunFacts]
Names = Sequence[str]


def names_of(runs: Runs) -> list[str]:
    """The runs' names; with their places where two are called alike."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [f"{run.name} ({run.facts['run']})" for run in runs]


def draw(chart: str, runs: Runs, names: Names) -> Drawing | None:
    """A chart of several runs, None where they have nothing of it.

    Args:
        chart: a name of `FIGURES`.
        runs: at least one.
        names: of them, for the legend.

    Raises:
        ConfigError: the runs cannot be shown in one chart.
    """
    return FIGURES[chart](runs, names)


def _numbers(runs: Runs) -> bool:
    """Whether targets are numbers.

    Raises:
        ConfigError: of some they are, of others not.
    """
    numbers = runs[0].numbers
    if any(run.numbers != numbers for run in runs):
        raise ConfigError(
            "these runs have classes and numbers as targets, which no one curve can show; ask "
            "for them apart"
        )
    return numbers


def _course(*columns: tuple[str, int]) -> Callable[[Runs, Names], Drawing | None]:
    """Quality along the stream: the columns of `RunFacts.course` with what each is."""

    def figure(runs: Runs, names: Names) -> Drawing | None:
        numbers, several = _numbers(runs), len(runs) > 1
        lines = [
            (f"{name}: {what}" if several else what, run.course, column)
            for run, name in zip(runs, names, strict=True)
            for what, column in columns
        ]
        if len(columns) == 1 and several:
            column = columns[0][1]
            lines = [(name, run.course, column) for run, name in zip(runs, names, strict=True)]
        unit, factor = ("error", 1.0) if numbers else ("%", 100.0)
        label = "mean absolute error" if numbers else "prequential accuracy"
        if len(columns) == 1:
            label += f" {columns[0][0]}"
        marks = {} if several else runs[0].marks
        return _curves(label, lines, unit, factor, marks, len(columns))

    return figure


def _tuples(runs: Runs, names: Names) -> Drawing | None:
    several = len(runs) > 1
    lines = [
        (f"{name}: {layer}" if several else layer, series, 1)
        for run, name in zip(runs, names, strict=True)
        for layer, series in run.tuples.items()
    ]
    return _curves("tuples", lines, "tuples")


def _load(
    label: str, column: int, unit: str, factor: float = 1.0
) -> Callable[[Runs, Names], Drawing | None]:
    """A column of `RunFacts.load`."""

    def figure(runs: Runs, names: Names) -> Drawing | None:
        several = len(runs) > 1
        lines = [
            (name if several else label, run.load, column)
            for run, name in zip(runs, names, strict=True)
        ]
        return _curves(label, lines, unit, factor)

    return figure


def _curves(
    label: str,
    lines: Sequence[tuple[str, Series, int]],
    unit: str,
    factor: float = 1.0,
    marks: dict[str, list[int]] | None = None,
    each: int = 1,
) -> Drawing | None:
    there = [line for line in lines if len(line[1])]
    if not there:
        return None
    return charts.curves(label, there, unit, factor=factor, marks=marks, each=each)


def _classes(run: RunFacts) -> list[str]:
    return [str(name) for name in (run.summary.get("by_class") or {}).get("class", ())]


def _by_class(runs: Runs, names: Names) -> Drawing | None:
    """Recall of each class; those that a run has not met have no bar of it."""
    classes = list(dict.fromkeys(name for run in runs for name in _classes(run)))
    if not 0 < len(classes) <= MOST_CLASSES:
        return None
    values = {}
    for run, name in zip(runs, names, strict=True):
        recalls = (run.summary.get("by_class") or {}).get("recall", ())
        recall = dict(zip(_classes(run), recalls, strict=False))
        values[name] = [100 * (recall.get(one) or 0.0) for one in classes]
    return charts.bars("recall by class", classes, values, "%")


def _confusion(runs: Runs, names: Names) -> Drawing | None:
    fields = []
    for run, name in zip(runs, names, strict=True):
        if 1 < len(run.confusion) <= MOST_CLASSES:
            shares = [[cell / max(1, sum(row)) for cell in row] for row in run.confusion]
            classes = _classes(run) or [str(place) for place in range(len(shares))]
            fields.append((name if len(runs) > 1 else "", shares, classes, classes))
    label = "confusion: share of each true class, %"
    return charts.matrices(label, fields, ("true class", "answered")) if fields else None


def _accuracies(runs: Runs, names: Names) -> Drawing | None:
    fields = []
    for run, name in zip(runs, names, strict=True):
        turns = run.summary.get("matrix")
        if turns:
            after = [str(place + 1) for place in range(len(turns))]
            each = [str(place + 1) for place in range(len(turns[0]))]
            rows = [[value or 0.0 for value in row] for row in turns]
            fields.append((name if len(runs) > 1 else "", rows, after, each))
    label = "accuracy of each experience after each, %"
    return charts.matrices(label, fields, ("after", "experience")) if fields else None


_WHOLE, _WINDOW = ("over the whole stream", 1), ("in the window", 2)

FIGURES: dict[str, Callable[[Runs, Names], Drawing | None]] = {
    "quality": _course(_WHOLE, _WINDOW),
    "prequential": _course(_WHOLE),
    "windowed": _course(_WINDOW),
    "tuples": _tuples,
    "memory": _load("memory of tuples", 1, "MiB", 2.0**-20),
    "process": _load("memory of the process", 3, "MiB", 2.0**-20),
    "throughput": _load("throughput", 2, "samples a second"),
    "by-class": _by_class,
    "confusion": _confusion,
    "accuracy-matrix": _accuracies,
}
"""What draws each of `chart_names.CHARTS`."""
