"""The data sets that come inside the river package, by name."""

import importlib
import re
from collections.abc import Iterable, Mapping
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import ConfigError, DataError

from .arrays import LARGEST, ArrayDataset, as_vectors, no_image_size
from .base import OnError
from .splits import Request, Splits, hold_out, unknown_word

__all__ = ["dataset_of_rows", "open_river"]

_CLASSIFICATION = ("Binary classification", "Multi-class classification")
_REGRESSION = "Regression"
_TASKS = (*_CLASSIFICATION, _REGRESSION)


def open_river(request: Request) -> Splits:
    """A bundled data set by its name in river (case does not matter); part of it is held out.

    Raises:
        ConfigError: there is no such set, it has several targets, or it is not bundled.
        DataError: it has features that are no numbers.

    """
    no_image_size(request)
    module = importlib.import_module("river.datasets")
    base = importlib.import_module("river.datasets.base")
    sets: dict[str, Any] = {
        name: kind
        for name in module.__all__
        if isinstance(kind := getattr(module, name), type) and issubclass(kind, base.FileDataset)
    }
    bundled = {
        name: kind() for name, kind in sets.items() if not issubclass(kind, base.RemoteDataset)
    }
    choices = sorted(name for name, found in bundled.items() if found.task in _TASKS)
    if request.name is None:
        raise ConfigError(f"data=river needs data.name; choose one of {', '.join(choices)}")
    exact = {name.casefold(): name for name in sets}
    name = exact.get(request.name.casefold())
    if name is None:
        raise unknown_word("river data set", request.name, choices)
    if name not in bundled:
        raise ConfigError(
            f"river's {name} is not bundled with the package but downloaded; choose one of "
            f"{', '.join(choices)}"
        )
    if name not in choices:
        raise ConfigError(
            f"river's {name} is for {bundled[name].task.lower()}, which has several targets; "
            f"choose one of {', '.join(choices)}"
        )
    numbers = bundled[name].task == _REGRESSION
    dataset = dataset_of_rows(name, bundled[name], on_error=request.on_error, numbers=numbers)
    return hold_out(dataset, request.holdout)


def dataset_of_rows(
    name: str,
    rows: Iterable[tuple[Mapping[Any, Any], Any]],
    *,
    on_error: OnError,
    numbers: bool = False,
) -> ArrayDataset:
    """Dictionaries of features and their labels as a data set in memory.

    Features stand in the order of their names, numbers in names counting as numbers (f2 before
    f10); booleans become 0 and 1. A class is called as its label prints, and labels that differ
    only in type are kept apart. A row that lacks a feature or its label is a faulty one.

    Args:
        name: for people.
        rows: (features by name, label) pairs; read once.
        on_error: what the data set does with faulty rows.
        numbers: whether labels are numbers to be learnt as such, one a row.

    Raises:
        DataError: a feature, or a label that should be one, is no number; or there are no rows.

    """
    records = list(rows)
    if not records:
        raise DataError(f"{name} is empty; give data with at least one row")
    found = {feature for features, _ in records for feature in features}
    columns = sorted(found, key=lambda column: _canonical(str(column)))
    names = [str(column) for column in columns]
    table = [[features.get(column) for column in columns] for features, _ in records]
    vectors, faults = as_vectors(_numbers(name, names, table), names)
    for row in faults:
        if None in table[row]:
            faults[row] = f"feature {names[table[row].index(None)]!r} is missing"
    labels = [label for _, label in records]
    if numbers:
        values = _numbers(name, ["label"], [[label] for label in labels], "target")  # (n, 1)
        usable = np.abs(values[:, 0]) <= LARGEST  # False for NaN too
        faults |= {
            row: "it has no label" if labels[row] is None else f"its label is {labels[row]}"
            for row in np.flatnonzero(~usable).tolist()
        }
        return ArrayDataset(name, (), vectors, values, faults=faults, on_error=on_error)
    faults |= {row: "it has no label" for row, label in enumerate(labels) if label is None}
    classes, targets = _classes(labels)
    return ArrayDataset(name, classes, vectors, targets, faults=faults, on_error=on_error)


def _numbers(
    name: str, names: list[str], table: list[list[Any]], what: str = "feature"
) -> NDArray[np.float64]:
    kinds = {type(value) for row in table for value in row}
    unfit = {kind for kind in kinds if not issubclass(kind, (int, float, np.number, NoneType))}
    for row in table if unfit else ():
        for column, value in zip(names, row, strict=True):
            if type(value) in unfit:
                raise DataError(
                    f"{what} {column!r} of {name} holds {value!r}, which is no number; "
                    f"only numeric and boolean {what}s can be learnt"
                )
    return np.array(table, dtype=np.float64)  # None becomes NaN


def _classes(labels: list[Any]) -> tuple[list[str], NDArray[np.int64]]:
    # 1, True and 1.0 are equal in Python but are different labels.
    keys = [(type(label).__name__, label) for label in labels]
    distinct = sorted({key for key in keys if key[1] is not None}, key=_canonical_label)
    position = {key: place for place, key in enumerate(distinct)}
    names = [str(label) for _, label in distinct]
    if len(set(names)) < len(names):
        names = [repr(label) for _, label in distinct]
    return names, np.array([position.get(key, 0) for key in keys], dtype=np.int64)


def _canonical_label(key: tuple[str, Any]) -> tuple[str, float, list[tuple[int, int, str]]]:
    kind, label = key
    number = isinstance(label, (bool, int, float))
    return kind, label if number else 0, _canonical(str(label))


def _canonical(text: str) -> list[tuple[int, int, str]]:
    pieces = re.split(r"(\d+)", text)
    return [(1, int(p), p) if p.isdecimal() else (0, 0, p) for p in pieces if p]
