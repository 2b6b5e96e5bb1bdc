"""The accuracy matrix, its figures, and when the loop measures it."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamlearn.continual import (
    AccuracyMatrix,
    anytime_accuracy,
    average_accuracy,
    backward_transfer,
    forgetting,
    forward_transfer,
)
from streamlearn.errors import ConfigError, FormatError
from streamlearn.evaluation import Prequential
from streamlearn.events import ExperienceEnded, Testing, as_json
from streamlearn.loop import Loop
from streamlearn.streams.base import Stream

from .test_learner import CLASSES, content, learner
from .test_loop import Blobs

R = [[0.9, 0.1, 0.2], [0.5, 0.8, 0.3], [0.6, 0.4, 0.7]]


class Known(Blobs):
    """Rows whose classes are known beforehand."""

    def labels(self) -> NDArray[np.int64]:
        return np.asarray(self.targets.numpy())


def test_the_figures_of_a_matrix_are_those_of_the_formulas() -> None:
    assert average_accuracy(R) == pytest.approx((0.6 + 0.4 + 0.7) / 3)
    assert anytime_accuracy(R) == pytest.approx((0.9 + 0.65 + (0.6 + 0.4 + 0.7) / 3) / 3)
    assert forgetting(R) == pytest.approx(((0.9 - 0.6) + (0.8 - 0.4)) / 2)
    assert backward_transfer(R) == pytest.approx(((0.6 - 0.9) + (0.4 - 0.8)) / 2)
    assert forward_transfer(R, 1 / 3) == pytest.approx(((0.1 - 1 / 3) + (0.3 - 1 / 3)) / 2)


def test_figures_that_need_more_experiences_are_none() -> None:
    assert average_accuracy([]) is anytime_accuracy([]) is None
    one = [[0.5, 0.0]]
    assert average_accuracy(one) == anytime_accuracy(one) == 0.5
    assert forgetting(one) is backward_transfer(one) is forward_transfer(one, 0.1) is None


@given(st.integers(2, 6).flatmap(lambda n: st.lists(
    st.lists(st.floats(0, 1), min_size=6, max_size=6), min_size=n, max_size=n)))  # fmt: skip
def test_forgetting_is_at_least_what_backward_transfer_lost(rows: list[list[float]]) -> None:
    lost, moved = forgetting(rows), backward_transfer(rows)
    assert lost is not None
    assert moved is not None
    assert lost >= -moved - 1e-12


def made(samples: int | None = None, **sections: Any) -> Loop[Any]:
    section = {"batch": 8, "dtype": "float32", "rehearsal": 8}
    model = learner(**{"learner": section, **sections})
    stream = Stream(Known(150), order="classes", seed=2)
    matrix = AccuracyMatrix(Known(90, seed=9), stream.experiences, CLASSES, samples)
    return Loop(model, stream, Prequential(CLASSES, 50), matrix)


def test_a_row_is_the_accuracy_on_the_classes_of_each_experience() -> None:
    loop = made()
    rows = []
    test = Known(90, seed=9)
    for event in loop.events():
        if isinstance(event, ExperienceEnded):
            hits = loop.learner.predict(test.features) == test.targets
            rows.append([float(hits[test.targets == group].double().mean()) for group in range(3)])
            assert event.accuracies == pytest.approx(rows[-1])
            assert event.classes == (str(event.experience - 1),)
            assert loop.stream.position == loop.stream.experiences[event.experience - 1].stop
            assert as_json(event)["event"] == "experience"
    assert loop.matrix is not None
    assert len(rows) == 3
    assert [pytest.approx(row) for row in rows] == loop.matrix.rows


def test_only_so_many_samples_are_looked_at_always_the_same_ones() -> None:
    events = list(made(5).events())
    assert {event.total_samples for event in events if isinstance(event, Testing)} == {15}
    assert all(
        share * 5 == pytest.approx(round(share * 5))
        for event in events
        if isinstance(event, ExperienceEnded)
        for share in event.accuracies or ()
    )


@pytest.mark.parametrize("fit", [40, 1000])
def test_the_loop_can_be_left_at_any_event_and_measures_the_same(fit: int) -> None:
    """Also where the encoder is fitted after the first experience, or only at the end."""
    encoder = {"kind": "standardise", "fit": fit}
    whole = made(encoder=encoder)
    count = len(list(whole.events()))
    assert whole.matrix is not None
    assert len(whole.matrix.rows) == 3
    for stop in range(1, count, 3):
        loop = made(encoder=encoder)
        list(itertools.islice(loop.events(), stop))
        again = made(encoder=encoder)
        again.load_state_dict(loop.state_dict())
        for name, memory in again.learner.memories().items():
            for block in loop.learner.memories()[name].host_blocks():
                memory.load_columns(block)
        list(again.events())
        assert again.matrix is not None
        assert again.matrix.rows == whole.matrix.rows
        assert again.experience == 3
        assert content(again.learner) == content(whole.learner)


def test_without_a_matrix_experiences_are_told_all_the_same() -> None:
    stream = Stream(Known(150), order="classes", seed=2)
    events = list(Loop(learner(), stream, Prequential(CLASSES, 50)).events())
    ended = [event for event in events if isinstance(event, ExperienceEnded)]
    assert [event.experience for event in ended] == [1, 2, 3]
    assert [event.accuracies for event in ended] == [None] * 3


def test_what_cannot_be_measured_is_refused() -> None:
    stream = Stream(Known(150), order="classes")
    few = Known(90, seed=9)
    few.targets[:] = 1
    with pytest.raises(ConfigError, match=r"of experience 1; set evaluation\.matrix=false"):
        AccuracyMatrix(few, stream.experiences, CLASSES)
    matrix = AccuracyMatrix(Known(90), stream.experiences, CLASSES)
    with pytest.raises(FormatError, match="matrix is of 2 experiences but the stream has 3"):
        matrix.load_state_dict({"rows": [[0.5, 0.5]]})
