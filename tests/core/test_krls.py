"""The layer of second order: in networks, learners, and on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from streamlearn import Learner
from streamlearn.errors import ConfigError, NotFiniteError
from streamlearn.krls import LeastSquaresLayer, RecursiveLeastSquares
from streamlearn.optim import FunctionalSGD

from .making import randn


def _layer(keys: int = 50, **more: Any) -> LeastSquaresLayer:
    wide: dict[str, Any] = {"dtype": torch.float64, "statistics": torch.float64}
    return LeastSquaresLayer(4, 2, keys, gamma=1.5, regularisation=0.3, **{**wide, **more})


def _learn(layer: LeastSquaresLayer, solver: RecursiveLeastSquares, x: Tensor, y: Tensor) -> None:
    layer.train()
    solver.zero_grad()
    (0.5 * (layer(x) - y).square().sum()).backward()
    solver.step()


def _kernel(one: Tensor, other: Tensor) -> Tensor:
    return (-1.5 / 4 * torch.cdist(one, other).square()).exp()


def test_online_it_is_kernel_ridge_regression() -> None:
    layer = _layer(120, gate=0.0)
    solver = RecursiveLeastSquares([layer], refresh=0.5)
    x, y = randn(100, 4), randn(100, 2, seed=1)
    for start in range(0, 100, 9):
        _learn(layer, solver, x[start : start + 9], y[start : start + 9])
    assert len(layer.memory) == 100
    values = torch.linalg.solve(_kernel(x, x) + 0.3 * torch.eye(100, dtype=torch.float64), y)
    fresh = randn(7, 4, seed=2)
    layer.eval()
    solver.freshen()
    assert torch.allclose(layer(fresh), _kernel(fresh, x) @ values, atol=1e-6)
    shares = sum(part.share @ part.value for part in layer.influences(fresh))
    assert isinstance(shares, Tensor)
    assert torch.allclose(shares, layer(fresh), atol=1e-10)


def test_asking_changes_nothing_that_is_learnt_later() -> None:
    answers = []
    for asks in (False, True):
        layer = _layer(20)
        solver = RecursiveLeastSquares([layer], refresh=0.4)
        for step in range(8):
            _learn(layer, solver, randn(5, 4, seed=step), randn(5, 2, seed=50 + step))
            if asks:
                layer.eval()
                solver.freshen()
                layer(randn(3, 4))
        layer.train()
        answers.append(layer(randn(3, 4, seed=99)).detach())
    assert torch.equal(*answers)


def test_the_layers_before_it_are_given_its_gradient() -> None:
    layer = _layer(20)
    solver = RecursiveLeastSquares([layer], refresh=0.0)
    for step in range(3):
        _learn(layer, solver, randn(9, 4, seed=step), randn(9, 2, seed=20 + step))
    query = randn(6, 4, seed=7).requires_grad_()
    layer.eval()
    found = torch.autograd.grad(layer(query).square().sum(), query)[0]
    columns = layer.memory.gather(torch.arange(len(layer.memory)), ("key", "value"))
    naive = (_kernel(query, columns["key"]) @ columns["value"]).square().sum()
    assert torch.allclose(found, torch.autograd.grad(naive, query)[0], atol=1e-9)


def test_what_is_not_finite_is_refused_and_nothing_changes() -> None:
    layer = _layer(20)
    solver = RecursiveLeastSquares([layer])
    _learn(layer, solver, randn(5, 4), randn(5, 2))
    before = solver.state_dict()["sums"][0]
    with pytest.raises(NotFiniteError, match="step 2 would learn"):
        _learn(layer, solver, randn(5, 4), torch.full((5, 2), torch.inf, dtype=torch.float64))
    after = solver.state_dict()["sums"][0]
    assert torch.equal(before["square"], after["square"])
    assert len(layer.memory) == 5
    assert solver.steps == 1


def test_functional_sgd_leaves_it_alone() -> None:
    with pytest.raises(ConfigError, match="no growing layer"):
        FunctionalSGD(torch.nn.Sequential(_layer()))


def _words(**more: Any) -> dict[str, Any]:
    return {
        "encoder": {"kind": "standardise", "fit": 20},
        "network": {"hidden": 1, "output": "least-squares"},
        "least_squares": {"keys": 30, "again": 0.5},
        "learner": {"batch": 8, "dtype": "float32", **more},
    }


@pytest.mark.parametrize("rehearsal", [0, 6])
def test_a_mixed_learner_goes_on_from_its_file_to_the_bit(tmp_path: Path, rehearsal: int) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(160, 5, generator=draw), torch.arange(160) % 3
    x[torch.arange(160), y] += 3.0
    learner = Learner(3, **_words(rehearsal=rehearsal))
    for start in range(0, 96, 8):
        learner.learn(x[start : start + 8], y[start : start + 8])
    learner.predict(x[:4])
    learner.save(tmp_path / "a.safetensors")
    other = Learner.load(tmp_path / "a.safetensors")
    for start in range(96, 160, 8):
        rows = slice(start, start + 8)
        one, two = (each.learn(x[rows], y[rows]) for each in (learner, other))
        assert torch.equal(one.answers, two.answers)
    assert torch.equal(learner.answer(x), other.answer(x))
    assert float((learner.predict(x) == y).float().mean()) > 0.9
    memories = learner.model.memories()  # type: ignore[union-attr]
    assert len(memories["output"]) == 30


def test_targets_that_are_numbers() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=draw)
    y = 50.0 + 10.0 * (x[:, 0] * x[:, 1])
    words = _words()
    words["network"] = {"hidden": 0, "output": "least-squares"}
    words["least_squares"] = {"keys": 60, "kappa": 1.0, "regularisation": 0.01}
    learner = Learner(outputs=1, **words)
    for start in range(0, 400, 8):
        learner.learn(x[start : start + 8], y[start : start + 8])
    error = (learner.predict(x)[:, 0] - y).abs().mean()
    assert float(error) < 0.3 * float((y - y.mean()).abs().mean())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"learner": {"loss": "cross_entropy"}}, "learner.loss=cross_entropy is not what"),
        ({"learner": {"adjust": "batch"}}, "adjust=batch is for cross-entropy"),
        ({"network": {"hidden": 0, "output": "least-squares"}, "learner": {"rehearsal": 4}},
         "that layer does not grow"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(3, **{**_words(), **words})
