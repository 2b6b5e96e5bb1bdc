"""Delta: gradient descent that first forgets what a layer says along its present input."""

from typing import Any, Literal

import torch
from torch import Tensor

from streamlearn.errors import ConfigError

from .linear import LinearBatch, LinearOptimizer
from .split import Params, in_range

__all__ = ["Delta", "Form", "delta_batch", "delta_sequential"]

Form = Literal["sequential", "batch"]

ROWS = 128  # of one triangular solve: its cost grows with their square, that of loops falls


def delta_sequential(
    matrix: Tensor, inputs: Tensor, gradients: Tensor, forget: Tensor, lr: float
) -> Tensor:
    """`W ← W(I − β_i x_i x_iᵀ) − η g_i x_iᵀ` for row after row, without a loop over rows.

    With `u_i = β_i W_{i−1} x_i + η g_i` the steps are `W_i = W_{i−1} − u_i x_iᵀ`, and since
    `W_{i−1} = W_0 − Σ_{j<i} u_j x_jᵀ`, all u are the solution of one triangular system,

        (I + diag(β) tril(XXᵀ, −1)) U = diag(β) X W_0ᵀ + ηG,      W_n = W_0 − UᵀX.

    Rows are taken 128 at a time.

    Args:
        matrix: W_0 (C, D).
        inputs: X (n, D).
        gradients: G (n, C), those of the whole batch at the weights before it.
        forget: β (n,).
        lr: η.

    Returns:
        W_n (C, D).
    """
    for start in range(0, len(inputs), ROWS):
        rows = slice(start, start + ROWS)
        x, beta = inputs[rows], forget[rows, None]  # (b, D), (b, 1)
        right = torch.addmm(lr * gradients[rows], beta * x, matrix.T)  # (b, C)
        system = beta * (x @ x.T)  # (b, b); its diagonal and upper half are not read
        steps = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        matrix = torch.addmm(matrix, steps.T, x, alpha=-1)
    return matrix


def delta_batch(
    matrix: Tensor, inputs: Tensor, gradient: Tensor, forget: Tensor, lr: float
) -> Tensor:
    """`W ← W(I − Σ β_i x_i x_iᵀ) − ηGᵀX`: every row forgets from the weights before the batch.

    Args:
        matrix: W (C, D).
        inputs: X (n, D).
        gradient: GᵀX (C, D).
        forget: β (n,).
        lr: η.
    """
    said = inputs @ matrix.T  # (n, C)
    return torch.addmm(matrix - lr * gradient, (forget[:, None] * said).T, inputs, alpha=-1)


class Delta(LinearOptimizer):
    """Gradient descent with selective forgetting, the update of DeltaNet, on linear layers.

    For a layer `y = Wx` and each row's input x (D,) and output gradient g (C,):

        W ← W (I − β x xᵀ) − η g xᵀ

    which is a step of online gradient descent, W ← W − ∇ℓ, on the layer-local loss
    `ℓ(W) = (β/2)‖Wx‖² + η⟨g, Wx⟩`, up to a constant `(β/2)‖Wx − v‖²` with `v = −(η/β) g`. Only what
    the layer says along the present input is forgotten; plain `decay` shrinks everything.

    A batch of n rows, whose gradients were all taken at the weights before it, is learnt
    "sequential"ly, row after row in this formula (stable for β‖x‖² < 2, computed by triangular
    solves), or in one "batch" step, `W ← W (I − Σβxxᵀ) − ηGᵀX`. Both are the same for one row
    or orthogonal rows and differ in the order of β; the batch step is stable only while the
    largest eigenvalue of Σβxxᵀ is below 2.

    Args:
        model: a network, modules, or groups; see `LinearOptimizer` for what is summed, for biases,
            and for other parameters.
        lr: η, at least 0; the update is a sum over rows.
        forget: β, at least 0, and below 2 where normalised.
        normalise: whether β is divided by ‖x‖², so that β is the share that is forgotten along x
            whatever the width; the formula as it stands if not.
        form: "sequential" or "batch".
        decay: each step's plain decay in [0, 1), `W ← (1 − decay) W` before the rest, decoupled
            from the rate as in `FunctionalSGD`.
        fallback_lr: AdamW's rate for all other parameters.

    The sequential form takes gradients as they come out of the layer, so clipping `.grad` does
    nothing to it; the batch form takes `.grad`.

    Source: arXiv 2610.03858, §4, §E.1, §F.8.
    """

    rule = "delta"

    def __init__(
        self,
        model: Params,
        lr: float = 0.01,
        *,
        forget: float = 1e-3,
        normalise: bool = True,
        form: Form = "sequential",
        decay: float = 0.0,
        fallback_lr: float = 1e-3,
    ) -> None:
        defaults = {
            "lr": lr,
            "forget": forget,
            "normalise": normalise,
            "form": form,
            "decay": decay,
            "fallback_lr": fallback_lr,
        }
        super().__init__(model, defaults, gradients=True)

    def check(self, settings: dict[str, Any]) -> None:
        """Raise ConfigError for a setting that is out of range."""
        for name in ("lr", "fallback_lr"):
            in_range(settings, name, 0)
        in_range(settings, "forget", 0, 2 if settings["normalise"] else None)
        in_range(settings, "decay", 0, 1)
        if settings["form"] not in ("sequential", "batch"):
            raise ConfigError(f"form={settings['form']!r} is unknown; use sequential or batch")

    def update(self, group: dict[str, Any], state: dict[str, Any], batch: LinearBatch) -> Tensor:
        """One batch of the rule; nothing is kept in the state."""
        inputs = batch.inputs[:, batch.columns]  # (n, d): forgetting is along what is trained
        forget = inputs.new_full((len(inputs),), group["forget"])
        if group["normalise"]:
            size = inputs.square().sum(1)
            forget = torch.where(size > 0, forget / size, 0)
        matrix = (1 - group["decay"]) * batch.matrix
        if group["form"] == "batch" or batch.outputs is None:
            return delta_batch(matrix, inputs, batch.gradient, forget, group["lr"])
        return delta_sequential(matrix, inputs, batch.outputs, forget, group["lr"])
