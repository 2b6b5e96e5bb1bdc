"""A stream without an end, or with one that is only a number: items are made as they are read."""

import numpy as np

from streamlearn.errors import ConfigError

from .base import Dataset, Rows, Stream

__all__ = ["EndlessStream"]


class EndlessStream(Stream):
    """Items 0, 1, 2, … of a data set that has one at every position.

    Nothing about items is kept, so a cursor that is put back costs nothing, wherever it stands.

    Args:
        dataset: where the items come from; its length is never asked for.
        limit: stop after this many items; None: never.
    """

    def __init__(self, dataset: Dataset, *, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"data.limit={limit} must be at least 1; leave it out for no end")
        self.dataset = dataset
        self.order = "given"
        self.seed = 0
        self.position = 0
        self._limit = limit

    def __len__(self) -> int:
        if self._limit is None:
            raise ConfigError(
                f"the stream of {self.dataset.name} has no end to count to; set data.limit"
            )
        return self._limit

    @property
    def total(self) -> int | None:
        """The limit."""
        return self._limit

    def _stop(self, start: int, size: int) -> int:
        """Where a mini-batch ends that starts here."""
        return start + size if self._limit is None else min(start + size, self._limit)

    def _read(self, start: int, stop: int) -> Rows:
        return self.dataset.read(np.arange(start, stop, dtype=np.int64))
