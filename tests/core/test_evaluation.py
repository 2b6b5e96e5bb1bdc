"""Prequential counts against a list of all predictions."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import r2_score

from streamlearn.evaluation import Prequential, PrequentialErrors, evaluation_of
from streamlearn.state import flatten, unflatten
from streamlearn.tasks import Classes, Outputs

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


# -- where targets are numbers ---------------------------------------------------------------------


def values(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = 1e6 + torch.randn(size, 2, generator=generator, dtype=torch.float64)
    answers = targets + 0.1 * torch.randn(size, 2, generator=generator, dtype=torch.float64)
    return answers, targets, torch.rand(size, generator=generator)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 60), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_errors_are_those_of_all_answers_for_every_split_and_window(
    sizes: list[int], window: int, seed: int
) -> None:
    evaluation = PrequentialErrors(2, window)
    parts = [values(size, 100 * seed + number) for number, size in enumerate(sizes)]
    for part in parts:
        evaluation.update(*part)
    answers, targets = (np.concatenate([part[i].numpy() for part in parts]) for i in range(2))
    assert evaluation.samples == len(answers)
    assert (evaluation.accuracy, evaluation.windowed_accuracy) == (None, None)
    found = evaluation.metrics
    if len(answers) == 0:
        assert set(found.values()) == {None}
        return
    losses = torch.cat([part[2] for part in parts])
    assert evaluation.loss == pytest.approx(float(losses.double().mean()), rel=1e-6)
    for prefix, first in (("", 0), ("windowed_", max(0, len(answers) - window))):
        errors, chosen = answers[first:] - targets[first:], targets[first:]
        assert found[prefix + "mae"] == pytest.approx(np.abs(errors).mean(), rel=1e-9)
        assert found[prefix + "rmse"] == pytest.approx(np.sqrt(np.square(errors).mean()), rel=1e-9)
        spread = np.square(chosen - chosen.mean(0)).sum()
        if len(chosen) == 1:
            assert found[prefix + "r2"] is None
        else:
            wanted = 1 - np.square(errors).sum() / spread
            assert found[prefix + "r2"] == pytest.approx(wanted, rel=1e-6)


def test_one_output_has_the_r2_of_scikit_learn() -> None:
    evaluation = PrequentialErrors(1)
    answers, targets, losses = values(50, 0)
    evaluation.update(answers[:, :1], targets[:, :1], losses)
    wanted = r2_score(targets[:, 0].numpy(), answers[:, 0].numpy())
    assert evaluation.metrics["r2"] == pytest.approx(wanted)


@pytest.mark.parametrize("cut", [0, 1, 5, 9])
@pytest.mark.parametrize("window", [7, 1000])
def test_restored_errors_go_on_to_the_same_bits(cut: int, window: int) -> None:
    whole, first = PrequentialErrors(2, window), PrequentialErrors(2, window)
    parts = [values(size, size) for size in (3, 1, 8, 0, 20, 2, 5, 9, 4, 6)]
    for number, part in enumerate(parts):
        whole.update(*part)
        if number == cut:
            tensors, tree = flatten(first.state_dict())
            first = PrequentialErrors(2)  # the window comes with the state
            first.load_state_dict(unflatten(tensors, json.loads(json.dumps(tree))))
        first.update(*part)
    assert first.metrics == whole.metrics
    assert first.loss == whole.loss
    assert first.summary() == whole.summary()


def test_a_task_has_the_evaluation_that_suits_it() -> None:
    assert isinstance(evaluation_of(Classes(("a", "b"))), Prequential)
    assert isinstance(evaluation_of(Outputs(3), 5), PrequentialErrors)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8))
@settings(max_examples=25, deadline=None)
def test_a_learner_that_knows_no_class_is_never_right(labels: list[int]) -> None:
    evaluation = Prequential(0)
    targets = torch.tensor(labels)
    width = max(labels) + 1
    errors = evaluation.update(torch.zeros(len(labels), width), targets, torch.zeros(len(labels)))
    assert errors.tolist() == [1.0] * len(labels)
    assert evaluation.correct == 0
    assert int(evaluation.confusion.diagonal().sum()) == 0
    assert int(evaluation.confusion.sum()) == len(labels)
