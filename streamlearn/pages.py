"""Memory for blocks on the host, in the large pages that numpy asks the system for.

Filling a fresh block is mostly the system's handing out of pages: 2 MiB at a time instead of 4 KiB
halves what it takes to append to a wide memory.
"""

import math

import numpy as np
import torch
from torch import Tensor

__all__ = ["zeros"]

_ALIGNMENT = 64  # as PyTorch's own, for the bits of a GEMM may depend on it
_LARGE = 4 << 20  # from here on numpy asks for large pages


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros in host memory; pages that nobody writes to take none."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE:
        return torch.zeros(shape, dtype=dtype)
    flat = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -flat.ctypes.data % _ALIGNMENT
    return torch.from_numpy(flat[start : start + size]).view(dtype).view(shape)
