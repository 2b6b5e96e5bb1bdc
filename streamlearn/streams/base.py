"""A stream: a data set, an order over it, and a cursor that can be saved and restored."""

import bisect
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import ConfigError, FormatError
from streamlearn.state import StateTree
from streamlearn.tasks import Task

from .augment import Augmentation, AugmentName
from .domains import DomainName, Domains
from .experiences import Experience, in_parts, in_turn, labels_of, long_tailed

__all__ = ["AnyStream", "Batch", "Dataset", "OnError", "Order", "Rows", "SkippedItem", "Stream"]

OnError = Literal["skip", "stop"]
Order = Literal["shuffled", "given", "classes", "domains"]


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """An item that could not be used: its name (a path, a row number) and why."""

    item: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows read from a data set, the unusable ones left out and named.

    features: (B, …) uint8 images (B, channels, height, width) or float32 vectors (B, D).
    targets: (B,) int64 indices into the data set's classes, or (B, K) numbers.
    index: (B,) int64 positions in the data set.
    """

    features: Tensor
    targets: Tensor
    index: Tensor
    skipped: tuple[SkippedItem, ...] = ()


class Dataset(Protocol):
    """Labelled items that can be read by position.

    `read` leaves out unusable rows and names them in `Rows.skipped`, or raises `DataError` naming
    the first one where the data set was opened with `on_error="stop"`.
    """

    @property
    def name(self) -> str:
        """What the data set is called, for people."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names; a target is an index into them. None where targets are numbers."""
        ...

    @property
    def task(self) -> Task:
        """What targets are: indices into the classes, or numbers."""
        ...

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one item: (channels, height, width) for images, (D,) for vectors."""
        ...

    def __len__(self) -> int:
        """How many items there are, unusable ones included."""
        ...

    def read(self, index: NDArray[np.int64]) -> Rows:
        """The rows at these positions, in this order."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One mini-batch of a stream: its rows and how far the cursor has moved past it.

    places: of the rows in the stream, counted from 0.
    """

    rows: Rows
    position: int
    places: NDArray[np.int64]


class AnyStream(Protocol):
    """What a loop asks of a stream; what its batches hold is between it and the learner.

    position: consumed items; put back to where the last batch began, that batch comes again.
    experiences: groups of the stream that are measured in turn.
    """

    position: int
    experiences: tuple[Experience, ...]

    @property
    def name(self) -> str:
        """What the stream is called, for people."""
        ...

    @property
    def total(self) -> int | None:
        """Items in all, None where that is not known or there is no end."""
        ...

    def batches(self, size: int, *, ahead: bool = False) -> Iterator[Any]:
        """The remaining mini-batches, their rows with `places`, and `position` after them."""
        ...

    def state_dict(self) -> StateTree:
        """The cursor."""
        ...

    def load_state_dict(self, state: StateTree) -> None:
        """Put the cursor back."""
        ...

    def close(self) -> None:
        """Let go of whatever it reads from."""
        ...


class Stream:
    """Items of a data set, each once an epoch, in a fixed order, in mini-batches.

    Args:
        dataset: where the items come from.
        order: "shuffled" (a permutation drawn from `seed`), "given", "classes": the items of
            the shuffled order, class group after class group, or "domains": the shuffled order
            in equal parts, in each of which features are changed in another way.
        seed: of the permutation; the same seed gives the same order on every machine.
        limit: stop after this many items of the order.
        epochs: how often to go through these items. A shuffled order is another one each time; no
            mini-batch has items of two epochs.
        augment: "paper" changes images in every epoch, see `Augmentation`.
        experiences: the number of class groups, None is one for each class; or of domains.
        domain: how features are changed, where domains are the order; see `Domains`.
        imbalance: leave items out so that the rarest class has this share of what the most
            frequent one has, in (0, 1]; see `long_tailed`. The limit counts what stays.

    Attributes:
        experiences: the class groups, or domains, in turn, where that is the order; no mini-batch
            has items of two of them.
        domains: what is done to features, where domains are the order.

    The cursor counts consumed items, over all epochs. It moves when a batch is handed out, so a
    state saved between two batches resumes with the next one.

    """

    experiences: tuple[Experience, ...] = ()
    domains: Domains | None = None
    imbalance: float | None = None

    def __init__(
        self,
        dataset: Dataset,
        *,
        order: Order = "shuffled",
        seed: int = 0,
        limit: int | None = None,
        epochs: int = 1,
        augment: AugmentName = "none",
        experiences: int | None = None,
        domain: DomainName | None = None,
        imbalance: float | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"data.limit={limit} must be at least 1; leave it out for all items")
        if epochs < 1:
            raise ConfigError(f"data.epochs={epochs} must be at least 1")
        self.dataset = dataset
        self.order: Order = order
        self.seed = seed
        count = len(dataset)
        # numpy promises the raw words of a bit generator across versions and machines, but not
        # what `permutation` makes of them.
        shuffled = np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
        items: NDArray[np.int64] = np.arange(count) if order == "given" else shuffled
        if imbalance is not None:
            items = items[self._kept(shuffled, imbalance)[items]]
        items = items[:limit]
        if order in ("classes", "domains") and epochs > 1:
            raise ConfigError(
                f"data.epochs={epochs} is not possible where {order} come in turn, each once; "
                "set data.epochs=1, or data.order=shuffled"
            )
        if order == "domains":
            self.domains = self._domains(domain, experiences)
            self.experiences = in_parts(items, len(dataset.classes), self.domains.names)
        elif domain is not None:
            raise ConfigError(
                f"data.domain={domain} means nothing for data.order={order}; set data.order=domains"
            )
        elif order == "classes":
            labels = labels_of(dataset)
            items, self.experiences = in_turn(items, labels, len(dataset.classes), experiences)
        elif experiences is not None:
            raise ConfigError(
                f"data.experiences={experiences} means nothing for data.order={order}; set "
                "data.order=classes or data.order=domains"
            )
        self.epoch_items = len(items)
        later = [self._reordered(items, epoch) for epoch in range(1, epochs)]
        self._items: NDArray[np.int64] = np.concatenate([items, *later])
        self._augment = (
            Augmentation(dataset.feature_shape, count, seed) if augment == "paper" else None
        )
        self.position = 0

    def _kept(self, shuffled: NDArray[np.int64], imbalance: float) -> NDArray[np.bool_]:
        """Which items of the data set stay, by position."""
        if not 0 < imbalance <= 1:
            raise ConfigError(
                f"data.imbalance={imbalance:g} must be above 0 and at most 1, the share of the "
                "rarest class in the most frequent one's items; leave it out for all items"
            )
        self.imbalance = imbalance
        labels = labels_of(self.dataset, "be made imbalanced", "leave data.imbalance out")
        stays = long_tailed(shuffled, labels, len(self.dataset.classes), imbalance, self.seed)
        kept = np.zeros(len(shuffled), np.bool_)
        kept[shuffled[stays]] = True
        return kept

    def _domains(self, domain: DomainName | None, experiences: int | None) -> Domains:
        if domain is None or experiences is None:
            raise ConfigError(
                "data.order=domains needs to know which and how many; set data.experiences=5, say, "
                "and data.domain=permute, rotate, brightness or noise"
            )
        return Domains(domain, experiences, self.dataset.feature_shape, self.seed)

    def _reordered(self, items: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The items in the order of a later epoch."""
        if self.order == "given":
            return items
        source = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(epoch,)))
        return items[np.argsort(source.random_raw(len(items)), kind="stable")]

    def __len__(self) -> int:
        return len(self._items)

    @property
    def name(self) -> str:
        """What the data set is called."""
        return self.dataset.name

    @property
    def total(self) -> int | None:
        """Items over all epochs; None where there is no end."""
        return len(self._items)

    def batches(self, size: int, *, ahead: bool = False) -> Iterator[Batch]:
        """The remaining mini-batches, from the cursor on; the last one may be smaller.

        A batch holds fewer rows, or none, where items were skipped.

        Args:
            size: of a mini-batch, in items.
            ahead: read the next mini-batch in a thread while this one is used. The cursor still
                counts only what was handed out, an error comes when its batch is due, and the
                thread ends with the iterator.

        """
        if size < 1:
            raise ConfigError(f"a batch size of {size} is not possible; it must be at least 1")
        if not ahead:
            yield from self._hand_out(size, self._read)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
            pending: tuple[int, Future[Rows]] | None = None

            def read(start: int, stop: int) -> Rows:
                nonlocal pending
                if pending is not None and pending[0] == start:
                    rows = pending[1].result()
                else:  # the first batch, or the cursor was put elsewhere in between
                    rows = pool.submit(self._read, start, stop).result()
                end = self._stop(stop, size)
                pending = (stop, pool.submit(self._read, stop, end)) if end > stop else None
                return rows

            yield from self._hand_out(size, read)

    def _hand_out(self, size: int, read: Callable[[int, int], Rows]) -> Iterator[Batch]:
        while (stop := self._stop(self.position, size)) > self.position:
            rows = read(self.position, stop)
            places = self._places(self.position, stop, rows)
            self.position = stop
            yield Batch(rows, stop, places)

    def _places(self, start: int, stop: int, rows: Rows) -> NDArray[np.int64]:
        """Where rows that were read stand in the stream."""
        if not rows.skipped:
            return np.arange(start, stop, dtype=np.int64)
        there = np.isin(self._items[start:stop], rows.index.numpy())
        return start + np.flatnonzero(there)

    def _stop(self, start: int, size: int) -> int:
        """Where a mini-batch ends: with its epoch or experience at the latest."""
        left = self.epoch_items - start % self.epoch_items if self.epoch_items else 0
        if self.experiences:  # there is one epoch then
            left = next((e.stop - start for e in self.experiences if e.stop > start), 0)
        return min(start + min(size, left), len(self._items))

    def _read(self, start: int, stop: int) -> Rows:
        rows = self.dataset.read(self._items[start:stop])
        features = rows.features
        if self._augment is not None:
            features = self._augment(features, rows.index, start // self.epoch_items)
        if self.domains is not None:
            stops = [experience.stop for experience in self.experiences]
            features = self.domains(features, rows.index, bisect.bisect_right(stops, start))
        return replace(rows, features=features)

    def shown(self, index: int) -> Rows:
        """An item of the data set as it comes in this stream, in its domain; not augmented.

        Args:
            index: its position in the data set.
        """
        rows = self.dataset.read(np.array([index], np.int64))
        if self.domains is None:
            return rows
        places = np.flatnonzero(self._items == index)
        if not len(places):
            return rows
        stops = [experience.stop for experience in self.experiences]
        domain = bisect.bisect_right(stops, int(places[0]))
        return replace(rows, features=self.domains(rows.features, rows.index, domain))

    def close(self) -> None:
        """Nothing stays open between two batches."""

    def state_dict(self) -> StateTree:
        """The cursor, and what must agree for it to mean the same items."""
        state: StateTree = {
            "position": self.position,
            "items": self.total,
            "order": self.order,
            "seed": self.seed,
        }
        if self.experiences:
            state["experiences"] = len(self.experiences)
        if self.domains is not None:
            state["domain"] = self.domains.kind
        if self.imbalance is not None:
            state["imbalance"] = self.imbalance
        return state

    def load_state_dict(self, state: StateTree) -> None:
        """Put the cursor back.

        Raises:
            FormatError: the state belongs to another order or to a data set of another size.

        """
        here = self.state_dict()
        for key in ("items", "order", "seed", "experiences", "domain", "imbalance"):
            if state.get(key) != here.get(key):
                raise FormatError(
                    f"the run was learning a stream with {key} {state.get(key)!r} but the data now "
                    f"has {here.get(key)!r}; give back the data that the run began with"
                )
        position = int(state["position"])
        if not 0 <= position <= (position if self.total is None else self.total):
            raise FormatError(
                f"the cursor stands at {position} of {self.total} items; the state is "
                "damaged, fall back to an earlier commit"
            )
        self.position = position
