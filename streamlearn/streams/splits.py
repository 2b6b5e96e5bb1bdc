"""What opening a data set asks for and gives: a request, and a train and a test part."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.errors import ConfigError, DataError
from streamlearn.tasks import Task

from .base import Dataset, OnError, Rows, SkippedItem
from .domains import Domains
from .experiences import labels_of
from .teachers import TeacherSpec

__all__ = [
    "InDomains",
    "Request",
    "Splits",
    "Subset",
    "given_path",
    "hold_out",
    "refuse",
    "unknown_word",
]

_HOLD_OUT_SEED = 0x5EED
"""Fixed, so that a held-out item stays held out whatever the seed of the run is."""


@dataclass(frozen=True)
class Splits:
    """The part to learn from and the part to test on, None where nothing is held out.

    endless: items of `train` are made as they are asked for, at any position from 0 on, and their
    order is that of their positions.
    """

    train: Dataset
    test: Dataset | None
    endless: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """The settings of `open_data`, as every kind of data set gets them."""

    kind: str
    root: Path | None
    path: Path | None
    name: str | None
    download: bool
    on_error: OnError
    holdout: float
    image_size: int | None
    teacher: TeacherSpec | None = None


class Subset:
    """Some items of a data set, in ascending order, as a data set of its own.

    Args:
        dataset: where the items come from; it goes on naming unusable items as it does.
        items: (n,) their positions in it, ascending, each once.

    """

    def __init__(self, dataset: Dataset, items: NDArray[np.int64]) -> None:
        self._dataset = dataset
        self._items = items

    @property
    def name(self) -> str:
        """What the whole data set is called."""
        return self._dataset.name

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the whole data set."""
        return self._dataset.classes

    @property
    def task(self) -> Task:
        """What targets are in the whole data set."""
        return self._dataset.task

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        return self._dataset.feature_shape

    def __len__(self) -> int:
        return len(self._items)

    def labels(self) -> NDArray[np.int64]:
        """Every item's class, (n,), if the whole data set knows them."""
        return labels_of(self._dataset)[self._items]

    def read(self, index: NDArray[np.int64]) -> Rows:
        """The rows at these positions of the subset; `Rows.index` counts within the subset."""
        rows = self._dataset.read(self._items[index])
        # Ascending items: where an item stands in the subset is found by bisection.
        places = np.searchsorted(self._items, rows.index.numpy())
        return Rows(rows.features, rows.targets, torch.from_numpy(places), rows.skipped)


class InDomains:
    """Held-out items, spread over all domains: item j is of domain j modulo their number.

    Args:
        dataset: the items as they are.
        domains: what is done to them.
    """

    def __init__(self, dataset: Dataset, domains: Domains) -> None:
        self._dataset = dataset
        self.domains = domains

    @property
    def name(self) -> str:
        """What the data set is called."""
        return self._dataset.name

    @property
    def classes(self) -> tuple[str, ...]:
        """Its classes."""
        return self._dataset.classes

    @property
    def task(self) -> Task:
        """What targets are in it."""
        return self._dataset.task

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one item."""
        return self._dataset.feature_shape

    def __len__(self) -> int:
        return len(self._dataset)

    def labels(self) -> NDArray[np.int64]:
        """Every item's class, (n,), if the data set knows them."""
        return labels_of(self._dataset)

    def read(self, index: NDArray[np.int64]) -> Rows:
        """The rows at these positions, each in its domain."""
        rows = self._dataset.read(index)
        features = rows.features.clone()
        own = rows.index % len(self.domains)
        for number in set(own.tolist()):
            those = own == number
            features[those] = self.domains(
                rows.features[those], rows.index[those], number, held_out=True
            )
        return replace(rows, features=features)

    def read_in(self, number: int, index: NDArray[np.int64]) -> Rows:
        """The rows at these positions, all in one domain."""
        rows = self._dataset.read(index)
        return replace(
            rows, features=self.domains(rows.features, rows.index, number, held_out=True)
        )


def hold_out(dataset: Dataset, fraction: float) -> Splits:
    """Split off a random part for testing, the same one on every machine and for every run.

    Both parts keep the order of the data set, and each has at least one item.

    Args:
        dataset: to be split.
        fraction: of the items to hold out, in [0, 1); 0 holds nothing out.

    Raises:
        DataError: there are too few items to hold one out.

    """
    if fraction == 0:
        return Splits(dataset, None)
    count = len(dataset)
    if count < 2:
        raise DataError(
            f"{dataset.name} has {count} item, too few to hold one out for testing; "
            "add items or set data.holdout=0"
        )
    held = min(max(round(fraction * count), 1), count - 1)
    order = np.argsort(np.random.PCG64(_HOLD_OUT_SEED).random_raw(count), kind="stable")
    return Splits(Subset(dataset, np.sort(order[held:])), Subset(dataset, np.sort(order[:held])))


def refuse(skipped: Sequence[SkippedItem], on_error: OnError) -> None:
    """Stop at the first unusable item where that is asked for.

    Raises:
        DataError: there is one and `on_error` is "stop".

    """
    if skipped and on_error == "stop":
        first = skipped[0]
        raise DataError(
            f"{first.item} cannot be used: {first.reason}; mend or remove it, or leave such items "
            "out and count them with data.on_error=skip"
        )


def unknown_word(what: str, word: str, choices: Iterable[str]) -> ConfigError:
    """The error for a word that is none of the choices, with the nearest one."""
    known = list(choices)
    folded = {choice.casefold(): choice for choice in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    hint = f"did you mean {folded[near[0]]!r}? " if near else ""
    return ConfigError(f"{what} {word!r} is not known; {hint}choose one of {', '.join(known)}")


def given_path(path: Path) -> Path:
    """The path verbatim where it exists, else with a leading `~` for the home folder."""
    if not path.exists() and path.parts[:1] and path.parts[0].startswith("~"):
        try:
            return path.expanduser()
        except RuntimeError:  # no such user
            return path
    return path
