"""Domains: the same classes again and again, while what their features look like changes.

Experience i of N, counted from 0, is changed by a transformation that follows from the seed and i
alone; in the first one nothing is. Images keep their shape, and pixels stay whole numbers from 0 to
255.

    permute      pixels, or features, in another order, drawn for each experience
    rotate       by i · 180°/N counter-clockwise, black where nothing is
    brightness   x → 128 + c (x − 128) + b, c drawn from 0.4 … 1.6 and b from −64 … 64
    noise        normal noise is added, of variance i/(N − 1) · 64²

Source: Goodfellow et al., arXiv 1312.6211 (permuted pixels); Lopez-Paz and Ranzato, arXiv
1706.08840 (rotations).
"""

import math
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import ConfigError

__all__ = ["DomainName", "Domains"]

DomainName = Literal["permute", "rotate", "brightness", "noise"]

_STREAM = 0xD0A1
"""Keeps what is drawn apart from all else that a seed is used for."""

_DEVIATION = 64.0
"""Of the noise in the last experience."""


class Domains:
    """What the experiences of a stream do to features.

    Args:
        kind: of the transformation.
        count: N, experiences.
        shape: of an item.
        seed: of what is drawn.

    Raises:
        ConfigError: items are no images, where only these can be transformed so.
    """

    def __init__(self, kind: DomainName, count: int, shape: tuple[int, ...], seed: int) -> None:
        if kind != "permute" and len(shape) != 3:
            raise ConfigError(
                f"data.domain={kind} needs images, but items have shape {shape}; set "
                "data.domain=permute"
            )
        self.kind: DomainName = kind
        self._count = count
        self._shape = shape
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    @property
    def names(self) -> tuple[str, ...]:
        """What each domain is called, for people."""
        return tuple(self._name(number) for number in range(self._count))

    def _name(self, number: int) -> str:
        if self.kind == "permute":
            return f"permute {number + 1}"
        if self.kind == "rotate":
            return f"rotate {self._degrees(number):.4g}°"
        if self.kind == "noise":
            return f"noise σ {self._deviation(number):.1f}"
        contrast, brightness = self._light(number)
        return f"brightness {brightness:+d}, contrast {contrast:.2f}"

    def __call__(
        self, features: Tensor, index: Tensor, number: int, *, held_out: bool = False
    ) -> Tensor:
        """Features (B, …) as they are in a domain.

        Args:
            features: as the data set has them.
            index: (B,) the items' positions in it, which noise follows from.
            number: of the experience, from 0.
            held_out: whether these items are not learnt: their noise is another one.
        """
        if number == 0 or not len(features):
            return features
        if self.kind == "permute":
            return self._permuted(features, number)
        if self.kind == "rotate":
            return _rotated(features, self._degrees(number))
        if self.kind == "noise":
            wide = features.double() + self._noise(index.numpy(), number, held_out)
        else:
            contrast, brightness = self._light(number)
            wide = 128 + contrast * (features.double() - 128) + brightness
        return _pixels(wide)

    def _words(self, number: int, count: int) -> NDArray[np.uint64]:
        sequence = np.random.SeedSequence(self._seed, spawn_key=(_STREAM, number))
        return np.random.PCG64(sequence).random_raw(count)

    def _permuted(self, features: Tensor, number: int) -> Tensor:
        flat = features.flatten(-2) if len(self._shape) == 3 else features  # channels go together
        order = np.argsort(self._words(number, flat.shape[-1]), kind="stable")
        return flat[..., torch.from_numpy(order)].reshape(features.shape)

    def _degrees(self, number: int) -> float:
        return 180.0 * number / self._count

    def _deviation(self, number: int) -> float:
        return _DEVIATION * math.sqrt(number / max(self._count - 1, 1))

    def _light(self, number: int) -> tuple[float, int]:
        """Contrast and brightness, as their names say them."""
        if number == 0:
            return 1.0, 0
        drawn = self._words(number, 2).tolist()
        return (40 + drawn[0] % 121) / 100, drawn[1] % 129 - 64

    def _noise(self, index: NDArray[np.int64], number: int, held_out: bool) -> Tensor:
        """Normal numbers (B, …), an item's the same in whichever batch it comes."""
        size = math.prod(self._shape)
        words = np.stack(
            [
                np.random.Philox(
                    key=self._seed, counter=[0, item, number, int(held_out)]
                ).random_raw(-(-size // 2))
                for item in index.tolist()
            ]
        )  # (B, size/2), two numbers each, by Box and Muller
        first = ((words >> np.uint64(32)) + np.uint64(1)) * 2.0**-32  # in (0, 1]
        angle = (words & np.uint64(0xFFFFFFFF)) * (2.0**-31 * math.pi)
        radius = np.sqrt(-2.0 * np.log(first))
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        rows = torch.from_numpy(both[:, :size])
        return self._deviation(number) * rows.reshape(len(index), *self._shape)


def _rotated(images: Tensor, degrees: float) -> Tensor:
    """Images turned counter-clockwise around their middle, bilinearly."""
    height, width = images.shape[-2:]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Where each pixel comes from, in units of half a side, as `grid_sample` has them.
    back = torch.tensor([[cosine, -sine * height / width, 0], [sine * width / height, cosine, 0]])
    grid = F.affine_grid(back.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return _pixels(F.grid_sample(images.float(), grid, align_corners=False))


def _pixels(wide: Tensor) -> Tensor:
    return wide.round().clamp(0, 255).to(torch.uint8)
