"""A bound for all memories of a network, once they are full: which samples' tuples go.

A `Ring` lets the oldest go, which needs no more than a number. The other policies look at what is
stored. They choose samples, and each of the memories lets the tuples of these go, so that a row
stands for one sample in all of them. What is chosen follows from the stored tuples alone, so a run
that was stopped goes on with the same bits.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.decay import decay_coefficients
from streamlearn.errors import ConfigError, RunStateError
from streamlearn.layers import GrowingLayer
from streamlearn.memory import DEAD, PRIOR, Checked, Memory
from streamlearn.merging import least_missed, projected

__all__ = ["Eviction", "Plan", "Policy", "levelled"]

Policy = Literal["oldest", "newest", "balanced", "least", "merge"]

_ROW_BYTES = 16
_LOG = 64
"""Steps whose rows are remembered for whoever asks what is new."""
_GAP = 1024
"""Rows between two new ones that are looked at again rather than parted."""


_NONE: NDArray[np.int64] = np.zeros(0, np.int64)


class Plan(NamedTuple):
    """Where new tuples go: rows (n,) in ascending order, of which the first `taken` are there.

    start: the first of the new samples that are stored, n in their order. live: how many of those
    rows have tuples, which go. merged: rows of these whose tuples are projected on others, and
    into: on which.
    """

    rows: NDArray[np.int64]
    start: int
    taken: int
    live: int
    merged: NDArray[np.int64] = _NONE
    into: NDArray[np.int64] = _NONE


class Eviction:
    """The most samples whose tuples memories keep, and which go when new ones come.

    newest: the new ones, so that layers change no more once they are full, but by rehearsal.
    balanced: those of the classes that have most, new ones counted, of each the oldest. least:
    those of the least c(n)·‖ṽ‖ in the last of the memories. merge: those that are missed least once
    they are projected on their nearest ones, see `merging`. Samples of the same step go in the
    order of their rows; rows without tuples are taken first.

    Args:
        memories: in the order of the forward pass, with their starting rows, which stay and count;
            each stores one tuple a sample. For "balanced" the first has the note "target".
        rows: the most rows that each is to have.
        policy: "newest", "balanced", "least" or "merge".
        momentum: μ of the last memory's layer.
        decay: γ of it.
        layers: of the memories, in their order; for "merge" alone.

    Attributes:
        written: samples that ever had tuples.
        left: those that went for others, or came when there was no room.

    Raises:
        ConfigError: no room beside the starting rows, or for what is there.
    """

    def __init__(
        self,
        memories: Sequence[Memory],
        rows: int,
        policy: Policy,
        momentum: float = 0.0,
        decay: float = 0.0,
        layers: Sequence[GrowingLayer] = (),
    ) -> None:
        self.layers = list(layers)
        self.memories = list(memories)
        self.policy = policy
        self.rows = rows
        self._decay = (momentum, decay)
        memory = self.memories[0]
        born = memory.gather(torch.arange(len(memory)), ("born",))["born"]
        self.first = int((born == PRIOR).sum())
        if rows <= self.first:
            raise ConfigError(
                f"memory.rows={rows} leaves no room beside the {self.first} starting rows of a "
                "layer; raise it, or lower layer.start_rows"
            )
        if len(memory) > rows:
            raise ConfigError(
                f"memory.rows={rows} is less than the {len(memory)} tuples that a layer has; raise "
                "it, or begin with an empty layer"
            )
        self.size = rows - self.first
        self.written = len(memory) - self.first
        self.left = 0
        self._log: deque[tuple[int, NDArray[np.int64]]] = deque(maxlen=_LOG)
        self._born = np.full(rows, DEAD, np.int64)
        self._rank = np.zeros(rows, np.int64 if policy == "balanced" else np.float64)
        self.forget()

    def forget(self) -> None:
        """Other tuples are in the memories now."""
        self._dead = -1
        self._log.clear()

    @property
    def nbytes(self) -> int:
        """What knowing births, and classes or sizes, takes."""
        return _ROW_BYTES * self.rows

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Half-open runs of rows that have all samples from the `start`-th that was written on."""
        if start >= stop:
            return
        parts = [rows for written, rows in self._log if written >= start]
        if sum(map(len, parts)) < min(stop - start, self.size):
            yield self.first, len(self.memories[0])
            return
        rows = np.unique(np.concatenate(parts))
        breaks = np.flatnonzero(np.diff(rows) > _GAP)
        firsts = [0, *(breaks + 1).tolist()]
        lasts = [*breaks.tolist(), len(rows) - 1]
        for low, high in zip(firsts, lasts, strict=True):
            yield int(rows[low]), int(rows[high]) + 1

    def plan(self, given: Sequence[Checked], step: int) -> Plan:
        """Where new samples' tuples go: of more than there can be room for, the last.

        Args:
            given: of each memory, as many.
            step: that is to write them.

        Raises:
            ConfigError: a layer stores more or fewer tuples than another.
            RunStateError: memories with rows of different samples.
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        counts = {len(checked.key) for checked in given}
        lengths = {len(memory) for memory in self.memories}
        if len(counts) > 1 or len(given) != len(self.memories):
            raise ConfigError(
                f"memory.policy={self.policy} needs layers that store one tuple a sample; set "
                "memory.policy=oldest"
            )
        if len(lengths) > 1:
            raise RunStateError(
                f"layers hold {' and '.join(map(str, sorted(lengths)))} tuples, so that their rows "
                "are not those of the same samples; set memory.policy=oldest"
            )
        self._look()
        new, stored = counts.pop(), lengths.pop()
        count = min(new, self.size)
        more = min(self.rows - stored, count)
        dead = np.flatnonzero(self._born[self.first : stored] == DEAD)[: count - more] + self.first
        wanted, start = count - more - len(dead), new - count
        if self.policy == "newest":
            wanted = start = 0
        taken, merged, into = dead, _NONE, _NONE
        if wanted and self.policy == "merge":
            live = np.flatnonzero(self._born[:stored] >= 0)
            merged, into = least_missed(self.layers, live, wanted, step)
            taken = np.sort(np.concatenate([dead, merged]))
            if into[0] < 0:
                merged = into = _NONE
        elif wanted:
            classes = given[0].notes.get("target") if self.policy == "balanced" else None
            going = (
                self._least(stored, wanted, step)
                if classes is None
                else self._most(stored, wanted, classes.cpu().numpy()[start:])
            )
            taken = np.sort(np.concatenate([dead, going]))
        for memory in self.memories:
            memory.dropped(self.first, stored)  # whether that can be read
        rows = np.concatenate([taken, np.arange(stored, stored + more)])
        return Plan(rows, start, len(taken), wanted, merged, into)

    def staying(self, rows: int, step: int) -> torch.Tensor:
        """The rows that would stay if so many were the most, (n,) int64, in ascending order.

        Args:
            rows: the most, starting rows counted.
            step: the last one.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        self._look()
        stored = len(self.memories[0])
        live = np.flatnonzero(self._born[:stored] >= 0)
        wanted = max(0, len(live) - (rows - self.first))
        going = _NONE
        if wanted and self.policy == "balanced":
            going = self._most(stored, wanted, _NONE)
        elif wanted and self.policy == "least":
            going = self._least(stored, wanted, step + 1)
        elif wanted and self.policy == "newest":
            going = self._first_of(live[::-1], -self._born, wanted)
        elif wanted:
            going = self._first_of(live, self._born, wanted)
        rest = np.setdiff1d(live, going, assume_unique=True)
        return torch.from_numpy(np.concatenate([np.arange(self.first), rest]))

    def going(self, staying: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples' rows that are not among those that stay, ascending."""
        self._look()
        live = np.flatnonzero(self._born[: len(self.memories[0])] >= 0)
        return np.setdiff1d(live, staying, assume_unique=True)

    def put(self, plan: Plan, given: Sequence[Checked], born: int) -> None:
        """Store new tuples where `plan` said; nothing may have been stored since."""
        count, taken = len(plan.rows), plan.taken
        stop, refused = plan.start + count, len(given[0].key) - count
        rows = torch.from_numpy(plan.rows)
        for layer in self.layers if len(plan.merged) else ():
            pair = torch.from_numpy(plan.merged), torch.from_numpy(plan.into)
            sums = projected(layer.memory, layer.forgetting, *pair, layer.kernel)
            layer.memory.rewrite(sums.rows, weight=sums.weight, value=sums.value)
        for memory, checked in zip(self.memories, given, strict=True):
            part = checked.part(plan.start, stop)
            if taken:
                old = part.part(0, taken)
                notes = {
                    name: old.notes[name]
                    if name in old.notes
                    else torch.zeros(column.shape(taken), dtype=memory.layout.dtype_of(name))
                    for name, column in memory.layout.notes
                }
                memory.rewrite(
                    rows[:taken],
                    key=old.key,
                    weight=old.weight,
                    value=old.value,
                    born=born,
                    notes=notes,
                )
            if taken < count:
                memory.append_checked(part.part(taken, count), born)
        if count:
            self._log.append((self.written + plan.start, plan.rows))
        self.written += stop
        self.left += plan.live + refused
        self._born[plan.rows] = born
        self._dead = self._count_dead()
        if self.policy == "balanced":
            target = given[0].notes.get("target")
            self._rank[plan.rows] = 0 if target is None else target.cpu().numpy()[plan.start :]
        else:
            self.touch(rows)

    def touch(self, rows: torch.Tensor) -> None:
        """Values of rows (n,) have changed in their place."""
        if self.policy == "least" and self._dead >= 0 and len(rows):
            self._rank[rows.cpu().numpy()] = _sizes(self.memories[-1], rows)

    def _count_dead(self) -> int:
        return sum(len(memory) - memory.live for memory in self.memories)

    def _look(self) -> None:
        """Read what is stored, if others have changed it."""
        if self._dead == self._count_dead():
            return
        first, last = self.memories[0], self.memories[-1]
        for start in range(0, len(first), first.block_rows):
            rows = torch.arange(start, min(start + first.block_rows, len(first)))
            there = slice(start, start + len(rows))
            births = [memory.gather(rows, ("born",))["born"].cpu() for memory in self.memories]
            # A sample that lacks a tuple in one memory is none that could come again.
            self._born[there] = torch.stack(births).amin(0).numpy()
            if self.policy == "balanced":
                self._rank[there] = first.gather(rows, ("target",))["target"].cpu().numpy()
            elif self.policy == "least":
                self._rank[there] = _sizes(last, rows)
        self._dead = self._count_dead()

    def _most(self, stored: int, wanted: int, new: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the classes that have most, of each the oldest."""
        live = np.flatnonzero(self._born[:stored] >= 0)
        classes = self._rank[live].astype(np.int64)
        width = int(max(classes.max(initial=0), new.max(initial=0))) + 1
        have = np.bincount(classes, minlength=width)
        share = levelled(have, np.bincount(new, minlength=width), wanted)
        parts = [
            self._first_of(live[classes == name], self._born, int(share[name]))
            for name in np.flatnonzero(share).tolist()
        ]
        return np.concatenate(parts)

    def _least(self, stored: int, wanted: int, step: int) -> NDArray[np.int64]:
        """Rows of the least c(n)·‖ṽ‖, of those that are alike the oldest."""
        live = np.flatnonzero(self._born[:stored] >= 0)
        born = self._born[live]
        age = torch.from_numpy((step - 1 - born).clip(0).astype(np.float64))
        scores = np.full(self.rows, np.inf)
        scores[live] = decay_coefficients(age, *self._decay).numpy() * self._rank[live]
        least = np.partition(scores[live], wanted - 1)[wanted - 1]
        sure = live[scores[live] < least]
        alike = live[scores[live] == least]
        rest = self._first_of(alike, self._born, wanted - len(sure))
        return np.concatenate([sure, rest])

    @staticmethod
    def _first_of(rows: NDArray[np.int64], by: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """So many rows of the least numbers, of equal ones the first."""
        numbers = by[rows]
        most = np.partition(numbers, count - 1)[count - 1]
        sure = rows[numbers < most]
        return np.concatenate([sure, rows[numbers == most][: count - len(sure)]])


def levelled(have: NDArray[np.int64], new: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """How many of each class go, so that the largest are as small as they can be.

    Args:
        have: how many each class has, (C,).
        new: how many come, (C,), of which none can go.
        wanted: how many are to go in all, at most those that there are.

    Returns:
        (C,), with the sum `wanted`; of classes that are alike the last let one more go.
    """
    after = have + new
    low, high = 0, int(after.max())  # the level: at `low` there are enough, above `high` none
    while low < high:
        level = (low + high + 1) // 2
        if int(np.minimum(have, (after - level).clip(0)).sum()) >= wanted:
            low = level
        else:
            high = level - 1
    share: NDArray[np.int64] = np.minimum(have, (after - low).clip(0))
    # Those that come down to the level exactly may keep one.
    level_ones = np.flatnonzero((share > 0) & (after - share == low))
    share[level_ones[: int(share.sum()) - wanted]] -= 1
    return share


def _sizes(memory: Memory, rows: torch.Tensor) -> NDArray[np.float64]:
    """‖ṽ‖ of rows as they are stored, (n,)."""
    value = memory.gather(rows, ("value",))["value"].double().cpu().numpy()
    sizes: NDArray[np.float64] = np.sqrt(np.square(value).sum(1))
    return sizes
