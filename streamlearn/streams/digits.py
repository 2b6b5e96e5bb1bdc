"""scikit-learn's handwritten digits: 1,797 images of 8×8 pixels that come with the package."""

import importlib

import numpy as np

from .arrays import ArrayDataset, no_image_size
from .splits import Request, Splits, hold_out

__all__ = ["open_digits"]


def open_digits(request: Request) -> Splits:
    """The digits as 64-wide vectors in [0, 1]; part of them is held out."""
    no_image_size(request)
    bunch = importlib.import_module("sklearn.datasets").load_digits()
    dataset = ArrayDataset(
        "digits",
        [str(digit) for digit in range(10)],
        (np.asarray(bunch.data) / 16.0).astype(np.float32),
        np.asarray(bunch.target).astype(np.int64),
        on_error=request.on_error,
    )
    return hold_out(dataset, request.holdout)
