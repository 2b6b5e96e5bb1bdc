"""Self-rehearsal: a network's own tuples, drawn to be learnt again and updated in their place.

The first layer's keys are the samples themselves, up to their scale, so that a tuple with its
target beside it is all that is needed to learn its sample again. Tuples of one key merge exactly by
adding their weights and values, so what a rehearsed sample would store is added to the tuple that
it has: nothing grows. For deeper layers the key that is stored stays, though the query has moved.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.blocks import DEAD, Column
from streamlearn.errors import RunStateError
from streamlearn.eviction import Eviction
from streamlearn.layers import GrowingLayer
from streamlearn.memory import Memory
from streamlearn.ring import Ring

from .draws import Rehearse, Rows, Words, distinct, loss_keys, shares

__all__ = ["Rehearsal", "Rehearsed", "notes_for", "root_mean_square"]

_STREAM = 0x5E1F
"""Keeps the draws apart from all else that a seed is used for."""


def notes_for(
    outputs: int | None, wide: torch.dtype, how: Rehearse = "uniform"
) -> dict[str, Column]:
    """What the first layer's memory keeps beside each tuple so that its sample can come again.

    target: its class's index, or its K numbers. scale: its code's root mean square, `code = scale
    · key`. loss, where draws ask for it: what was last seen of the sample.

    Args:
        outputs: K, where targets are numbers; None where they are classes.
        wide: the dtype of weights.
        how: stored samples are drawn.
    """
    number = Column(None, str(wide).removeprefix("torch."))
    target = Column(None, "int64") if outputs is None else Column(outputs, "float64")
    notes = {"target": target, "scale": number}
    return notes | {"loss": number} if how == "loss" else notes


def root_mean_square(codes: Tensor) -> Tensor:
    """√(‖code‖²/D) of each code (B, D), what RMSNorm divides by, (B,)."""
    return codes.square().mean(-1).sqrt()


class Rehearsed(NamedTuple):
    """Samples that come again: rows (R,) int64 of their tuples, codes (R, D), and targets."""

    rows: Tensor
    codes: Tensor
    targets: Tensor


class Rehearsal:
    """Draws stored samples, none twice at a step and none whose tuples were dropped.

    What is drawn at a step follows from the seed, the step and what is stored alone. There is no
    generator whose state would have to be saved.

    Args:
        layers: all growing layers, in the order of the forward pass; each stores one tuple a
            sample behind its starting rows.
        count: R, the most samples that are drawn at a step.
        how: "uniform": each stored sample alike; "balanced": each class alike, as far as it has
            as many; "loss": by what was last lost on it, see `draws`.
        seed: of the draws.
        ring: of the first layer, where new tuples take the rows of old ones. A sample whose row is
            taken at the step that draws it is learnt once more, and gone.
    """

    def __init__(
        self,
        layers: Sequence[GrowingLayer],
        count: int,
        how: Rehearse,
        seed: int,
        *,
        ring: Ring | Eviction | None = None,
    ) -> None:
        self.count = count
        self.how = how
        self.seed = seed
        self._memories = [layer.memory for layer in layers]
        self._first = len(self._memories[0])  # the starting rows stand before it
        self._ring = ring
        self.forget()

    def forget(self) -> None:
        """Other tuples are in the memories now."""
        self._rows: dict[int, _Growing] = {}
        self._known = 0  # samples of `_written` that were looked at
        self._dead = 0
        self._losses = np.zeros(0)  # of all samples, the dropped ones too
        self._gone = np.zeros(0, np.bool_)  # samples that are known to be dropped

    @property
    def stored(self) -> int:
        """Samples that have tuples."""
        return len(self._memories[0]) - self._first

    @property
    def _written(self) -> int:
        """Samples that ever had tuples."""
        return self.stored if self._ring is None else self._ring.written

    def _new(self) -> Iterator[tuple[int, int]]:
        """The rows of samples that were not looked at yet, as half-open runs."""
        known, written = self._known, self._written
        if self._ring is not None:
            yield from self._ring.runs(known, written)
        elif known < written:
            yield self._first + known, self._first + written
        self._known = written  # not before all of them could be read

    @property
    def nbytes(self) -> int:
        """What finding rows by their class, or their loss, takes."""
        return self.sample_bytes * self.stored

    @property
    def sample_bytes(self) -> int:
        """The same for one stored sample."""
        return {"uniform": 0, "balanced": 8, "loss": 9}[self.how]

    def draw(self, step: int, without: Rows | None = None) -> Rehearsed:
        """At most R stored samples.

        Args:
            step: number of the step; another one draws other samples.
            without: rows that are not to be among them.

        Raises:
            RunStateError: rows of the layers do not belong to the same samples.
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        memory = self._memories[0]
        other = next((m for m in self._memories if len(m) != len(memory)), None)
        if other is not None:
            raise RunStateError(
                f"the layers hold {len(memory)} and {len(other)} tuples, so that their rows are "
                "not those of the same samples; learn anew, or set learner.rehearsal=0"
            )
        words = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(_STREAM, step)))
        chosen = self._chosen(words.random_raw)
        if without is not None:
            chosen = chosen[~np.isin(chosen, without)]
        rows = torch.from_numpy(chosen[~self._dropped(chosen)])
        there = memory.gather(rows, ("key", "target", "scale"))
        scale = there["scale"][:, None]
        return Rehearsed(rows, scale * there["key"].to(scale.dtype), there["target"].cpu())

    def saw(self, places: Tensor, losses: Tensor) -> None:
        """What was lost on samples at a step, once that is stored beside their tuples.

        Args:
            places: (n,) int64 of the samples' tuples, counted behind the starting rows.
            losses: (n,).
        """
        if self.how == "loss":
            there = places.cpu().numpy()
            known = there < len(self._losses)  # others are read when they are looked at
            stored = losses.to("cpu", self._memories[0].layout.dtype_of("loss"))
            self._losses[there[known]] = stored.double().numpy()[known]

    def _chosen(self, words: Words) -> Rows:
        """Distinct rows, in ascending order."""
        if self.how == "loss":
            return self._first + self._by_loss(words)
        dead = sum(len(memory) - memory.live for memory in self._memories)
        # Rows that were dropped are taken again by a ring, so that their number says too little.
        if dead != self._dead or (dead and self._ring is not None):
            self.forget()
            self._dead = dead
        if self.how == "uniform" and not dead:
            return np.sort(distinct(words, self.stored, self.count)) + self._first
        self._look()
        groups = [group for _, group in sorted(self._rows.items())]
        wanted = shares(words, np.array([len(group) for group in groups], np.int64), self.count)
        parts = [
            group.rows[distinct(words, len(group), share)]
            for group, share in zip(groups, wanted.tolist(), strict=True)
            if share
        ]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    def _look(self) -> None:
        """Sort the rows that are new by class, or all into one group, but for dropped ones."""
        memory = self._memories[0]
        for first, last in self._new():
            for start in range(first, last, memory.block_rows):
                stop = min(start + memory.block_rows, last)
                rows = np.arange(start, stop, dtype=np.int64)
                rows = rows[~self._dropped(rows)]
                targets = np.zeros(len(rows), np.int64)
                if self.how == "balanced":
                    found = memory.gather(torch.from_numpy(rows), ("target",))["target"]
                    targets = found.cpu().numpy()
                names = np.unique(targets).tolist()
                for name in names:
                    self._rows.setdefault(name, _Growing())
                for name in names if self._ring is None else self._rows:
                    self._rows[name].replace(start, stop, rows[targets == name])

    def _by_loss(self, words: Words) -> Rows:
        """Distinct samples in ascending order, drawn by their losses.

        Whether one was dropped is only looked up for those that would be drawn: what others say
        may lie in a store.
        """
        self._look_at_losses()
        count, dead = self.stored, sum(len(memory) - memory.live for memory in self._memories)
        if dead < self._dead:  # some were brought back
            self._gone[:] = False
        self._dead = dead
        keys = loss_keys(words(count), self._losses)
        keys[self._gone] = np.inf
        looked = self.count
        while True:
            if looked >= count:
                first = np.argsort(keys, kind="stable")
            else:
                first = np.argpartition(keys, looked)[:looked]
                first = first[np.argsort(keys[first], kind="stable")]
            gone = self._dropped(first + self._first)
            self._gone[first[gone]] = True
            if looked >= count or looked - int(gone.sum()) >= self.count:
                return np.sort(first[~gone][: self.count])
            looked *= 2

    def _look_at_losses(self) -> None:
        """Read the losses of samples that are new."""
        memory, more = self._memories[0], self.stored - len(self._losses)
        if more:
            self._losses = np.concatenate([self._losses, np.zeros(more)])
            self._gone = np.concatenate([self._gone, np.zeros(more, np.bool_)])
        for first, last in self._new():
            places = slice(first - self._first, last - self._first)
            found = memory.gather(torch.arange(first, last), ("loss",))["loss"]
            self._losses[places] = found.double().cpu().numpy()
            self._gone[places] = False

    def _dropped(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows have no tuple any more in some layer, (n,)."""
        dropped = np.zeros(len(rows), np.bool_)
        for memory in self._memories:
            dropped |= _dead(memory, rows)
        return dropped


class _Growing:
    """Row numbers in ascending order, added at the end or in the place of others."""

    def __init__(self) -> None:
        self._room = np.zeros(64, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Rows:
        """All of them."""
        return self._room[: self._count]

    def replace(self, start: int, stop: int, rows: Rows) -> None:
        """Let those from `start` to before `stop` be these."""
        low, high = np.searchsorted(self.rows, (start, stop)).tolist()
        count = self._count + len(rows) - (high - low)
        if count > len(self._room):
            self._room = np.concatenate([self.rows, np.zeros(count, np.int64)])
        self._room[low + len(rows) : count] = self._room[high : self._count].copy()
        self._room[low : low + len(rows)] = rows
        self._count = count


def _dead(memory: Memory, rows: Rows) -> NDArray[np.bool_]:
    if memory.live == len(memory):
        return np.zeros(len(rows), np.bool_)
    born = memory.gather(torch.from_numpy(rows), ("born",))["born"]
    dead: NDArray[np.bool_] = (born == DEAD).cpu().numpy()
    return dead
