"""Linear systems whose matrix is positive but for rounding."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["solve_by_rows", "solve_positive"]

_ROWS = 1024
_ROUNDS = 20
_EXACT = 1e-9
"""What may be left of the right side, relative to it."""


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


def solve_by_rows(rows: Callable[[int, int], Tensor], right: Tensor, shift: float) -> Tensor:
    """`(A + σI)^{-1} R` for a symmetric A whose eigenvalues are at least 0, but for rounding.

    A is factored in float32 in its place, so that 4 n² bytes are enough, and the solution refined
    by residuals of float64 rows, which are asked for again: `x ← x + (L Lᵀ)^{-1} (R − (A + σI) x)`.
    Where float32 cannot tell A + σI from one that is not positive, the whole is solved in float64.

    Args:
        rows: from the first and behind the last to these rows of A, (stop - start, n) float64.
        right: R (n, m) float64.
        shift: σ above 0.

    Source: Wilkinson, "Rounding Errors in Algebraic Processes", 1963, for iterative refinement.
    """
    count = len(right)
    parts = [(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]
    matrix = torch.empty(count, count, dtype=torch.float32, device=right.device)
    for start, stop in parts:
        matrix[start:stop] = rows(start, stop)
    matrix.diagonal().add_(shift)
    factor = matrix.mT  # by columns, as LAPACK wants it: no copy is made
    failed = torch.zeros((), dtype=torch.int32, device=right.device)
    torch.linalg.cholesky_ex(factor, out=(factor, failed))
    solution, left = torch.zeros_like(right), right
    largest = float(right.norm())
    for _ in range(0 if bool(failed) else _ROUNDS):
        before = float(left.norm())
        if before <= _EXACT * largest:
            return solution
        step = (left / before).to(torch.float32)
        # Two triangles one by one: cholesky_solve copies the factor.
        step = torch.linalg.solve_triangular(factor, step, upper=False)
        step = torch.linalg.solve_triangular(factor.mT, step, upper=True)
        solution = solution + before * step.to(right)
        left = torch.cat([
            right[start:stop] - shift * solution[start:stop] - rows(start, stop) @ solution
            for start, stop in parts
        ])  # fmt: skip
        if not float(left.norm()) < 0.5 * before:
            break
    del matrix, factor
    whole = torch.cat([rows(start, stop) for start, stop in parts])
    whole.diagonal().add_(shift)
    return solve_positive(whole, right, shift)
