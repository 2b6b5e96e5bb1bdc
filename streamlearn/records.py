"""Records, dictionaries of features by any name, as rows of numbers that are standardised online.

A feature gets a column when it first comes, a category a column of its own; columns are never moved
or dropped, so what was stored of earlier rows goes on meaning the same.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import DataError
from streamlearn.recurring import PLACES, RecurringValues
from streamlearn.state import StateTree
from streamlearn.tagged import Tags

__all__ = ["Record", "RecordEncoder", "View", "plain"]

Record: TypeAlias = Mapping[Any, Any]
View: TypeAlias = Literal["standardised", "thermometer", "values"]
Array: TypeAlias = NDArray[np.float64]
_Column: TypeAlias = tuple[Hashable, tuple[Hashable] | None]

_LARGEST = 1e100
"""Of a number that is taken in: variances square it."""

_MOST_CATEGORIES = 256
"""Of one feature; all others share a column, so that identifiers cannot use up the memory."""

_OTHERS = None
"""Stands for those others; no category, since None is a missing feature."""

_CLIP = 5.0

_THRESHOLDS = np.array([-1.8, -1.2, -0.6, 0.0, 0.6, 1.2, 1.8])
_ABOVE = np.array([0.5 * math.erfc(t / math.sqrt(2)) for t in _THRESHOLDS])
"""The share of a normal variable above each threshold: a bit's mean."""
_ROOM = 64


def plain(value: Any) -> Any:
    """A numpy scalar as the Python object that it equals; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


class RecordEncoder:
    """Dictionaries as rows (B, D): a constant 1, then a column a feature, then zeros.

        x ← clip((x − m)/σ, ±5)  for numbers,  0 or 1 for a category's column

    m and σ are the mean and deviation of all values so far (Welford 1962), so nothing has to be
    known beforehand and no value outside what was learnt is looked at. A missing feature (absent,
    None, NaN, infinite or beyond 1e100) is filled by its mean, which is 0 here. Two values of a
    standardised number are 2 apart in the mean square, and so are two different categories.

    The view "thermometer" has seven columns for each number instead: whether x is above −1.8, −1.2,
    … 1.8 deviations, standardised as if x were normal. Features whose effect has steps, or adds up
    whatever the others are, are near to each other in it.

    The view "values" adds sixteen columns for each number, by which values that came before are
    near to themselves alone, see `RecurringValues`: what an identifier or a count stands for need
    not be near to what its neighbours do.

    Features that come together get their columns in the order of their names, so their order in a
    record changes nothing. A feature that holds numbers at times and text at others has columns for
    both. Booleans are numbers.

    Args:
        values: whether `track` looks for values that recur; the view "values" has none otherwise.

    Attributes:
        columns: each column's number by (feature, None) for numbers or (feature, (category,)).
    """

    def __init__(self, *, values: bool = False) -> None:
        self.columns: dict[_Column, int] = {}
        self.values = RecurringValues() if values else None
        self._categories: dict[Hashable, int] = {}
        self._numbers: Array = np.zeros(_ROOM)  # 1 where a column holds numbers
        self._count: Array = np.zeros(_ROOM)
        self._mean: Array = np.zeros(_ROOM)
        self._moment: Array = np.zeros(_ROOM)
        self._blank: Array = np.zeros(0)  # a raw row without any feature
        self._scales: tuple[Array, Array] | None = None

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def width(self) -> int:
        """Columns of a standardised code that are in use: those of features, and the constant."""
        return self.width_of("standardised")

    def width_of(self, view: View) -> int:
        """The same of any view."""
        if view == "standardised":
            return len(self.columns) + 1
        numbers = int(self._numbers[: len(self.columns)].sum())
        more = PLACES if view == "values" else len(_THRESHOLDS) - 1
        return len(self.columns) + 1 + more * numbers

    def read(self, record: Record, *, add: bool) -> Array:
        """One record as a raw row (columns,): numbers, NaN where they are missing; categories 0, 1.

        Args:
            record: features by name; it is not kept.
            add: give features and categories that are new columns of their own; else they are
                overlooked.

        Raises:
            DataError: a feature is neither a number nor hashable.
        """
        columns = self.columns
        found: list[tuple[int, float]] = []
        new: list[tuple[_Column, float]] = []
        for name, value in record.items():
            number = _number(value)
            key: _Column
            if number is None:
                value = plain(value)
                key = (name, (value,))
                column = self._category(name, value, key)
                number = 1.0
            elif math.isnan(number):
                continue
            else:
                key = (name, None)
                column = columns.get(key)
            if column is not None:
                found.append((column, number))
            elif add:
                new.append((key, number))
        for key, number in sorted(new, key=_canonical):
            name, category = key
            if category is not None and self._categories.get(name, 0) >= _MOST_CATEGORIES:
                key = (name, (_OTHERS,))
            column = columns.get(key)
            if column is None:
                column = self._add(key)
            found.append((column, number))
        if len(self._blank) < len(columns):
            self._blank = np.where(self._numbers[: len(columns)] > 0, np.nan, 0.0)
        row = self._blank.copy()
        for column, number in found:
            row[column] = number
        return row

    def _category(self, name: Hashable, value: Any, key: _Column) -> int | None:
        try:
            column = self.columns.get(key)
        except TypeError:
            raise DataError(
                f"feature {name!r} is a {type(value).__name__}, which is neither a number nor a "
                "category; give numbers, booleans or strings"
            ) from None
        if column is None and self._categories.get(name, 0) >= _MOST_CATEGORIES:
            column = self.columns.get((name, (_OTHERS,)))
        return column

    def _add(self, key: _Column) -> int:
        column = len(self.columns)
        if column == len(self._count):
            for field in ("_numbers", "_count", "_mean", "_moment"):
                setattr(self, field, np.concatenate([getattr(self, field), np.zeros(column)]))
        self.columns[plain(key[0]), key[1]] = column
        self._scales = None
        if key[1] is None:
            self._numbers[column] = 1.0
        else:
            self._categories[key[0]] = self._categories.get(key[0], 0) + 1
        return column

    def track(self, rows: Sequence[Array]) -> None:
        """Take raw rows into means and deviations, one after the other."""
        self._scales = None
        for row in rows:
            width = len(row)
            there = (self._numbers[:width] > 0) & ~np.isnan(row)
            count = self._count[:width]
            count += there
            gap = np.where(there, row - self._mean[:width], 0.0)
            self._mean[:width] += gap / np.maximum(count, 1.0)
            after = np.where(there, row - self._mean[:width], 0.0)
            self._moment[:width] += gap * after
            if self.values is not None:
                self.values.track(row, there)

    def encode(self, rows: Sequence[Array], width: int, view: View = "standardised") -> Tensor:
        """Raw rows as codes (B, width), float64; columns that a row was read without are missing.

        Args:
            rows: as `read` gave them, also before some of the columns came.
            width: columns beyond it are overlooked.
            view: what a number is turned into.
        """
        if view == "thermometer":
            return self._thermometer(rows, width)
        if view == "values":
            return self._with_values(rows, width)
        mean, scale = self._scaling()
        codes = np.zeros((len(rows), width))
        codes[:, 0] = 1.0
        for place, row in enumerate(rows):
            known = min(len(row), width - 1)
            scaled = codes[place, 1 : known + 1]
            np.subtract(row[:known], mean[:known], out=scaled)
            scaled *= scale[:known]
            scaled[np.isnan(scaled)] = 0.0
            np.clip(scaled, -_CLIP, _CLIP, out=scaled)
        return torch.from_numpy(codes)

    def _thermometer(self, rows: Sequence[Array], width: int) -> Tensor:
        codes, plain_codes, numbers, starts = self._laid_out(rows, width, len(_THRESHOLDS))
        bits = plain_codes[:, numbers, None] > _THRESHOLDS  # (B, numbers, 7)
        places = starts[numbers][:, None] + np.arange(len(_THRESHOLDS))
        codes[:, places] = (bits - _ABOVE) / np.sqrt(_ABOVE * (1 - _ABOVE))
        return torch.from_numpy(codes[:, :width])

    def _with_values(self, rows: Sequence[Array], width: int) -> Tensor:
        codes, plain_codes, numbers, starts = self._laid_out(rows, width, 1 + PLACES)
        codes[:, starts[numbers]] = plain_codes[:, numbers]
        if self.values is not None:
            places = starts[numbers][:, None] + 1 + np.arange(PLACES)
            codes[:, places] = self.values.encode(rows, np.flatnonzero(numbers).tolist())
        return torch.from_numpy(codes[:, :width])

    def _laid_out(
        self, rows: Sequence[Array], width: int, size: int
    ) -> tuple[Array, Array, NDArray[np.bool_], NDArray[np.intp]]:
        """Codes in which a number has so many columns, zeros so far, and a category one.

        Returns:
            The codes (B, at least `width`), the standardised ones (B, columns), which columns are
            numbers, and where each begins.
        """
        known = len(self.columns)
        plain_codes = self.encode(rows, known + 1).numpy()[:, 1:]
        numbers = self._numbers[:known] > 0
        sizes = np.where(numbers, size, 1)
        starts = 1 + np.cumsum(sizes) - sizes
        codes = np.zeros((len(rows), max(width, int(sizes.sum()) + 1)))
        codes[:, 0] = 1.0
        codes[:, starts[~numbers]] = plain_codes[:, ~numbers]
        return codes, plain_codes, numbers, starts

    def _scaling(self) -> tuple[Array, Array]:
        """What is subtracted from each column, and what the rest is multiplied with."""
        if self._scales is None:
            known = len(self.columns)
            numbers = self._numbers[:known] > 0
            mean = self._mean[:known].copy()
            variance = self._moment[:known] / np.maximum(self._count[:known], 1.0)
            # What is left of equal numbers after rounding is no variation.
            varies = variance > (1e-7 * mean) ** 2
            scale = np.where(varies, 1.0 / np.sqrt(np.where(varies, variance, 1.0)), ~numbers)
            self._scales = mean, scale
        return self._scales

    def state_dict(self, tags: Tags) -> StateTree:
        """The columns in their order, and each one's count, mean and sum of squared deviations."""
        known = len(self.columns)
        return {
            "columns": [
                [tags.encode(name), None if category is None else tags.encode(category)]
                for name, category in self.columns
            ],
            "statistics": torch.from_numpy(
                np.stack([part[:known] for part in (self._count, self._mean, self._moment)])
            ),
            "values": None if self.values is None else self.values.state_dict(),
        }

    def load_state_dict(self, state: StateTree, tags: Tags) -> None:
        """Restore all of that."""
        self.__init__(values=self.values is not None)  # type: ignore[misc]
        for name, category in state["columns"]:
            self._add((tags.decode(name), None if category is None else tags.decode(category)))
        known = len(self.columns)
        self._scales = None
        for part, saved in zip(
            (self._count, self._mean, self._moment), state["statistics"].numpy(), strict=True
        ):
            part[:known] = saved
        if self.values is not None and state.get("values") is not None:
            self.values.load_state_dict(state["values"])


def _number(value: Any) -> float | None:
    """A number, NaN for what is missing, or None for what is no number."""
    if type(value) is float:
        return value if abs(value) <= _LARGEST else math.nan
    if value is None:
        return math.nan
    if not isinstance(value, (int, float, np.number, np.bool_, Decimal, Fraction)):
        return None
    if isinstance(value, np.complexfloating):
        return None
    try:
        number = float(value)
    except OverflowError:  # an int beyond float64
        return math.nan
    return number if abs(number) <= _LARGEST else math.nan


def _canonical(found: tuple[_Column, float]) -> tuple[str, str, str, str]:
    name, category = found[0]
    value = "" if category is None else category[0]
    return type(name).__name__, str(name), type(value).__name__, str(value)
