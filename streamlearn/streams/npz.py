"""Arrays in one .npz file: x and y, and x_test and y_test where there is a test part."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import ConfigError, DataError, DataNotFoundError

from .arrays import ArrayDataset, as_vectors, no_image_size
from .splits import Request, Splits, given_path, hold_out

__all__ = ["open_npz"]

_DAMAGE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


def open_npz(request: Request) -> Splits:
    """The arrays of `path`: x of vectors (n, D) or uint8 images, y of labels.

    Images are (n, height, width), (n, channels, height, width) or (n, height, width, channels)
    with 1 or 3 channels. Labels are integers, strings or booleans; their classes are those of y,
    sorted. Without x_test and y_test part of the rows is held out.

    Raises:
        ConfigError: no path, or an image size for vectors.
        DataNotFoundError: there is no such file.
        DataError: the file is damaged, a key is missing, or an array does not mean rows or labels.

    """
    place = request.path or request.root
    if place is None:
        raise ConfigError("data=npz needs data.path=FILE, an .npz file with the arrays x and y")
    place = given_path(place)
    arrays = _load(place)
    features, faults = _features(arrays["x"], place, "x")
    if features.ndim == 2:
        no_image_size(request)
    labels = _labels(arrays["y"], len(features), place, "y")
    distinct, targets = np.unique(labels, return_inverse=True)
    classes = [str(label) for label in distinct.tolist()]

    def dataset(
        x: NDArray[np.generic], y: NDArray[np.int64], faults: dict[int, str], key: str
    ) -> ArrayDataset:
        return ArrayDataset(
            place.name,
            classes,
            x,
            y,
            faults=faults,
            on_error=request.on_error,
            where=f"{key} in {place}",
            image_size=request.image_size,
        )

    train = dataset(features, targets.astype(np.int64).reshape(-1), faults, "x")
    if "x_test" not in arrays:
        return hold_out(train, request.holdout)
    tests, faults = _features(arrays["x_test"], place, "x_test")
    if tests.shape[1:] != features.shape[1:]:
        raise DataError(
            f"{place}: an item of x_test has shape {tests.shape[1:]} but one of x has "
            f"{features.shape[1:]}; save both alike"
        )
    labels_test = _labels(arrays["y_test"], len(tests), place, "y_test")
    if _kind(labels_test) != _kind(labels):
        raise DataError(
            f"{place}: y_test holds {_kind(labels_test)} but y holds {_kind(labels)}; "
            "save both with the same type"
        )
    known = np.isin(labels_test, distinct)
    # searchsorted gives len(distinct) for a label beyond the last class, but that row is faulty.
    targets = np.where(known, np.searchsorted(distinct, labels_test), 0)
    for row in np.flatnonzero(~known).tolist():
        faults[row] = f"label {labels_test[row].item()!r} is none of the {len(classes)} classes"
    return Splits(train, dataset(tests, targets.astype(np.int64), faults, "x_test"))


def _load(place: Path) -> dict[str, NDArray[np.generic]]:
    if not place.exists():
        raise DataNotFoundError(f"there is no file {place}; give an .npz file by data.path=FILE")
    if place.is_dir():
        raise DataError(f"{place} is a folder; give an .npz file by data.path=FILE")
    try:
        file = np.load(place, allow_pickle=False)
    except _DAMAGE as error:
        raise DataError(
            f"{place} cannot be read as .npz; write it with numpy.savez(FILE, x=…, y=…)"
        ) from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise DataError(f"{place} holds one bare array; write it with numpy.savez(FILE, x=…, y=…)")
    arrays: dict[str, NDArray[np.generic]] = {}
    with file:
        has_test = "x_test" in file.files or "y_test" in file.files
        for key in ("x", "y", "x_test", "y_test") if has_test else ("x", "y"):
            if key not in file.files:
                raise DataError(
                    f"{place} has no array {key!r} but {', '.join(sorted(file.files)) or 'none'}; "
                    f"write it with numpy.savez(FILE, x=…, y=…{', x_test=…, y_test=…' * has_test})"
                )
            try:
                arrays[key] = file[key]
            except _DAMAGE as error:
                if "pickle" in str(error).lower():
                    raise DataError(
                        f"{place}: {key} is an array of Python objects; save numbers or strings, "
                        f"such as {key}.astype({'float' if key[0] == 'x' else 'str'})"
                    ) from error
                raise DataError(
                    f"{place}: {key} is damaged ({error}); write the file again"
                ) from error
    return arrays


def _features(
    values: NDArray[np.generic], place: Path, key: str
) -> tuple[NDArray[np.generic], dict[int, str]]:
    if values.ndim == 2 and values.dtype.kind in "fiub":
        return as_vectors(values)
    if values.ndim in (3, 4) and values.dtype == np.uint8:
        if values.ndim == 3:
            return values[:, None], {}
        if values.shape[1] in (1, 3):
            return values, {}
        if values.shape[3] in (1, 3):
            return values.transpose(0, 3, 1, 2), {}
        problem = "has neither 1 nor 3 channels; save grey or RGB images"
    elif values.ndim in (3, 4):
        problem = "has images that are not uint8; save pixels of 0 to 255 by .astype('uint8')"
    elif values.ndim == 2:
        problem = "holds no real numbers; save it by .astype('float32')"
    else:
        problem = "must be vectors (n, D) or uint8 images; bring it to such a shape"
    raise DataError(f"{place}: {key} of shape {values.shape} and type {values.dtype} {problem}")


def _labels(values: NDArray[np.generic], count: int, place: Path, key: str) -> NDArray[np.generic]:
    if values.ndim != 1 or values.dtype.kind not in "iubUS":
        raise DataError(
            f"{place}: {key} of shape {values.shape} and type {values.dtype} holds no labels; "
            "save one integer, string or boolean a row, such as "
            f"{key}.ravel().astype({'int' if values.dtype.kind == 'f' else 'str'})"
        )
    if len(values) != count:
        raise DataError(
            f"{place}: {key} has {len(values)} labels for the {count} rows of "
            f"{key.replace('y', 'x')}; give each row one label"
        )
    if values.dtype.kind == "S":
        return np.char.decode(values.astype(np.bytes_), "utf-8", "backslashreplace")
    return values


def _kind(labels: NDArray[np.generic]) -> str:
    return {"b": "booleans", "U": "strings"}.get(labels.dtype.kind, "integers")
