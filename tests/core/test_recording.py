"""Hooks on linear layers: what is recorded, in which order, and what leaves no trace."""

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from streamlearn.errors import ConfigError, GraphError
from streamlearn.optimizers import FOOF, Delta
from streamlearn.optimizers.recording import LinearRecorder, Rows, Unit, find_linears, units_of

from .making import backward, randn


def record(module: nn.Module, *, gradients: bool = True) -> tuple[LinearRecorder, list[Unit]]:
    linears = find_linears([module])
    units = units_of(linears)
    recorder = LinearRecorder(gradients=gradients)
    recorder.watch(units, linears)
    return recorder, units


def rows(unit: Unit) -> Rows:
    found = unit.rows(torch.float64)
    assert found is not None
    return found


def linear(width: int, outputs: int, *, bias: bool = False) -> nn.Linear:
    return nn.Linear(width, outputs, bias=bias, dtype=torch.float64)


def test_inputs_and_each_rows_own_gradient_are_recorded() -> None:
    network = nn.Sequential(linear(4, 3, bias=True), nn.ReLU(inplace=True), linear(3, 2))
    _recorder, units = record(network)
    first, second = units
    x, slope = randn(5, 4), randn(5, 2, seed=1)
    backward((network(x) * slope).sum())
    hidden = network[0](x).detach()
    assert torch.equal(rows(first).inputs, torch.cat([x, x.new_ones(5, 1)], 1))
    assert torch.equal(rows(second).inputs, hidden.relu())
    found = rows(second).gradients
    assert found is not None
    assert torch.equal(found, slope)
    below = rows(first).gradients
    assert below is not None
    assert torch.allclose(below, (slope @ units[1].weight) * (hidden > 0))
    for unit in (first, second):
        whole, gradients = rows(unit)
        assert gradients is not None
        matrix = gradients.T @ whole
        assert unit.weight.grad is not None
        assert torch.allclose(matrix[:, : unit.weight.shape[1]], unit.weight.grad)


def test_uses_of_one_layer_are_recorded_in_their_forward_order() -> None:
    layer = linear(3, 3)
    _recorder, (unit,) = record(layer)
    x = randn(2, 3)
    middle = layer(x)
    backward(layer(middle).sum())
    assert torch.equal(rows(unit).inputs, torch.cat([x, middle.detach()]))


def test_backward_twice_adds_the_gradients_and_not_the_rows() -> None:
    layer = linear(3, 2)
    _recorder, (unit,) = record(layer)
    output = layer(randn(2, 3))
    output[:, 0].sum().backward(retain_graph=True)
    (2 * output[:, 1]).sum().backward()
    assert rows(unit).inputs.shape == (2, 3)
    found = rows(unit).gradients
    assert found is not None
    assert found.tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_a_graph_that_outlives_a_step_counts_again_when_it_is_run_again() -> None:
    layer = linear(3, 2)
    recorder, (unit,) = record(layer)
    output = layer(randn(2, 3))
    output.sum().backward(retain_graph=True)
    recorder.clear()
    assert unit.rows(torch.float64) is None
    backward((3 * output).sum())
    found = rows(unit).gradients
    assert found is not None
    assert found.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_a_forward_pass_without_a_backward_pass_leaves_nothing() -> None:
    layer = linear(3, 2)
    _recorder, (unit,) = record(layer)
    x = randn(2, 3)
    kept = weakref.ref(x)
    output = layer(x)
    with torch.no_grad():
        layer(x)
    assert unit.traces == []
    del output, x
    gc.collect()
    assert kept() is None


def test_gradients_are_not_kept_where_they_are_not_asked_for() -> None:
    layer = linear(3, 2)
    _recorder, (unit,) = record(layer, gradients=False)
    backward(layer(input=randn(2, 3)).sum())
    assert rows(unit).gradients is None
    assert rows(unit).inputs.shape == (2, 3)


@pytest.mark.parametrize("shape", [(4,), (2, 4), (2, 3, 4), (0, 4)])
def test_any_leading_shape_is_rows(shape: tuple[int, ...]) -> None:
    layer = linear(4, 2)
    _recorder, (unit,) = record(layer)
    x = randn(*shape)
    backward(layer(x).sum())
    assert torch.equal(rows(unit).inputs, x.reshape(-1, 4))


def test_checkpointed_layers_are_recorded_once() -> None:
    for reentrant in (False, True):
        layer = linear(3, 3)
        _recorder, (unit,) = record(layer)
        x = randn(2, 3).requires_grad_()
        backward(checkpoint(layer, x, use_reentrant=reentrant).sum())
        assert torch.equal(rows(unit).inputs, x.detach())


def test_frozen_layers_are_not_recorded() -> None:
    layer = linear(3, 2).requires_grad_(False)
    _recorder, (unit,) = record(layer)
    x = randn(2, 3).requires_grad_()
    backward(layer(x).sum())
    assert unit.traces == []


def test_a_copy_of_the_network_is_not_recorded() -> None:
    layer = linear(3, 2)
    _recorder, (unit,) = record(layer)
    twin = copy.deepcopy(layer)
    backward(twin(randn(2, 3)).sum())
    assert unit.traces == []
    backward(layer(randn(2, 3)).sum())
    assert len(unit.traces) == 1


def test_hooks_go_with_the_optimizer() -> None:
    layer = linear(3, 2)
    optimizer = FOOF(layer)
    assert len(layer._forward_hooks) == 1
    del optimizer
    gc.collect()
    assert len(layer._forward_hooks) == 0
    other = Delta(layer)
    other.close()
    assert len(layer._forward_hooks) == 0


def test_a_shared_weight_is_one_unit_and_a_shared_bias_none() -> None:
    one, two, three = linear(3, 3, bias=True), linear(3, 3, bias=True), linear(3, 3, bias=True)
    two.weight = one.weight  # one weight with two biases
    units = units_of([one, two, three])
    assert [unit.bias for unit in units] == [None, three.bias]
    two.bias = one.bias  # now one weight with one bias
    assert [unit.bias for unit in units_of([one, two, three])] == [one.bias, three.bias]
    three.bias = one.bias  # a bias of two weights
    assert [unit.bias for unit in units_of([one, two, three])] == [None, None]


def test_layers_whose_forward_pass_cannot_be_seen_are_left_to_adamw() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    normed = nn.utils.parametrizations.weight_norm(linear(4, 4))
    plain = linear(4, 3)
    assert find_linears([attention, normed, plain]) == [plain]
    network = nn.ModuleDict({"attention": attention, "normed": normed, "plain": plain})
    optimizer = FOOF(network)
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    x = randn(2, 5, 4)
    mixed: Tensor = attention(x, x, x)[0]
    backward(plain(normed(mixed)).square().sum())
    optimizer.step()
    moved = {name for name, value in network.named_parameters() if (value != before[name]).any()}
    assert moved == set(before)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, len(before) - 1]


def test_a_gradient_without_a_recorded_call_is_an_error_that_changes_nothing() -> None:
    layer = linear(3, 2)
    optimizer = FOOF(layer)
    before = layer.weight.detach().clone()
    backward(nn.functional.linear(randn(4, 3), layer.weight).sum())
    with pytest.raises(GraphError, match=r"shape \(2, 3\) has a gradient, but no call"):
        optimizer.step()
    assert torch.equal(layer.weight, before)
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()  # gradients of zero, as of a layer that was not used
    assert torch.equal(layer.weight, before)


def test_zero_grad_forgets_backward_passes_that_no_step_followed() -> None:
    layers = [linear(3, 2), linear(3, 2)]
    layers[1].load_state_dict(layers[0].state_dict())
    optimizers = [Delta(layer, lr=0.1, forget=0.1) for layer in layers]
    backward(layers[0](randn(4, 3, seed=5)).sum())
    for layer, optimizer in zip(layers, optimizers, strict=True):
        optimizer.zero_grad()
        backward(layer(randn(4, 3)).sum())
        optimizer.step()
    assert torch.equal(layers[0].weight, layers[1].weight)


def test_autocast_rows_are_taken_in_float32() -> None:
    layer = nn.Linear(6, 3)
    optimizer = Delta(layer, lr=0.1, forget=0.0)
    twin = copy.deepcopy(layer)
    x = randn(5, 6, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = layer(x).float().square().sum()
    backward(loss)
    optimizer.step()
    backward(twin(x).square().sum())
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert layer.weight.dtype == torch.float32
    assert torch.allclose(layer.weight, twin.weight, rtol=0, atol=0.05)


def test_parameters_instead_of_modules_are_refused_with_the_remedy() -> None:
    layer = linear(3, 2)
    for given in (layer.parameters(), nn.LayerNorm(3)):
        with pytest.raises(ConfigError, match=r"FOOF found no nn\.Linear .* give it the network"):
            FOOF(given)
    with pytest.raises(ConfigError, match="cannot be copied"):
        copy.deepcopy(Delta(layer))
