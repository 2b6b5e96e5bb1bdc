"""Rows of numbers as whole numbers from −127 to 127, a byte each, and one scale a row.

    scale = ⌈max|k| / 127⌉,  codes = round(k / scale),  k ≈ scale · codes

The scale is rounded up to 17 binary digits, by at most one part in 65,000. A product with seven
more is then exact in float32, so the largest number of a row gets the code ±127 again, and what was
rounded once stays as it is whenever it is read and written again.
"""

import torch
from torch import Tensor

__all__ = ["LEAST", "dequantised", "quantised"]

LEAST = 2.0**-100
"""The smallest scale; a row of nothing above half of it is a row of zeros, whose scale is 0."""

_STEPS = 127
_SPARE_BITS = 7  # of float32's 24 binary digits, for the factor up to 127


def quantised(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (n, D) int8 and scales (n,) float32 of rows.

    Each number moves by at most half of its row's scale (and float32's rounding of the quotient). A
    row with a NaN or infinity gets the scale NaN, which `dequantised` passes on.

    Args:
        rows: (n, D), any floating dtype.
    """
    rows = rows.detach().to(torch.float32)
    largest = rows.abs().amax(-1)  # (n,)
    spare = (1 << _SPARE_BITS) - 1
    scale = (((largest / _STEPS).view(torch.int32) + spare) & ~spare).view(torch.float32)
    scale = torch.where(largest > 0.5 * LEAST, scale.clamp_min(LEAST), 0.0)
    divisor = torch.where(scale > 0, scale, 1.0)
    codes = (rows / divisor[:, None]).round_().nan_to_num_(0.0, 0.0, 0.0)
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    return codes.to(torch.int8), scale


def dequantised(codes: Tensor, scale: Tensor, out: Tensor) -> Tensor:
    """Fill `out` (n, D) with the numbers, exactly in float32 and float64, else rounded once.

    Args:
        codes: (n, D) int8.
        scale: (n,).
        out: (n, D), any floating dtype.
    """
    return out.copy_(codes).mul_(scale[:, None])
