"""The exact models against batch solutions: scikit-learn's, and closed forms in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import Ridge, SGDClassifier
from sklearn.neighbors import KNeighborsClassifier

from streamlearn.losses import LOSSES
from streamlearn.memory import Memory
from streamlearn.models import (
    DiscriminantModel,
    FeatureMap,
    FeaturesModel,
    KernelModel,
    KNNModel,
    Model,
    RidgeModel,
)
from streamlearn.solving import solve_by_rows, solve_positive

from .making import arrays, randn

LOSS = LOSSES["cross_entropy"]
CPU = torch.device("cpu")
WIDTH, CLASSES = 5, 3


def data(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes that overlap, far from the origin, with a share each of its own."""
    targets = torch.from_numpy(np.random.default_rng(seed).choice(3, count, p=[0.6, 0.3, 0.1]))
    shift = randn(CLASSES, WIDTH, seed=99)
    return randn(count, WIDTH, seed=seed) + shift[targets] + 7.0, targets


def learn(model: Model, codes: torch.Tensor, targets: torch.Tensor) -> None:
    """In ragged batches."""
    model.start(codes[:20], targets[:20])
    start = 0
    for size in [1, 2, 7, 16, 3] * 20:
        rows = slice(start, start + size)
        if len(codes[rows]):
            model.learn(codes[rows], targets[rows])
        start += size
    assert start > len(codes)


def memory(rows: int = 512) -> Memory:
    return Memory(WIDTH, CLASSES, dtype=torch.float64, block_rows=rows)


def test_ridge_is_batch_ridge_in_any_order() -> None:
    codes, targets = data(300)
    signs = 2 * np.eye(CLASSES)[targets.numpy()] - 1
    batch = Ridge(alpha=2.5).fit(codes.numpy(), signs)
    probe, _ = data(40, seed=1)
    shares = (0.5 * (1 + batch.predict(probe.numpy()))).clip(0, 1) + 1e-6
    shares /= shares.sum(-1, keepdims=True)
    for order in (torch.arange(300), torch.argsort(targets)):
        model = RidgeModel(WIDTH, CLASSES, LOSS, regularisation=2.5, refresh=3, device=CPU)
        learn(model, codes[order], targets[order])
        weight = arrays(model.solve()["weight"])
        np.testing.assert_allclose(weight[:-1].T, batch.coef_, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(weight[-1], batch.intercept_, rtol=1e-9)
        np.testing.assert_allclose(arrays(model.answer(probe)), shares, atol=1e-6)


@pytest.mark.parametrize("shrinkage", [0.01, 0.4, 1.0])
def test_the_discriminant_is_batch_discriminant_analysis(shrinkage: float) -> None:
    codes, targets = data(300)
    batch = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage)
    batch.fit(codes.numpy(), targets.numpy())
    model = DiscriminantModel(WIDTH, CLASSES, LOSS, shrinkage=shrinkage, refresh=4, device=CPU)
    learn(model, codes, targets)
    np.testing.assert_allclose(arrays(model.mean), batch.means_, rtol=1e-12)
    covariance = batch.covariance_ - shrinkage * np.eye(WIDTH) * np.trace(batch.covariance_) / WIDTH
    scatter = (1 - shrinkage) * arrays(model.scatter) / 300
    np.testing.assert_allclose(scatter, covariance, atol=1e-12)
    probe, _ = data(40, seed=1)
    np.testing.assert_allclose(
        arrays(model.answer(probe)), batch.predict_proba(probe.numpy()), atol=1e-6
    )


def test_a_class_that_has_not_come_has_probability_nought() -> None:
    codes, targets = data(60)
    model = DiscriminantModel(WIDTH, 4, LOSS, shrinkage=0.1, refresh=1, device=CPU)
    learn(model, codes, targets)
    found = model.answer(codes)
    assert (found[:, 3] == 0).all()
    assert found.isfinite().all()


def test_equal_samples_make_no_nan() -> None:
    codes, targets = torch.full((30, WIDTH), 2.0), torch.arange(30) % 3
    models: list[Model] = [
        DiscriminantModel(WIDTH, CLASSES, LOSS, shrinkage=0.1, refresh=1, device=CPU),
        RidgeModel(WIDTH, CLASSES, LOSS, regularisation=1.0, refresh=1, device=CPU),
        KernelModel(memory(), LOSS, regularisation=0.1, bandwidth=None, scale=1.0, bias=True,
                    first=4, limit=99),
        KNNModel(memory(), LOSS, k=4, weighting="kernel"),
        KNNModel(memory(), LOSS, k=4, weighting="distance"),
        KNNModel(memory(), LOSS, k=4, metric="cosine", weighting="kernel"),
    ]  # fmt: skip
    for model in models:
        learn(model, codes.double(), targets)
        assert model.answer(torch.zeros(2, WIDTH).double()).isfinite().all()


@pytest.mark.parametrize("weighting", ["uniform", "distance"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("k", [1, 7, 1000])
def test_neighbours_are_scikit_learns(metric: Any, weighting: Any, k: int) -> None:
    codes, targets = data(700, seed=3)  # two blocks
    probe = torch.cat([data(30, seed=4)[0], codes[:5]])  # some are stored themselves
    model = KNNModel(memory(), LOSS, k=k, metric=metric, weighting=weighting)
    for start in range(0, 700, 100):
        model.learn(codes[start : start + 100], targets[start : start + 100])
    batch = KNeighborsClassifier(min(k, 700), metric=metric, weights=weighting)
    batch.fit(codes.numpy(), targets.numpy())
    distances, _ = model.neighbours(probe[:30])
    np.testing.assert_allclose(
        arrays(distances), batch.kneighbors(probe[:30].numpy())[0], rtol=1e-7, atol=1e-12
    )
    wanted = batch.predict_proba(probe.numpy())
    # scikit-learn's distance of a sample to itself is zero on some processors only.
    few = slice(None) if weighting == "uniform" else slice(30)
    np.testing.assert_allclose(arrays(model.answer(probe))[few], wanted[few], atol=1e-6)


@pytest.mark.parametrize("bandwidth", [None, 0.7])
def test_votes_of_a_gaussian_and_of_products(bandwidth: float | None) -> None:
    codes, targets = data(90, seed=3)
    probe = data(10, seed=4)[0]
    for metric in ("euclidean", "dot"):
        model = KNNModel(memory(), LOSS, k=6, metric=metric, weighting="kernel",
                         bandwidth=bandwidth)  # fmt: skip
        model.learn(codes, targets)
        if metric == "dot":
            products = arrays(probe @ codes.T)
            distances = products.max(-1, keepdims=True) - products
        else:
            distances = np.linalg.norm(arrays(probe)[:, None] - arrays(codes), axis=-1)
        for row, near in zip(arrays(model.answer(probe)), distances, strict=True):
            chosen = np.argsort(near)[:6]
            width = near[chosen[-1]] if bandwidth is None else bandwidth
            votes = np.exp(-(near[chosen] ** 2 - near[chosen[0]] ** 2) / (2 * width**2))
            shares = np.bincount(targets.numpy()[chosen], votes, minlength=CLASSES)
            np.testing.assert_allclose(row, shares / shares.sum(), atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("bandwidth", [None, 1.3])
def test_the_kernel_machine_is_the_closed_form(bias: bool, bandwidth: float | None) -> None:
    codes, targets = data(570, seed=3)  # two blocks
    model = KernelModel(memory(), LOSS, regularisation=0.3, bandwidth=bandwidth, scale=2.0,
                        bias=bias, first=10, limit=600)  # fmt: skip
    learn(model, codes, targets)
    x, y = arrays(codes), 2 * np.eye(CLASSES)[targets.numpy()] - 1
    between = np.linalg.norm(x[:20, None] - x[:20], axis=-1)[np.triu_indices(20, 1)]
    width = np.sort(between)[(len(between) - 1) // 2] * 2 if bandwidth is None else bandwidth
    assert model.bandwidth == pytest.approx(width, rel=1e-9)

    def kernel(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = np.exp(
            -(np.linalg.norm(a[:, None] - b, axis=-1) ** 2) / (2 * width**2)
        )
        return found

    count = len(x)
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = kernel(x, x) + 0.3 * np.eye(count)
    right = np.vstack([y, np.zeros(CLASSES)])
    if bias:
        system[:count, count] = system[count, :count] = 1
    else:
        system[count, count] = 1
    solved = np.linalg.solve(system, right)
    solution = model.solve()
    np.testing.assert_allclose(arrays(solution["alpha"]), solved[:count], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(arrays(solution["constant"]), solved[count], rtol=1e-7, atol=1e-12)
    probe = arrays(data(30, seed=4)[0])
    output = kernel(probe, x) @ solved[:count] + solved[count]
    shares = (0.5 * (1 + output)).clip(0, 1) + 1e-6
    np.testing.assert_allclose(
        arrays(model.answer(torch.from_numpy(probe))),
        shares / shares.sum(-1, keepdims=True),
        atol=1e-6,
    )


def test_a_kernel_machine_is_solved_anew_when_samples_have_doubled() -> None:
    codes, targets = data(100)
    model = KernelModel(memory(), LOSS, regularisation=0.3, bandwidth=1.0, scale=1.0, bias=True,
                        first=10, limit=600)  # fmt: skip
    solved = []
    for start in range(0, 100, 4):
        model.learn(codes[start : start + 4], targets[start : start + 4])
        solution = model.state_dict()["solution"]
        solved.append(0 if solution is None else len(solution["alpha"]))
    assert sorted(set(solved)) == [0, 12, 24, 48, 96]


@pytest.mark.parametrize("name", ["fourier", "nystroem"])
@pytest.mark.parametrize("classes", [2, 3])
def test_features_and_their_classifier_are_scikit_learns(name: Any, classes: int) -> None:
    codes, targets = data(200)
    targets = targets.clamp_max(classes - 1)
    model = FeaturesModel(FeatureMap(name, 15, 1.7, seed=4), classes, LOSS, alpha=1e-3,
                          schedule="optimal", lr=0.1)  # fmt: skip
    learn(model, codes, targets)
    options = {"gamma": 0.5 / 1.7**2, "n_components": 15, "random_state": 4}
    sampler = (RBFSampler if name == "fourier" else Nystroem)(**options).fit(codes[:20].numpy())
    drawn = sampler.transform(codes.numpy())
    np.testing.assert_allclose(model.features(codes), drawn, rtol=1e-6, atol=1e-9)
    batch = SGDClassifier(loss="log_loss", alpha=1e-3, shuffle=False)
    batch.partial_fit(drawn, targets.numpy(), classes=np.arange(classes))
    probe, _ = data(30, seed=5)
    wanted = batch.predict_proba(sampler.transform(probe.numpy()))
    np.testing.assert_allclose(arrays(model.answer(probe)), wanted, atol=1e-6)


def test_an_indefinite_matrix_is_solved_with_its_eigenvalues_raised() -> None:
    vectors = torch.linalg.qr(randn(4, 4)).Q
    values = torch.tensor([3.0, 2.0, 1.0, -1e-9]).double()
    matrix = vectors @ torch.diag(values) @ vectors.T
    right = randn(4, 2, seed=1)
    found = solve_positive(matrix, right, 0.5)
    wanted = vectors @ torch.diag(1 / values.clamp_min(0.5)) @ vectors.T @ right
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("shift", [0.1, 1e-3, 1e-7])
def test_solving_by_rows_is_solving_the_whole(shift: float) -> None:
    points = randn(1500, 3)
    kernel = (-0.5 * torch.cdist(points, points).square()).exp()
    right = randn(1500, 2, seed=1)
    asked = []

    def rows(start: int, stop: int) -> torch.Tensor:
        asked.append((start, stop))
        return kernel[start:stop].clone()

    found = solve_by_rows(rows, right, shift)
    assert float((kernel @ found + shift * found - right).norm()) < 1e-6 * float(right.norm())
    assert max(stop - start for start, stop in asked) <= 1024
    whole = kernel + shift * torch.eye(1500, dtype=torch.float64)
    wanted = solve_positive(whole, right, shift)
    assert float((found - wanted).norm()) < 1e-5 * float(wanted.norm())
