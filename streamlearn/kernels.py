"""Kernels: how strongly a stored key answers a query, as in-place steps on a block of scores.

A kernel turns `⟨k, q⟩` of a whole block into `φ(k, q)`, with the query-side scaling folded into the
query before the GEMM, so that a block costs one GEMM and one or two passes over its scores.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from streamlearn.errors import ConfigError
from streamlearn.memory import Block

__all__ = ["Kernel", "default_temperature", "dot", "exponential", "rbf"]

SAFE_EXPONENT = 60.0
"""`e^60` times a million tuples is far inside float32 and bfloat16: no running maximum needed."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the inner product, and for "rbf" of the norms.

    kind: "dot" `⟨k, q⟩`; "exponential" `exp(c⟨k, q⟩)`; "rbf" `exp(−c/2·‖k − q‖²)`.
    scale: c.
    normalised: divide by the weighted sum of the kernel (weighted softmax).
    linear: 1 + x instead of e^x, which makes retrieval linear attention; for evaluation only.
    """

    kind: Literal["dot", "exponential", "rbf"]
    scale: float
    normalised: bool
    linear: bool = False

    def scores_(self, block: Block, query: Tensor, query_square: Tensor, out: Tensor) -> Tensor:
        """Fill `out` with the kernel's exponent, or with `⟨k, q⟩` for "dot".

        Args:
            block: the keys (n, D).
            query: (B, D) in the block's dtype, already multiplied by `scale`.
            query_square: (B, 1) `‖q‖²` of the unscaled query.
            out: (B, n) scratch of the block's dtype; may be the transpose of contiguous rows.
        """
        key = block.key[: block.padded]
        turned = not out.is_contiguous()
        if self.kind != "rbf":
            if turned:
                torch.mm(key, query.T, out=out.T)  # (n, B)
            else:
                torch.mm(query, key.T, out=out)  # (B, n)
            return out
        bias = ((-0.5 * self.scale) * block.key_square[: block.padded]).to(out.dtype)
        if turned:
            torch.addmm(bias[:, None], key, query.T, out=out.T)  # (n, B)
        else:
            torch.addmm(bias, query, key.T, out=out)  # (B, n)
        return out.sub_((0.5 * self.scale) * query_square.to(out.dtype))

    def bound(self, query_square: Tensor, max_key_square: float) -> float:
        """An upper bound of every exponent, by Cauchy–Schwarz; 0 where it cannot be positive."""
        if self.kind != "exponential" or self.linear or len(query_square) == 0:
            return 0.0
        return self.scale * math.sqrt(float(query_square.max()) * max_key_square)


def default_temperature(width: int) -> float:
    """T = √D/6, so that the largest logit κ = √D/T of normalised keys is 6 at every width."""
    return math.sqrt(width) / 6.0


def exponential(width: int, temperature: float) -> Kernel:
    """The weighted softmax's kernel, `exp(⟨k, q⟩/(T√D))`, normalised by its weighted sum.

    Source: arXiv 2610.03858, §3.2.
    """
    if not temperature > 0:
        raise ConfigError(f"layer.temperature={temperature} must be above 0")
    return Kernel("exponential", 1.0 / (temperature * math.sqrt(width)), normalised=True)


def rbf(width: int, gamma: float) -> Kernel:
    """The radial basis function `exp(−γ‖k − q‖²/D)`; γ = √D/(2T) is softmax at temperature T.

    Source: arXiv 2610.03858, §3.1.
    """
    if not gamma > 0:
        raise ConfigError(f"layer.gamma={gamma} must be above 0")
    return Kernel("rbf", 2.0 * gamma / width, normalised=False)


def dot() -> Kernel:
    """The linear layer's dual form, `⟨k, q⟩`.

    Source: arXiv 2610.03858, §2.
    """
    return Kernel("dot", 1.0, normalised=False)
