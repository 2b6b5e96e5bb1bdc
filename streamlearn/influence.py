"""How much each stored tuple counts in an answer, exactly and one part of a memory at a time.

A growing layer's output is a sum over its tuples, so that each one has a share in it:

    s(q) = Σ_i a_i ṽ_i,   a_i = c_i φ(k_i, q) / Σ_j c_j φ(k_j, q) w_j,

or a_i = c_i φ(k_i, q) where the kernel is not normalised; c_i is what momentum and decay leave of a
tuple. Everything is computed in float64 from the numbers that are stored, whatever their dtype, and
shares no arithmetic with the forward pass.

Source: arXiv 2610.03858, §3.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor

from streamlearn.kernels import SAFE_EXPONENT, Kernel
from streamlearn.memory import DEAD, SAMPLE, Block, Memory
from streamlearn.retrieval import LARGEST_EXPONENT, Forgetting

__all__ = ["Influence", "influences"]


class Influence(NamedTuple):
    """What rows of a memory, side by side, have in the answers to queries: `share · value` each.

    start: the first of the rows. share: a (B, n). value: ṽ (n, C). weight: w (n,), None where
    outputs are not divided by its sum. All in float64. born: (n,) int64, `PRIOR` of starting rows
    and `DEAD` of dropped ones. sample: (n,) int64, None where the memory does not say.
    """

    start: int
    share: Tensor
    value: Tensor
    weight: Tensor | None
    born: Tensor
    sample: Tensor | None


def influences(
    memory: Memory, kernel: Kernel, forgetting: Forgetting, query: Tensor
) -> Iterator[Influence]:
    """The shares of all tuples in the answers to queries, in the order of the rows.

    Each is valid until the next is asked for.

    Args:
        memory: the tuples, in whatever tier.
        kernel: of the layer.
        forgetting: its clock.
        query: (B, D).

    Raises:
        FormatError, StorageError: a block lies in a store that cannot be read.
    """
    scan = _Scan(memory, kernel, forgetting, query.detach().to(memory.device, torch.float64))
    denominator = None
    if kernel.normalised:
        denominator = torch.zeros(len(query), 1, dtype=torch.float64, device=memory.device)
        with closing(memory.tiles(norms=False)) as tiles:
            for tile in tiles:
                denominator += (scan.scores(tile) @ _weight(memory, tile))[:, None]
    start = 0
    with closing(memory.tiles(norms=False)) as tiles:
        for tile in tiles:
            scores = scan.scores(tile)
            sample = tile.notes[SAMPLE][: tile.count] if memory.identified else None
            yield Influence(
                start,
                scores if denominator is None else scores / denominator,
                tile.side[: tile.count, : memory.value_width].double(),
                None if denominator is None else _weight(memory, tile),
                tile.born[: tile.count],
                sample,
            )
            start += tile.count


def _weight(memory: Memory, tile: Block) -> Tensor:
    """The weights as they are summed, (n,): rounded to the memory's dtype."""
    return tile.side[: tile.count, memory.value_width].double()


class _Scan:
    """c_i φ(k_i, q) of blocks, e^shift taken out where exponents may be large."""

    def __init__(
        self, memory: Memory, kernel: Kernel, forgetting: Forgetting, query: Tensor
    ) -> None:
        self.memory = memory
        self.kernel = kernel
        self.forgetting = forgetting
        self.query = query  # (B, D) float64
        self.square = query.square().sum(-1, keepdim=True)  # (B, 1)
        self.shift: Tensor | None = None
        if kernel.normalised and kernel.bound(self.square, memory.max_key_square) > SAFE_EXPONENT:
            self.shift = self._largest()

    def scores(self, tile: Block) -> Tensor:
        """(B, n)."""
        exponent = self._exponent(tile)
        if self.shift is not None:  # as in the forward pass, see `retrieval`
            exponent = (exponent - self.shift).clamp_max(LARGEST_EXPONENT)
        if self.kernel.linear:
            exponent = exponent + 1
        elif self.kernel.kind != "dot":
            exponent = exponent.exp()
        scores = exponent * self._counts(tile)
        if self.memory.live < len(self.memory):  # zeros have a similarity too
            scores = scores.masked_fill(tile.born[: tile.count] == DEAD, 0.0)
        return scores

    def _exponent(self, tile: Block) -> Tensor:
        """What the kernel takes the exponential of, or ⟨k, q⟩ for "dot"."""
        key = tile.key[: tile.count].double()  # (n, D)
        inner = self.query @ key.T  # (B, n)
        if self.kernel.kind != "rbf":
            return self.kernel.scale * inner
        return -0.5 * self.kernel.scale * (self.square + key.square().sum(-1) - 2 * inner)

    def _counts(self, tile: Block) -> Tensor | float:
        """c, (n,)."""
        clock = self.forgetting
        if not clock.active:
            return 1.0
        all_rows = self.memory.coefficients(tile, clock.step, clock.momentum, clock.decay)
        return all_rows[: tile.count].double()

    def _largest(self) -> Tensor:
        """The largest exponent of each query among rows that have weight, (B, 1)."""
        largest = torch.full_like(self.square, -torch.inf)
        with closing(self.memory.tiles(norms=False)) as tiles:
            for tile in tiles:
                weighs = _weight(self.memory, tile) * self._counts(tile) > 0
                exponent = self._exponent(tile).masked_fill(~weighs, -torch.inf)
                largest = torch.maximum(largest, exponent.amax(-1, keepdim=True))
        return largest
