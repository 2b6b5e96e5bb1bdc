"""Figures of classifiers against river's, and baselines against what they are sample by sample."""

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from river import metrics
from torch import Tensor

from streamlearn.agreement import BINS
from streamlearn.evaluation import Prequential, PrequentialErrors, without_order
from streamlearn.state import flatten, unflatten

THEIRS = {
    "kappa": "CohenKappa",
    "balanced_accuracy": "BalancedAccuracy",
    "macro_f1": "MacroF1",
    "log_loss": "CrossEntropy",
}
SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=8)


def stream(size: int, classes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, of which some are 0 or 1, targets of skewed classes in runs, and losses."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(size, classes, generator=generator).pow(4).softmax(-1)
    sure = torch.rand(size, generator=generator) < 0.2
    ones = torch.eye(classes)[torch.randint(classes, (size,), generator=generator)]
    probabilities[sure] = ones[sure]
    skewed = torch.rand(size, generator=generator).pow(2) * classes
    targets = skewed.to(torch.int64).clamp_max(classes - 1)
    again = torch.rand(size, generator=generator) < 0.5
    for place in range(1, size):
        if again[place]:
            targets[place] = targets[place - 1]
    return probabilities, targets, torch.rand(size, generator=generator)


def fed(evaluation: Any, parts: tuple[Tensor, ...], sizes: list[int], start: int = 0) -> Any:
    for size in sizes:
        evaluation.update(*(part[start : start + size] for part in parts))
        start += size
    return evaluation


def close(found: Any, wanted: Any) -> bool:
    return dict(found) == pytest.approx(dict(wanted), abs=1e-9, nan_ok=False)


@given(SIZES, st.integers(2, 6), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_figures_agree_with_river(sizes: list[int], classes: int, seed: int) -> None:
    parts = stream(sum(sizes), classes, seed)
    found = fed(Prequential(classes), parts, sizes).metrics
    if not sum(sizes):
        assert set(found.values()) == {None}
        return
    theirs: dict[str, Any] = {name: getattr(metrics, kind)() for name, kind in THEIRS.items()}
    for row, target in zip(parts[0], parts[1].tolist(), strict=True):
        for name, metric in theirs.items():
            answer = dict(enumerate(row.tolist())) if name == "log_loss" else int(row.argmax())
            metric.update(target, answer)
    for name, metric in theirs.items():
        assert found[name] == pytest.approx(metric.get(), abs=1e-9), name


def by_sample(probabilities: Tensor, targets: list[int]) -> dict[str, float]:
    """Baselines and calibration, one sample after another."""
    counts: Counter[int] = Counter()
    hits = no_change = majority = 0
    bins: dict[int, list[tuple[float, float]]] = {}
    for place, target in enumerate(targets):
        row = probabilities[place].double()
        right = int(row.argmax()) == target
        hits += right
        no_change += place > 0 and targets[place - 1] == target
        most = max(counts.values(), default=0)
        majority += place > 0 and min(c for c in counts if counts[c] == most) == target
        counts[target] += 1
        bins.setdefault(min(int(row.max() * BINS), BINS - 1), []).append((right, float(row.max())))
    n = len(targets)
    accuracy, t, m = hits / n, no_change / n, majority / n
    gaps = {b: np.mean([r for r, _ in rows]) - np.mean([c for _, c in rows])
            for b, rows in bins.items()}  # fmt: skip
    return {
        "no_change_accuracy": t,
        "majority_accuracy": m,
        "kappa_t": (accuracy - t) / (1 - t) if t < 1 else 0.0,
        "kappa_m": (accuracy - m) / (1 - m) if m < 1 else 0.0,
        "calibration_error": float(sum(len(bins[b]) / n * abs(gap) for b, gap in gaps.items())),
    }


@given(SIZES.filter(any), st.integers(2, 5), st.integers(0, 10_000))
@settings(max_examples=80, deadline=None)
def test_baselines_and_calibration_are_those_of_single_samples(
    sizes: list[int], classes: int, seed: int
) -> None:
    parts = stream(sum(sizes), classes, seed)
    evaluation = fed(Prequential(classes), parts, sizes)
    wanted = by_sample(parts[0], parts[1].tolist())
    assert close({name: evaluation.metrics[name] for name in wanted}, wanted)
    alone = fed(Prequential(classes), parts, [1] * sum(sizes))
    assert close(alone.metrics, evaluation.metrics)
    assert alone.by_class() == evaluation.by_class()


def test_the_majority_of_a_long_batch_of_many_classes_is_counted_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = stream(50, 5, 3)
    whole = fed(Prequential(5), parts, [50]).metrics
    monkeypatch.setattr("streamlearn.agreement._CELLS", 15)  # three rows of five
    assert fed(Prequential(5), parts, [50]).metrics == whole


@given(SIZES, SIZES, st.integers(2, 4), st.integers(1, 3), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_classes_that_come_later_might_have_been_there_all_along(
    early: list[int], late: list[int], few: int, more: int, seed: int
) -> None:
    first, second = stream(sum(early), few, seed), stream(sum(late), few + more, seed + 1)
    grown = fed(fed(Prequential(few, 7), first, early), second, late)
    padded = torch.nn.functional.pad(first[0], (0, more))
    wide = fed(fed(Prequential(few + more, 7), (padded, *first[1:]), early), second, late)
    if not any(late):
        grown.update(torch.zeros(0, few + more), torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    assert close(grown.summary(), wide.summary())
    assert grown.by_class() == wide.by_class()
    assert torch.equal(grown.confusion, wide.confusion)


def restored(state: dict[str, Any], evaluation: Any) -> Any:
    tensors, tree = flatten(state)
    evaluation.load_state_dict(unflatten(tensors, json.loads(json.dumps(tree))))
    return evaluation


@given(SIZES, SIZES, st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_restored_figures_go_on_to_the_same_bits(
    early: list[int], late: list[int], seed: int
) -> None:
    parts = stream(sum(early) + sum(late), 3, seed)
    whole = fed(Prequential(3), parts, early + late)
    half = restored(fed(Prequential(3), parts, early).state_dict(), Prequential(3))
    fed(half, parts, late, sum(early))
    assert half.summary() == whole.summary()
    assert half.by_class() == whole.by_class()
    assert flatten(half.state_dict())[1] == flatten(whole.state_dict())[1]


def test_an_older_state_has_new_figures_from_then_on() -> None:
    parts = stream(60, 3, 5)
    state = fed(Prequential(3), parts, [30]).state_dict()
    for name in ("first_seen", "baselines", "calibration"):
        del state[name]
    late = fed(restored(state, Prequential(3)), parts, [10, 20], 30)
    whole = fed(Prequential(3), parts, [60])
    for name in ("kappa", "balanced_accuracy", "macro_f1"):  # the confusion matrix was there
        assert late.metrics[name] == whole.metrics[name]
    assert late.accuracy == whole.accuracy
    alone = fed(Prequential(3), tuple(part[30:] for part in parts), [30])
    assert late.metrics["log_loss"] == pytest.approx(alone.metrics["log_loss"])
    assert late.metrics["calibration_error"] == pytest.approx(alone.metrics["calibration_error"])
    # What had come before is known to the majority, not when it came.
    counts = np.bincount(parts[1][:30].numpy(), minlength=3)
    hits = 0
    for target in parts[1][30:].tolist():
        hits += int(counts.argmax()) == target
        counts[target] += 1
    assert late.metrics["majority_accuracy"] == hits / 30
    assert set(late.by_class()["first_seen"]) == {0}


def test_arrivals_are_told_once_in_the_order_of_their_samples() -> None:
    evaluation = Prequential(4)

    def update(*labels: int) -> list[tuple[int, int]]:
        count = len(labels)
        evaluation.update(torch.full((count, 4), 0.25), torch.tensor(labels, dtype=torch.int64),
                          torch.zeros(count))  # fmt: skip
        return [(label, sample) for label, sample in evaluation.arrived]

    assert update(2, 2, 0) == [(2, 1), (0, 3)]
    assert update() == []
    assert update(0, 2) == []
    assert update(3, 1, 3) == [(3, 6), (1, 7)]
    assert evaluation.by_class() == {
        "samples": [2, 1, 3, 2],
        "recall": [1.0, 0.0, 0.0, 0.0],
        "first_seen": [3, 7, 1, 6],
    }


def test_each_error_is_given_back() -> None:
    answers = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    errors = Prequential(2).update(answers, torch.tensor([0, 0, 1]), torch.zeros(3))
    assert errors.tolist() == [0.0, 1.0, 1.0]
    values = torch.tensor([[1.0, 2.0], [0.0, 4.0]])
    errors = PrequentialErrors(2).update(values, torch.zeros(2, 2), torch.zeros(2))
    assert errors.tolist() == [1.5, 2.0]


def test_what_depends_on_the_order_is_no_figure_of_a_test() -> None:
    figures = without_order(fed(Prequential(3), stream(9, 3, 0), [9]).metrics)
    assert set(figures) == {
        "kappa", "balanced_accuracy", "macro_f1", "log_loss", "calibration_error",
    }  # fmt: skip
    assert set(without_order(PrequentialErrors(1).metrics)) == {"mae", "rmse", "r2"}


# -- where targets are numbers ---------------------------------------------------------------------


@given(SIZES, st.integers(1, 3), st.integers(0, 1000), st.sampled_from([0.0, 1e6]))
@settings(max_examples=60, deadline=None)
def test_baselines_of_numbers_are_those_of_single_samples(
    sizes: list[int], outputs: int, seed: int, offset: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    targets = offset + torch.randn(count, outputs, generator=generator, dtype=torch.float64)
    parts = torch.zeros_like(targets), targets, torch.zeros(count)
    found = fed(PrequentialErrors(outputs), parts, sizes).metrics
    if count < 2:
        assert found["no_change_mae"] is found["running_mean_mae"] is None
        return
    rows = targets.numpy()
    no_change = np.abs(rows[1:] - rows[:-1]).mean()
    means = np.stack([rows[:place].mean(0) for place in range(1, count)])
    assert found["no_change_mae"] == pytest.approx(no_change, rel=1e-9)
    assert found["running_mean_mae"] == pytest.approx(np.abs(rows[1:] - means).mean(), rel=1e-8)
    middle = len(sizes) // 2
    half = fed(PrequentialErrors(outputs), parts, sizes[:middle])
    half = restored(half.state_dict(), PrequentialErrors(outputs))
    assert fed(half, parts, sizes[middle:], sum(sizes[:middle])).metrics == found


def test_an_older_state_of_errors_has_baselines_from_then_on() -> None:
    targets = torch.arange(6, dtype=torch.float64)[:, None]
    parts = torch.zeros_like(targets), targets, torch.zeros(6)
    state = fed(PrequentialErrors(1), parts, [3]).state_dict()
    del state["baselines"]
    late = fed(restored(state, PrequentialErrors(1)), parts, [3], 3).metrics
    assert late["mae"] == 2.5
    assert late["no_change_mae"] == 1.0  # of the last two
    assert late["running_mean_mae"] == pytest.approx((2.5 + 3) / 2)
