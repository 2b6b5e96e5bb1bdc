import hashlib
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets


@pytest.fixture
def small_cifar(monkeypatch: pytest.MonkeyPatch) -> type:
    """A stand-in for torchvision's CIFAR10 whose files are small: the loader is not under test."""

    def checksum(data: bytes) -> str:
        return hashlib.md5(data, usedforsecurity=False).hexdigest()

    class Small:
        base_folder = "cifar-10-batches-py"
        tgz_md5 = checksum(b"archive")
        train_list = (("data_batch_1", checksum(b"train")),)
        test_list = (("test_batch", checksum(b"test")),)
        meta = {"filename": "batches.meta", "md5": checksum(b"meta")}  # noqa: RUF012
        classes = tuple("abcdefghij")

        def __init__(self, root: str, train: bool = True, download: bool = False) -> None:
            if download:
                print("Extracting")
                self.write(Path(root))
            count = 12 if train else 5
            shape = (count, 32, 32, 3)
            self.data = np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8)
            self.targets = [n % 10 for n in range(count)]

        @classmethod
        def write(cls, root: Path) -> None:
            folder = root / cls.base_folder
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in (("data_batch_1", b"train"), ("test_batch", b"test")):
                (folder / name).write_bytes(data)
            (folder / "batches.meta").write_bytes(b"meta")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Small)
    return Small
