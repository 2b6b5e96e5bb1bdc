"""Values of numbers that come again, as columns of a code beside the standardised numbers."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.state import StateTree

__all__ = ["RecurringValues"]

_MOST = 256
"""Values of one number that have a column, and that are remembered until they come again."""

Array = NDArray[np.float64]


class RecurringValues:
    """Which places of a code the columns of records have, and which the values of numbers.

    A value gets a place when it comes for the second time, so that numbers which never repeat, as
    measurements mostly do not, cost none; of each number at most 256. Places are given in the order
    in which columns and values come and never change, so what was stored goes on meaning the same.
    """

    def __init__(self) -> None:
        self._columns: list[int] = []  # the place of each column
        self._places: dict[tuple[int, float], int] = {}  # of (column, value)
        self._once: list[dict[float, None]] = []  # of each column, those that came once, by age
        self._given: list[int] = []  # how many values of each column have a place

    def __len__(self) -> int:
        return len(self._columns) + len(self._places)

    def add_column(self) -> None:
        """Give the next column its place."""
        self._columns.append(len(self))
        self._once.append({})
        self._given.append(0)

    def track(self, row: Array, there: NDArray[np.bool_]) -> None:
        """Look at the values of one raw row.

        Args:
            row: (columns,), as `RecordEncoder.read` gives it.
            there: which of them are numbers that are not missing.
        """
        for column in np.flatnonzero(there).tolist():
            value = float(row[column])
            if self._given[column] >= _MOST or (column, value) in self._places:
                continue
            once = self._once[column]
            if value in once:
                del once[value]
                self._places[column, value] = len(self)
                self._given[column] += 1
                continue
            once[value] = None
            if len(once) > _MOST:
                del once[next(iter(once))]

    def encode(self, rows: Sequence[Array], codes: Array, width: int) -> Array:
        """Codes with a 1 at the place of each value that has one, (B, width).

        Args:
            rows: raw ones.
            codes: theirs in the view "standardised", (B, 1 + columns).
            width: places beyond it are overlooked.
        """
        wide = np.zeros((len(rows), max(width, 1 + len(self))))
        wide[:, 0] = codes[:, 0]
        wide[:, 1 + np.array(self._columns, np.intp)] = codes[:, 1:]
        for place, row in enumerate(rows):
            for column, value in enumerate(row.tolist()):
                found = self._places.get((column, value))
                if found is not None:
                    wide[place, 1 + found] = 1.0
        return wide[:, :width]

    def state_dict(self) -> StateTree:
        """All places, and the values that came once."""
        once = [(column, value) for column, own in enumerate(self._once) for value in own]
        return {
            "columns": torch.tensor(self._columns, dtype=torch.int64),
            "places": _pairs(list(self._places), list(self._places.values())),
            "once": _pairs(once, [0] * len(once)),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore that."""
        self._columns = state["columns"].tolist()
        self._once = [{} for _ in self._columns]
        self._given = [0] * len(self._columns)
        self._places = {}
        for column, value, place in state["places"].tolist():
            self._places[int(column), value] = int(place)
            self._given[int(column)] += 1
        for column, value, _ in state["once"].tolist():
            self._once[int(column)][value] = None


def _pairs(keys: Sequence[tuple[int, float]], places: Sequence[int]) -> torch.Tensor:
    """As rows (column, value, place) of float64, which holds each exactly."""
    rows = [(column, value, place) for (column, value), place in zip(keys, places, strict=True)]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)
