"""The novelty gate: a tuple is new only where no stored key is near.

    min_j ‖q − k_j‖ > τ

over the keys from before the batch and those that were let in before it in the same batch. A larger
τ lets fewer tuples in. Keys and queries of a network have length √D, so distances are up to 2√D.

Source: arXiv 2610.03858, §3.3 and appendix F.4.
"""

import math
from contextlib import closing
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from streamlearn.errors import ConfigError
from streamlearn.memory import DEAD, Memory, Tuples

__all__ = ["Admission", "ExactNearest", "Gate", "NearestKeys"]

_MORE = 7
"""Candidates of a tile beyond those asked for, whose distances are computed directly."""

_CHUNK = 1024
"""Tuples of a batch that are compared with one another at a time."""


class NearestKeys(Protocol):
    """Who finds the nearest keys of a memory, exactly or not."""

    def nearest(self, query: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
        """The nearest live rows, nearest first.

        Args:
            query: (B, D).
            count: how many are wanted of each; fewer come where there are fewer.

        Returns:
            Distances ‖q − k‖ (B, n) and rows (B, n) int64. A distance is infinite where there is
            no such row.
        """
        ...


class ExactNearest:
    """All keys of a memory, in every tier, by one pass over its tiles.

    A tile's candidates are found by `½‖k‖² − ⟨q, k⟩` in the memory's dtype, whose rounding and
    cancelling are too coarse to rank neighbours; the distances of the few that come first are
    computed from their difference in float32 (float64 for a float64 memory).

    Args:
        memory: whose keys.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    @torch.no_grad()
    def nearest(self, query: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
        """See `NearestKeys`.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        memory = self.memory
        wide = query.detach().to(memory.device, memory.layout.wide)  # (B, D)
        narrow = wide.to(memory.dtype)
        best = wide.new_empty(len(wide), 0)
        rows = torch.empty(len(wide), 0, dtype=torch.int64, device=memory.device)
        start, some_died = 0, memory.live < len(memory)
        with closing(memory.tiles(born=some_died, norms=True)) as tiles:
            for tile in tiles:
                keys = tile.key[: tile.count]
                score = (narrow @ keys.T).to(wide.dtype).neg_()  # (B, n)
                score += 0.5 * tile.key_square[: tile.count]
                if some_died:
                    score[:, tile.born[: tile.count] == DEAD] = math.inf
                few = min(count + _MORE, tile.count)
                near, chosen = score.topk(few, largest=False)
                exact = torch.stack(
                    [
                        (wide - keys[chosen[:, place]].to(wide.dtype)).square().sum(-1)
                        for place in range(few)
                    ],
                    1,
                ).sqrt()  # (B, few)
                exact = exact.masked_fill_(near == math.inf, math.inf)
                both, all_rows = torch.cat([best, exact], 1), torch.cat([rows, chosen + start], 1)
                best, order = both.topk(min(count, both.shape[1]), largest=False)
                rows = all_rows.gather(1, order)
                start += tile.count
        return best, rows


class Admission(NamedTuple):
    """What a gate makes of a batch's tuples.

    accepted: (a,) int64, which are new, ascending. refused: (r,) int64, the others. near: (r,)
    int64, the nearest row of each of these; −1 − j for the j-th of the accepted ones.
    """

    accepted: Tensor
    refused: Tensor
    near: Tensor


class Gate:
    """Lets the tuples of a memory in that are farther than τ from all that it has.

    Args:
        memory: that they are for.
        threshold: τ > 0, a distance between keys.
        keys: who finds the nearest keys; exactly, if None.

    Raises:
        ConfigError: a threshold out of range.
    """

    def __init__(self, memory: Memory, threshold: float, keys: NearestKeys | None = None) -> None:
        if not (math.isfinite(threshold) and threshold > 0):
            raise ConfigError(f"layer.gate={threshold} must be finite and above 0; none opens it")
        self.memory = memory
        self.threshold = threshold
        self.keys: NearestKeys = ExactNearest(memory) if keys is None else keys

    @torch.no_grad()
    def admit(self, tuples: Tuples) -> Admission:
        """Which of the tuples are new, in their order.

        Args:
            tuples: all finite; those of one batch.
        """
        key = tuples.key.detach().to(self.memory.device)
        distance, row = self.keys.nearest(key)
        if not distance.shape[1]:  # nothing is stored yet
            distance = torch.full((len(key), 1), math.inf, device=key.device)
            row = torch.zeros(len(key), 1, dtype=torch.int64, device=key.device)
        novel = (distance[:, 0] > self.threshold).nonzero()[:, 0]
        key = key.to(torch.float64)  # products cancel where keys are close
        accepted = novel[:0]
        for chunk in torch.split(novel, _CHUNK):
            if len(accepted):
                far = _distances(key[chunk], key[accepted]).amin(1) > self.threshold
                chunk = chunk[far]
            near = _distances(key[chunk], key[chunk]) <= self.threshold
            accepted = torch.cat([accepted, chunk[_in_order(near)]])
        left = torch.ones(len(key), dtype=torch.bool, device=key.device)
        left[accepted] = False
        refused = left.nonzero()[:, 0]
        return Admission(accepted, refused, self._nearest(key, accepted, refused, distance, row))

    def _nearest(
        self, key: Tensor, accepted: Tensor, refused: Tensor, distance: Tensor, row: Tensor
    ) -> Tensor:
        near = row[refused, 0]
        if not len(accepted) or not len(refused):
            return near
        for start in range(0, len(refused), _CHUNK):
            part = slice(start, start + _CHUNK)
            found, place = _distances(key[refused[part]], key[accepted]).min(1)
            closer = found < distance[refused[part], 0]
            near[part] = torch.where(closer, -1 - place, near[part])
        return near


def _in_order(near: Tensor) -> Tensor:
    """Which of n are chosen, (n,), if each is that is near none chosen before it.

    All whose neighbours before them are decided are decided together: few rounds, not n.

    Args:
        near: (n, n) bool, symmetric.
    """
    before = near.tril(-1)
    waiting = torch.ones(len(near), dtype=torch.bool, device=near.device)
    chosen = ~waiting
    while bool(waiting.any()):
        ready = waiting & ~(before & waiting).any(1)
        chosen |= ready
        waiting &= ~ready & ~(before & ready).any(1)
    return chosen


def _distances(left: Tensor, right: Tensor) -> Tensor:
    """‖a − b‖ of all rows of (n, D) and (m, D), (n, m)."""
    squares = left.square().sum(-1)[:, None] + right.square().sum(-1)
    return squares.addmm_(left, right.T, alpha=-2).clamp_min_(0).sqrt_()
