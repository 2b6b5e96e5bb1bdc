"""Replay: a reservoir of samples that come again beside each batch, for networks of fixed size.

The reservoir is a uniform sample of all that came: the t-th sample, counted from 1, is kept while
there is room; from then on it takes the place of one of the k that are kept, chosen at random, with
probability k/t.

Source: Vitter, "Random sampling with a reservoir", ACM TOMS 11 (1985), algorithm R.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from streamlearn.bits import name_of
from streamlearn.blocks import Column
from streamlearn.errors import FormatError
from streamlearn.state import StateTree

from .draws import Rehearse, Rows, distinct, loss_keys, shares

__all__ = ["Replayed", "Reservoir", "reservoir_columns"]

_KEPT, _DRAWN = 0x4E5E, 0x4E5F
"""Keep the random words for both apart from each other and from all else that a seed is for."""

_AT_ONCE = 4096
"""Samples by which the reservoir's room grows at least."""


def reservoir_columns(
    width: int, outputs: int | None, dtype: torch.dtype, how: Rehearse
) -> dict[str, Column]:
    """What is kept of a sample.

    Args:
        width: D, of codes.
        outputs: K, where targets are numbers; None where they are classes.
        dtype: of codes, as that of the keys of growing layers.
        how: samples are drawn.
    """
    target = Column(None, "int64") if outputs is None else Column(outputs, "float64")
    columns = {"code": Column(width, name_of(dtype)), "target": target}
    return columns | {"loss": Column(None, "float64")} if how == "loss" else columns


class Replayed(NamedTuple):
    """Samples that come again: their slots (R,), codes (R, D), and targets."""

    slots: Rows
    codes: Tensor
    targets: Tensor


class Reservoir:
    """A uniform sample of all samples so far, on the host, from which some are drawn at each step.

    Which samples are kept follows from the seed and their numbers alone, and which are drawn from
    the seed, the number of samples so far and what is kept: there is no generator to save.

    Args:
        size: k, samples that are kept at most.
        columns: of each, see `reservoir_columns`.
        count: R, the most samples that are drawn at a step.
        how: "uniform": each kept sample alike; "balanced": each class alike, as far as it has as
            many; "loss": by what was last lost on it, see `rehearsal`.
        seed: of both.

    Attributes:
        seen: samples that came.
    """

    def __init__(
        self, size: int, columns: dict[str, Column], count: int, how: Rehearse, seed: int
    ) -> None:
        self.size = size
        self.count = count
        self.how = how
        self.seed = seed
        self.seen = 0
        self._columns = columns
        self._room = {name: self._empty(name, 0) for name in columns}

    def __len__(self) -> int:
        return min(self.seen, self.size)

    @property
    def nbytes(self) -> int:
        """What the samples that are kept take."""
        return len(self) * self._sample_bytes

    @property
    def most_bytes(self) -> int:
        """What they take once the reservoir is full."""
        return self.size * self._sample_bytes

    @property
    def _sample_bytes(self) -> int:
        return sum(column.row_bytes for column in self._columns.values())

    def draw(self) -> Replayed:
        """At most R of the samples that are kept, none twice."""
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_DRAWN, self.seen))
        words = np.random.PCG64(sequence).random_raw
        kept = len(self)
        if self.how == "loss":
            keys = loss_keys(words(kept), self._room["loss"][:kept].numpy())
            slots = np.argsort(keys, kind="stable")[: self.count]
        elif self.how == "balanced":
            targets = self._room["target"][:kept].numpy()
            groups = [np.flatnonzero(targets == target) for target in np.unique(targets)]
            wanted = shares(words, np.array([len(g) for g in groups], np.int64), self.count)
            parts = [
                group[distinct(words, len(group), share)]
                for group, share in zip(groups, wanted.tolist(), strict=True)
                if share
            ]
            slots = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        else:
            slots = distinct(words, kept, self.count)
        slots = np.sort(slots)
        rows = torch.from_numpy(slots)
        return Replayed(slots, self._room["code"][rows], self._room["target"][rows])

    def keep(self, codes: Tensor, targets: Tensor, losses: Tensor, again: Replayed) -> None:
        """Let samples that were learnt in, and know what was lost on those that came again.

        Args:
            codes: (B, D).
            targets: (B,) classes, or numbers (B, K).
            losses: (B + R,), those of samples that came again last.
            again: these.
        """
        count = len(codes)
        if self.how == "loss":
            self._room["loss"][torch.from_numpy(again.slots)] = losses[count:].cpu().double()
        source = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(_KEPT,)))
        words = source.advance(self.seen).random_raw(count)
        number = np.arange(self.seen + 1, self.seen + count + 1, dtype=np.uint64)  # t
        slots = (words % number).astype(np.int64)
        filling = number <= self.size
        slots[filling] = (number[filling] - 1).astype(np.int64)
        chosen = np.flatnonzero(slots < self.size)
        # Of samples for the same slot the last one stays.
        unique, last = np.unique(slots[chosen][::-1], return_index=True)
        chosen = chosen[::-1][last]
        self.seen += count
        self._make_room()
        there, samples = torch.from_numpy(unique), torch.from_numpy(chosen.copy())
        given = {"code": codes, "target": targets, "loss": losses}
        for name, room in self._room.items():
            rows = given[name][samples.to(given[name].device)]
            room[there] = rows.detach().to("cpu", room.dtype)

    def _make_room(self) -> None:
        """Grow by doubling, so that a large reservoir costs nothing before it is needed."""
        there = len(next(iter(self._room.values())))
        if there < len(self):
            rows = min(self.size, max(len(self), 2 * there, _AT_ONCE))
            for name, room in self._room.items():
                self._room[name] = torch.cat([room, self._empty(name, rows - there)])

    def _empty(self, name: str, rows: int) -> Tensor:
        column = self._columns[name]
        return torch.zeros(column.shape(rows), dtype=getattr(torch, column.dtype))

    def state_dict(self) -> StateTree:
        """The samples that are kept, and how many came."""
        return {"seen": self.seen} | {name: room[: len(self)] for name, room in self._room.items()}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore both.

        Raises:
            FormatError: the state of another reservoir.
        """
        self.seen = int(state["seen"])
        for name in self._room:
            found = state.get(name)
            room = self._empty(name, len(self))
            if found is None or found.shape != room.shape or found.dtype != room.dtype:
                raise FormatError(
                    f"the saved reservoir keeps another {name} than this one of {self.size} "
                    "samples; build it with the same settings"
                )
            self._room[name] = found.clone()
