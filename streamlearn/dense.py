"""Layers of fixed size beside the growing ones: a dense block, and softmax over trained keys.

All are seeded by a generator of their own, on the CPU, so that every device begins alike.
"""

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamlearn.errors import ConfigError

__all__ = ["Activation", "DenseBlock", "ParametricSoftmax", "linear"]

Activation: TypeAlias = Literal["gelu", "relu", "silu", "tanh"]

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def linear(
    inputs: int,
    outputs: int,
    generator: torch.Generator,
    *,
    zero: bool = False,
    bias: bool = True,
    dtype: torch.dtype = torch.float32,
) -> nn.Linear:
    """A linear layer with LeCun-normal weights, N(0, 1/inputs), or zero ones, and a zero bias."""
    # Skipped rather than overwritten, since torch would draw from the global generator.
    layer: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear, inputs, outputs, bias=bias, dtype=dtype
    )
    values = torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)
    with torch.no_grad():
        layer.weight.copy_(torch.zeros_like(values) if zero else values)
        if bias:
            layer.bias.zero_()
    return layer


class DenseBlock(nn.Module):
    """What a residual layer adds: `W₂ σ(W₁ x + b₁) + b₂`, from D over `width` to D.

    W₁ is LeCun normal; W₂ begins at zero, so that a network begins as one without the block, as it
    does with a growing layer whose starting values are zero.

    Args:
        features: D.
        width: of the inner layer.
        activation: σ.
        generator: of the first weights.
        dtype: of the parameters.

    Source: arXiv 2610.03858, §5.
    """

    def __init__(
        self,
        features: int,
        width: int,
        *,
        activation: Activation = "gelu",
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.first = linear(features, width, generator, dtype=dtype)
        self.second = linear(width, features, generator, zero=True, dtype=dtype)
        self._activation = _ACTIVATIONS[activation]

    def forward(self, features: Tensor) -> Tensor:
        """Map (…, D) to (…, D)."""
        inner = self._activation(self.first(features))  # (…, width)
        return self.second(inner)  # type: ignore[no-any-return]


class ParametricSoftmax(nn.Module):
    """Softmax over keys and values that are ordinary parameters: retrieval of a fixed size.

        s(q) = Σ e^{⟨k,q⟩/(T√D)} w v / Σ e^{⟨k,q⟩/(T√D)} w,   w = e^a

    Weights are kept as their logarithms a, so that they stay positive whatever an optimizer does;
    without them it is the ordinary softmax. Keys begin as random normal rows of length √D, values
    and a at zero.

    Args:
        in_features: D.
        out_features: C.
        width: keys.
        temperature: T; None means √D/6.
        weighted: whether there are weights.
        generator: of the first keys.
        dtype: of the parameters.

    Source: arXiv 2610.03858, §F.5.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        width: int,
        *,
        temperature: float | None = None,
        weighted: bool = True,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        chosen = math.sqrt(in_features) / 6.0 if temperature is None else temperature
        if not chosen > 0:
            raise ConfigError(f"layer.temperature={chosen} must be above 0")
        self.scale = 1.0 / (chosen * math.sqrt(in_features))
        keys = torch.randn(width, in_features, generator=generator)
        keys = keys / keys.square().mean(-1, keepdim=True).sqrt()
        self.keys = nn.Parameter(keys.to(dtype))
        self.values = nn.Parameter(torch.zeros(width, out_features, dtype=dtype))
        self.log_weights = nn.Parameter(torch.zeros(width, dtype=dtype)) if weighted else None

    def forward(self, query: Tensor) -> Tensor:
        """Retrieve: (…, D) → (…, C)."""
        logits = self.scale * (query @ self.keys.T)  # (…, width)
        if self.log_weights is not None:
            logits = logits + self.log_weights
        return torch.softmax(logits, -1) @ self.values
