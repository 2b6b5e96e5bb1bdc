"""Inverses of symmetric positive definite matrices: by Newton–Schulz or by Cholesky."""

import math

import torch
from torch import Tensor

from streamlearn.errors import NotFiniteError

__all__ = ["cholesky", "newton_schulz", "solve_cholesky"]


def newton_schulz(matrix: Tensor, iterations: int = 10) -> Tensor:
    """The inverse by matrix products alone: `Y₀ = I/b`, `Y ← Y(2I − AY)`.

    `b = min(‖A‖_∞, ‖A‖_F)` bounds the largest eigenvalue. Along an eigenvector of A with eigenvalue
    a, k iterations give `(1 − (1 − a/b)^{2^k})/a`: the largest are inverted first and an
    eigenvalue below about `b/2^k` is not yet, so few iterations act as damping.

    Args:
        matrix: A (D, D), symmetric positive semidefinite.
        iterations: k, at least 1. Two products of (D, D) matrices each, the first none.

    Returns:
        Y (D, D). The zero matrix gives zeros.

    Source: arXiv 2610.03858, §F.7, for its use; the iteration is Schulz's (1933).
    """
    bound = torch.minimum(matrix.abs().sum(1).amax(), matrix.norm())
    scale = torch.where(bound > 0, 1 / bound, torch.zeros_like(bound))
    inverse = -scale.square() * matrix  # the first iteration is I(2 − A/b)/b
    inverse.diagonal().add_(2 * scale)
    for _ in range(iterations - 1):
        inverse = torch.addmm(inverse, inverse, matrix @ inverse, beta=2, alpha=-1)
    return inverse


def cholesky(matrix: Tensor) -> Tensor:
    """The lower factor L (D, D) of A = LLᵀ.

    Where rounding has made A indefinite, its diagonal is raised by `ε·tr(A)/D`, then by ten times
    as much and so on until the factorisation succeeds (by 1 where A is zero): as little damping as
    the precision demands, and none where it demands none.

    Args:
        matrix: A (D, D), symmetric, positive semidefinite but for rounding.

    Raises:
        NotFiniteError: no damping helps, since A has overflowed.
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not failed:
        return factor
    raised = float(matrix.diagonal().mean()) * torch.finfo(matrix.dtype).eps or 1.0
    while failed:
        if not math.isfinite(raised):
            raise NotFiniteError(
                f"a second moment of {len(matrix)} columns has overflowed; "
                "scale the features or lower discount"
            )
        lifted = matrix.clone()
        lifted.diagonal().add_(raised)
        factor, failed = torch.linalg.cholesky_ex(lifted)
        raised *= 10
    return factor


def solve_cholesky(rows: Tensor, factor: Tensor) -> Tensor:
    """`G A^{-1}` (C, D) from G (C, D) and the factor of A = LLᵀ."""
    solution: Tensor = torch.cholesky_solve(rows.T, factor)  # (D, C)
    return solution.T
