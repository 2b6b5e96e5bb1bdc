from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamlearn.errors import ConfigError, DataError, DataNotFoundError
from streamlearn.streams import Dataset, Rows, Splits, open_data

from .making import pixels

X = np.arange(12, dtype=np.float64).reshape(6, 2)
Y = np.array([3, 10, -1, 3, 10, 3])


def _open(tmp_path: Path, /, on_error: Any = "stop", **arrays: Any) -> Splits:
    path = tmp_path / "año=2024, lote [3].npz"
    np.savez(path, **arrays)
    return open_data("npz", path=path, holdout=0, on_error=on_error)


def _all(dataset: Dataset) -> Rows:
    return dataset.read(np.arange(len(dataset), dtype=np.int64))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "uint8"])
def test_numbers_become_float32_vectors(tmp_path: Path, dtype: str) -> None:
    rows = _all(_open(tmp_path, x=X.astype(dtype), y=Y).train)
    assert np.array_equal(rows.features.numpy(), X.astype(np.float32))


@pytest.mark.parametrize(
    ("y", "classes", "targets"),
    [
        (Y, ("-1", "3", "10"), [1, 2, 0, 1, 2, 1]),
        (np.array(list("baabab")), ("a", "b"), [1, 0, 0, 1, 0, 1]),
        (np.array([b"b", b"a", b"a", b"b", b"a", b"b"]), ("a", "b"), [1, 0, 0, 1, 0, 1]),
        (Y > 5, ("False", "True"), [0, 1, 0, 0, 1, 0]),
        (
            np.array([9007199254740993, 9007199254740992] * 3),
            ("9007199254740992", "9007199254740993"),
            [1, 0] * 3,
        ),
    ],
)
def test_labels_of_any_type_become_sorted_classes(
    tmp_path: Path, y: NDArray[np.generic], classes: tuple[str, ...], targets: list[int]
) -> None:
    train = _open(tmp_path, x=X, y=y).train
    assert train.classes == classes
    assert _all(train).targets.tolist() == targets


def test_images_may_have_channels_first_last_or_none(tmp_path: Path) -> None:
    images = np.stack([pixels(seed) for seed in range(4)])  # (4, 6, 8, 3)
    first = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    for x in (images, first):
        rows = _all(_open(tmp_path, x=x, y=np.arange(4)).train)
        assert np.array_equal(rows.features.numpy(), first)
    for x in (images[..., 0], images[..., :1], first[:, :1]):
        rows = _all(_open(tmp_path, x=x, y=np.arange(4)).train)
        assert np.array_equal(rows.features.numpy(), first[:, :1])


def test_images_are_resized_on_request(tmp_path: Path) -> None:
    grey = np.full((3, 8, 8), 9, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=grey, y=np.arange(3))
    train = open_data("npz", path=tmp_path / "a.npz", image_size=4, holdout=0).train
    assert train.feature_shape == (1, 4, 4)
    assert set(_all(train).features.flatten().tolist()) == {9}


def test_unusable_rows_are_named_and_skipped(tmp_path: Path) -> None:
    x = X.copy()
    x[1, 1], x[2, 0], x[4, 1] = np.nan, 1e39, -np.inf
    rows = _all(_open(tmp_path, on_error="skip", x=x, y=Y).train)
    assert rows.index.tolist() == [0, 3, 5]
    path = tmp_path / "año=2024, lote [3].npz"
    assert [(s.item, s.reason) for s in rows.skipped] == [
        (f"row 1 of x in {path}", "feature 1 is nan"),
        (f"row 2 of x in {path}", "feature 0 is 1e+39, beyond 1e+15"),
        (f"row 4 of x in {path}", "feature 1 is -inf"),
    ]
    with pytest.raises(DataError, match=r"row 1 of x in .* cannot be used: feature 1 is nan; "):
        _all(_open(tmp_path, x=x, y=Y).train)


def test_a_held_out_row_keeps_its_own_number(tmp_path: Path) -> None:
    x = np.full((20, 1), np.nan)
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(20, dtype=int))
    splits = open_data("npz", path=tmp_path / "a.npz", on_error="skip")
    assert splits.test is not None
    named = [s.item for part in (splits.train, splits.test) for s in _all(part).skipped]
    assert sorted(named) == sorted(f"row {n} of x in {tmp_path}/a.npz" for n in range(20))


def test_a_test_label_outside_the_classes_is_named(tmp_path: Path) -> None:
    splits = _open(tmp_path, "skip", x=X, y=Y, x_test=X[:3], y_test=np.array([10, 99, 3]))
    assert splits.test is not None
    rows = _all(splits.test)
    assert rows.targets.tolist() == [2, 1]
    assert rows.skipped[0].item.startswith("row 1 of x_test in ")
    assert rows.skipped[0].reason == "label 99 is none of the 3 classes"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"has no array 'y' but x; write it with numpy.savez\(FILE, x=…, y=…\)"),
        ({"x": X, "y": Y, "x_test": X}, "has no array 'y_test' but x, x_test, y; write it with"),
        ({"x": X, "y": Y[:-1]}, "y has 5 labels for the 6 rows of x; give each row one label"),
        ({"x": X, "y": Y, "x_test": X, "y_test": Y[:2]}, "y_test has 2 labels for the 6 rows of"),
        ({"x": X, "y": Y.astype(object)}, r"y is an array of Python objects; .*y.astype\(str\)"),
        ({"x": X.astype(object), "y": Y}, r"x is an array of Python .*x.astype\(float\)"),
        ({"x": X, "y": Y * 1.0}, r"y of shape \(6,\) and type float64 holds no labels; .*\(int\)"),
        ({"x": X, "y": Y[:, None]}, r"y of shape \(6, 1\) .* such as y.ravel\(\)"),
        ({"x": X.astype(str), "y": Y}, "x of shape .* holds no real numbers"),
        ({"x": X * 1j, "y": Y}, "holds no real numbers"),
        ({"x": X[0], "y": Y}, r"must be vectors \(n, D\) or uint8 images"),
        ({"x": X.reshape(6, 2, 1), "y": Y}, "has images that are not uint8"),
        ({"x": np.zeros((6, 4, 4, 5), np.uint8), "y": Y}, "has neither 1 nor 3 channels"),
        ({"x": X[:0], "y": Y[:0]}, "x in .* is empty; give data with at least one row"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "an item of x_test has shape"),
        (
            {"x": X, "y": Y, "x_test": X, "y_test": Y.astype(str)},
            "y_test holds strings but y holds integers; save both with the same type",
        ),
    ],
)
def test_arrays_that_mean_something_else_are_refused(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message) as caught:
        _open(tmp_path, **arrays)
    assert "lote [3].npz" in str(caught.value)


def test_a_file_that_is_no_npz_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    with pytest.raises(DataError, match=r"a\.npy holds one bare array; write it with"):
        open_data("npz", path=tmp_path / "a.npy")
    (tmp_path / "b.npz").write_text("text")
    with pytest.raises(DataError, match=r"b\.npz cannot be read as \.npz"):
        open_data("npz", path=tmp_path / "b.npz")
    with pytest.raises(DataNotFoundError, match=r"there is no file .*c\.npz"):
        open_data("npz", path=tmp_path / "c.npz")
    with pytest.raises(DataError, match=r"is a folder; give an .npz file"):
        open_data("npz", path=tmp_path)
    with pytest.raises(ConfigError, match=r"data=npz needs data.path=FILE"):
        open_data("npz")


def test_a_damaged_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(b"\x93NUMPY") + 150] ^= 255
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.npz: x is damaged"):
        open_data("npz", path=tmp_path / "a.npz")


def test_an_image_size_for_vectors_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    with pytest.raises(ConfigError, match=r"data.image_size=4 has no meaning"):
        open_data("npz", path=tmp_path / "a.npz", image_size=4)
