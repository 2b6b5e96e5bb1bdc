import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.errors import ConfigError, DataError
from streamlearn.streams import open_data
from streamlearn.streams.arrays import ArrayDataset
from streamlearn.streams.splits import hold_out


def _numbered(count: int) -> ArrayDataset:
    x = np.arange(count, dtype=np.float32)[:, None]
    return ArrayDataset("numbers", ["all"], x, np.zeros(count, dtype=np.int64))


def test_an_unknown_kind_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'rivr' is not known; did you mean 'river'"):
        open_data("rivr")


@pytest.mark.parametrize("holdout", [-0.1, 1.0, float("nan")])
def test_a_holdout_out_of_range_is_refused(holdout: float) -> None:
    with pytest.raises(ConfigError, match=f"data.holdout={holdout} is no fraction"):
        open_data("digits", holdout=holdout)


def test_an_image_size_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.image_size=0 must be at least 1"):
        open_data("digits", image_size=0)


@pytest.mark.parametrize(("kind", "name"), [("digits", None), ("river", "Bananas")])
def test_an_image_size_for_vectors_is_refused(kind: str, name: str | None) -> None:
    with pytest.raises(ConfigError, match=r"data.image_size=8 has no meaning for the vectors"):
        open_data(kind, name=name, image_size=8)


def test_a_holdout_of_zero_leaves_no_test_part() -> None:
    splits = open_data("digits", holdout=0)
    assert splits.test is None
    assert len(splits.train) == 1797


@given(count=st.integers(2, 200), fraction=st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_holding_out_parts_the_items_and_keeps_their_order(count: int, fraction: float) -> None:
    splits = hold_out(_numbered(count), fraction)
    assert splits.test is not None
    parts = [
        part.read(np.arange(len(part), dtype=np.int64)).features[:, 0].tolist()
        for part in (splits.train, splits.test)
    ]
    assert all(part == sorted(part) for part in parts)
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == list(range(count))
    assert abs(len(parts[1]) - fraction * count) <= 1


def test_the_held_out_items_are_the_same_for_ever() -> None:
    test = hold_out(_numbered(20), 0.2).test
    assert test is not None
    assert test.read(np.arange(4, dtype=np.int64)).features[:, 0].tolist() == [5, 7, 12, 17]


def test_a_single_item_cannot_be_split() -> None:
    with pytest.raises(DataError, match="has 1 item, too few to hold one out"):
        hold_out(_numbered(1), 0.5)


def test_a_name_that_the_system_refuses_is_one_sentence() -> None:
    with pytest.raises(DataError, match=r"cannot be read .*; make it readable or name another"):
        open_data("folder", root=Path("n" * 300))


def test_a_folder_without_permission_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "train"))

    (tmp_path / "train" / "a").mkdir(parents=True)
    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(DataError, match=r"train cannot be read \(Permission denied\)"):
        open_data("folder", root=tmp_path)


def test_importing_streams_imports_none_of_the_large_packages() -> None:
    code = (
        "import sys, streamlearn.streams\n"
        "print([n for n in ('torchvision', 'river', 'sklearn', 'pandas') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
