"""Prequential evaluation: every sample is scored before it is learnt.

`Prequential` counts answers that are classes, `PrequentialErrors` answers that are numbers.
"""

from collections.abc import Mapping
from typing import TypeAlias

from streamlearn.errors import ConfigError
from streamlearn.prequential import Arrival, Prequential
from streamlearn.prequential_errors import PrequentialErrors
from streamlearn.tasks import Classes, Task

__all__ = [
    "Arrival",
    "Evaluation",
    "Prequential",
    "PrequentialErrors",
    "evaluation_of",
    "without_order",
]

Metrics: TypeAlias = Mapping[str, float | None]

Evaluation: TypeAlias = Prequential | PrequentialErrors

_BY_ORDER = ("windowed_", "no_change_", "majority_", "running_mean_", "kappa_")
"""How the names of metrics begin that depend on the order of the samples."""


def evaluation_of(task: Task, window: int = 1000, abstain: float | None = None) -> Evaluation:
    """The evaluation that suits what targets are.

    Args:
        task: says it.
        window: samples of the windowed figures.
        abstain: the probability below which an answer counts as withheld, of classes alone.

    Raises:
        ConfigError: such a probability is not possible, or targets are numbers.
    """
    if isinstance(task, Classes):
        return Prequential(task.width, window, abstain)
    if abstain is not None:
        raise ConfigError(
            f"evaluation.abstain={abstain} means nothing where targets are numbers, which have no "
            "probability; leave it out"
        )
    return PrequentialErrors(task.width, window)


def without_order(metrics: Metrics) -> Metrics:
    """Those that mean something for samples in no order, as of a held-out test."""
    return {name: value for name, value in metrics.items() if not name.startswith(_BY_ORDER)}
