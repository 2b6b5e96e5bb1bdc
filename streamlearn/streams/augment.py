"""The augmentation of images: a shifted crop and a flip, drawn anew for every epoch."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import ConfigError

__all__ = ["AugmentName", "Augmentation", "shifted"]

AugmentName = Literal["none", "paper"]

PAD = 4
"""Pixels by which an image is shifted at most, along each side."""

_SHIFTS = 2 * PAD + 1


class Augmentation:
    """Reflection by 4 pixels at every side, a random crop of the image's size, a random flip.

    What an item becomes depends on the seed, the epoch and the item's position in the data set
    alone: not on batches, so that a resumed run sees the same images.

    Args:
        shape: of the items.
        count: items of the data set.
        seed: of the draws.

    Raises:
        ConfigError: the items are no images, or too small to be reflected.

    Source: arXiv 2610.03858, §F.
    """

    def __init__(self, shape: tuple[int, ...], count: int, seed: int) -> None:
        if len(shape) != 3 or min(shape[1:]) <= PAD:
            raise ConfigError(
                f"data.augment=paper needs images of more than {PAD} pixels a side, but items have "
                f"shape {shape}; leave it out"
            )
        self._count = count
        self._seed = seed
        self._drawn: tuple[int, NDArray[np.uint64]] | None = None  # of the latest epoch

    def __call__(self, images: Tensor, index: Tensor, epoch: int) -> Tensor:
        """Images (B, channels, height, width) of the items `index` (B,) as this epoch has them."""
        words = torch.from_numpy((self._words(epoch)[index.numpy()] >> 8).astype(np.int64))
        down, words = words % _SHIFTS - PAD, words // _SHIFTS
        right, words = words % _SHIFTS - PAD, words // _SHIFTS
        return shifted(images, down, right, words % 2 == 1)

    def _words(self, epoch: int) -> NDArray[np.uint64]:
        """A random word of each item."""
        drawn = self._drawn  # read by one thread at a time, but kept whole all the same
        if drawn is None or drawn[0] != epoch:
            source = np.random.PCG64(np.random.SeedSequence(self._seed, spawn_key=(epoch, 1)))
            drawn = self._drawn = epoch, source.random_raw(self._count)
        return drawn[1]


def shifted(images: Tensor, down: Tensor, right: Tensor, flip: Tensor) -> Tensor:
    """Crops of reflected images: row y of the result is row |y + down| of its image, and so on.

    Args:
        images: (B, channels, height, width).
        down: (B,) rows that the crop lies lower, negative for higher.
        right: (B,) the same of columns.
        flip: (B,) whether the crop is mirrored from left to right.
    """
    height, width = images.shape[-2:]
    rows = _reflected(torch.arange(height) + down[:, None], height)  # (B, height)
    columns = torch.arange(width).expand(len(images), -1)
    columns = torch.where(flip[:, None], width - 1 - columns, columns)
    columns = _reflected(columns + right[:, None], width)  # (B, width)
    batch = torch.arange(len(images))[:, None, None, None]
    channels = torch.arange(images.shape[1])[:, None, None]
    return images[batch, channels, rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(places: Tensor, size: int) -> Tensor:
    """Places outside 0 … size − 1 mirrored at the first and the last, which are not repeated."""
    places = places.abs()
    return torch.where(places < size, places, 2 * (size - 1) - places)
