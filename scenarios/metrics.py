"""What runs and comparisons are judged by: one row of a table for each figure.

The values are those of the loop's events and of a run's summary; whoever shows or sorts by them
asks this table for a title, a unit, and which way is better. A figure that no event has, as a loss
of another task, is left out where it is missing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from streamlearn.errors import ConfigError
from streamlearn.events import Progress, Tested

__all__ = ["CURVES", "METRICS", "Metric", "first_there", "measured", "metric_named"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure.

    name: in a run's summary. title: of a column, short. source, field: the event that has it, and
    its name there, or among its metrics. unit: a share is shown in percent. higher_is_better:
    otherwise lower is. in_table: whether a table of a terminal has a column for it; JSON has them
    all. in_curve: whether learning curves may show it.
    """

    name: str
    title: str
    source: Literal["progress", "tested"]
    field: str
    unit: Literal["share", "number"] = "share"
    higher_is_better: bool = True
    in_table: bool = True
    in_curve: bool = False

    def sort_key(self, value: float | None) -> tuple[bool, float]:
        """A key that puts the best first and what is missing last."""
        if value is None or value != value:
            return True, 0.0
        return False, -value if self.higher_is_better else value


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("test_accuracy", "test", "tested", "accuracy"),
        Metric("prequential_accuracy", "preq.", "progress", "accuracy"),
        Metric("windowed_accuracy", "window", "progress", "windowed_accuracy", in_curve=True),
        Metric("test_mae", "test MAE", "tested", "mae", "number", False),
        Metric("test_rmse", "test RMSE", "tested", "rmse", "number", False),
        Metric("test_r2", "test R²", "tested", "r2", "number", in_table=False),
        Metric("prequential_mae", "preq. MAE", "progress", "mae", "number", False),
        Metric("windowed_mae", "window MAE", "progress", "windowed_mae", "number", False,
               in_curve=True),
        Metric("prequential_kappa", "kappa", "progress", "kappa", "number", in_table=False),
        Metric("prequential_kappa_t", "kappa_t", "progress", "kappa_t", "number", in_table=False),
        Metric("prequential_kappa_m", "kappa_m", "progress", "kappa_m", "number", in_table=False),
        Metric("prequential_balanced_accuracy", "balanced", "progress", "balanced_accuracy",
               in_table=False),
        Metric("prequential_macro_f1", "macro F1", "progress", "macro_f1", in_table=False),
        Metric("prequential_coverage", "coverage", "progress", "coverage", in_table=False),
        Metric("prequential_selective_accuracy", "selective", "progress", "selective_accuracy",
               in_table=False),
        Metric("prequential_log_loss", "log loss", "progress", "log_loss", "number", False,
               in_table=False),
        Metric("prequential_calibration_error", "calibration", "progress", "calibration_error",
               "number", False, in_table=False),
        Metric("prequential_no_change_accuracy", "no-change", "progress", "no_change_accuracy",
               in_table=False),
        Metric("prequential_majority_accuracy", "majority", "progress", "majority_accuracy",
               in_table=False),
        Metric("prequential_no_change_mae", "no-change MAE", "progress", "no_change_mae", "number",
               False, in_table=False),
        Metric("prequential_running_mean_mae", "mean MAE", "progress", "running_mean_mae",
               "number", False, in_table=False),
        Metric("test_loss", "test loss", "tested", "loss", "number", False, in_table=False),
    )
}  # fmt: skip
"""In the order in which they decide: a table is sorted by the first one that there is."""

CURVES = tuple(metric.name for metric in METRICS.values() if metric.in_curve)
"""What learning curves show: the first of these that there is."""


def measured(event: Progress | Tested) -> dict[str, float]:
    """The figures that an event has."""
    source = "tested" if isinstance(event, Tested) else "progress"
    found = {
        metric.name: getattr(event, metric.field, event.metrics.get(metric.field))
        for metric in METRICS.values()
        if metric.source == source
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def metric_named(name: str) -> Metric:
    """The metric of a name.

    Raises:
        ConfigError: there is none; lists those that there are.
    """
    if name not in METRICS:
        raise ConfigError(f"{name!r} is not a metric; choose {', '.join(METRICS)}")
    return METRICS[name]


def first_there(rows: Iterable[Mapping[str, Any]], names: Iterable[str] = METRICS) -> Metric:
    """The first metric, in the order of the table, that any row has; else the first of all."""
    rows, names = list(rows), list(names)
    there = (name for name in names if any(row.get(name) is not None for row in rows))
    return METRICS[next(there, names[0])]
