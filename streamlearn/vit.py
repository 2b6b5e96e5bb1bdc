"""A vision transformer whose feed-forward layers are dense or grow."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from streamlearn.dense import linear
from streamlearn.errors import ConfigError
from streamlearn.networks import rms_norm

__all__ = ["Attention", "VisionTransformer", "VisionTransformerBlock", "patches_of"]


def patches_of(shape: tuple[int, ...], width: int, patch: int) -> int:
    """How many patches codes of images have, when the codes are the pixels themselves.

    Args:
        shape: of a sample, (channels, height, width).
        width: of its code.
        patch: side of a patch, pixels.

    Raises:
        ConfigError: samples are no images, codes are no pixels, or patches do not fit.
    """
    if len(shape) != 3 or math.prod(shape) != width:
        raise ConfigError(
            f"network=vit needs the pixels of images, (channels, height, width), but samples of "
            f"shape {shape} come otherwise; give it images and set encoder=standardise "
            "encoder.constant=0"
        )
    if shape[1] % patch or shape[2] % patch:
        raise ConfigError(
            f"network.patch={patch} does not divide images of {shape[1]}×{shape[2]} pixels; "
            "choose a side that divides both"
        )
    return (shape[1] // patch) * (shape[2] // patch)


class Attention(nn.Module):
    """Multi-head self-attention, `softmax(QKᵀ/√d) V` of each head, without biases.

    The last projection begins at zero.

    Args:
        width: D of the tokens.
        heads: that share D.
        generator: of the first weights.
        dtype: of the parameters.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(
                f"network.heads={heads} does not divide network.width={width}; choose heads that do"
            )
        self.heads = heads
        self.into = linear(width, 3 * width, generator, bias=False, dtype=dtype)
        self.out = linear(width, width, generator, zero=True, bias=False, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D)."""
        count, length, width = tokens.shape
        parts = self.into(tokens).reshape(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        mixed = F.scaled_dot_product_attention(query, key, value)  # (B, H, T, d)
        return self.out(mixed.transpose(1, 2).reshape(count, length, width))  # type: ignore[no-any-return]


class VisionTransformerBlock(nn.Module):
    """`e ← e + attention(RMSNorm(e))`, then `e ← e + ffn(RMSNorm(e))`.

    Args:
        attention: tokens (B, T, D) → (B, T, D).
        ffn: (…, D) → (…, D): a dense block, or a growing layer that stores a tuple for each token.
    """

    def __init__(self, attention: nn.Module, ffn: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.ffn = ffn

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, T, D) to (B, T, D)."""
        tokens = tokens + self.attention(rms_norm(tokens))
        return tokens + self.ffn(rms_norm(tokens))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Patches as tokens, blocks, the mean token, and an output layer behind RMSNorm.

    Args:
        shape: of an image, (channels, height, width).
        patch: side of a patch, pixels.
        width: D of the tokens.
        hidden: blocks.
        output: D → C: dense or growing.
        generator: of the first weights.
        dtype: of the parameters.

    Source: arXiv 2610.03858, §5; arXiv 2010.11929.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        patch: int,
        width: int,
        hidden: Sequence[nn.Module],
        output: nn.Module,
        *,
        generator: torch.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.patch = patch
        count = patches_of(shape, math.prod(shape), patch)
        self.embedding = linear(shape[0] * patch**2, width, generator, dtype=dtype)
        places = torch.randn(count, width, generator=generator)
        self.places = nn.Parameter((0.1 * places).to(dtype))
        self.hidden = nn.ModuleList(hidden)
        self.output = output

    def forward(self, pixels: Tensor) -> Tensor:
        """Map flat images (B, channels·height·width) to outputs (B, C)."""
        images = pixels.reshape(len(pixels), *self.shape)
        patches = F.unfold(images, self.patch, stride=self.patch)  # (B, c·p², T)
        tokens = self.embedding(patches.transpose(1, 2)) + self.places  # (B, T, D)
        for block in self.hidden:
            tokens = block(tokens)
        return self.output(rms_norm(rms_norm(tokens).mean(1)))  # type: ignore[no-any-return]
