"""Tensors and arrays of the same bits: numpy has no bfloat16, so its 16 bits stand in a uint16.

Everything that leaves a memory, for a file or another thread, does so in these arrays, and comes
back from them without a rounding.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["dtype_named", "from_bits", "name_of", "to_bits", "widen"]


def name_of(dtype: torch.dtype) -> str:
    """What a dtype is called in settings and files: "float32", "bfloat16", …"""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """The dtype of that name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def to_bits(tensor: Tensor) -> NDArray[np.generic]:
    """A tensor as a C-contiguous array of its bits, on the host.

    Without a copy where the tensor lies so already, as a view for writing too.
    """
    tensor = tensor.detach().to("cpu").contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    array: NDArray[np.generic] = tensor.numpy()
    return array


def from_bits(array: NDArray[np.generic], dtype: torch.dtype) -> Tensor:
    """The tensor of an array: bfloat16 from its bits in uint16, any other number by its value.

    Args:
        array: any shape; copied only if it cannot be written to or is not contiguous.
        dtype: of the result. Numbers that are not of this dtype are converted; a float32 that
            equals a bfloat16 becomes just that.
    """
    whole = np.require(array, requirements=["C", "W"])
    if dtype == torch.bfloat16 and whole.dtype == np.uint16:
        return torch.from_numpy(whole.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(whole).to(dtype)


def widen(array: NDArray[np.generic]) -> NDArray[np.float32]:
    """The float32 numbers that bfloat16 bits equal, exactly."""
    wide: NDArray[np.float32] = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide
