"""Layers with known tuples, and the same tuples as float64 arrays for the reference."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from streamlearn.layers import DualLinear, GaugeSoftmax, GrowingLayer, RBFLayer, WeightedSoftmax
from streamlearn.memory import KEY_SCALE, PRIOR, Tuples
from streamlearn.retrieval import Forgetting

from .. import reference
from ..reference import Array

Kind = Literal["softmax", "gauge", "rbf", "linear"]
KINDS: tuple[Kind, ...] = ("softmax", "gauge", "rbf", "linear")

GAMMA = 1.7


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def make_layer(
    kind: Kind, width: int, outputs: int, *, dtype: torch.dtype = torch.float64, **options: Any
) -> GrowingLayer:
    options = {"dtype": dtype, "block_rows": 512, **options}
    if kind == "rbf":
        return RBFLayer(width, outputs, gamma=GAMMA, **options)
    if kind == "linear":
        return DualLinear(width, outputs, **options)
    softmax: dict[str, Any] = {"start_values": "random", "generator": generator(5), **options}
    if kind == "gauge":
        return GaugeSoftmax(width, outputs, **softmax)
    return WeightedSoftmax(width, outputs, **softmax)


def fill(
    layer: GrowingLayer, count: int, *, steps: int = 7, seed: int = 1, size: float = 1.0
) -> None:
    """Append `count` random tuples, born over several steps, a fifth of them with weight 0."""
    for step in range(1, steps + 1):
        rows = count // steps + (step <= count % steps)
        key = size * randn(rows, layer.in_features, seed=seed + 10 * step)
        weight = randn(rows, seed=seed + 10 * step + 1).abs() * 0.01
        weight[::5] = 0.0
        value = 0.1 * randn(rows, layer.out_features, seed=seed + 10 * step + 2)
        layer.memory.append(Tuples(key, weight, value), born=step)
    layer.forgetting = Forgetting(steps, layer.forgetting.momentum, layer.forgetting.decay)


@dataclass
class Dense:
    """All tuples of a layer as float64 arrays, and how much each counts."""

    key: Array
    weight: Array
    value: Array
    born: list[int]
    counts: Array

    @classmethod
    def of(cls, layer: GrowingLayer) -> "Dense":
        memory = layer.memory
        blocks = [memory.host_tensors(index) for index in range(memory.block_count)]
        empty = {
            name: torch.zeros((0,) if column.width is None else (0, column.width))
            for name, column in memory.columns().items()
        }
        joined = {
            name: np.concatenate(
                [rows[name].to(torch.float64).numpy() for rows in (empty, *blocks)]
            )
            for name in empty
        }
        if KEY_SCALE in joined:
            joined["key"] = joined["key"] * joined[KEY_SCALE][:, None]
        born = [int(step) for step in joined["born"]]
        clock = layer.forgetting
        steps = [0 if step == PRIOR else step for step in born]
        counts = reference.coefficients(steps, clock.step, clock.momentum, clock.decay)
        return cls(joined["key"], joined["weight"], joined["value"], born, counts)

    def output(self, layer: GrowingLayer, query: Array) -> Array:
        if isinstance(layer, RBFLayer):
            phi = reference.rbf_phi(layer.gamma)
            return reference.kernel_output(query, self.key, self.value, phi, self.counts)
        if isinstance(layer, DualLinear):
            return reference.kernel_output(
                query, self.key, self.value, reference.dot_phi, self.counts
            )
        assert isinstance(layer, (WeightedSoftmax, GaugeSoftmax))
        return reference.softmax_output(
            query, self.key, self.weight, self.value, layer.temperature, self.counts
        )

    def gradient(self, layer: GrowingLayer, query: Array, gradient: Array) -> Array:
        if isinstance(layer, RBFLayer):
            return reference.rbf_gradient(
                query, self.key, self.value, layer.gamma, self.counts, gradient
            )
        if isinstance(layer, DualLinear):
            return reference.dot_gradient(self.key, self.value, self.counts, gradient)
        assert isinstance(layer, (WeightedSoftmax, GaugeSoftmax))
        return reference.softmax_gradient(
            query, self.key, self.weight, self.value, layer.temperature, self.counts, gradient
        )


def backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def arrays(tensor: Tensor) -> Array:
    result: Array = tensor.detach().to(torch.float64).numpy()
    return result


def relative(found: Tensor, expected: Array) -> float:
    """The largest deviation as a share of the largest expected number."""
    return float(np.abs(arrays(found) - expected).max() / np.abs(expected).max())
