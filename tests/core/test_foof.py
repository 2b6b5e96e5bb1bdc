"""Mesa and FOOF: exact Newton steps, the objective that they minimise, and both inverses."""

import copy
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streamlearn.errors import ConfigError, NotFiniteError
from streamlearn.losses import squared_error
from streamlearn.optimizers import FOOF, Mesa
from streamlearn.optimizers.inverse import cholesky, newton_schulz, solve_cholesky

from ..reference import Array
from .linear_reference import MesaLoop, least_squares, mesa_minimiser
from .making import arrays, backward, generator, randn

Inverse = Literal["cholesky", "newton_schulz"]
BOTH: tuple[Inverse, ...] = ("cholesky", "newton_schulz")


def make_linear(width: int, outputs: int, *, bias: bool = False, seed: int = 3) -> nn.Linear:
    linear = nn.Linear(width, outputs, bias=bias, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(randn(outputs, width, seed=seed))
        if bias:
            linear.bias.copy_(randn(outputs, seed=seed + 1))
    return linear


def fit(optimizer: torch.optim.Optimizer, layer: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    backward(squared_error(layer(x), y).sum())
    optimizer.step()


def with_ones(x: Tensor) -> Array:
    return np.concatenate([arrays(x), np.ones((len(x), 1))], axis=1)


def spd(width: int, condition: float, seed: int = 0) -> Tensor:
    """A random matrix with eigenvalues from 1 down to 1/condition, evenly in their logarithm."""
    basis = torch.linalg.qr(randn(width, width, seed=seed)).Q
    values = torch.logspace(0, -np.log10(condition), width, dtype=torch.float64)
    matrix = basis * values @ basis.T
    return torch.tril(matrix) + torch.tril(matrix, -1).T


# -- Newton's step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FOOF, Mesa])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_on_a_squared_loss_the_undamped_step_is_newtons_and_lands_on_the_minimum(
    kind: type[Mesa], bias: bool, average: bool
) -> None:
    layer = make_linear(7, 3, bias=bias)
    x, y = randn(40, 7, seed=1), randn(40, 3, seed=2)
    optimizer = kind(layer, lr=1.0, damping=1e-14, average=average)
    fit(optimizer, layer, x, y)
    wanted = least_squares(with_ones(x) if bias else arrays(x), arrays(y))
    np.testing.assert_allclose(arrays(layer.weight), wanted[:, :7], rtol=0, atol=1e-12)
    if bias:
        np.testing.assert_allclose(arrays(layer.bias), wanted[:, 7], rtol=0, atol=1e-12)


def test_the_undamped_step_is_the_hessians_inverse_times_the_gradient() -> None:
    layer = make_linear(5, 2)
    x, y, rate = randn(20, 5, seed=1), randn(20, 2, seed=2), 0.3
    start = layer.weight.detach().clone()

    def loss(weight: Tensor) -> Tensor:
        return squared_error(x @ weight.T, y).sum()

    hessian = torch.autograd.functional.hessian(loss, start).reshape(10, 10)  # type: ignore[no-untyped-call]
    gradient = torch.autograd.functional.jacobian(loss, start).reshape(10)  # type: ignore[no-untyped-call]
    newton = start - rate * torch.linalg.solve(hessian, gradient).reshape(2, 5)
    fit(FOOF(layer, lr=rate, damping=0.0), layer, x, y)
    assert torch.allclose(layer.weight, newton, rtol=0, atol=1e-12)


@pytest.mark.parametrize("inverse", BOTH)
def test_newtons_step_is_approached_as_the_damping_vanishes(inverse: Inverse) -> None:
    x, y = randn(40, 6, seed=1), randn(40, 3, seed=2)
    wanted = least_squares(arrays(x), arrays(y))
    away = []
    for damping in (1e-1, 1e-3, 1e-5, 1e-7):
        layer = make_linear(6, 3)
        fit(FOOF(layer, lr=1.0, damping=damping, inverse=inverse, iterations=40), layer, x, y)
        away.append(float(np.abs(arrays(layer.weight) - wanted).max()))
    assert all(later < 0.02 * former for former, later in pairwise(away))
    assert away[-1] < 1e-5


# -- the mesa objective ----------------------------------------------------------------------------


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("regularisation", ["cumulative", "static"])
@pytest.mark.parametrize("discount", [0.0, 0.8, 1.0])
def test_every_step_is_the_minimiser_of_the_mesa_objective(
    regularisation: Literal["cumulative", "static"], discount: float, average: bool
) -> None:
    rate, damping, width, outputs = 0.7, 0.3, 6, 4
    layer = make_linear(width, outputs)
    optimizer = Mesa(
        layer,
        lr=rate,
        discount=discount,
        damping=damping,
        regularisation=regularisation,
        average=average,
    )
    weights = [arrays(layer.weight).copy()]
    centre, count = weights[0], 0.0
    inputs: list[Array] = []
    targets: list[Array] = []
    for step in range(12):
        x, y = randn(5, width, seed=10 + step), randn(5, outputs, seed=50 + step)
        count = discount * count + 1
        gradient = arrays(x) @ weights[-1].T - arrays(y)
        inputs.append(arrays(x))
        scale = rate * (count if average else 1.0)
        targets.append(arrays(x) @ weights[-1].T - scale * gradient)
        if regularisation == "cumulative":  # each step's prior is the weights before it
            priors = [
                (damping * discount ** (step - past), weights[past]) for past in range(step + 1)
            ]
        else:  # one prior, whose centre follows the weights
            centre = discount * centre + (1 - discount) * weights[-1]
            priors = [(damping, centre)]
        fit(optimizer, layer, x, y)
        wanted = mesa_minimiser(inputs, targets, discount, priors)
        np.testing.assert_allclose(arrays(layer.weight), wanted, rtol=0, atol=1e-10)
        weights.append(arrays(layer.weight).copy())
    assert np.abs(weights[-1] - weights[0]).max() > 0.3


def test_without_averaging_foof_is_its_own_form_with_exponential_averages() -> None:
    rate, damping, discount = 0.4, 0.2, 0.9
    layer = make_linear(5, 3)
    optimizer = FOOF(
        layer,
        lr=rate / (1 - discount),
        damping=damping / (1 - discount),
        discount=discount,
        average=False,
    )
    weight, moment = arrays(layer.weight).copy(), np.zeros((5, 5))
    for step in range(15):
        x, y = randn(8, 5, seed=step), randn(8, 3, seed=100 + step)
        moment = discount * moment + (1 - discount) * arrays(x).T @ arrays(x) / 8
        gradient = (arrays(x) @ weight.T - arrays(y)).T @ arrays(x) / 8
        weight = weight - rate * gradient @ np.linalg.inv(moment + damping * np.eye(5))
        fit(optimizer, layer, x, y)
        np.testing.assert_allclose(arrays(layer.weight), weight, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"average": False},
        {"regularisation": "static"},
        {"discount": 1.0},
        {"momentum": 0.8},
        {"momentum": 0.5, "decay": 0.03},
        {"inverse": "newton_schulz", "iterations": 40},
    ],
)
def test_a_deep_network_follows_the_naive_recursion_layer_by_layer(
    settings: dict[str, Any],
) -> None:
    first, second = make_linear(4, 6, bias=True), make_linear(6, 3, seed=8)
    network = nn.Sequential(first, nn.Tanh(), second)
    optimizer = Mesa(network, **{"lr": 0.1, "discount": 0.9, "damping": 0.2, **settings})
    known = {name: value for name, value in settings.items() if name in MesaLoop.__annotations__}
    start = np.concatenate([arrays(first.weight), arrays(first.bias)[:, None]], axis=1)
    loops = [
        MesaLoop(
            weight,
            **{"lr": 0.1, "discount": 0.9, "damping": 0.2, **known},
            cumulative=settings.get("regularisation") != "static",
        )
        for weight in (start, arrays(second.weight).copy())
    ]
    for step in range(20):
        x, y = randn(7, 4, seed=step), randn(7, 3, seed=100 + step)
        hidden = np.tanh(with_ones(x) @ loops[0].weight.T)
        error = hidden @ loops[1].weight.T - arrays(y)
        below = (error @ loops[1].weight) * (1 - hidden**2)
        fit(optimizer, network, x, y)
        loops[0].step(with_ones(x), below)
        loops[1].step(hidden, error)
        np.testing.assert_allclose(arrays(first.weight), loops[0].weight[:, :4], atol=1e-9)
        np.testing.assert_allclose(arrays(first.bias), loops[0].weight[:, 4], atol=1e-9)
        np.testing.assert_allclose(arrays(second.weight), loops[1].weight, atol=1e-9)


@pytest.mark.parametrize("kind", [FOOF, Mesa])
def test_nothing_depends_on_the_batch_size_where_samples_repeat(kind: type[Mesa]) -> None:
    once, thrice = make_linear(5, 2, bias=True), make_linear(5, 2, bias=True)
    optimizers = kind(once, lr=0.3), kind(thrice, lr=0.3)
    for step in range(8):
        x, y = randn(6, 5, seed=step), randn(6, 2, seed=100 + step)
        fit(optimizers[0], once, x, y)
        fit(optimizers[1], thrice, x.repeat(3, 1), y.repeat(3, 1))
    assert torch.allclose(once.weight, thrice.weight, rtol=0, atol=1e-12)
    assert torch.allclose(once.bias, thrice.bias, rtol=0, atol=1e-12)


def test_positions_of_a_sequence_are_rows() -> None:
    flat, shaped = make_linear(4, 3), make_linear(4, 3)
    optimizers = FOOF(flat, lr=0.2), FOOF(shaped, lr=0.2)
    for step in range(3):
        x, y = randn(12, 4, seed=step), randn(12, 3, seed=100 + step)
        fit(optimizers[0], flat, x, y)
        fit(optimizers[1], shaped, x.reshape(2, 3, 2, 4), y.reshape(2, 3, 2, 3))
    assert torch.equal(flat.weight, shaped.weight)


# -- what is trained -------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_with_one_part_frozen_the_other_takes_its_own_newton_step(frozen: str) -> None:
    layer = make_linear(4, 2, bias=True)
    getattr(layer, frozen).requires_grad_(False)
    held = getattr(layer, frozen).detach().clone()
    x, y = randn(30, 4, seed=1), randn(30, 2, seed=2)
    weight, bias = arrays(layer.weight).copy(), arrays(layer.bias).copy()
    fit(FOOF(layer, lr=1.0, damping=0.0), layer, x, y)
    assert torch.equal(getattr(layer, frozen), held)
    if frozen == "weight":
        wanted = (arrays(y) - arrays(x) @ weight.T).mean(0)
        np.testing.assert_allclose(arrays(layer.bias), wanted, rtol=0, atol=1e-12)
    else:
        wanted = least_squares(arrays(x), arrays(y) - bias)
        np.testing.assert_allclose(arrays(layer.weight), wanted, rtol=0, atol=1e-12)


def test_a_part_that_is_unfrozen_later_finds_the_moments_that_were_kept() -> None:
    layer = make_linear(4, 2, bias=True)
    optimizer = FOOF(layer, lr=1.0, damping=0.0, refresh=3, momentum=0.5)
    x, y = randn(30, 4, seed=1), randn(30, 2, seed=2)
    layer.bias.requires_grad_(False)
    fit(optimizer, layer, x, y)
    layer.bias.requires_grad_(True)
    for _ in range(60):
        fit(optimizer, layer, x, y)
    wanted = least_squares(with_ones(x), arrays(y))
    np.testing.assert_allclose(arrays(layer.bias), wanted[:, 4], rtol=0, atol=1e-8)


@pytest.mark.parametrize("refresh", [2, 3])
def test_an_inverse_is_kept_for_as_many_steps_as_refresh_says(refresh: int) -> None:
    layer = make_linear(5, 3)
    optimizer = Mesa(layer, lr=0.2, refresh=refresh)
    factors = []
    for step in range(7):
        fit(optimizer, layer, randn(6, 5, seed=step), randn(6, 3, seed=100 + step))
        factors.append(optimizer.state[layer.weight]["factor"])
    for step, factor in enumerate(factors):
        assert torch.equal(factor, factors[step - step % refresh])
    assert not torch.equal(factors[refresh - 1], factors[refresh])
    optimizer.param_groups[0]["refresh"] = 1
    fit(optimizer, layer, randn(6, 5), randn(6, 3))
    assert "factor" not in optimizer.state[layer.weight]


def test_clipped_gradients_are_what_is_preconditioned() -> None:
    whole, clipped = make_linear(5, 2), make_linear(5, 2)
    x, y = randn(9, 5, seed=1), randn(9, 2, seed=2)
    start = whole.weight.detach().clone()
    fit(FOOF(whole, lr=0.1), whole, x, y)
    optimizer = FOOF(clipped, lr=0.1)
    backward(squared_error(clipped(x), y).sum())
    norm = torch.nn.utils.clip_grad_norm_(clipped.parameters(), 1.0)
    optimizer.step()
    assert norm > 1
    assert torch.allclose(clipped.weight - start, (whole.weight - start) / norm, rtol=1e-5)


def test_what_is_not_finite_is_refused_and_nothing_is_changed() -> None:
    first, second = make_linear(3, 3), make_linear(3, 2)
    network = nn.Sequential(first, second)
    optimizer = Mesa(network, lr=0.1)
    fit(optimizer, network, randn(4, 3), randn(4, 2))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    moment = optimizer.state[first.weight]["moment"].clone()
    for bad in (float("nan"), float("inf"), 1e200):
        x = randn(4, 3)
        x[1, 2] = bad
        optimizer.zero_grad()
        backward(first(x).sum())
        with pytest.raises(NotFiniteError, match="3 outputs and 3 columns are not finite"):
            optimizer.step()
    assert all(map(torch.equal, before, network.parameters()))
    assert torch.equal(moment, optimizer.state[first.weight]["moment"])
    fit(optimizer, network, randn(4, 3), randn(4, 2))
    assert not torch.equal(before[0], first.weight)


def test_a_matrix_without_an_inverse_leaves_every_layer_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = make_linear(3, 3), make_linear(3, 2)
    network = nn.Sequential(first, second)
    optimizer = FOOF(network, lr=0.1, momentum=0.5, refresh=3)
    fit(optimizer, network, randn(4, 3), randn(4, 2))
    before = copy.deepcopy(optimizer.state_dict())
    calls = 0

    def refuse(matrix: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise NotFiniteError("no inverse")
        return cholesky(matrix)

    monkeypatch.setattr("streamlearn.optimizers.foof.cholesky", refuse)
    for _ in range(2):  # until both make their factors anew
        fit(optimizer, network, randn(4, 3), randn(4, 2))
        before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(NotFiniteError, match="no inverse"):
        fit(optimizer, network, randn(4, 3), randn(4, 2))
    after = optimizer.state_dict()
    for place, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(after["state"][place][name]))


def test_a_moment_that_overflows_is_an_error_that_moves_no_parameter() -> None:
    small, large = make_linear(3, 2).float(), make_linear(3, 2).float()
    network = nn.ModuleList([small, large])
    optimizer = FOOF(network, discount=1.0)
    x = randn(1, 3, dtype=torch.float32)
    for step in range(2):
        before = [parameter.detach().clone() for parameter in network.parameters()]
        optimizer.zero_grad()
        backward((small(x) + 1e-30 * large(torch.full((1, 3), 1e19))).sum())
        if step == 0:
            optimizer.step()
            optimizer.state[large.weight]["moment"] *= 3  # as after more such steps
    with pytest.raises(NotFiniteError, match="of 3 columns has overflowed; scale the features"):
        optimizer.step()
    assert all(map(torch.equal, before, network.parameters()))


@pytest.mark.parametrize("inverse", BOTH)
@pytest.mark.parametrize("damping", [0.0, 0.1])
def test_inputs_that_are_zero_or_constant_do_no_harm(inverse: Inverse, damping: float) -> None:
    layer = make_linear(6, 2).float()
    optimizer = FOOF(layer, lr=0.1, damping=damping, inverse=inverse)
    y = randn(8, 2, dtype=torch.float32)
    fit(optimizer, layer, torch.zeros(8, 6), y)  # no input: no step
    assert torch.equal(layer.weight, make_linear(6, 2).float().weight)
    x = torch.zeros(8, 6)
    x[:, 0] = 1000.0  # one constant column, five dead ones
    for _ in range(50):
        fit(optimizer, layer, x, y)
    assert layer.weight.isfinite().all()
    before = squared_error(make_linear(6, 2).float()(x), y).sum()
    assert squared_error(layer(x), y).sum() < 0.1 * before


def test_a_bfloat16_layer_keeps_its_moments_in_float32() -> None:
    layer = make_linear(6, 3).bfloat16()
    optimizer = Mesa(layer, lr=0.5)
    x, y = randn(32, 6, dtype=torch.bfloat16), randn(32, 3, seed=1, dtype=torch.bfloat16)
    for _ in range(30):
        fit(optimizer, layer, x, y)
    assert optimizer.state[layer.weight]["moment"].dtype == torch.float32
    twin = make_linear(6, 3).bfloat16()
    restored = Mesa(twin, lr=0.5)
    restored.load_state_dict(optimizer.state_dict())
    loaded = restored.state[twin.weight]["moment"]
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded, optimizer.state[layer.weight]["moment"])


# -- inverses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 5, 40])
@pytest.mark.parametrize("condition", [1.0, 100.0, 1e4])
def test_newton_schulz_agrees_with_cholesky_after_enough_iterations(
    width: int, condition: float
) -> None:
    matrix, rows = spd(width, condition), randn(3, width, seed=4)
    wanted = solve_cholesky(rows, cholesky(matrix))
    found = rows @ newton_schulz(matrix, 30)
    assert (found - wanted).norm() < 1e-6 * wanted.norm()
    assert torch.allclose(wanted @ matrix, rows, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("iterations", [1, 2, 5, 10])
@pytest.mark.parametrize("condition", [1.0, 2.0, 1e3])  # row sums bound the first, norms the last
def test_newton_schulz_inverts_each_eigenvalue_as_far_as_the_formula_says(
    condition: float, iterations: int
) -> None:
    matrix = spd(12, condition)
    values, basis = torch.linalg.eigh(matrix)
    bound = min(float(matrix.abs().sum(1).max()), float(matrix.norm()))
    wanted = (1 - (1 - values / bound) ** (2**iterations)) / values
    found = newton_schulz(matrix, iterations)
    assert torch.allclose(found, basis * wanted @ basis.T, rtol=0, atol=1e-10)


def test_more_iterations_are_never_worse() -> None:
    matrix = spd(20, 1e3)
    eye = torch.eye(20, dtype=torch.float64)
    errors = [float((eye - matrix @ newton_schulz(matrix, k)).norm()) for k in range(1, 25)]
    assert all(later <= former for former, later in pairwise(errors[:15]))
    assert errors[-1] < 1e-9


def test_mesa_learns_the_same_with_either_inverse() -> None:
    layers = [make_linear(6, 3, bias=True) for _ in BOTH]
    for layer, inverse in zip(layers, BOTH, strict=True):
        optimizer = Mesa(layer, lr=0.3, inverse=inverse, iterations=25)
        for step in range(30):
            fit(optimizer, layer, randn(8, 6, seed=step), randn(8, 3, seed=100 + step))
    assert torch.allclose(layers[0].weight, layers[1].weight, rtol=0, atol=1e-9)


def test_a_matrix_that_rounding_made_indefinite_is_lifted_as_little_as_needed() -> None:
    x = torch.randn(3, 50, generator=generator(1))
    matrix = x.T @ x  # rank 3 of 50 in float32
    factor = cholesky(matrix)
    assert (factor @ factor.T - matrix).norm() < 1e-3 * matrix.norm()
    assert torch.equal(cholesky(torch.zeros(4, 4)), torch.eye(4))
    definite = spd(6, 10.0)
    assert torch.equal(cholesky(definite), torch.linalg.cholesky(definite))
    assert torch.equal(newton_schulz(torch.zeros(4, 4)), torch.zeros(4, 4))


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 must be finite and at least 0"),
        ({"lr": float("nan")}, "lr=nan must be finite"),
        ({"discount": 1.5}, r"discount=1.5 must be finite and in \[0, 1\]"),
        ({"momentum": 1.0}, r"momentum=1.0 must be finite and in \[0, 1\)"),
        ({"damping": -0.1}, "damping=-0.1 must be"),
        ({"iterations": 0}, "iterations=0 must be"),
        ({"refresh": 0}, "refresh=0 must be"),
        ({"inverse": "lu"}, "inverse='lu' is unknown; use cholesky or newton_schulz"),
        ({"regularisation": "none"}, "regularisation='none' is unknown; use cumulative or static"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mesa(make_linear(3, 2), **settings)


def test_foof_is_static() -> None:
    layer = make_linear(3, 2)
    with pytest.raises(ConfigError, match="use Mesa for regularisation=cumulative"):
        FOOF([{"params": [layer], "regularisation": "cumulative"}])
    assert FOOF(layer).param_groups[0]["regularisation"] == "static"
