"""Optimizers of linear layers once more, as slow float64 loops and least-squares problems.

Weights are (C, D), inputs (n, D), output gradients (n, C), as in the library; nothing is shared.
"""

from dataclasses import dataclass, field

import numpy as np

from ..reference import Array

__all__ = ["MesaLoop", "delta_loop", "least_squares", "mesa_minimiser"]


@dataclass
class MesaLoop:
    """The recursion of Mesa with explicit inverses, a sample at a time where sums are taken."""

    weight: Array
    lr: float
    discount: float
    damping: float
    cumulative: bool = True
    average: bool = True
    momentum: float = 0.0
    decay: float = 0.0
    moment: Array = field(default_factory=lambda: np.zeros(0))
    strength: float = 0.0
    count: float = 0.0
    velocity: Array = field(default_factory=lambda: np.zeros(0))

    def step(self, inputs: Array, gradients: Array) -> Array:
        """One batch; gives the new weights."""
        width = inputs.shape[1]
        if self.moment.size == 0:
            self.moment = np.zeros((width, width))
            self.velocity = np.zeros_like(self.weight)
        self.moment = self.discount * self.moment
        total = np.zeros_like(self.weight)
        for x, g in zip(inputs, gradients, strict=True):
            self.moment = self.moment + np.outer(x, x) / len(inputs)
            total = total + np.outer(g, x) / len(inputs)
        past = self.discount * self.strength if self.cumulative else 0.0
        self.strength = past + self.damping
        self.count = self.discount * self.count + 1
        matrix = self.moment + self.strength * np.eye(width)
        if self.average:
            matrix = matrix / self.count
        self.velocity = self.momentum * self.velocity + total @ np.linalg.inv(matrix)
        self.weight = (1 - self.decay) * self.weight - self.lr * self.velocity
        return self.weight


def least_squares(inputs: Array, targets: Array) -> Array:
    """The W (C, D) of least ‖XWᵀ − Y‖²."""
    result: Array = np.linalg.lstsq(inputs, targets, rcond=None)[0].T.astype(np.float64)
    return result


def mesa_minimiser(
    inputs: list[Array],
    targets: list[Array],
    discount: float,
    priors: list[tuple[float, Array]],
) -> Array:
    """The minimiser of Σ_s γ^{t−s}‖X_s Wᵀ − V_s‖²/(2n_s) + Σ strength·‖W − centre‖²/2.

    Posed as one stacked least-squares problem; no recursion and no normal equations.
    """
    last = len(inputs) - 1
    left, right = [], []
    for step, (x, v) in enumerate(zip(inputs, targets, strict=True)):
        scale = np.sqrt(discount ** (last - step) / len(x))
        left.append(scale * x)
        right.append(scale * v)
    for strength, centre in priors:
        left.append(np.sqrt(strength) * np.eye(centre.shape[1]))
        right.append(np.sqrt(strength) * centre.T)
    return least_squares(np.concatenate(left), np.concatenate(right))


def delta_loop(weight: Array, inputs: Array, gradients: Array, forget: Array, lr: float) -> Array:
    """W ← W(I − β x xᵀ) − η g xᵀ, row after row."""
    for x, g, beta in zip(inputs, gradients, forget, strict=True):
        weight = weight @ (np.eye(len(x)) - beta * np.outer(x, x)) - lr * np.outer(g, x)
    return weight
