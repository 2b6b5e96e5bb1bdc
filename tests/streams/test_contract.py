"""What every kind of data set promises, whatever it is made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamlearn.errors import ConfigError, FormatError
from streamlearn.streams import KINDS, Dataset, Rows, Splits, Stream, open_data

from .making import class_folders, idx_files, pixels, zipped

Build = Callable[[Path], Splits]
_CLASSES = {"cat": 4, "dog": 3, "ñandú [x]=1": 5}


def _folder_with_test(root: Path) -> Splits:
    class_folders(root / "train", _CLASSES)
    class_folders(root / "test", {"dog": 2, "cat": 1}, seed=1)
    return open_data("folder", root=root)


def _folder_alone(root: Path) -> Splits:
    return open_data("folder", root=class_folders(root / "grey", _CLASSES, channels=1))


def _one_zip(root: Path) -> Splits:
    class_folders(root / "pets" / "train", _CLASSES)
    class_folders(root / "pets" / "test", {"cat": 2}, seed=1)
    return open_data("folder", path=zipped(root / "pets", root / "año=[3].zip", "pets/"))


def _cifar_zips(kind: str) -> Build:
    def build(root: Path) -> Splits:
        zipped(class_folders(root / "a", _CLASSES), root / "train.zip", "train/")
        zipped(class_folders(root / "b", {"cat": 3}, seed=1), root / "test.zip", "test/")
        return open_data(kind, root=root, download=False)

    return build


def _npz(root: Path, **arrays: Any) -> Splits:
    np.savez(root / "data.npz", **arrays)
    return open_data("npz", path=root / "data.npz")


def _npz_vectors(root: Path) -> Splits:
    x = np.random.default_rng(0).normal(size=(13, 5))
    return _npz(root, x=x, y=np.arange(13) % 3, x_test=x[:4], y_test=np.array([2, 1, 0, 0]))


def _npz_images(root: Path) -> Splits:
    x = np.stack([pixels(seed) for seed in range(9)])
    return _npz(root, x=x, y=np.array(["no", "yes", "no"] * 3))


def _npz_resized(root: Path) -> Splits:
    x = np.stack([pixels(seed) for seed in range(9)])
    np.savez(root / "data.npz", x=x, y=np.arange(9) > 4)
    return open_data("npz", path=root / "data.npz", image_size=4)


def _mnist(root: Path) -> Splits:
    idx_files(root / "MNIST" / "raw")
    return open_data("mnist", root=root, download=False)


def _fashion(root: Path) -> Splits:
    return open_data("fashion", root=idx_files(root / "flat", packed=True), download=False)


BUILDS: dict[str, Build] = {
    "digits": lambda root: open_data("digits"),
    "river": lambda root: open_data("river", name="phishing"),
    "npz": _npz_vectors,
    "npz images": _npz_images,
    "npz resized": _npz_resized,
    "folder": _folder_with_test,
    "folder alone": _folder_alone,
    "folder zip": _one_zip,
    "cifar10": _cifar_zips("cifar10"),
    "cifar100": _cifar_zips("cifar100"),
    "mnist": _mnist,
    "fashion": _fashion,
}


@pytest.fixture(params=BUILDS)
def splits(request: pytest.FixtureRequest, tmp_path: Path) -> Splits:
    return BUILDS[request.param](tmp_path)


def _parts(splits: Splits) -> list[Dataset]:
    return [splits.train] if splits.test is None else [splits.train, splits.test]


def _same(one: Rows, other: Rows) -> bool:
    return (
        torch.equal(one.features, other.features)
        and torch.equal(one.targets, other.targets)
        and torch.equal(one.index, other.index)
        and one.skipped == other.skipped
    )


def _seen(stream: Stream, size: int, *, ahead: bool = False) -> list[Rows]:
    return [batch.rows for batch in stream.batches(size, ahead=ahead)]


def test_every_kind_is_under_this_contract() -> None:
    endless = {"teacher"}  # has no items that could be counted, and tests of its own
    assert set(KINDS) - endless == {name.split()[0] for name in BUILDS}


def test_rows_have_the_promised_shapes_and_types(splits: Splits) -> None:
    for part in _parts(splits):
        index = np.arange(len(part), dtype=np.int64)[::-1]
        rows = part.read(index)
        assert rows.features.shape == (len(part), *part.feature_shape)
        assert rows.features.dtype == (
            torch.uint8 if len(part.feature_shape) == 3 else torch.float32
        )
        assert rows.features.is_contiguous()
        assert rows.targets.dtype == rows.index.dtype == torch.int64
        assert rows.index.tolist() == index.tolist()
        assert 0 <= int(rows.targets.min()) <= int(rows.targets.max()) < len(part.classes)
        assert rows.skipped == ()


def test_both_parts_have_the_same_classes_and_shape(splits: Splits) -> None:
    assert splits.test is not None
    assert len(splits.test) > 0
    assert splits.train.classes == splits.test.classes
    assert len(set(splits.train.classes)) == len(splits.train.classes)
    assert splits.train.feature_shape == splits.test.feature_shape
    assert splits.train.name


def test_rows_come_in_the_order_asked_for_and_as_often(splits: Splits) -> None:
    rows = splits.train.read(np.array([3, 0, 3], dtype=np.int64))
    assert rows.index.tolist() == [3, 0, 3]
    assert torch.equal(rows.features[0], rows.features[2])
    assert _same(splits.train.read(np.array([0], dtype=np.int64)), _nth(rows, 1))


def _nth(rows: Rows, n: int) -> Rows:
    return Rows(rows.features[n : n + 1], rows.targets[n : n + 1], rows.index[n : n + 1])


def test_no_rows_are_rows_too(splits: Splits) -> None:
    rows = splits.train.read(np.empty(0, dtype=np.int64))
    assert rows.features.shape == (0, *splits.train.feature_shape)
    assert len(rows.targets) == len(rows.index) == 0


def test_a_reader_may_change_its_rows(splits: Splits) -> None:
    index = np.arange(3, dtype=np.int64)
    before = splits.train.read(index)
    splits.train.read(index).features.zero_()
    assert _same(splits.train.read(index), before)


@pytest.mark.parametrize("kind", BUILDS)
def test_opening_twice_gives_the_same_rows(kind: str, tmp_path: Path) -> None:
    one, two = (BUILDS[kind](tmp_path) for _ in range(2))
    for first, second in zip(_parts(one), _parts(two), strict=True):
        index = np.arange(len(first), dtype=np.int64)
        assert first.classes == second.classes
        assert _same(first.read(index), second.read(index))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_stream_gives_each_item_once(splits: Splits, ahead: bool) -> None:
    stream = Stream(splits.train, seed=3)
    seen = torch.cat([rows.index for rows in _seen(stream, 4, ahead=ahead)])
    assert sorted(seen.tolist()) == list(range(len(splits.train)))
    assert stream.position == len(stream) == len(splits.train)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_restored_cursor_resumes_exactly(splits: Splits, ahead: bool) -> None:
    whole = _seen(Stream(splits.train, seed=5, limit=9), 2)
    stopped = Stream(splits.train, seed=5, limit=9)
    batches = stopped.batches(2, ahead=ahead)
    first = [next(batches).rows for _ in range(2)]
    state = stopped.state_dict()
    resumed = Stream(splits.train, seed=5, limit=9)
    resumed.load_state_dict(state)
    rest = _seen(resumed, 2, ahead=ahead)
    assert len(first + rest) == len(whole)
    assert all(_same(a, b) for a, b in zip(first + rest, whole, strict=True))


def test_a_limit_ends_the_stream(splits: Splits) -> None:
    stream = Stream(splits.train, order="given", limit=3)
    seen = [rows.index.tolist() for rows in _seen(stream, 2)]
    assert seen == [[0, 1], [2]]
    assert len(stream) == 3


def test_a_batch_of_no_items_is_refused(splits: Splits) -> None:
    with pytest.raises(ConfigError, match="batch size of 0"):
        next(Stream(splits.train).batches(0))


def test_a_cursor_beyond_the_stream_is_refused(splits: Splits) -> None:
    stream = Stream(splits.train)
    with pytest.raises(FormatError, match="the cursor stands at 9999999 of"):
        stream.load_state_dict({**stream.state_dict(), "position": 9999999})
