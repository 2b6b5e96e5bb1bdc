"""The experiences of a stream: classes in turn, or equal parts; and streams of rare classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import ConfigError

__all__ = ["Experience", "Labelled", "in_parts", "in_turn", "labels_of", "long_tailed"]

_STREAM = 0x7A11
"""Keeps the order of classes, from frequent to rare, apart from all else that a seed is for."""


@dataclass(frozen=True, slots=True)
class Experience:
    """A part of a stream: the classes that its items are of, and where it starts and stops.

    name: what sets it apart, where that is not its classes.
    """

    classes: tuple[int, ...]
    start: int
    stop: int
    name: str | None = None

    def named(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Its name, or those of its classes, by the names of all."""
        if self.name is not None:
            return (self.name,)
        return tuple(classes[index] for index in self.classes)


@runtime_checkable
class Labelled(Protocol):
    """A data set that knows every item's class before the item is read."""

    name: str
    classes: tuple[str, ...]

    def labels(self) -> NDArray[np.int64]:
        """Every item's class, (n,)."""


def labels_of(
    dataset: object,
    what: str = "come in the order of its classes",
    instead: str = "set data.order=shuffled",
) -> NDArray[np.int64]:
    """Every item's class, (n,).

    Args:
        dataset: whose items these are.
        what: it cannot do without them, for the message.
        instead: what to do then.

    Raises:
        ConfigError: targets are no classes, or only known once an item is read.
    """
    if not isinstance(dataset, Labelled) or not dataset.classes:
        raise ConfigError(
            f"{getattr(dataset, 'name', 'this data set')} cannot {what}: it has no classes that "
            f"are known beforehand; {instead}"
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


def in_parts(
    items: NDArray[np.int64], classes: int, names: Sequence[str]
) -> tuple[Experience, ...]:
    """Items cut into parts, as equal as can be, of all classes each.

    Args:
        items: (n,) positions in the data set, in an order.
        classes: their number.
        names: of the parts.

    Raises:
        ConfigError: more parts than items.
    """
    count = len(names)
    if not 1 <= count <= max(len(items), 1):
        raise ConfigError(
            f"data.experiences={count} is not possible with {len(items)} items; give at most that "
            "many"
        )
    stops = np.cumsum([len(part) for part in np.array_split(items, count)]).tolist()
    return tuple(
        Experience(tuple(range(classes)), start, stop, name)
        for start, stop, name in zip([0, *stops[:-1]], stops, names, strict=True)
    )


def long_tailed(
    items: NDArray[np.int64], labels: NDArray[np.int64], classes: int, ratio: float, seed: int
) -> NDArray[np.bool_]:
    """Which items to keep so that classes are frequent to rare, (n,).

    Of class c, in an order drawn from the seed, `n_max · ratio^(c/(C − 1))` items stay, the first
    ones, or all where there are fewer, and at least one.

    Args:
        items: (n,) positions in the data set, in a random order.
        labels: every item's class, by position.
        classes: C.
        ratio: of the rarest class's count to that of the most frequent one, n_max, in (0, 1].
        seed: of the order of classes.

    Source: Cui et al., arXiv 1901.05555, §4.1.
    """
    own = labels[items]
    counts = np.bincount(own, minlength=classes)
    words = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAM,))).random_raw(classes)
    rank = np.empty(classes)
    rank[np.argsort(words, kind="stable")] = np.arange(classes)
    wanted = np.maximum(np.round(counts.max() * ratio ** (rank / max(classes - 1, 1))), 1)
    order = np.argsort(own, kind="stable")  # class after class, each in the order of the items
    number = np.empty(len(items), np.int64)  # of an item within its class
    number[order] = np.arange(len(items)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept: NDArray[np.bool_] = number < wanted[own]
    return kept
