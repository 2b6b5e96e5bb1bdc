"""Exact retrieval over a memory, with its gradient to the query, as one autograd function.

Forward, for each block in order, with A = [ṽ | w | 0] and c the decay coefficients:

    S = φ(q Kᵀ)·c                      (B, n)   one GEMM, one or two passes
    acc += S A                         (B, W)   numerator and denominator from one GEMM
    s = acc_ṽ / acc_w                  (B, C)   or acc_ṽ where the kernel is not normalised

Backward, with G = [g | −⟨g, s⟩ | 0]/den (or [g | 0]):

    P = (G Aᵀ) ∘ S                     (B, n)   for "dot": (G Aᵀ)·c
    ∂q = scale·Σ P K                   (B, D)   for "rbf": scale·(Σ P K − (Σ P 1) q)

Where no gradient goes on to the query, S is kept as its transpose, (n, B), for K qᵀ takes about
half the time of q Kᵀ there; it is seen as (B, n) throughout.

GEMMs run in the memory's dtype; sums over blocks and everything that is divided are kept in float32
(float64 for a float64 memory). Scores of the forward pass are kept for the backward one as long as
they fit `CACHE_BYTES` and an eighth of the budget, and computed again, to the same bits, beyond.

Source: arXiv 2610.03858, §3; the gradient is derived in docs/mathematics.md.
"""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from streamlearn.errors import GraphError
from streamlearn.kernels import SAFE_EXPONENT, Kernel
from streamlearn.memory import Block, Memory, accumulation_dtype

__all__ = ["LARGEST_EXPONENT", "Context", "Forgetting", "ScratchPool", "Trace", "retrieve"]

CACHE_BYTES = 1 << 30
"""Keep forward scores for the backward pass up to this size a layer."""

LARGEST_EXPONENT = 40.0
"""`e^40` times itself, which a gradient may contain, is still inside float32 and bfloat16."""


@dataclass(slots=True)
class Trace:
    """What a layer must remember of one forward pass to learn from it.

    query: (B, D). output: s (B, C). gradient: g = ∂L/∂s (B, C), set by the backward pass.
    denominator: (B, 1) that s was divided by, where the kernel is normalised.
    each: rows that each sample of the batch has, one after the other: its tokens.
    shift: (B, 1) what was taken from each exponent, None for nothing. divisor: (B, 1) the
    denominator after that, which is finite. without: (B,) rows that were left out, if any were.
    """

    query: Tensor
    output: Tensor
    gradient: Tensor | None = None
    denominator: Tensor | None = None
    each: int = 1
    shift: Tensor | None = None
    divisor: Tensor | None = None
    without: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The clock of a layer and the two rates by which older tuples count differently."""

    step: int = 0
    momentum: float = 0.0
    decay: float = 0.0

    @property
    def active(self) -> bool:
        """Whether any coefficient can differ from 1."""
        return self.momentum != 0.0 or self.decay != 0.0


@dataclass(slots=True)
class ScratchPool:
    """Score buffers that are handed back after use, so that steps do not fault in fresh pages."""

    free: dict[tuple[int, int], list[Tensor]] = field(default_factory=dict)

    def take(self, rows: int, columns: int, like: Tensor, *, turned: bool = False) -> Tensor:
        """A (rows, columns) buffer with whatever it holds; turned, its columns are contiguous."""
        if turned:
            return self.take(columns, rows, like).T
        kept = self.free.get((rows, columns))
        if kept:
            return kept.pop()
        return torch.empty(rows, columns, dtype=like.dtype, device=like.device)

    def give(self, buffer: Tensor) -> None:
        """Hand a buffer back; sizes that went out of use are dropped."""
        if buffer.is_inference():  # could not be written again outside inference mode
            return
        if not buffer.is_contiguous():
            buffer = buffer.T
        key = (buffer.shape[0], buffer.shape[1])
        if key not in self.free and len(self.free) >= 16:
            self.free.clear()
        self.free.setdefault(key, []).append(buffer)

    def trim(self) -> None:
        """Keep one buffer of a size: enough where scores are not kept for a backward pass."""
        for buffers in self.free.values():
            del buffers[1:]


def retrieve(
    query: Tensor,
    memory: Memory,
    kernel: Kernel,
    *,
    forgetting: Forgetting | None = None,
    pool: ScratchPool | None = None,
    trace: Trace | None = None,
    without: Tensor | None = None,
) -> Tensor:
    """Answer queries from a memory.

    Args:
        query: (B, D), any floating dtype.
        memory: the stored tuples; at least one with w > 0 where the kernel is normalised.
        kernel: similarity and normalisation.
        forgetting: momentum and decay by birth step; None counts every tuple fully.
        pool: score buffers to reuse from call to call.
        trace: receives the gradient of the output in the backward pass.
        without: (B,) int64, a row for each query that is not to answer it; -1 for none.

    Returns:
        s (B, C) in the accumulation dtype.

    Raises:
        GraphError: a gradient is wanted of a linearised kernel.
    """
    if kernel.linear and (trace is not None or (query.requires_grad and torch.is_grad_enabled())):
        raise GraphError(
            "a layer with a linearised kernel answers only, it has no gradient; learn without "
            "linearising, and linearise to evaluate"
        )
    if trace is None and not (query.requires_grad and torch.is_grad_enabled()):
        context = Context(
            memory,
            kernel,
            forgetting or Forgetting(),
            pool or ScratchPool(),
            None,
            without,
            turned=True,
            single=len(query) == 1,
        )
        return _forward(context, query, keep=False)[0]
    anchor = query.new_empty(0, requires_grad=True)  # a first layer's query needs no gradient
    context = Context(
        memory,
        kernel,
        forgetting or Forgetting(),
        pool or ScratchPool(),
        trace,
        without,
        turned=not query.requires_grad,
        single=len(query) == 1,
    )
    output: Tensor = _Retrieve.apply(query, anchor, context)
    return output


@dataclass(slots=True)
class Context:
    """What the forward and the backward pass of one retrieval share."""

    memory: Memory
    kernel: Kernel
    forgetting: Forgetting
    pool: ScratchPool
    trace: Trace | None
    without: Tensor | None = None
    turned: bool = False
    single: bool = False

    def blocks(self) -> closing[Generator[Block, None, None]]:
        """The memory's blocks, or parts of them, in order."""
        return closing(
            self.memory.tiles(
                born=self.forgetting.active, norms=self.kernel.kind == "rbf", single=self.single
            )
        )

    def query_side(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """The query scaled and in the memory's dtype (B, D), and its squared norm (B, 1)."""
        wide = query.detach().to(accumulation_dtype(self.memory.dtype))
        square = wide.square().sum(-1, keepdim=True)
        return (wide * self.kernel.scale).to(self.memory.dtype), square

    def scores(
        self, block: Block, start: int, scaled: Tensor, square: Tensor, shift: Tensor | None
    ) -> Tensor:
        """S of one block, decay coefficients included, in a buffer of the pool, (B, n).

        start: the row where the block begins.
        """
        buffer = self.pool.take(len(scaled), block.padded, like=scaled, turned=self.turned)
        self.kernel.scores_(block, scaled, square, out=buffer)
        if shift is not None:
            # Only tuples without weight can stand above the shift, and their pull may overflow.
            buffer.sub_(shift.to(buffer.dtype)).clamp_max_(LARGEST_EXPONENT)
        if self.kernel.linear:
            buffer.add_(1)
        elif self.kernel.kind != "dot":
            buffer.exp_()
        return self.leave_out_(self.age_(buffer, block), block, start)

    def leave_out_(self, buffer: Tensor, block: Block, start: int, value: float = 0.0) -> Tensor:
        """Put a number where a query meets the row that is not to answer it."""
        if self.without is not None:
            local = self.without.to(buffer.device) - start
            inside = ((local >= 0) & (local < block.count)).nonzero()[:, 0]
            buffer[inside, local[inside]] = value
        return buffer

    def counts(self, block: Block) -> Tensor:
        """Which rows of a block have any weight left, (n,); unfilled ones do not."""
        weight = block.weight[: block.padded]
        if self.forgetting.active:
            clock = self.forgetting
            weight = weight * self.memory.coefficients(
                block, clock.step, clock.momentum, clock.decay
            )
        return weight > 0

    def age_(self, buffer: Tensor, block: Block) -> Tensor:
        """Multiply the columns of (B, n) by each tuple's coefficient c(n)."""
        if self.forgetting.active:
            clock = self.forgetting
            coefficients = self.memory.coefficients(block, clock.step, clock.momentum, clock.decay)
            buffer.mul_(coefficients.to(buffer.dtype))
        return buffer


def _forward(
    context: Context, query: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, list[Tensor] | None]:
    """The output (B, C), its denominator (B, 1), the exponents' shift (B, 1), and kept scores."""
    memory, kernel, pool = context.memory, context.kernel, context.pool
    scaled, square = context.query_side(query)
    shift = _shift(context, scaled, square)
    wide = accumulation_dtype(memory.dtype)
    total = torch.zeros(len(query), memory.side_width, dtype=wide, device=scaled.device)
    keep = keep and kernel.kind != "dot"
    size = memory.padded * len(query) * scaled.element_size()
    keep = keep and size <= memory.tiers.score_bytes(CACHE_BYTES)
    kept: list[Tensor] = []
    if not keep:
        pool.trim()
    start = 0
    with context.blocks() as blocks:
        for block in blocks:
            scores = context.scores(block, start, scaled, square, shift)
            start += block.count
            side = block.side[: block.padded]
            # (B, W)
            total += torch.mm(side.T, scores.T).T if context.turned else torch.mm(scores, side)
            if keep:
                kept.append(scores)
            else:
                pool.give(scores)
    values = total[:, : memory.value_width]
    if not kernel.normalised:
        return values.contiguous(), None, shift, kept if keep else None
    denominator = total[:, memory.value_width : memory.value_width + 1].clone()  # (B, 1)
    return values / denominator, denominator, shift, kept if keep else None


def _shift(context: Context, scaled: Tensor, square: Tensor) -> Tensor | None:
    """The largest exponent of each query, (B, 1), where exponents are not known to be small.

    Normalised queries and keys bound their logits by κ, and no maximum is needed. Otherwise a first
    sweep finds it: the running-maximum form, in two sweeps so that block sums still simply add. The
    maximum is taken over the tuples that make up the denominator, which it keeps from vanishing.
    """
    memory, kernel = context.memory, context.kernel
    if not kernel.normalised or kernel.bound(square, memory.max_key_square) <= SAFE_EXPONENT:
        return None
    largest, start = torch.full_like(square, -torch.inf), 0
    with context.blocks() as blocks:
        for block in blocks:
            buffer = context.pool.take(
                len(scaled), block.padded, like=scaled, turned=context.turned
            )
            kernel.scores_(block, scaled, square, out=buffer)
            buffer.masked_fill_(~context.counts(block), -torch.inf)
            context.leave_out_(buffer, block, start, -torch.inf)
            start += block.count
            largest = torch.maximum(largest, buffer.amax(-1, keepdim=True).to(largest.dtype))
            context.pool.give(buffer)
    return largest


class _Retrieve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, anchor: Tensor, context: Context) -> Tensor:
        needs_query = bool(ctx.needs_input_grad[0])
        output, denominator, shift, kept = _forward(context, query, keep=needs_query)
        ctx.context, ctx.kept, ctx.shift = context, kept, shift
        ctx.save_for_backward(query, output, denominator)
        # Growing while a graph is open would change what backward recomputes.
        ctx.rows, ctx.rewrites = len(context.memory), context.memory.rewrites
        if context.trace is not None:
            context.trace.output = output.detach()
            context.trace.shift, context.trace.without = shift, context.without
            if denominator is not None:
                context.trace.divisor = denominator.detach()
                whole = denominator if shift is None else denominator * shift.exp()
                context.trace.denominator = whole.detach()
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        gradient = gradients[0]
        context: Context = ctx.context
        query, output, denominator = ctx.saved_tensors
        if len(context.memory) != ctx.rows:
            raise GraphError(
                f"the memory went from {ctx.rows} to {len(context.memory)} tuples between a "
                "forward pass and its backward pass; call backward before step"
            )
        if context.memory.rewrites != ctx.rewrites:
            raise GraphError(
                "rows of the memory were rewritten between a forward pass and its backward pass; "
                "call backward first"
            )
        if context.trace is not None:
            previous = context.trace.gradient
            context.trace.gradient = gradient if previous is None else previous + gradient
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return _query_gradient(ctx, context, query, output, denominator, gradient), None, None


def _query_gradient(
    ctx: Any,
    context: Context,
    query: Tensor,
    output: Tensor,
    denominator: Tensor | None,
    gradient: Tensor,
) -> Tensor:
    memory, kernel, pool = context.memory, context.kernel, context.pool
    wide = accumulation_dtype(memory.dtype)
    gradient = gradient.to(wide)
    width = memory.value_width
    side = torch.zeros(len(query), memory.side_width, dtype=wide, device=query.device)
    side[:, :width] = gradient
    if denominator is not None:
        side[:, width] = -(gradient * output).sum(-1)  # −⟨g, s⟩
        side /= denominator
    side = (side * kernel.scale).to(memory.dtype)  # G (B, W)
    scaled, square = context.query_side(query)
    result = torch.zeros(len(query), memory.key_width, dtype=wide, device=query.device)
    mass = torch.zeros(len(query), 1, dtype=wide, device=query.device)
    kept: list[Tensor] | None = ctx.kept
    start = 0
    with context.blocks() as blocks:
        for index, block in enumerate(blocks):
            pull = pool.take(len(query), block.padded, like=scaled)
            torch.mm(side, block.side[: block.padded].T, out=pull)  # G Aᵀ (B, n)
            if kernel.kind == "dot":  # the derivative of ⟨k, q⟩ is k itself
                context.leave_out_(context.age_(pull, block), block, start)
            else:  # that of an exponential is itself again
                scores = (
                    kept[index]
                    if kept is not None
                    else context.scores(block, start, scaled, square, ctx.shift)
                )
                pull.mul_(scores)  # P (B, n)
                pool.give(scores)
            result += torch.mm(pull, block.key[: block.padded])  # (B, D)
            if kernel.kind == "rbf":
                mass += pull.sum(-1, keepdim=True, dtype=wide)
            pool.give(pull)
            start += block.count
    ctx.kept = None
    if kernel.kind == "rbf":
        result -= mass * query.to(wide)
    return result.to(query.dtype)
