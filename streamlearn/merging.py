"""Tuples of near keys become one by projection: which go, into which, and what that adds to these.

A tuple i with the pull r = ṽ − s w on an answer s = n/d, d = 1 without weights, goes; a times its
weight and value are added to those of a tuple j, whose key stays. The answer to q then changes, to
first order, by

    δs = (δn − s δd)/d = r_i (a k(j, q) − k(i, q))/d,

a function in the kernel's space, whose norm ‖r_i‖ ‖a k_j − k_i‖ is least for the projection

    a = k(i, j)/k(j, j),    ‖r_i‖ √k(i, i) √(1 − ρ²),    ρ = k(i, j)/√(k(i, i) k(j, j)),

at every s and so with one a for weights and values. a is above 0, so weights stay at least 0; a
sum over several j could make them less. For e^{c⟨k, k'⟩} and for RBF ρ = exp(−c/2·‖k − k'‖²). A key
between both could do better for n or for d, but not for both, and would be no sample's.

Source: Engel, Mannor & Meir 2004 and Csató & Opper 2002 for projection on the keys that stay.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.decay import decay_coefficients
from streamlearn.errors import ConfigError
from streamlearn.kernels import Kernel
from streamlearn.layers import GrowingLayer
from streamlearn.memory import PRIOR, Memory
from streamlearn.retrieval import Forgetting

__all__ = ["Sums", "coefficients", "distance_of", "least_missed", "nearest_of", "projected"]

Rows = NDArray[np.int64]

_TILE = 4096
_TRIED = 32
"""Rows that are compared at a step, if only one is to go."""


class Sums(NamedTuple):
    """Rows (t,) int64, each once, and the weights (t,) and values (t, C) that they come to have."""

    rows: Tensor
    weight: Tensor
    value: Tensor


def distance_of(kernel: Kernel, similarity: float, width: int) -> float:
    """The distance ‖k − k'‖/√D at which ρ is a similarity τ: √(2 ln(1/τ)/(c D)).

    Args:
        kernel: of a layer.
        similarity: 0 < τ ≤ 1.
        width: D.

    Raises:
        ConfigError: τ is out of range, or the kernel is that of a linear layer.
    """
    if not 0 < similarity <= 1:
        raise ConfigError(f"similarity={similarity:g} must be above 0 and at most 1")
    if kernel.kind == "dot":
        raise ConfigError(
            "a linear layer's tuples differ by more than how near their keys are; give a distance, "
            "or a softmax or rbf layer"
        )
    return math.sqrt(2.0 * math.log(1.0 / similarity) / (kernel.scale * width))


def coefficients(born: Tensor, clock: Forgetting) -> Tensor:
    """c(n) (rows,) float64; 1 for starting rows."""
    age = (clock.step - born).clamp_min(0).to(torch.float64)
    count = decay_coefficients(age, clock.momentum, clock.decay)
    return torch.where(born == PRIOR, torch.ones_like(count), count)


def projected(
    memory: Memory, clock: Forgetting, rows: Tensor, into: Tensor, kernel: Kernel | None
) -> Sums:
    """What rows come to hold that others are added to.

        w_j + Σ a_i w_i c_i/c_j,    ṽ_j + Σ a_i ṽ_i c_i/c_j

    with c the coefficients by age, whose ratio stays the same under decay.

    Args:
        memory: of a layer; it is left as it is.
        clock: the layer's step and decay.
        rows: (n,) int64, that are to go.
        into: (n,) int64, the rows that they join.
        kernel: whose projection a_i is; None: 1, which is exact where keys are equal.

    Raises:
        FormatError, StorageError: a block lies in a store that cannot be read.
    """
    names = ("weight", "value", "born") if kernel is None else ("key", "weight", "value", "born")
    targets, place = torch.unique(into, return_inverse=True)
    old, new = memory.gather(targets, names), memory.gather(rows, names)
    place = place.to(memory.device)
    share = coefficients(new["born"], clock) / coefficients(old["born"], clock)[place]
    if kernel is not None:
        share = share * _ratio(kernel, new["key"].double(), old["key"].double()[place])
    weight = old["weight"].double().index_add(0, place, share * new["weight"].double())
    value = old["value"].double().index_add(0, place, share[:, None] * new["value"].double())
    wide = memory.layout.wide
    return Sums(targets, weight.to(wide), value.to(wide))


def _ratio(kernel: Kernel, key: Tensor, onto: Tensor) -> Tensor:
    """The projection a = k(i, j)/k(j, j) of pairs of keys (n, D), (n,)."""
    if kernel.kind == "exponential":
        return (kernel.scale * ((key - onto) * onto).sum(1)).exp()
    return (-0.5 * kernel.scale * (key - onto).square().sum(1)).exp()


@torch.no_grad()
def least_missed(
    layers: Sequence[GrowingLayer], live: Rows, wanted: int, step: int
) -> tuple[Rows, Rows]:
    """Which samples are missed least once their tuples are projected on their nearest ones.

    A window of the rows, which moves on with the step, is compared with all others, and those go of
    which least is lost: c(n) √(‖ṽ‖² + w²) √(1 − ρ²) in the last layer, with ρ the product of all
    layers' similarities. So what goes follows from what is stored alone.

    Args:
        layers: in the order of the forward pass; a row is of one sample in all of them.
        live: rows that may go, ascending, starting rows not among them.
        wanted: how many are to go.
        step: that wants their room.

    Returns:
        The rows that go, (wanted,), and the row that each joins; −1 for all where none would stay.
    """
    count = max(wanted, min(len(live) // 2, max(2 * wanted, _TRIED)))
    window = (step * count + np.arange(count)) % len(live)
    tried, others = live[window], np.delete(live, window)
    if not len(others):
        return tried[:wanted], np.full(wanted, -1)
    into = nearest_of(layers, tried, others)
    apart = np.zeros(count)  # −ln ρ
    for layer in layers:
        keys = [layer.memory.gather(torch.from_numpy(r), ("key",))["key"] for r in (tried, into)]
        squares = (keys[0].double() - keys[1].double()).square().sum(1)
        apart += 0.5 * layer.kernel.scale * squares.cpu().numpy()
    last = layers[-1]
    there = last.memory.gather(torch.from_numpy(tried), ("weight", "value", "born"))
    size = there["value"].double().square().sum(1) + there["weight"].double().square()
    size = coefficients(there["born"], last.forgetting) * size.sqrt()
    lost = size.cpu().numpy() * np.sqrt(-np.expm1(-2.0 * apart))
    chosen = np.argsort(lost, kind="stable")[:wanted]
    return tried[chosen], into[chosen]


@torch.no_grad()
def nearest_of(layers: Sequence[GrowingLayer], rows: Rows, others: Rows) -> Rows:
    """Of each row the most similar one among others, by the product of all layers' similarities.

    Args:
        layers: whose rows are of the same samples.
        rows: (n,).
        others: (m,), at least one.

    Returns:
        (n,) of these.
    """
    asked = [
        0.5**0.5 * layer.kernel.scale**0.5 * _keys(layer, rows) for layer in layers
    ]  # (n, D), so that squared distances are −ln ρ
    best = torch.full((len(rows),), math.inf, dtype=asked[0].dtype, device=asked[0].device)
    which = torch.zeros(len(rows), dtype=torch.int64, device=best.device)
    for start in range(0, len(others), _TILE):
        part = others[start : start + _TILE]
        apart = torch.zeros(len(rows), len(part), dtype=best.dtype, device=best.device)
        for layer, key in zip(layers, asked, strict=True):
            other = 0.5**0.5 * layer.kernel.scale**0.5 * _keys(layer, part)  # (m', D)
            apart.addmm_(key, other.T, alpha=-2.0).add_(other.square().sum(1))
        least, place = apart.min(1)
        closer = least < best
        best = torch.where(closer, least, best)
        which = torch.where(closer, place + start, which)
    found: Rows = others[which.cpu().numpy()]
    return found


def _keys(layer: GrowingLayer, rows: Rows) -> Tensor:
    """Keys of rows in the accumulation dtype, (n, D)."""
    memory = layer.memory
    return memory.gather(torch.from_numpy(rows), ("key",))["key"].to(memory.layout.wide)
