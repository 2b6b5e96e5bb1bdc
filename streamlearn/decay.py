"""How much a tuple counts by its age: momentum and decay without any state but its birth step."""

import math

import torch
from torch import Tensor

__all__ = ["decay_coefficients"]


def decay_coefficients(age: Tensor, momentum: float, decay: float) -> Tensor:
    """What a tuple written n steps ago counts now, under momentum μ and decay γ.

    With `V ← μV + G`, `F ← (1−γ)F − ηV` a single write G contributes after n more steps

        c(n) = Σ_{j=0..n} (1−γ)^{n−j} μ^j = ((1−γ)^{n+1} − μ^{n+1}) / ((1−γ) − μ),

    and (n+1)·μⁿ where 1−γ = μ. No state but the birth step is needed. With a the larger of 1−γ and
    μ, b the smaller and r = b/a it is computed as aⁿ (1 − r^{n+1})/(1 − r), which does not cancel
    where the two come close: 1 − r = (a − b)/a is exact there.

    Args:
        age: n, any shape, float64.
        momentum: μ in [0, 1).
        decay: γ in [0, 1).

    Source: arXiv 2610.03858, appendices A.4 and D.
    """
    larger, smaller = max(1.0 - decay, momentum), min(1.0 - decay, momentum)
    if momentum == 0:  # several times as fast, and right to |n ln a| roundings
        return torch.exp(age * math.log1p(-decay))
    if smaller == larger:
        return (age + 1) * larger**age
    gap = (larger - smaller) / larger  # 1 − r
    log_ratio = math.log1p(-gap) if gap < 1 else -math.inf
    return larger**age * torch.expm1((age + 1) * log_ratio) / -gap
