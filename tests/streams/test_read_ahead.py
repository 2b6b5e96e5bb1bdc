import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamlearn.errors import DataError
from streamlearn.streams import Rows, Stream
from streamlearn.streams.arrays import ArrayDataset


class _Watched(ArrayDataset):
    """Ten numbers; remembers what was read by whom, and refuses one item."""

    def __init__(self, broken: int | None = None) -> None:
        x = np.arange(10, dtype=np.float32)[:, None]
        super().__init__("numbers", ["all"], x, np.zeros(10, dtype=np.int64))
        self.read_by: list[tuple[list[int], bool]] = []
        self.broken = broken

    def read(self, index: NDArray[np.int64]) -> Rows:
        main = threading.current_thread() is threading.main_thread()
        self.read_by.append((index.tolist(), main))
        if self.broken in index:
            raise DataError(f"item {self.broken} is broken")
        return super().read(index)


def _stream(**how: Any) -> tuple[_Watched, Stream]:
    dataset = _Watched(**how)
    return dataset, Stream(dataset, order="given")


def _readers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("read-ahead")]


def test_the_cursor_counts_only_what_was_handed_out() -> None:
    dataset, stream = _stream()
    batches = stream.batches(3, ahead=True)
    assert next(batches).rows.index.tolist() == [0, 1, 2]
    assert stream.position == 3
    assert next(batches).position == stream.position == 6
    batches.close()  # type: ignore[attr-defined]
    assert stream.position == 6
    assert [items for items, _ in dataset.read_by] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert not any(main for _, main in dataset.read_by)


def test_no_thread_outlives_the_iterator() -> None:
    _, stream = _stream()
    batches = stream.batches(3, ahead=True)
    next(batches)
    assert _readers()
    batches.close()  # type: ignore[attr-defined]
    assert _readers() == []
    assert [b.position for b in stream.batches(3, ahead=True)] == [6, 9, 10]
    assert _readers() == []


def test_an_error_comes_when_its_batch_is_due() -> None:
    _, stream = _stream(broken=4)
    batches = stream.batches(3, ahead=True)
    assert next(batches).rows.index.tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="item 4 is broken"):
        next(batches)
    assert stream.position == 3
    assert _readers() == []


def test_a_cursor_that_is_put_elsewhere_is_followed() -> None:
    _, stream = _stream()
    batches = stream.batches(3, ahead=True)
    next(batches)
    stream.load_state_dict({**stream.state_dict(), "position": 8})
    assert next(batches).rows.index.tolist() == [8, 9]
    assert list(batches) == []


def test_a_loop_that_fails_ends_the_thread() -> None:
    _, stream = _stream()

    def learn() -> None:
        for _ in stream.batches(3, ahead=True):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        learn()
    assert _readers() == []
