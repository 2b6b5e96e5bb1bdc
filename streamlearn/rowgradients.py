"""The gradient of a batch's loss to stored tuples, a tile of a memory at a time.

With S = φ(q Kᵀ)·c as in `retrieval`, A = [ṽ | w | 0] and G = [g | −⟨g, s⟩ | 0]/den (or [g | 0]):

    ∂[ṽ | w] = Sᵀ G                    (n, W)
    ∂k       = scale·Pᵀ q              (n, D)   P = (G Aᵀ) ∘ S; for "dot" (G Aᵀ)·c
             = scale·(Pᵀ q − (Pᵀ 1) k)          for "rbf"

For the weighted softmax with p = S/den that is ∂ṽ_i = Σ_b p_bi g_b, ∂w_i = −Σ_b p_bi ⟨g_b, s_b⟩ and
∂k_i = scale·Σ_b p_bi (⟨g_b, ṽ_i⟩ − w_i ⟨g_b, s_b⟩) q_b. Samples are summed, as their losses are.

Source: arXiv 2610.03858, §3.3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from streamlearn.blocks import Block
from streamlearn.errors import ConfigError
from streamlearn.kernels import Kernel
from streamlearn.memory import Memory
from streamlearn.retrieval import Context, Forgetting, ScratchPool, Trace

__all__ = ["RowGradients", "Traced"]


class RowGradients(NamedTuple):
    """Of n rows: weight (n,), value (n, C), and key (n, D), None where it was not asked for."""

    weight: Tensor
    value: Tensor
    key: Tensor | None


class Traced:
    """Forward and backward passes of one layer, as what its rows' gradients need of them.

    Args:
        memory: the layer's, with the rows that answered.
        kernel: the layer's.
        forgetting: its clock at these passes.
        traces: whose gradients are set.
        pool: score buffers.

    Raises:
        ConfigError: a trace without a gradient.
    """

    def __init__(
        self,
        memory: Memory,
        kernel: Kernel,
        forgetting: Forgetting,
        traces: Sequence[Trace],
        pool: ScratchPool | None = None,
    ) -> None:
        self.memory = memory
        self.kernel = kernel
        pool = pool or ScratchPool()
        self._passes = [
            _Pass(trace, Context(memory, kernel, forgetting, pool, None, trace.without))
            for trace in traces
        ]

    def gradients(self, tile: Block, start: int, *, keys: bool) -> RowGradients:
        """The gradients of a tile's rows.

        Args:
            tile: of the memory.
            start: its first row.
            keys: whether those of keys are wanted.
        """
        width, count = self.memory.value_width, tile.count
        wide = self.memory.layout.wide
        side = torch.zeros(tile.padded, self.memory.side_width, dtype=wide, device=tile.key.device)
        key: Tensor | None = None
        if keys:
            key = torch.zeros(tile.padded, self.memory.key_width, dtype=wide, device=side.device)
        for one in self._passes:
            one.add(tile, start, side, key)
        return RowGradients(
            side[:count, width], side[:count, :width], None if key is None else key[:count]
        )


class _Pass:
    """One of them."""

    def __init__(self, trace: Trace, context: Context) -> None:
        if trace.gradient is None:
            raise ConfigError("a trace without a gradient cannot be used; call backward() first")
        memory = context.memory
        gradient = trace.gradient.to(memory.layout.wide)
        width = memory.value_width
        side = gradient.new_zeros(len(gradient), memory.side_width)
        side[:, :width] = gradient
        if trace.divisor is not None:
            side[:, width] = -(gradient * trace.output).sum(-1)  # −⟨g, s⟩
            side /= trace.divisor
        self.context = context
        self.shift = trace.shift
        self.side = side.to(memory.dtype)  # G (B, W)
        self.query = trace.query.to(memory.layout.wide)  # (B, D)
        self.scaled, self.square = context.query_side(self.query)

    def add(self, tile: Block, start: int, side: Tensor, key: Tensor | None) -> None:
        """Add the gradients of a tile's rows to those of [ṽ | w | 0], and of keys."""
        context, kernel = self.context, self.context.kernel
        scores = context.scores(tile, start, self.scaled, self.square, self.shift)  # S (B, n)
        side += torch.mm(scores.T, self.side)
        if key is not None:
            pull = torch.mm(self.side, tile.side[: tile.padded].T)  # G Aᵀ (B, n)
            if kernel.kind == "dot":
                context.leave_out_(context.age_(pull, tile), tile, start)
            else:
                pull.mul_(scores)
            # The scaled query carries the factor of all that an exponential's gradient is.
            key += torch.mm(pull.T, self.scaled)  # (n, D)
            if kernel.kind == "rbf":
                mass = pull.sum(0, dtype=key.dtype)[:, None]
                key -= (kernel.scale * mass) * tile.key[: tile.padded].to(key.dtype)
        context.pool.give(scores)
