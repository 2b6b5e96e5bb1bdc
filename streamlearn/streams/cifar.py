"""CIFAR-10 and CIFAR-100, in torchvision's layout read by torchvision itself."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.errors import DataError

from .arrays import ArrayDataset
from .base import Dataset
from .splits import Request, Splits
from .trees import printable
from .vision import KnownSet, open_known, quietly

__all__ = ["open_cifar10", "open_cifar100"]


def open_cifar10(request: Request) -> Splits:
    """CIFAR-10: 50,000 and 10,000 images (3, 32, 32) of 10 classes."""
    return open_known(_known(10, "CIFAR10", "cifar-10-batches-py", "cifar-10-python"), request)


def open_cifar100(request: Request) -> Splits:
    """CIFAR-100: 50,000 and 10,000 images (3, 32, 32) of 100 classes."""
    return open_known(_known(100, "CIFAR100", "cifar-100-python", "cifar-100-python"), request)


def _known(classes: int, kind: str, folder: str, stem: str) -> KnownSet:
    title, archive = f"CIFAR-{classes}", f"{stem}.tar.gz"

    def read(root: Path, request: Request) -> Splits | None:
        if not (root / folder).is_dir() and not (root / archive).is_file():
            return None
        return _read(title, _torchvision(kind), root, root / archive, request)

    def download(root: Path) -> None:
        _torchvision(kind)(str(root), download=True)

    return KnownSet(
        title,
        classes,
        f"torchvision's {folder}/ or {archive}",
        read,
        lambda root, request: None,
        download,
        folder,
    )


def _read(title: str, kind: Any, root: Path, archive: Path, request: Request) -> Splits:
    damaged = _damaged(kind, root)
    if damaged is not None:
        if not archive.is_file():
            raise DataError(
                f"{printable(str(damaged))} is damaged or missing; remove the folder around it "
                f"to have {title} downloaded anew"
            )
        if not _intact(archive, kind.tgz_md5):
            raise DataError(
                f"the archive {printable(str(archive))} is damaged (its checksum is wrong); "
                f"remove it to have {title} downloaded anew"
            )

    def part(train: bool) -> Dataset:
        with quietly():
            # With an intact archive, "download" only unpacks it.
            loaded = kind(str(root), train=train, download=train and damaged is not None)
        return ArrayDataset(
            title,
            loaded.classes,
            loaded.data.transpose(0, 3, 1, 2),  # (n, 3, 32, 32)
            np.asarray(loaded.targets, dtype=np.int64),
            on_error=request.on_error,
            image_size=request.image_size,
        )

    return Splits(part(True), part(False))


def _damaged(kind: Any, root: Path) -> Path | None:
    """The first file of the layout that is missing or has another checksum."""
    meta = (kind.meta["filename"], kind.meta["md5"])
    for name, checksum in (*kind.train_list, *kind.test_list, meta):
        path = root / str(kind.base_folder) / str(name)
        if not _intact(path, checksum):
            return path
    return None


def _intact(path: Path, checksum: str) -> bool:
    utils = importlib.import_module("torchvision.datasets.utils")
    return bool(utils.check_integrity(path, checksum))


def _torchvision(kind: str) -> Any:
    return getattr(importlib.import_module("torchvision.datasets"), kind)
