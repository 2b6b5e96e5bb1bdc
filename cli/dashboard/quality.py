"""How good answers are: accuracies or errors, their baselines, and the curves of both."""

from rich.text import Text

from streamlearn.cli.describe import are_numbers
from streamlearn.cli.format import figure, number, percent
from streamlearn.cli.model import Model
from streamlearn.cli.plot import Curve, plot

from .memory import SHORT_PLOT
from .page import Page, bold_facts, fact_line, rule

__all__ = ["accuracy"]

_CUMULATIVE, _WINDOWED = "cyan", "yellow"


def accuracy(page: Page, width: int, plot_rows: int) -> list[Text]:
    """A heading, the figures, and their curves in so many lines."""
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
    beside = _beside(model, width) if plot_rows > SHORT_PLOT else []
    rows = plot_rows - len(beside)
    return [
        rule(page, "prequential accuracy", width),
        bold_facts(facts),
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
    fit = [n for n in range(1, len(facts) + 1) if fact_line(facts[:n]).cell_len <= width]
    return [fact_line(facts[: fit[-1]])] if metrics and fit else []


def _errors(page: Page, width: int, plot_rows: int) -> list[Text]:
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
    beside = _beside(model, width) if plot_rows > SHORT_PLOT else []
    rows, marks = plot_rows - len(beside), model.drifts
    return [
        rule(page, "prequential absolute error", width),
        bold_facts(facts),
        *beside,
        *plot(model.curve, curves, width, rows, page.unicode, fractions=False, marks=marks),
    ]
