"""Data sets that lie in memory as one array: vectors or images, read by indexing."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.errors import ConfigError, DataError
from streamlearn.tasks import Classes, Outputs, Task

from .base import OnError, Rows, SkippedItem
from .splits import Request, refuse

__all__ = ["LARGEST", "ArrayDataset", "as_vectors", "no_image_size"]

LARGEST = 1e15
"""Of a feature or a target: encoders and losses square it, and sum the squares, in float32."""


class ArrayDataset:
    """Labelled rows of an array.

    Args:
        name: for people.
        classes: the classes' names; none where targets are numbers.
        features: (n, D) float32 vectors or (n, channels, height, width) uint8 images.
        targets: (n,) int64 indices into the classes, or (n, K) numbers; any value in a faulty row.
        faults: why a row cannot be used, by its position.
        on_error: "skip" names faulty rows in what `read` returns, "stop" raises at the first.
        where: what a row is a row of, in messages: "row 17 of x in FILE", counted from 0; the
            name by default.
        image_size: bring square images of this many pixels a side out of `read`.

    Raises:
        DataError: there are no rows.

    """

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        features: NDArray[np.generic],
        targets: NDArray[np.int64] | NDArray[np.float64],
        *,
        faults: Mapping[int, str] | None = None,
        on_error: OnError = "stop",
        where: str | None = None,
        image_size: int | None = None,
    ) -> None:
        self.name = name
        self.classes = tuple(classes)
        self._where = where or name
        self._features = features
        self._targets = targets
        self._faults = dict(faults or {})
        self._on_error = on_error
        if len(features) == 0:
            raise DataError(f"{self._where} is empty; give data with at least one row")
        self._faulty = np.zeros(len(features), dtype=np.bool_)
        self._faulty[list(self._faults)] = True
        fits = image_size is None or features.shape[2:] == (image_size, image_size)
        self._resize = None if fits else image_size

    @property
    def task(self) -> Task:
        """The classes, or as many outputs as there are numbers in a target."""
        return Classes(self.classes) if self.classes else Outputs(self._targets.shape[1])

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """(channels, height, width) for images, (D,) for vectors."""
        shape = self._features.shape[1:]
        return (shape[0], self._resize, self._resize) if self._resize else shape

    def __len__(self) -> int:
        return len(self._features)

    def labels(self) -> NDArray[np.int64]:
        """Every row's target, (n,), where these are classes; a faulty row's may be any."""
        return self._targets.astype(np.int64)

    def read(self, index: NDArray[np.int64]) -> Rows:
        """The rows at these positions, in this order."""
        skipped: tuple[SkippedItem, ...] = ()
        faulty = self._faulty[index]
        if faulty.any():
            skipped = tuple(
                SkippedItem(f"row {row} of {self._where}", self._faults[row])
                for row in index[faulty].tolist()
            )
            refuse(skipped, self._on_error)
            index = index[~faulty]
        features = torch.from_numpy(np.ascontiguousarray(self._features[index]))
        if self._resize:
            features = _resized(features, self._resize)
        targets = torch.from_numpy(self._targets[index])
        return Rows(features, targets, torch.from_numpy(index.copy()), skipped)


def as_vectors(
    values: NDArray[np.generic], names: Sequence[str] | None = None
) -> tuple[NDArray[np.float32], dict[int, str]]:
    """Numbers as float32 vectors, and why rows cannot be used, by their position.

    Args:
        values: (n, D) of any real type.
        names: the features' names, for the reasons; their numbers by default.

    Returns:
        (n, D) float32, and a reason for each row with NaN, infinity or a value so large that its
        square is none in float32.

    """
    with np.errstate(over="ignore"):
        vectors = values.astype(np.float32)
    faults: dict[int, str] = {}
    usable = np.abs(vectors) <= LARGEST  # False for NaN too
    for row in np.flatnonzero(~usable.all(axis=1)).tolist():
        column = int(np.flatnonzero(~usable[row])[0])
        feature = repr(names[column]) if names else str(column)
        value = values[row, column]
        beyond = f", beyond {LARGEST:g}" if np.isfinite(value) else ""
        faults[row] = f"feature {feature} is {value}{beyond}"
    return vectors, faults


def no_image_size(request: Request) -> None:
    """Refuse an image size where there are no images.

    Raises:
        ConfigError: one is given.

    """
    if request.image_size is not None:
        raise ConfigError(
            f"data.image_size={request.image_size} has no meaning for the vectors of "
            f"{request.name or request.kind}; leave it out"
        )


def _resized(images: torch.Tensor, size: int) -> torch.Tensor:
    if len(images) == 0:
        return images.new_zeros((0, images.shape[1], size, size))
    wide = torch.nn.functional.interpolate(
        images.to(torch.float32), (size, size), mode="bilinear", antialias=True
    )
    return wide.round().clamp(0, 255).to(torch.uint8)
