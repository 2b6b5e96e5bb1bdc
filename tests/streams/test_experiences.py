"""Classes in turn: group after group, each item once, at the same places after a resume."""

from pathlib import Path

import numpy as np
import pytest

from streamlearn.errors import ConfigError, FormatError
from streamlearn.streams import Splits, Stream, open_data
from streamlearn.streams.experiences import in_turn, labels_of

from .making import class_folders


@pytest.fixture(scope="module")
def digits() -> Splits:
    return open_data("digits")


def targets(stream: Stream, size: int = 64) -> list[list[int]]:
    return [batch.rows.targets.tolist() for batch in stream.batches(size)]


def test_groups_of_classes_come_one_after_the_other_and_no_batch_has_two(digits: Splits) -> None:
    stream = Stream(digits.train, order="classes", experiences=4)
    assert [e.classes for e in stream.experiences] == [(0, 1, 2), (3, 4, 5), (6, 7), (8, 9)]
    batches = targets(stream)
    groups = [{(0, 0, 0, 1, 1, 1, 2, 2, 3, 3)[target] for target in batch} for batch in batches]
    assert all(len(group) == 1 for group in groups)
    order = [group.pop() for group in groups]
    assert order == sorted(order)
    assert sum(map(len, batches)) == len(digits.train) == stream.experiences[-1].stop
    assert len(set(batches[0])) == 3  # shuffled within the group


def test_the_items_are_those_of_the_shuffled_order_and_each_comes_once(digits: Splits) -> None:
    shuffled = Stream(digits.train, seed=3, limit=300)
    stream = Stream(digits.train, order="classes", seed=3, limit=300)
    found = [
        np.concatenate([batch.rows.index.numpy() for batch in one.batches(17)])
        for one in (shuffled, stream)
    ]
    assert sorted(found[0]) == sorted(found[1])
    assert len(stream.experiences) == 10
    labels = labels_of(digits.train)
    assert labels[found[1]].tolist() == sorted(labels[found[0]])
    other = Stream(digits.train, order="classes", seed=4, limit=300)
    assert targets(other) != targets(Stream(digits.train, order="classes", seed=3, limit=300))


def test_a_cursor_that_is_put_back_gives_the_same_batches(digits: Splits) -> None:
    whole = targets(Stream(digits.train, order="classes", experiences=3), 50)
    for stop in (1, 9, 10, 11):
        stream = Stream(digits.train, order="classes", experiences=3)
        batches = stream.batches(50, ahead=True)
        first = [next(batches).rows.targets.tolist() for _ in range(stop)]
        again = Stream(digits.train, order="classes", experiences=3)
        again.load_state_dict(stream.state_dict())
        assert first + targets(again, 50) == whole
    other = Stream(digits.train, order="classes", experiences=5)
    with pytest.raises(FormatError, match="a stream with experiences 3 but the data now has 5"):
        other.load_state_dict(stream.state_dict())


def test_folders_know_their_classes_before_an_image_is_read(tmp_path: Path) -> None:
    splits = open_data("folder", root=class_folders(tmp_path / "a", {"cat": 9, "dog": 5, "emu": 7}))
    stream = Stream(splits.train, order="classes")
    found = [target for batch in targets(stream, 3) for target in batch]
    assert found == sorted(found)
    assert len(found) == len(splits.train)


def test_groups_without_items_are_empty_experiences() -> None:
    labels = np.array([2, 0, 0, 2])
    items, experiences = in_turn(np.array([3, 1, 0, 2]), labels, 3, None)
    assert items.tolist() == [1, 2, 3, 0]
    assert [(e.start, e.stop) for e in experiences] == [(0, 2), (2, 2), (2, 4)]


def test_orders_that_cannot_be_are_refused(digits: Splits) -> None:
    with pytest.raises(ConfigError, match=r"experiences=11 is not possible with 10 classes"):
        Stream(digits.train, order="classes", experiences=11)
    with pytest.raises(ConfigError, match=r"epochs=2 is not possible where classes come in turn"):
        Stream(digits.train, order="classes", epochs=2)
    with pytest.raises(ConfigError, match=r"experiences=2 means nothing for data\.order=shuffled"):
        Stream(digits.train, experiences=2)
    numbers = open_data("river", name="TrumpApproval")
    with pytest.raises(ConfigError, match=r"no classes that are known beforehand; set data\.order"):
        Stream(numbers.train, order="classes")
