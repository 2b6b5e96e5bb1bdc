"""Write rules: pure functions from what a layer saw to the tuples that it should store.

Each takes the queries q (B, D), the outputs s (B, C) and the gradients g = ∂L/∂s (B, C) **of each
sample's own loss** (a mean over the batch would tie the rates to the batch size), and returns
`Tuples(key, weight, value)` with value the weighted value ṽ. The functional gradient is linear, so
a mini-batch simply stores all of its tuples at once.
"""

import torch
from torch import Tensor

from streamlearn.memory import Tuples

__all__ = [
    "clipped_write",
    "decoupled_write",
    "gauge_write",
    "kernel_write",
    "unweighted_write",
    "written_by_gauge",
]


def kernel_write(query: Tensor, output: Tensor, gradient: Tensor, *, lr_value: float) -> Tuples:
    """The functional gradient step of a positive definite kernel, and of a linear layer's dual.

        k = q,  ṽ = −η_v g,  w unused (0).

    For ⟨k, q⟩ this is SGD on a weight matrix; for any kernel, SGD in its feature space.

    Source: arXiv 2610.03858, §2, §3.1 and appendix A.
    """
    return Tuples(query, output.new_zeros(len(query)), -lr_value * gradient)


def clipped_write(
    query: Tensor,
    output: Tensor,
    gradient: Tensor,
    *,
    lr_value: float,
    lr_weight: float,
    bound: float | None = None,
) -> Tuples:
    """The weighted softmax's functional gradient step with negative weights clipped.

        k = q,  w = η_w max(0, ⟨s, g⟩),  ṽ = −η_v g.

    The division by the old normaliser is dropped, as in appendix F.3. Clipping is a true descent
    step in the decoupled weight space (appendix C.6).

    `bound` limits ⟨s, g⟩ to [−bound, bound] first, for stability; None leaves it.
    """
    agreement = (output * gradient).sum(-1)  # ⟨s, g⟩ (B,)
    if bound is not None:
        agreement = agreement.clamp(-bound, bound)
    return Tuples(query, lr_weight * agreement.clamp_min(0), -lr_value * gradient)


def decoupled_write(
    query: Tensor,
    output: Tensor,
    gradient: Tensor,
    denominator: Tensor,
    *,
    lr_value: float,
    lr_weight: float,
    bound: float | None = None,
) -> Tuples:
    """The functional gradient step on numerator and denominator as two functions of their own.

        k = q,  w = η_w max(0, ⟨s, g⟩)/d,  ṽ = −η_v g/d,

    for `s = n/d`: ∂L/∂n = g/d and ∂L/∂d = −⟨s, g⟩/d. It is `clipped_write` with the division by
    the old normaliser kept, so steps shrink where the denominator has grown.

    Args:
        query: q (B, D).
        output: s (B, C).
        gradient: g (B, C).
        denominator: d (B, 1) at the queries.
        lr_value: η_v.
        lr_weight: η_w.
        bound: as for `clipped_write`.

    Source: arXiv 2610.03858, appendix C.6.
    """
    key, weight, value = clipped_write(
        query, output, gradient, lr_value=lr_value, lr_weight=lr_weight, bound=bound
    )
    return Tuples(key, weight / denominator[:, 0], value / denominator)


def unweighted_write(query: Tensor, output: Tensor, gradient: Tensor, *, lr_value: float) -> Tuples:
    """What would be written to the ordinary softmax, where every key weighs the same.

        k = q,  w = 1,  ṽ = −η_v g.

    A new key moves the denominator however small its value is, so this is no gradient step: it is
    here to show what the weights are for.

    Source: arXiv 2610.03858, appendix B.3.
    """
    return Tuples(query, output.new_ones(len(query)), -lr_value * gradient)


def gauge_write(
    query: Tensor,
    output: Tensor,
    gradient: Tensor,
    *,
    lr_value: float,
    lr_weight: float,
    alpha: float,
) -> Tuples:
    """The gauge-invariant step: a weight that is positive by construction, old tuples untouched.

        k = q,  w = η α ‖g‖,  ṽ = (−β − η α² + η (α/‖g‖) ⟨s, g⟩) g

    with β = lr_value and η = lr_weight: the step is taken in the virtual gauge
    b = (−⟨s, g⟩/‖g‖² + α/‖g‖) g, where ⟨g, s + b⟩ = α‖g‖ > 0, and written back in the gauge 0.
    A sample whose gradient is zero stores nothing.

    Source: arXiv 2610.03858, §3.2.1 and appendix C.7.
    """
    norm = torch.linalg.vector_norm(gradient, dim=-1)  # (B,)
    alive = written_by_gauge(gradient)
    query, output, gradient, norm = query[alive], output[alive], gradient[alive], norm[alive]
    agreement = (output * gradient).sum(-1)  # ⟨s, g⟩ (B',)
    factor = -lr_value - lr_weight * alpha**2 + lr_weight * alpha * agreement / norm  # (B',)
    return Tuples(query, lr_weight * alpha * norm, factor[:, None] * gradient)


def written_by_gauge(gradient: Tensor) -> Tensor:
    """Which of the gradients (B, C) `gauge_write` stores a tuple for: those that are not zero."""
    alive: Tensor = torch.linalg.vector_norm(gradient, dim=-1) > 0
    return alive
