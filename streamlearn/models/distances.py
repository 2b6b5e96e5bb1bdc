"""Distances between rows, and the median that sets a Gaussian's width."""

import torch
from torch import Tensor

__all__ = ["gaussian", "median_distance", "square_distances"]

_ROWS = 2048


def square_distances(left: Tensor, right: Tensor) -> Tensor:
    """`‖a − b‖²` of all rows of (n, D) and (m, D), (n, m), by one matrix product.

    In float64: the products cancel where rows are close.
    """
    left, right = left.to(torch.float64), right.to(torch.float64)
    squares = left.square().sum(-1)[:, None] + right.square().sum(-1)  # (n, m)
    return squares.addmm_(left, right.T, alpha=-2).clamp_min_(0)


def gaussian(left: Tensor, right: Tensor, bandwidth: float) -> Tensor:
    """`exp(−‖a − b‖²/(2h²))` of all rows, (n, m) float64."""
    return square_distances(left, right).mul_(-0.5 / bandwidth**2).exp_()


def median_distance(rows: Tensor) -> float:
    """The median distance between different rows among the first 2,048; 1 where it is 0.

    Args:
        rows: (n, D).
    """
    first = rows[:_ROWS]
    above = torch.triu_indices(len(first), len(first), offset=1, device=rows.device)
    distances = square_distances(first, first)[above[0], above[1]]
    if len(distances) == 0:
        return 1.0
    return float(distances.median().sqrt()) or 1.0
