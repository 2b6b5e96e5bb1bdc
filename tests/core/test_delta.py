"""Delta: the sequential form by triangular solves, the batch form, and what they descend on."""

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streamlearn.errors import ConfigError
from streamlearn.losses import squared_error
from streamlearn.optimizers import Delta
from streamlearn.optimizers.delta import delta_batch, delta_sequential

from .linear_reference import delta_loop
from .making import arrays, backward, randn
from .test_foof import fit, make_linear, with_ones

Form = Literal["sequential", "batch"]
FORMS: tuple[Form, ...] = ("sequential", "batch")


def forgetting(count: int, inputs: Tensor, share: float) -> Tensor:
    return torch.full((count,), share, dtype=torch.float64) / inputs.square().sum(1)


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 300])
def test_triangular_solves_equal_the_loop_over_rows(count: int) -> None:
    weight, x, g = randn(4, 9, seed=1), randn(count, 9, seed=2), randn(count, 4, seed=3)
    forget = forgetting(count, x, 0.4)
    found = delta_sequential(weight, x, g, forget, 0.05)
    wanted = delta_loop(arrays(weight), arrays(x), arrays(g), arrays(forget), 0.05)
    np.testing.assert_allclose(arrays(found), wanted, rtol=0, atol=1e-11)


def test_the_sequential_form_is_online_gradient_descent_on_the_layer_local_loss() -> None:
    forget, rate = 0.07, 0.02
    layer = make_linear(6, 3)
    x, y = randn(25, 6, seed=1), randn(25, 3, seed=2)
    weight = layer.weight.detach().clone()
    gradients = x @ weight.T - y  # of the squared loss, at the weights before the batch
    for row, gradient in zip(x, gradients, strict=True):
        weight.requires_grad_()
        target = -(rate / forget) * gradient
        local = 0.5 * (weight @ row - target).square().sum()
        (slope,) = torch.autograd.grad(local, weight)
        weight = (weight - forget * slope).detach()
    fit(Delta(layer, lr=rate, forget=forget, normalise=False), layer, x, y)
    assert torch.allclose(layer.weight, weight, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_layer_follows_the_loop_over_many_batches(
    bias: bool, normalise: bool, decay: float
) -> None:
    layer = make_linear(5, 3, bias=bias)
    optimizer = Delta(layer, lr=0.02, forget=0.05, normalise=normalise, decay=decay)
    weight = arrays(layer.weight)
    if bias:
        weight = np.concatenate([weight, arrays(layer.bias)[:, None]], axis=1)
    for step in range(12):
        x, y = randn(6, 5, seed=step), randn(6, 3, seed=100 + step)
        inputs = with_ones(x) if bias else arrays(x)
        gradients = inputs @ weight.T - arrays(y)
        share = (inputs**2).sum(1) if normalise else np.ones(6)
        weight = delta_loop((1 - decay) * weight, inputs, gradients, 0.05 / share, 0.02)
        fit(optimizer, layer, x, y)
        np.testing.assert_allclose(arrays(layer.weight), weight[:, :5], rtol=0, atol=1e-11)
        if bias:
            np.testing.assert_allclose(arrays(layer.bias), weight[:, 5], rtol=0, atol=1e-11)


def test_the_batch_form_is_its_formula() -> None:
    layer = make_linear(5, 3)
    x, y, start = randn(8, 5, seed=1), randn(8, 3, seed=2), arrays(layer.weight).copy()
    gradient = (arrays(x) @ start.T - arrays(y)).T @ arrays(x)
    fit(Delta(layer, lr=0.03, forget=0.02, normalise=False, form="batch"), layer, x, y)
    wanted = start @ (np.eye(5) - 0.02 * arrays(x).T @ arrays(x)) - 0.03 * gradient
    np.testing.assert_allclose(arrays(layer.weight), wanted, rtol=0, atol=1e-12)


def test_both_forms_are_the_same_for_one_row_and_for_orthogonal_rows() -> None:
    weight = randn(3, 8, seed=1)
    orthogonal = torch.linalg.qr(randn(8, 5, seed=2)).Q.T * torch.arange(1, 6)[:, None]
    for rows in (randn(1, 8, seed=3), orthogonal):
        g = randn(len(rows), 3, seed=4)
        forget = forgetting(len(rows), rows, 0.6)
        one = delta_sequential(weight, rows, g, forget, 0.1)
        other = delta_batch(weight, rows, g.T @ rows, forget, 0.1)
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


def test_both_forms_differ_in_second_order_only() -> None:
    weight, x, g = randn(3, 4, seed=1), randn(20, 4, seed=2), randn(20, 3, seed=3)
    away = []
    for share in (1e-2, 1e-3, 1e-4):
        forget = forgetting(20, x, share)
        one = delta_sequential(weight, x, g, forget, share)
        away.append(float((one - delta_batch(weight, x, g.T @ x, forget, share)).norm()))
    assert away[0] > 1e-4
    ratios = [former / later for former, later in pairwise(away)]
    assert all(80 < ratio < 120 for ratio in ratios)  # a tenth of β and η: a hundredth


@pytest.mark.parametrize("form", FORMS)
def test_without_forgetting_it_is_sgd(form: Form) -> None:
    layer, twin = make_linear(5, 3, bias=True), make_linear(5, 3, bias=True)
    optimizers = (
        Delta(layer, lr=0.02, forget=0.0, form=form),
        torch.optim.SGD(twin.parameters(), lr=0.02),
    )
    for step in range(20):
        x, y = randn(6, 5, seed=step), randn(6, 3, seed=100 + step)
        fit(optimizers[0], layer, x, y)
        fit(optimizers[1], twin, x, y)
    assert torch.allclose(layer.weight, twin.weight, rtol=0, atol=1e-12)
    assert torch.allclose(layer.bias, twin.bias, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_forgetting_is_selective_and_decay_is_not(form: Form) -> None:
    layer = make_linear(4, 2)
    start = layer.weight.detach().clone()
    x = torch.tensor([[0.0, 3.0, 0.0, 0.0]], dtype=torch.float64)
    optimizer = Delta(layer, lr=1.0, forget=0.25, form=form)
    backward((0.0 * layer(x)).sum())
    optimizer.step()
    assert torch.equal(layer.weight[:, [0, 2, 3]], start[:, [0, 2, 3]])
    assert torch.allclose(layer.weight[:, 1], 0.75 * start[:, 1], rtol=0, atol=1e-15)
    other = make_linear(4, 2)
    optimizer = Delta(other, lr=1.0, forget=0.0, decay=0.25, form=form)
    backward((0.0 * other(x)).sum())
    optimizer.step()
    assert torch.allclose(other.weight, 0.75 * start, rtol=0, atol=1e-15)


def test_a_layer_used_twice_is_learnt_in_the_order_of_its_uses() -> None:
    layer = make_linear(3, 3)
    start, x = arrays(layer.weight).copy(), randn(2, 3)
    optimizer = Delta(layer, lr=0.03, forget=0.1, normalise=False)
    middle = layer(x)
    output = layer(middle)
    backward(0.5 * output.square().sum())
    optimizer.step()
    above = arrays(output)
    inputs = np.concatenate([arrays(x), arrays(middle)])
    gradients = np.concatenate([above @ start, above])
    wanted = delta_loop(start, inputs, gradients, np.full(4, 0.1), 0.03)
    np.testing.assert_allclose(arrays(layer.weight), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_zeros_forgets_nothing(form: Form) -> None:
    layer = make_linear(4, 2)
    start = layer.weight.detach().clone()
    fit(
        Delta(layer, lr=0.1, forget=0.5, form=form),
        layer,
        torch.zeros_like(randn(3, 4)),
        randn(3, 2),
    )
    assert torch.equal(layer.weight, start)


def test_the_sequential_form_stays_bounded_where_the_batch_form_diverges() -> None:
    x = randn(1, 6, seed=1).repeat(64, 1)  # 64 equal rows: together they forget 64 times β
    weights = {}
    for form in FORMS:
        layer = make_linear(6, 2)
        optimizer = Delta(layer, lr=0.0, forget=0.5, form=form)
        for _ in range(10):
            fit(optimizer, layer, x, torch.zeros_like(randn(64, 2)))
        weights[form] = layer.weight.detach().abs().max()
    assert weights["sequential"] < 4
    assert weights["batch"] > 1e6


def test_a_deep_network_is_moved_layer_by_layer() -> None:
    below_layer, above_layer = make_linear(4, 6), make_linear(6, 3, seed=9)
    network = nn.Sequential(below_layer, nn.Tanh(), above_layer)
    first, second = arrays(below_layer.weight).copy(), arrays(above_layer.weight).copy()
    x, y = randn(7, 4, seed=1), randn(7, 3, seed=2)
    hidden = np.tanh(arrays(x) @ first.T)
    error = hidden @ second.T - arrays(y)
    below = (error @ second) * (1 - hidden**2)
    fit(Delta(network, lr=0.05, forget=0.02, normalise=False), network, x, y)
    beta = np.full(7, 0.02)
    wanted = delta_loop(first, arrays(x), below, beta, 0.05)
    np.testing.assert_allclose(arrays(below_layer.weight), wanted, rtol=0, atol=1e-12)
    wanted = delta_loop(second, hidden, error, beta, 0.05)
    np.testing.assert_allclose(arrays(above_layer.weight), wanted, rtol=0, atol=1e-12)


def test_with_the_bias_frozen_only_what_the_weight_says_is_forgotten() -> None:
    layer = make_linear(5, 3, bias=True)
    layer.bias.requires_grad_(False)
    start, held = arrays(layer.weight).copy(), layer.bias.detach().clone()
    x, y = randn(6, 5, seed=1), randn(6, 3, seed=2)
    gradients = arrays(layer(x)) - arrays(y)
    fit(Delta(layer, lr=0.02, forget=0.05, normalise=False), layer, x, y)
    wanted = delta_loop(start, arrays(x), gradients, np.full(6, 0.05), 0.02)
    np.testing.assert_allclose(arrays(layer.weight), wanted, rtol=0, atol=1e-12)
    assert torch.equal(layer.bias, held)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"forget": -1.0}, "forget=-1.0 must be finite"),
        ({"forget": 2.0}, r"forget=2.0 must be finite and in \[0, 2\)"),
        ({"form": "parallel"}, "form='parallel' is unknown; use sequential or batch"),
        ({"decay": 1.0}, "decay=1.0 must be"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Delta(make_linear(3, 2), **settings)


def test_the_loss_falls() -> None:
    layer = make_linear(6, 3, bias=True)
    optimizer = Delta(layer, lr=0.01, forget=1e-3)
    goal = randn(3, 6, seed=70)
    first = last = 0.0
    for step in range(200):
        x = randn(16, 6, seed=step)
        last = float(squared_error(layer(x), x @ goal.T).sum().detach())
        first = first or last
        fit(optimizer, layer, x, x @ goal.T)
    assert last < 0.02 * first
