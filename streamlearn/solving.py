"""Linear systems whose matrix is positive but for rounding."""

import torch
from torch import Tensor

__all__ = ["solve_positive"]


def solve_positive(matrix: Tensor, right: Tensor, floor: float) -> Tensor:
    """`A^{-1} R` for a symmetric A whose eigenvalues are at least `floor`, but for rounding.

    By Cholesky; where rounding has made A indefinite, by its eigenvectors with eigenvalues raised
    to the floor.

    Args:
        matrix: A (n, n).
        right: R (n, m).
        floor: above 0.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not bool(failed):
        return torch.cholesky_solve(right, factor).contiguous()
    values, vectors = torch.linalg.eigh(matrix)
    solved: Tensor = vectors @ ((vectors.T @ right) / values.clamp_min(floor)[:, None])
    return solved
