"""Layers as modules: construction, state, copies; and networks and losses around them."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streamlearn.errors import ConfigError, FormatError, ShapeError
from streamlearn.kernels import default_temperature
from streamlearn.layers import DualLinear, GaugeSoftmax, GrowingLayer, RBFLayer, WeightedSoftmax
from streamlearn.losses import LOSSES, cross_entropy, squared_error
from streamlearn.networks import ResNetMLP, rms_norm
from streamlearn.optim import FunctionalSGD

from .making import KINDS, Kind, arrays, backward, fill, generator, make_layer, randn

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def network(kind: Kind, dtype: torch.dtype) -> ResNetMLP:
    return ResNetMLP([make_layer(kind, 6, 6, dtype=dtype)], make_layer(kind, 6, 3, dtype=dtype))


def output_of(model: ResNetMLP) -> GrowingLayer:
    assert isinstance(model.output, GrowingLayer)
    return model.output


def train(model: nn.Module, optimizer: FunctionalSGD, seeds: range) -> None:
    for seed in seeds:
        optimizer.zero_grad()
        output = model(randn(5, 6, seed=seed, dtype=torch.float32))
        backward(cross_entropy(output, torch.arange(5) % 3).sum())
        optimizer.step()


# -- state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_dict_restores_predictions_to_the_bit_and_learning_goes_on_alike(
    kind: Kind, dtype: torch.dtype, tmp_path: Path
) -> None:
    model, restored = network(kind, dtype), network(kind, dtype)
    rates: dict[str, Any] = {"lr_value": 0.01, "lr_weight": 0.003, "momentum": 0.5, "decay": 0.01}
    optimizer = FunctionalSGD(model, **rates)
    train(model, optimizer, range(120))  # two blocks of 512 rows
    assert len(output_of(model).memory.blocks) == 2
    torch.save(model.state_dict(), tmp_path / "network.pt")
    restored.load_state_dict(torch.load(tmp_path / "network.pt", weights_only=True))
    query = randn(7, 6, seed=500, dtype=torch.float32)
    assert torch.equal(restored(query), model(query))
    other = FunctionalSGD(restored, **rates)
    train(model, optimizer, range(120, 124))
    train(restored, other, range(120, 124))
    assert torch.equal(restored(query), model(query))


def test_loading_replaces_all_tuples_that_were_there() -> None:
    layer, other = make_layer("softmax", 4, 2), make_layer("softmax", 4, 2)
    fill(layer, 30)
    fill(other, 90, seed=5)
    other.load_state_dict(layer.state_dict())
    assert len(other.memory) == len(layer.memory)
    assert torch.equal(other(randn(3, 4)), layer(randn(3, 4)))


def test_a_dual_layers_first_weight_is_part_of_its_state() -> None:
    layer = DualLinear(4, 2, weight=randn(2, 4), dtype=torch.float64)
    other = DualLinear(4, 2, weight=torch.zeros(2, 4, dtype=torch.float64), dtype=torch.float64)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(randn(3, 4)), layer(randn(3, 4)))
    assert list(layer.parameters()) == []  # an ordinary optimizer has nothing to change


def test_a_dual_layer_does_not_share_the_weight_that_it_was_given() -> None:
    weight = randn(2, 4)
    layer = DualLinear(4, 2, weight=weight, dtype=torch.float64)
    before = layer(randn(3, 4)).detach()
    weight.zero_()
    assert torch.equal(layer(randn(3, 4)).detach(), before)


def test_tuples_of_another_layer_are_refused() -> None:
    with pytest.raises(FormatError, match="belongs to another layer"):
        make_layer("softmax", 4, 2).load_state_dict(make_layer("softmax", 5, 2).state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_grows_by_itself(kind: Kind) -> None:
    model = network(kind, torch.float32)
    optimizer = FunctionalSGD(model)
    train(model, optimizer, range(3))
    query = randn(3, 6, dtype=torch.float32)
    before = model(query).detach()
    twin = copy.deepcopy(model)
    train(twin, FunctionalSGD(twin), range(3, 9))
    assert torch.equal(model(query).detach(), before)
    assert len(output_of(twin).memory) > len(output_of(model).memory)


def test_moving_a_module_takes_the_memory_along_and_its_dtype_stays() -> None:
    model = network("softmax", torch.float32)
    output = output_of(model)
    before = model(torch.ones(1, 6))
    model.double()
    assert output.memory.dtype == torch.float32
    assert torch.equal(model(torch.ones(1, 6)), before)
    model.to("meta")
    assert output.memory.device.type == "meta"
    block = output.memory.blocks[0]
    columns = (block.key, block.side, block.weight, block.key_square, block.born)
    assert {column.device.type for column in columns} == {"meta"}
    assert len(output.memory) == 16


def test_a_layer_says_its_widths_and_size() -> None:
    layer = make_layer("softmax", 4, 2)
    assert str(layer) == "WeightedSoftmax(4, 2, tuples=16)"


# -- construction ----------------------------------------------------------------------------------


def test_the_default_temperature_makes_the_largest_logit_six() -> None:
    for width in (4, 256, 3072):
        layer = WeightedSoftmax(width, 2)
        assert layer.temperature == pytest.approx(width**0.5 / 6)
        assert layer.temperature == default_temperature(width)
        assert layer.kernel.scale * width == pytest.approx(6.0)  # ⟨k, q⟩ ≤ D


def test_rbf_on_the_sphere_is_the_softmax_kernel_but_for_a_factor() -> None:
    """exp(⟨k,q⟩/(T√D)) = e^κ exp(−γ‖k − q‖²/D) with γ = √D/(2T) = κ/2, where ‖k‖ = ‖q‖ = √D."""
    width = 9
    key, query = rms_norm(randn(50, width)), rms_norm(randn(50, width, seed=1))
    temperature = default_temperature(width)
    kappa = width**0.5 / temperature
    softmax = torch.exp((key * query).sum(-1) / (temperature * width**0.5))
    layer = RBFLayer(width, 2)
    rbf = torch.exp(-layer.gamma * (key - query).square().sum(-1) / width)
    assert layer.gamma == kappa / 2
    np.testing.assert_allclose(arrays(softmax), np.exp(kappa) * arrays(rbf), rtol=1e-6)


def test_the_same_generator_draws_the_same_starting_rows() -> None:
    for made in (WeightedSoftmax, GaugeSoftmax):
        first = made(5, 3, generator=generator(3), start_values="random")
        second = made(5, 3, generator=generator(3), start_values="random")
        assert torch.equal(first(torch.ones(1, 5)), second(torch.ones(1, 5)))


def test_a_new_softmax_layer_answers_zero() -> None:
    for made in (WeightedSoftmax, GaugeSoftmax):
        assert torch.equal(made(5, 3)(randn(4, 5).float()), torch.zeros(4, 3))


@pytest.mark.parametrize(("make", "message"), [
    (lambda: WeightedSoftmax(4, 2, start_rows=0), "layer.start_rows=0 must be at least 1"),
    (lambda: GaugeSoftmax(4, 2, start_rows=-1), "layer.start_rows=-1 must be at least 1"),
    (lambda: WeightedSoftmax(4, 2, temperature=0.0), "layer.temperature=0.0 must be above 0"),
    (lambda: WeightedSoftmax(4, 2, temperature=float("nan")), "layer.temperature=nan"),
    (lambda: GaugeSoftmax(4, 2, alpha=0.0), "layer.alpha=0.0 must be above 0"),
    (lambda: RBFLayer(4, 2, gamma=-1.0), "layer.gamma=-1.0 must be above 0"),
])  # fmt: skip
def test_settings_that_no_layer_can_have_are_named(make: type, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_first_weight_of_another_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(ShapeError, match=r"shape \(4, 2\) but must have \(2, 4\)"):
        DualLinear(4, 2, weight=torch.zeros(4, 2))


def test_writing_a_trace_without_a_gradient_says_to_call_backward() -> None:
    layer = make_layer("softmax", 4, 2)
    layer(randn(1, 4))
    with pytest.raises(ConfigError, match=r"call backward\(\) first"):
        layer.write(layer.traces[0], lr_value=1.0, lr_weight=1.0)
    assert layer.pending(lr_value=1.0, lr_weight=1.0) == []


# -- networks --------------------------------------------------------------------------------------


def test_rms_norm_puts_rows_on_the_sphere_and_leaves_zero_rows_zero() -> None:
    rows = 1e-2 * randn(6, 10)
    rows[2] = 0.0
    normed = rms_norm(rows)
    norms = normed.norm(dim=-1)
    assert torch.equal(normed[2], torch.zeros(10, dtype=torch.float64))
    others = norms[[0, 1, 3, 4, 5]]
    np.testing.assert_allclose(arrays(others), 10**0.5, rtol=1e-3)
    assert (others <= 10**0.5 * (1 + 1e-12)).all()  # so that logits stay bounded by κ


class Doubling(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return 2.0 * values


def test_the_network_adds_each_layer_to_its_stream_and_reads_it_normalised() -> None:
    features = randn(3, 4)
    found = ResNetMLP([Doubling(), Doubling()], Doubling())(features)
    stream = arrays(features)

    def norm(
        rows: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        result: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = rows / np.sqrt(
            (rows**2).mean(-1, keepdims=True) + 1e-8
        )
        return result

    for _ in range(2):
        stream = stream + 2 * norm(stream)
    np.testing.assert_allclose(arrays(found), 2 * norm(stream), rtol=1e-12)


def test_logits_of_a_normalised_network_need_no_largest_exponent() -> None:
    layer = make_layer("softmax", 6, 6)
    for _ in range(20):
        query = rms_norm(100 * randn(5, 6))
        layer.traces.clear()
        layer(query).sum().backward()
        for tuples in layer.pending(lr_value=0.1, lr_weight=0.1):
            layer.memory.append(tuples, born=1)
    square = query.square().sum(-1, keepdim=True)
    assert layer.kernel.bound(square, layer.memory.max_key_square) <= 6.0 * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_growing_layer_found_by_the_optimizer(kind: Kind) -> None:
    model = network(kind, torch.float32)
    found = FunctionalSGD(nn.Sequential(nn.Linear(6, 6), model)).param_groups[0]["layers"]
    assert found == [model.hidden[0], model.output]
    assert all(isinstance(layer, GrowingLayer) for layer in found)


# -- losses ----------------------------------------------------------------------------------------


def test_losses_are_each_samples_own_and_never_averaged() -> None:
    output = randn(4, 3).requires_grad_()
    target = torch.tensor([0, 2, 1, 1])
    shares = np.exp(arrays(output)) / np.exp(arrays(output)).sum(-1, keepdims=True)
    losses = cross_entropy(output, target)
    np.testing.assert_allclose(
        arrays(losses), -np.log(shares[np.arange(4), target.numpy()]), rtol=1e-12
    )
    (gradient,) = torch.autograd.grad(losses.sum(), output)
    np.testing.assert_allclose(arrays(gradient), shares - np.eye(3)[target.numpy()], rtol=1e-10)
    losses = squared_error(output, target)
    gaps = arrays(output) - np.eye(3)[target.numpy()]
    np.testing.assert_allclose(arrays(losses), 0.5 * (gaps**2).sum(-1), rtol=1e-12)
    (gradient,) = torch.autograd.grad(losses.sum(), output)
    np.testing.assert_allclose(arrays(gradient), gaps, rtol=1e-12)


def test_squared_error_takes_rows_of_targets_too() -> None:
    output, target = randn(4, 3), randn(4, 3, seed=1)
    np.testing.assert_allclose(
        arrays(squared_error(output, target)),
        0.5 * ((arrays(output) - arrays(target)) ** 2).sum(-1),
        rtol=1e-12,
    )


@pytest.mark.parametrize("name", ["cross_entropy", "squared_error"])
def test_outputs_become_probabilities(name: str) -> None:
    loss = LOSSES[name]
    output = torch.cat([3 * randn(20, 4), torch.zeros(1, 4), torch.full((1, 4), -1e4)])
    output[0] = torch.tensor([1e4, 0.0, 0.0, 0.0])
    shares = loss.answers(output)
    np.testing.assert_allclose(arrays(shares.sum(-1)), 1.0, rtol=1e-12)
    assert (shares >= 0).all()
    assert int(shares[0].argmax()) == 0
    np.testing.assert_allclose(arrays(shares[-2:]), 0.25, rtol=1e-12)
    losses = loss.of_answers(shares.float(), torch.full((22,), 1))
    assert losses.shape == (22,)
    assert losses.isfinite().all()
    assert (losses >= 0).all()
