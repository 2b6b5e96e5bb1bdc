"""Growing layers: modules whose parameters are the tuples that they have stored.

A growing layer is an `nn.Module` that drops into any network. Its forward pass retrieves; in
training mode it keeps (q, s), and the backward pass adds g = ∂L/∂s; `FunctionalSGD.step()` turns
these into new tuples by the layer's write rule.
"""

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from streamlearn.bits import to_bits
from streamlearn.errors import ConfigError, ShapeError
from streamlearn.influence import Influence, influences
from streamlearn.kernels import Kernel, default_temperature, dot, exponential, rbf
from streamlearn.memory import PRIOR, SAMPLE, UNKNOWN, Column, KeysName, Memory, Tuples
from streamlearn.retrieval import Forgetting, ScratchPool, Trace, retrieve
from streamlearn.rules import (
    clipped_write,
    decoupled_write,
    gauge_write,
    kernel_write,
    unweighted_write,
    written_by_gauge,
)
from streamlearn.tiers import Tiers

__all__ = [
    "DecoupledSoftmax",
    "DualLinear",
    "GaugeSoftmax",
    "GrowingLayer",
    "RBFLayer",
    "UnweightedSoftmax",
    "WeightedSoftmax",
]


class GrowingLayer(nn.Module, ABC):
    """A layer that answers by retrieval from a memory which only optimizers write.

    Args:
        in_features: D, the width of queries and keys.
        out_features: C, the width of values and outputs.
        kernel: similarity and normalisation.
        dtype: of stored keys and values.
        device: where the memory lives.
        block_rows: tuples in a block of the memory.
        tiers: the budgets that the memory shares with those of other layers.
        notes: columns that the memory keeps beside each tuple, by name.
        keys: "plain" or "int8", how the memory keeps keys.

    Attributes:
        without: (B,) int64, for each query the row that is not to answer it, -1 for none; None
            lets all rows answer all queries.
        second_order: whether values are solved for, by `krls.RecursiveLeastSquares`, rather than
            written by `FunctionalSGD`.
        weighted: whether tuples have weights that mean something and may be trained.
    """

    second_order = False
    weighted = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel: Kernel,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_rows: int | None = None,
        tiers: Tiers | None = None,
        notes: Mapping[str, Column] | None = None,
        keys: KeysName = "plain",
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.kernel = kernel
        self.memory = Memory(
            in_features,
            out_features,
            dtype=dtype,
            device=device,
            block_rows=block_rows,
            tiers=tiers,
            notes=notes,
            keys=keys,
        )
        self.forgetting = Forgetting()
        self.traces: list[Trace] = []
        self.without: Tensor | None = None
        self._pool = ScratchPool()

    def forward(self, query: Tensor) -> Tensor:
        """Retrieve: (…, D) → (…, C), in the query's dtype.

        Raises:
            ShapeError: the query's last dimension is not `in_features`.
        """
        if query.shape[-1] != self.in_features:
            raise ShapeError(
                f"query has width {query.shape[-1]} but the memory's keys have width "
                f"{self.in_features}; build the layer with in_features={query.shape[-1]}"
            )
        flat = query.reshape(-1, self.in_features)  # (B, D)
        trace = None
        if self.training and torch.is_grad_enabled():
            each = len(flat) // max(len(query), 1) if query.ndim > 1 else 1
            trace = Trace(flat.detach(), flat.detach(), each=each)
            self.traces.append(trace)
        output = retrieve(
            flat,
            self.memory,
            self.kernel,
            forgetting=self.forgetting,
            pool=self._pool,
            trace=trace,
            without=self.without,
        )
        return output.to(query.dtype).reshape(*query.shape[:-1], self.out_features)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Take the memory along where `to(device)` or `cuda()` moves the module.

        The dtype of stored keys and values was chosen with the layer and stays.

        Raises:
            ConfigError: budgets are set for the device where the memory is.
        """
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        device = fn(torch.zeros(1, device=self.memory.device)).device
        if device != self.memory.device:
            self.memory.to(device)
            self._pool = ScratchPool()
        return self

    @abstractmethod
    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """The tuples that the write rule makes of one trace, whose gradient is set."""

    def pending(self, *, lr_value: float, lr_weight: float) -> list[Tuples]:
        """What the traces so far would store; traces without a gradient store nothing."""
        return [
            self.write(trace, lr_value=lr_value, lr_weight=lr_weight)
            for trace in self.traces
            if trace.gradient is not None
        ]

    def written(self, trace: Trace) -> Tensor | None:
        """Which rows of a trace's queries `write` makes a tuple of, (n,) int64; None: of each."""
        return None

    def origins(self) -> list[Tensor | None]:
        """For each of `pending`: which sample of its batch every tuple is of, (n,) int64.

        None stands for one tuple a sample, in the order of the batch.
        """
        return [self._origin(trace) for trace in self.traces if trace.gradient is not None]

    def _origin(self, trace: Trace) -> Tensor | None:
        rows = self.written(trace)
        if trace.each == 1:
            return rows
        if rows is None:
            rows = torch.arange(len(trace.query), device=trace.query.device)
        return rows // trace.each

    def influences(self, query: Tensor) -> Iterator[Influence]:
        """What each stored tuple has in the answers to queries (B, D), part by part.

        `share · value` of all of them, and `beside`, sum to the output.
        """
        return influences(self.memory, self.kernel, self.forgetting, query)

    def beside(self, query: Tensor) -> Tensor | None:
        """What the answers to queries (B, D) have that no tuple makes, (B, C) float64."""
        return None

    def get_extra_state(self) -> dict[str, Any]:
        """The stored tuples and the clock, so that `state_dict` of any network is complete."""
        return {
            "columns": [
                self.memory.host_tensors(index) for index in range(self.memory.block_count)
            ],
            "forgetting": [self.forgetting.step, self.forgetting.momentum, self.forgetting.decay],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Replace the stored tuples and the clock by saved ones."""
        self.memory.clear()
        for block in state["columns"]:
            self.memory.load_columns({name: to_bits(column) for name, column in block.items()})
        step, momentum, decay = state["forgetting"]
        self.forgetting = Forgetting(int(step), float(momentum), float(decay))

    @contextlib.contextmanager
    def linearised(self) -> Iterator[None]:
        """Answer with 1 + x for e^x meanwhile: linear attention over the same tuples.

        Nothing can be learnt meanwhile. A `DualLinear` layer is linear already and stays.
        """
        kernel = self.kernel
        if kernel.kind != "dot":
            self.kernel = dataclasses.replace(kernel, linear=True)
        try:
            yield
        finally:
            self.kernel = kernel

    def extra_repr(self) -> str:
        """Widths and size, for `print(network)`."""
        return f"{self.in_features}, {self.out_features}, tuples={len(self.memory)}"


class _Softmax(GrowingLayer, ABC):
    """What softmax layers share: the kernel and the starting rows.

    Attributes:
        start_weight: of each starting row; None means 1/N₀.
    """

    start_weight: float | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        temperature: float | None = None,
        start_rows: int = 16,
        start_values: Literal["zero", "random"] = "zero",
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_rows: int | None = None,
        tiers: Tiers | None = None,
        notes: Mapping[str, Column] | None = None,
        keys: KeysName = "plain",
    ) -> None:
        if start_rows < 1:
            raise ConfigError(
                f"layer.start_rows={start_rows} must be at least 1: without a starting row the "
                "first retrieval would divide by zero"
            )
        self.temperature = default_temperature(in_features) if temperature is None else temperature
        kernel = exponential(in_features, self.temperature)
        super().__init__(
            in_features,
            out_features,
            kernel,
            dtype=dtype,
            device=device,
            block_rows=block_rows,
            tiers=tiers,
            notes=notes,
            keys=keys,
        )
        key = _random_normalised(start_rows, in_features, generator)
        value = _random_normalised(start_rows, out_features, generator)
        if start_values == "zero":
            value = torch.zeros_like(value)
        each = 1.0 / start_rows if self.start_weight is None else self.start_weight
        weight = torch.full((start_rows,), each)
        scaled = value / start_rows if self.start_weight is None else value * each
        tuples = Tuples(key.to(device), weight.to(device), scaled.to(device))
        unknown = {SAMPLE: torch.full((start_rows,), UNKNOWN)}
        own = unknown if self.memory.identified else None
        self.memory.append(tuples, born=PRIOR, notes=own)


class WeightedSoftmax(_Softmax):
    """The weighted softmax with clipped weights.

        s(q) = Σ e^{⟨k,q⟩/(T√D)} ṽ / Σ e^{⟨k,q⟩/(T√D)} w

    Args:
        temperature: T; None means √D/6, which makes the largest logit of normalised keys 6.
        bound: limit ⟨s, g⟩ to ± this before it becomes a weight; None does not.
        start_rows: N₀ random normal, RMS-normalised keys with w = 1/N₀ to start from. They count
            fully for ever, so that the denominator can never be 0.
        start_values: their values, "zero" or "random".
        generator: where the starting rows are drawn from.

    Source: arXiv 2610.03858, §3.2 and appendices C, F.3.
    """

    weighted = True

    def __init__(
        self, in_features: int, out_features: int, *, bound: float | None = None, **options: Any
    ) -> None:
        super().__init__(in_features, out_features, **options)
        self.bound = bound

    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """See `rules.clipped_write`."""
        query, output, gradient = _complete(trace)
        return clipped_write(
            query, output, gradient, lr_value=lr_value, lr_weight=lr_weight, bound=self.bound
        )


class DecoupledSoftmax(WeightedSoftmax):
    """The weighted softmax whose writes keep the division by the old normaliser.

    Args:
        options: as for `WeightedSoftmax`.

    Source: arXiv 2610.03858, appendix C.6.
    """

    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """See `rules.decoupled_write`."""
        query, output, gradient = _complete(trace)
        if trace.denominator is None:  # a normalised kernel always leaves one
            raise ConfigError("a trace without a denominator cannot be written; use retrieve()")
        return decoupled_write(
            query,
            output,
            gradient,
            trace.denominator,
            lr_value=lr_value,
            lr_weight=lr_weight,
            bound=self.bound,
        )


class UnweightedSoftmax(_Softmax):
    """The ordinary softmax, grown all the same: a negative control for the weighted ones.

    Args:
        options: as for `WeightedSoftmax`, without `bound`.

    Source: arXiv 2610.03858, appendix B.3.
    """

    start_weight = 1.0

    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """See `rules.unweighted_write`; all weights are 1, `lr_weight` is not used."""
        query, output, gradient = _complete(trace)
        return unweighted_write(query, output, gradient, lr_value=lr_value)


class GaugeSoftmax(_Softmax):
    """The weighted softmax with gauge-invariant writes, whose weights are positive by construction.

    Args:
        alpha: α > 0; the weight of a new tuple is η α ‖g‖.
        options: as for `WeightedSoftmax`, without `bound`.

    Source: arXiv 2610.03858, §3.2.1 and appendix C.7.
    """

    weighted = True

    def __init__(
        self, in_features: int, out_features: int, *, alpha: float = 1.0, **options: Any
    ) -> None:
        if not alpha > 0:
            raise ConfigError(f"layer.alpha={alpha} must be above 0")
        super().__init__(in_features, out_features, **options)
        self.alpha = alpha

    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """See `rules.gauge_write`."""
        query, output, gradient = _complete(trace)
        return gauge_write(
            query, output, gradient, lr_value=lr_value, lr_weight=lr_weight, alpha=self.alpha
        )

    def written(self, trace: Trace) -> Tensor | None:
        """Those whose gradient is not zero."""
        return written_by_gauge(_complete(trace)[2]).nonzero()[:, 0]


class RBFLayer(GrowingLayer):
    """Functional gradient descent in the feature space of `exp(−γ‖k − q‖²/D)`.

    Args:
        gamma: γ; None means 3, the softmax layer's default temperature on normalised keys.
        options: dtype, device, block_rows, tiers, notes, keys as for `GrowingLayer`.

    Source: arXiv 2610.03858, §3.1 and appendix A.
    """

    def __init__(
        self, in_features: int, out_features: int, *, gamma: float | None = None, **options: Any
    ) -> None:
        self.gamma = 3.0 if gamma is None else gamma
        super().__init__(in_features, out_features, rbf(in_features, self.gamma), **options)

    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """See `rules.kernel_write`; there are no weights, `lr_weight` is not used."""
        query, output, gradient = _complete(trace)
        return kernel_write(query, output, gradient, lr_value=lr_value)


class DualLinear(GrowingLayer):
    """A linear layer kept as what it has learnt from: `y = W₀q + Σ ṽ ⟨k, q⟩`.

    Args:
        weight: W₀ (C, D); None means zero. It decays as SGD's weight matrix does.
        options: dtype, device, block_rows, tiers, notes, keys as for `GrowingLayer`.

    Source: arXiv 2610.03858, §2.
    """

    weight: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, *, weight: Tensor | None = None, **options: Any
    ) -> None:
        super().__init__(in_features, out_features, dot(), **options)
        if weight is not None and weight.shape != (out_features, in_features):
            raise ShapeError(
                f"weight has shape {tuple(weight.shape)} but must have "
                f"{(out_features, in_features)}, (out_features, in_features)"
            )
        self.register_buffer("weight", None if weight is None else weight.detach().clone())

    def forward(self, query: Tensor) -> Tensor:
        """Retrieve: (…, D) → (…, C)."""
        output = super().forward(query)
        if self.weight is None:
            return output
        first = query.to(self.weight.dtype) @ self.weight.T
        return output + self._kept * first.to(output.dtype)

    @property
    def _kept(self) -> float:
        """How much W₀ counts by now."""
        return (1.0 - self.forgetting.decay) ** self.forgetting.step

    def beside(self, query: Tensor) -> Tensor | None:
        """W₀q, as far as it has not decayed."""
        if self.weight is None:
            return None
        return self._kept * (query.detach().double() @ self.weight.double().T)

    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """See `rules.kernel_write`; there are no weights, `lr_weight` is not used."""
        query, output, gradient = _complete(trace)
        return kernel_write(query, output, gradient, lr_value=lr_value)


def _complete(trace: Trace) -> tuple[Tensor, Tensor, Tensor]:
    """(q, s, g) of a trace, in the accumulation dtype that the output came in."""
    if trace.gradient is None:
        raise ConfigError("a trace without a gradient cannot be written; call backward() first")
    return trace.query.to(trace.output.dtype), trace.output, trace.gradient


def _random_normalised(rows: int, width: int, generator: torch.Generator | None) -> Tensor:
    """Random normal rows scaled to RMS 1, drawn on the CPU so that every device gets the same."""
    values = torch.randn(rows, width, generator=generator)
    return values / values.square().mean(-1, keepdim=True).sqrt()
