"""Values of numbers that come again, as a few columns of a code beside the standardised number."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.state import StateTree

__all__ = ["PLACES", "RecurringValues"]

_DIGITS = 8
PLACES = 2 * _DIGITS
"""Columns that a number has for its values."""

_MOST = _DIGITS**2
"""Values of one number that are told apart."""

_ONCE = 1024
"""Values of one number that are remembered until they come again; the oldest are forgotten."""

Array = NDArray[np.float64]


class RecurringValues:
    """Codes by which equal values of a number are near, whatever their neighbours are.

    The n-th value of a number that comes for the second time, counted from 0, is written as the two
    digits of n to the base of 8, each one a 1/√2 among 8 columns. So two values have a product of 0
    or 1/2, and each has one of 1 with itself. A value that came but once, as most measurements do,
    and each after the 64th, is all zeros; what was given stays as it is.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, dict[float, int]] = {}  # n, by column and value
        self._once: dict[int, dict[float, None]] = {}  # those that came once, by age

    def track(self, row: Array, there: NDArray[np.bool_]) -> None:
        """Look at the values of one raw row.

        Args:
            row: (columns,), as `RecordEncoder.read` gives it.
            there: which of them are numbers that are not missing.
        """
        for column in np.flatnonzero(there).tolist():
            value = float(row[column])
            numbers = self._numbers.setdefault(column, {})
            if len(numbers) == _MOST or value in numbers:
                continue
            once = self._once.setdefault(column, {})
            if value in once:
                del once[value]
                numbers[value] = len(numbers)
                if len(numbers) == _MOST:
                    once.clear()
                continue
            once[value] = None
            if len(once) > _ONCE:
                del once[next(iter(once))]

    def encode(self, rows: Sequence[Array], columns: Sequence[int]) -> Array:
        """Codes (B, columns, `PLACES`) of what some columns of raw rows hold."""
        codes = np.zeros((len(rows), len(columns), PLACES))
        for place, row in enumerate(rows):
            for which, column in enumerate(columns):
                if column >= len(row):
                    continue
                number = self._numbers.get(column, {}).get(float(row[column]))
                if number is not None:
                    first, second = divmod(number, _DIGITS)
                    codes[place, which, [first, _DIGITS + second]] = 0.5**0.5
        return codes

    def state_dict(self) -> StateTree:
        """The values (column, value) with a code in the order of these, and those without."""
        return {"numbers": _pairs(self._numbers), "once": _pairs(self._once)}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore that."""
        self._numbers, self._once = {}, {}
        for column, value in state["numbers"].tolist():
            numbers = self._numbers.setdefault(int(column), {})
            numbers[value] = len(numbers)
        for column, value in state["once"].tolist():
            self._once.setdefault(int(column), {})[value] = None


def _pairs(values: dict[int, dict[float, int]] | dict[int, dict[float, None]]) -> torch.Tensor:
    """As rows (column, value) of float64, which holds both exactly."""
    rows = [(column, value) for column, own in values.items() for value in own]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
