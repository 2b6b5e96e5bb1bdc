"""Prequential counts against a list of all predictions."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.evaluation import Prequential
from streamlearn.state import flatten, unflatten

from .. import reference

CLASSES = 4


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(size, CLASSES, generator=generator),
        torch.randint(CLASSES, (size,), generator=generator),
        torch.rand(size, generator=generator),
    )


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 60),
    st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_counts_are_those_of_the_reference_for_every_split_and_window(
    sizes: list[int], window: int, seed: int
) -> None:
    evaluation = Prequential(CLASSES, window)
    predicted: list[int] = []
    targets: list[int] = []
    losses: list[float] = []
    for number, size in enumerate(sizes):
        probabilities, target, loss = batch(size, seed + number)
        evaluation.update(probabilities, target, loss)
        predicted += [int(np.argmax(row)) for row in probabilities.numpy()]
        targets += target.tolist()
        losses += loss.tolist()
        assert evaluation.samples == len(targets)
        if not targets:
            assert (evaluation.accuracy, evaluation.windowed_accuracy, evaluation.loss) == (0, 0, 0)
            continue
        accuracy, windowed, confusion = reference.prequential(predicted, targets, CLASSES, window)
        assert evaluation.accuracy == accuracy
        assert evaluation.windowed_accuracy == windowed
        assert np.array_equal(evaluation.confusion.numpy(), confusion)
        assert evaluation.loss == pytest.approx(sum(losses) / len(losses), rel=1e-6)


@pytest.mark.parametrize("cut", [0, 1, 5, 9])
@pytest.mark.parametrize("window", [7, 1000])
def test_a_restored_evaluation_goes_on_alike(cut: int, window: int) -> None:
    whole, first = Prequential(CLASSES, window), Prequential(CLASSES, window)
    for number in range(cut):
        whole.update(*batch(5, number))
        first.update(*batch(5, number))
    tensors, tree = flatten(first.state_dict())
    restored = Prequential(CLASSES)  # the window comes with the state
    restored.load_state_dict(unflatten(tensors, json.loads(json.dumps(tree))))
    for number in range(cut, 12):
        whole.update(*batch(5, number))
        restored.update(*batch(5, number))
    assert restored.window == window
    assert restored.accuracy == whole.accuracy
    assert restored.windowed_accuracy == whole.windowed_accuracy
    assert restored.loss == whole.loss
    assert torch.equal(restored.confusion, whole.confusion)


def test_a_state_does_not_change_with_the_counts_that_it_was_taken_from_or_put_into() -> None:
    evaluation, restored = Prequential(CLASSES, 5), Prequential(CLASSES, 5)
    evaluation.update(*batch(7, 0))
    state = evaluation.state_dict()
    before = state["confusion"].clone()
    evaluation.update(*batch(7, 1))
    restored.load_state_dict(state)
    restored.update(*batch(7, 2))
    assert torch.equal(state["confusion"], before)
