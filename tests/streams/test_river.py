import datetime
from typing import Any

import numpy as np
import pytest
import torch

from streamlearn.errors import ConfigError, DataError
from streamlearn.streams import Dataset, Rows, open_data
from streamlearn.streams.base import OnError
from streamlearn.streams.bundled import dataset_of_rows
from streamlearn.tasks import Outputs


def _all(dataset: Dataset) -> Rows:
    return dataset.read(np.arange(len(dataset), dtype=np.int64))


def _rows(*rows: tuple[dict[Any, Any], Any], on_error: OnError = "stop") -> Dataset:
    return dataset_of_rows("mine", rows, on_error=on_error)


@pytest.mark.parametrize(
    ("name", "rows", "width", "classes"),
    [
        ("Bananas", 5300, 2, ("False", "True")),
        ("imagesegments", 2310, 18, None),
        ("PHISHING", 1250, 9, ("False", "True")),
        ("shuttle", 49097, 9, ("0", "1")),
    ],
)
def test_the_bundled_sets_are_read_whole(
    name: str, rows: int, width: int, classes: tuple[str, ...] | None
) -> None:
    train = open_data("river", name=name, holdout=0).train
    assert (len(train), train.feature_shape) == (rows, (width,))
    if classes is not None:
        assert train.classes == classes
    assert len(_all(train).index) == rows


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shutle", "river data set 'shutle' is not known; did you mean 'Shuttle'"),
        ("solarflare", "SolarFlare is for multi-output regression, which has several targets; cho"),
        ("yeast", "Yeast is for multi-output binary classification, which has"),
        ("elec2", "Elec2 is not bundled with the package but downloaded; choose one of"),
        (None, "data=river needs data.name; choose one of"),
    ],
)
def test_a_name_that_cannot_be_opened_is_answered_with_those_that_can(
    name: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_data("river", name=name)
    assert "Bananas, ChickWeights, ImageSegments, Phishing, SP500Stocks, Shuttle" in str(
        caught.value
    )


def test_features_stand_in_the_order_of_their_names() -> None:
    dataset = _rows(
        ({"f10": 1, "f2": 2, "f1": True, "a": 0.5}, "x"),
        ({"a": 1.5, "f1": False, "f2": 4, "f10": 3}, "x"),
    )
    assert _all(dataset).features.tolist() == [[0.5, 1, 2, 1], [1.5, 0, 4, 3]]


def test_labels_that_differ_only_in_type_are_kept_apart() -> None:
    labels = [1, "1", True, 1.0, 1, 9007199254740992, 9007199254740993]
    dataset = _rows(*(({"a": 0}, label) for label in labels))
    targets = _all(dataset).targets.tolist()
    assert len(dataset.classes) == len(set(targets)) == 6
    assert targets[0] == targets[4]
    assert dataset.classes[targets[1]] == "'1'"


def test_number_labels_are_sorted_as_numbers() -> None:
    dataset = _rows(*(({"a": 0}, label) for label in (10, 9, -2)))
    assert dataset.classes == ("-2", "9", "10")


def test_unusable_rows_are_named() -> None:
    rows: list[tuple[dict[Any, Any], Any]] = [
        ({"a": 1, "b": 2}, 0),
        ({"a": 1}, 0),
        ({"a": None, "b": 2}, 1),
        ({"a": 1, "b": float("nan")}, 1),
        ({"a": 1e39, "b": 2}, 1),
        ({"a": 1, "b": 2}, None),
        ({"a": 1, "b": 2}, 1),
    ]
    read = _all(_rows(*rows, on_error="skip"))
    assert read.index.tolist() == [0, 6]
    assert [(s.item, s.reason) for s in read.skipped] == [
        ("row 1 of mine", "feature 'b' is missing"),
        ("row 2 of mine", "feature 'a' is missing"),
        ("row 3 of mine", "feature 'b' is nan"),
        ("row 4 of mine", "feature 'a' is 1e+39, beyond 1e+15"),
        ("row 5 of mine", "it has no label"),
    ]
    assert _rows(*rows).classes == ("0", "1")
    with pytest.raises(DataError, match="row 1 of mine cannot be used: feature 'b' is missing"):
        _all(_rows(*rows))


@pytest.mark.parametrize("value", ["3", "red", datetime.datetime(2024, 1, 1), b"x"])
def test_features_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(DataError, match=r"feature 'b' of mine holds .*, which is no number"):
        _rows(({"a": 1, "b": 2}, 0), ({"a": 1, "b": value}, 0))


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="mine is empty; give data with at least one row"):
        _rows()


@pytest.mark.parametrize(("name", "count", "width"), [
    ("TrumpApproval", 1001, 6), ("ChickWeights", 578, 3), ("SP500Stocks", 1257, 10),
])  # fmt: skip
def test_numbers_are_learnt_as_numbers(name: str, count: int, width: int) -> None:
    train = open_data("river", name=name, holdout=0).train
    assert (len(train), train.feature_shape, train.classes) == (count, (width,), ())
    assert train.task == Outputs(1)
    rows = train.read(np.arange(count, dtype=np.int64))
    assert rows.targets.shape == (count, 1)
    assert rows.targets.dtype == torch.float64
    parts = open_data("river", name=name)
    assert parts.test is not None
    assert parts.test.task == Outputs(1)


def test_rows_without_a_usable_number_are_faulty() -> None:
    labels = [1.5, None, float("nan"), 2, 1e30]
    records = [({"x": 1.0}, label) for label in labels]
    dataset = dataset_of_rows("numbers", records, on_error="skip", numbers=True)
    rows = dataset.read(np.arange(5, dtype=np.int64))
    assert rows.targets.tolist() == [[1.5], [2.0]]
    assert [item.reason for item in rows.skipped] == [
        "it has no label", "its label is nan", "its label is 1e+30",
    ]  # fmt: skip
    with pytest.raises(
        DataError, match="target 'label' of words holds 'x', which is no number; only"
    ):
        dataset_of_rows("words", [({"x": 1.0}, "x")], on_error="skip", numbers=True)
