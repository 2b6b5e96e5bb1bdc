"""Small data sets on disk, made for the tests of this folder."""

import gzip
import io
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def pixels(seed: int, height: int = 6, width: int = 8, channels: int = 3) -> NDArray[np.uint8]:
    shape = (height, width, channels) if channels == 3 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(array: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue()


def class_folders(root: Path, counts: Mapping[str, int], channels: int = 3, seed: int = 0) -> Path:
    """`root/CLASS/NN.png` of random pixels, 6 high and 8 wide."""
    for place, (label, count) in enumerate(counts.items()):
        (root / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            data = png(pixels(1000 * seed + 100 * place + number, channels=channels))
            (root / label / f"{number:02}.png").write_bytes(data)
    return root


def zipped(folder: Path, target: Path, prefix: str = "") -> Path:
    """The files and folders of a folder as a zip file, in no useful order."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*"), reverse=True):
            archive.write(file, prefix + str(file.relative_to(folder)))
    return target


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes((0, 0, 8, values.ndim)) + sizes + values.tobytes()


def idx_files(
    folder: Path, *, train: int = 11, test: int = 4, packed: bool = False, highest: int = 9
) -> Path:
    """The four files of MNIST with random images of 5 by 4; labels count up to `highest`."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        images = np.random.default_rng(count).integers(0, 256, (count, 5, 4), dtype=np.uint8)
        labels = (np.arange(count) % (highest + 1)).astype(np.uint8)
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            data, suffix = idx_bytes(values), ""
            if packed:
                data, suffix = gzip.compress(data), ".gz"
            (folder / f"{part}-{name}-ubyte{suffix}").write_bytes(data)
    return folder
