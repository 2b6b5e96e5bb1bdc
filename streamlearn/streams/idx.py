"""The idx files of MNIST and its likes: a header of sizes, then bytes; plain or gzipped."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import DataError

__all__ = ["IDX_STEMS", "IdxSet", "find_idx", "read_idx_part"]

IDX_STEMS = ("train-images", "train-labels", "t10k-images", "t10k-labels")

IdxSet = dict[str, Path]
"""Where the four files are, by stem: train-images, train-labels, t10k-images, t10k-labels."""


def find_idx(folder: Path) -> IdxSet:
    """Those of the four files that lie in a folder, plain ones before gzipped ones."""
    found: IdxSet = {}
    for stem in IDX_STEMS:
        kind = "idx3" if stem.endswith("images") else "idx1"
        names = (f"{stem}-{kind}-ubyte", f"{stem}.{kind}-ubyte")
        for name in (*names, *(f"{name}.gz" for name in names)):
            if (folder / name).is_file():
                found[stem] = folder / name
                break
    return found


def read_idx_part(files: IdxSet, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The (n, 1, height, width) images and (n,) labels of a part, "train" or "t10k".

    Raises:
        DataError: a file is damaged, or there are not as many labels as images.

    """
    images = _read(files[f"{part}-images"], 3)
    labels = _read(files[f"{part}-labels"], 1)
    if len(images) != len(labels):
        raise DataError(
            f"{files[f'{part}-images']} has {len(images)} images but "
            f"{files[f'{part}-labels']} has {len(labels)} labels; get both files again"
        )
    return images[:, None], labels.astype(np.int64)


def _read(path: Path, dimensions: int) -> NDArray[np.uint8]:
    remedy = "get the file again"
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); {remedy}") from error
    start = 4 + 4 * dimensions
    # Two zero bytes, the type (8: unsigned bytes), the number of sizes, the sizes.
    if len(data) < start or data[:4] != bytes((0, 0, 8, dimensions)):
        raise DataError(f"{path} is not an idx file of {dimensions} dimension(s); {remedy}")
    shape = struct.unpack_from(f">{dimensions}I", data, 4)
    count = 1
    for size in shape:
        count *= size
    if len(data) != start + count:
        raise DataError(
            f"{path} has {len(data) - start} bytes where its header says {count}; {remedy}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)
