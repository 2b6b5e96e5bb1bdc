"""MNIST and Fashion-MNIST: four idx files, in torchvision's layout or in one flat folder."""

import importlib
from pathlib import Path

import numpy as np

from streamlearn.errors import DataError

from .arrays import ArrayDataset
from .base import Dataset
from .idx import IDX_STEMS, IdxSet, find_idx, read_idx_part
from .splits import Request, Splits
from .trees import printable
from .vision import KnownSet, open_known

__all__ = ["open_fashion", "open_mnist"]

_DIGITS = tuple(str(digit) for digit in range(10))
_CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the original files."""


def open_mnist(request: Request) -> Splits:
    """MNIST: 60,000 and 10,000 images (1, 28, 28) of 10 digits."""
    return open_known(_known("MNIST", "MNIST", _DIGITS), request)


def open_fashion(request: Request) -> Splits:
    """Fashion-MNIST: 60,000 and 10,000 images (1, 28, 28) of 10 kinds of clothing."""
    return open_known(_known("Fashion-MNIST", "FashionMNIST", _CLOTHES, _DEBIAN), request)


def _known(title: str, kind: str, classes: tuple[str, ...], *system: Path) -> KnownSet:
    def splits(files: IdxSet, request: Request) -> Splits:
        return Splits(
            _part(title, classes, files, "train", request),
            _part(title, classes, files, "t10k", request),
        )

    def read(root: Path, request: Request) -> Splits | None:
        files = find_idx(root / kind / "raw")
        # A download that was cut is made anew.
        return splits(files, request) if len(files) == len(IDX_STEMS) else None

    def read_plain(root: Path, request: Request) -> Splits | None:
        files = find_idx(root)
        lacking = [stem for stem in IDX_STEMS if stem not in files]
        if files and lacking:
            raise DataError(
                f"{printable(str(root))} has the {', '.join(files)} of {title} but not the "
                f"{', '.join(lacking)}; put the missing idx files beside them"
            )
        return splits(files, request) if files else None

    def download(root: Path) -> None:
        getattr(importlib.import_module("torchvision.datasets"), kind)(str(root), download=True)

    return KnownSet(
        title,
        len(classes),
        "the four files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte "
        "and t10k-labels-idx1-ubyte (or the same with .gz)",
        read,
        read_plain,
        download,
        f"{kind}/raw",
        system,
    )


def _part(
    title: str, classes: tuple[str, ...], files: IdxSet, part: str, request: Request
) -> Dataset:
    images, labels = read_idx_part(files, part)
    return ArrayDataset(
        title,
        classes,
        images,
        labels,
        faults={
            row: f"label {labels[row]} is none of the {len(classes)} classes"
            for row in np.flatnonzero(labels >= len(classes)).tolist()
        },
        on_error=request.on_error,
        where=printable(str(files[f"{part}-images"])),
        image_size=request.image_size,
    )
