"""Classes in turn: the experiences of a class-incremental stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import ConfigError

__all__ = ["Experience", "Labelled", "in_turn", "labels_of"]


@dataclass(frozen=True, slots=True)
class Experience:
    """A part of a stream: the classes that its items are of, and where it starts and stops."""

    classes: tuple[int, ...]
    start: int
    stop: int


@runtime_checkable
class Labelled(Protocol):
    """A data set that knows every item's class before the item is read."""

    name: str
    classes: tuple[str, ...]

    def labels(self) -> NDArray[np.int64]:
        """Every item's class, (n,)."""


def labels_of(dataset: object) -> NDArray[np.int64]:
    """Every item's class, (n,).

    Raises:
        ConfigError: targets are no classes, or only known once an item is read.
    """
    if not isinstance(dataset, Labelled) or not dataset.classes:
        raise ConfigError(
            f"{getattr(dataset, 'name', 'this data set')} cannot come in the order of its classes: "
            "it has no classes that are known beforehand; set data.order=shuffled"
        )
    return dataset.labels()


def in_turn(
    items: NDArray[np.int64], labels: NDArray[np.int64], classes: int, count: int | None
) -> tuple[NDArray[np.int64], tuple[Experience, ...]]:
    """Items by groups of classes, group after group, in each in the order that they had.

    Args:
        items: (n,) positions in the data set, in an order.
        labels: every item's class, by position.
        classes: their number.
        count: of groups, as equal as can be; None is one for each class.

    Raises:
        ConfigError: more groups than classes.
    """
    count = classes if count is None else count
    if not 1 <= count <= classes:
        raise ConfigError(
            f"data.experiences={count} is not possible with {classes} classes; give at most that "
            "many"
        )
    groups: Sequence[NDArray[np.int64]] = np.array_split(np.arange(classes), count)
    group_of = np.repeat(np.arange(count), [len(group) for group in groups])
    own = group_of[labels[items]]
    ordered = items[np.argsort(own, kind="stable")]
    stops = np.cumsum(np.bincount(own, minlength=count)).tolist()
    starts = [0, *stops[:-1]]
    return ordered, tuple(
        Experience(tuple(group.tolist()), start, stop)
        for group, start, stop in zip(groups, starts, stops, strict=True)
    )
