"""Growth as an optimizer: exactness over many steps, traces, groups and their errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streamlearn import FunctionalSGD
from streamlearn.errors import ConfigError, FormatError, NotFiniteError
from streamlearn.layers import DualLinear, GrowingLayer, RBFLayer, WeightedSoftmax
from streamlearn.losses import cross_entropy
from streamlearn.memory import PRIOR
from streamlearn.networks import ResNetMLP

from .. import reference
from .making import KINDS, Dense, Kind, arrays, backward, fill, make_layer, randn

# -- the linear layer's dual form ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.02), (0.7, 0.01), (0.9, 0.1)]
)
@pytest.mark.parametrize("start", [False, True])
def test_the_dual_form_equals_sgd_on_the_weight_matrix_over_300_steps(
    momentum: float, decay: float, start: bool
) -> None:
    width, outputs, batch, rate = 6, 3, 4, 0.01
    first = randn(outputs, width, seed=11) if start else None
    layer = DualLinear(width, outputs, weight=first, dtype=torch.float64, block_rows=512)
    optimizer = FunctionalSGD(layer, lr_value=rate, momentum=momentum, decay=decay)
    matrix = arrays(first).copy() if first is not None else np.zeros((outputs, width))
    velocity = np.zeros_like(matrix)
    goal = arrays(randn(outputs, width, seed=12))
    largest = 0.0
    for step in range(300):
        x = arrays(randn(batch, width, seed=1000 + step))
        target = x @ goal.T + 0.1 * arrays(randn(batch, outputs, seed=5000 + step))
        optimizer.zero_grad()
        query = torch.from_numpy(x).requires_grad_()
        output = layer(query)
        (0.5 * (output - torch.from_numpy(target)).square().sum()).backward()
        gradient = x @ matrix.T - target
        assert query.grad is not None
        np.testing.assert_allclose(arrays(output), x @ matrix.T, rtol=0, atol=1e-10)
        np.testing.assert_allclose(arrays(query.grad), gradient @ matrix, rtol=0, atol=1e-10)
        optimizer.step()
        velocity = momentum * velocity + gradient.T @ x
        matrix = (1.0 - decay) * matrix - rate * velocity
        largest = max(largest, float(np.abs(matrix).max()))
    assert len(layer.memory) == 300 * batch
    assert 0.1 < largest < 100  # the comparison was neither of zeros nor of a divergence
    probe = randn(20, width, seed=99)
    layer.eval()
    np.testing.assert_allclose(arrays(layer(probe)), arrays(probe) @ matrix.T, rtol=0, atol=1e-10)


def test_the_dual_form_equals_torch_sgd_on_a_linear_module() -> None:
    linear = nn.Linear(5, 3, bias=False, dtype=torch.float64)
    layer = DualLinear(5, 3, weight=linear.weight, dtype=torch.float64)
    ordinary = torch.optim.SGD(linear.parameters(), lr=0.02, momentum=0.9)
    functional = FunctionalSGD(layer, lr_value=0.02, momentum=0.9)
    for step in range(100):
        query, target = randn(4, 5, seed=step), torch.arange(4) % 3
        ordinary.zero_grad()
        functional.zero_grad()
        backward(cross_entropy(linear(query), target).sum())
        backward(cross_entropy(layer(query), target).sum())
        ordinary.step()
        functional.step()
    probe = randn(9, 5, seed=900)
    assert torch.allclose(layer(probe), linear(probe), rtol=0, atol=1e-10)


# -- momentum and decay of every layer -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_appends_what_the_rules_say_and_all_tuples_count_by_the_recursion(
    kind: Kind,
) -> None:
    layer = make_layer(kind, 5, 3)
    momentum, decay = 0.6, 0.05
    optimizer = FunctionalSGD(layer, lr_value=0.05, lr_weight=0.01, momentum=momentum, decay=decay)
    for step in range(1, 13):
        query, target = randn(3, 5, seed=step), randn(3, 3, seed=100 + step)
        optimizer.zero_grad()
        output = layer(query)
        dense = Dense.of(layer)
        for row in range(3):  # the reference counts each tuple by the explicit recursion
            wanted = dense.output(layer, arrays(query)[row])
            np.testing.assert_allclose(arrays(output)[row], wanted, rtol=1e-10, atol=1e-12)
        (0.5 * (output - target).square().sum()).backward()
        optimizer.step()
        after = Dense.of(layer)
        assert after.born[-3:] == [step] * 3
        np.testing.assert_array_equal(after.key[-3:], arrays(query))
        np.testing.assert_array_equal(after.value[:-3], dense.value)
    assert optimizer.steps == 12
    assert layer.forgetting.step == 12


@pytest.mark.parametrize("kind", ["softmax", "gauge"])
def test_the_starting_rows_keep_the_denominator_positive_after_long_decay(kind: Kind) -> None:
    layer = make_layer(kind, 4, 2, dtype=torch.float32)
    optimizer = FunctionalSGD(layer, lr_value=0.1, lr_weight=0.1, decay=0.5)
    layer(randn(8, 4, dtype=torch.float32)).square().sum().backward()
    optimizer.step()
    start = Dense.of(make_layer(kind, 4, 2, dtype=torch.float32))
    for _ in range(300):
        optimizer.step()  # nothing to write: time goes by
    assert len(layer.memory) == 16 + 8
    query = randn(5, 4, seed=3, dtype=torch.float32)
    found = arrays(layer(query))
    wanted = np.array([start.output(layer, row) for row in arrays(query)])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_starting_rows_stay_with_their_weight_of_one_over_their_number() -> None:
    layer = make_layer("softmax", 4, 2, start_rows=5)
    start = Dense.of(layer)
    assert start.born == [PRIOR] * 5
    np.testing.assert_allclose(start.weight, 0.2, rtol=1e-7)
    np.testing.assert_allclose((start.key**2).mean(1), 1.0, rtol=1e-6)  # RMS-normalised
    np.testing.assert_allclose(((start.value / 0.2) ** 2).mean(1), 1.0, rtol=1e-6)
    zero = make_layer("softmax", 4, 2, start_values="zero")
    assert not zero.memory.host_columns(0)["value"].any()


# -- mini-batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_mini_batch_stores_the_tuples_of_its_samples_at_once(kind: Kind) -> None:
    hidden, output = make_layer(kind, 5, 5), make_layer(kind, 5, 3)
    for layer in (hidden, output):
        fill(layer, 30)
    network = ResNetMLP([hidden], output)
    features, target = randn(6, 5, seed=3), torch.arange(6) % 3

    def pending(rows: slice) -> list[list[Tensor]]:
        for layer in (hidden, output):
            layer.traces.clear()
        backward(cross_entropy(network(features[rows]), target[rows]).sum())
        return [
            [torch.cat(column) for column in zip(*layer.pending(lr_value=0.3, lr_weight=0.1),
                                                 strict=True)]
            for layer in (hidden, output)
        ]  # fmt: skip

    together = pending(slice(0, 6))
    alone = [pending(slice(row, row + 1)) for row in range(6)]
    for place in range(2):
        for column in range(3):
            wanted = torch.cat([sample[place][column] for sample in alone])
            assert torch.allclose(together[place][column], wanted, rtol=1e-11, atol=1e-13)


# -- traces ----------------------------------------------------------------------------------------


def test_several_forward_passes_before_a_step_are_all_written() -> None:
    layer = make_layer("rbf", 4, 2)
    optimizer = FunctionalSGD(layer, lr_value=0.1)
    first, second = randn(2, 4, seed=1), randn(3, 4, seed=2)
    layer(first).sum().backward()
    layer(second).sum().backward()
    optimizer.step()
    np.testing.assert_array_equal(Dense.of(layer).key, arrays(torch.cat([first, second])))
    assert layer.traces == []


def test_a_layer_used_twice_in_one_network_writes_for_both_uses() -> None:
    layer = make_layer("rbf", 3, 3)
    fill(layer, 20)
    optimizer = FunctionalSGD(nn.Sequential(layer, layer), lr_value=0.1)
    query = randn(2, 3)
    middle = layer(query).detach()
    optimizer.zero_grad()
    layer(layer(query)).sum().backward()
    optimizer.step()
    key = Dense.of(layer).key
    assert len(key) == 24
    np.testing.assert_array_equal(key[-4:], arrays(torch.cat([query, middle])))


def test_backward_twice_adds_the_gradients_as_a_parameter_would() -> None:
    layer = make_layer("rbf", 3, 2)
    optimizer = FunctionalSGD(layer, lr_value=1.0)
    output = layer(randn(2, 3))
    (3 * output[:, 0]).sum().backward(retain_graph=True)
    (2 * output[:, 1]).sum().backward()
    optimizer.step()
    assert Dense.of(layer).value.tolist() == [[-3.0, -2.0], [-3.0, -2.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_forward_pass_without_backward_stores_nothing(kind: Kind) -> None:
    layer = make_layer(kind, 4, 2)
    optimizer = FunctionalSGD(layer)
    before = len(layer.memory)
    layer(randn(3, 4))
    optimizer.step()
    assert len(layer.memory) == before
    assert layer.traces == []


def test_zero_grad_drops_what_was_not_stepped() -> None:
    layer = make_layer("rbf", 4, 2)
    optimizer = FunctionalSGD(layer)
    layer(randn(3, 4)).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert len(layer.memory) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_mode_and_no_grad_leave_no_trace(kind: Kind) -> None:
    layer = make_layer(kind, 4, 2)
    with torch.no_grad():
        layer(randn(3, 4))
        layer(randn(3, 4).requires_grad_())
    layer.eval()
    output = layer(randn(3, 4).requires_grad_())
    assert layer.traces == []
    output.sum().backward()  # the gradient to the query flows all the same
    assert layer.traces == []


def test_a_batch_without_samples_steps_and_stores_nothing() -> None:
    for kind in KINDS:
        layer = make_layer(kind, 4, 2)
        optimizer = FunctionalSGD(layer)
        before = len(layer.memory)
        layer(torch.zeros(0, 4, dtype=torch.float64)).sum().backward()
        optimizer.step()
        assert len(layer.memory) == before
        assert optimizer.steps == 1


def test_a_closure_is_called_once_and_its_loss_returned() -> None:
    layer = make_layer("rbf", 4, 2)
    optimizer = FunctionalSGD(layer)
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss: Tensor = (layer(randn(3, 4)) - 1.0).square().sum()
        backward(loss)
        return loss

    loss = optimizer.step(closure)
    assert len(calls) == 1
    assert loss is not None
    assert loss.item() == 6.0
    assert len(layer.memory) == 3
    assert optimizer.step() is None


# -- all or nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_where_one_layer_would_store_nan_no_layer_stores_anything(order: tuple[int, int]) -> None:
    layers = [make_layer("softmax", 4, 2), make_layer("softmax", 4, 2)]
    optimizer = FunctionalSGD(nn.ModuleList([layers[index] for index in order]))
    query = randn(3, 4)
    layers[0](query).sum().backward()
    optimizer.step()
    before = [layer(query).detach() for layer in layers]
    optimizer.zero_grad()
    layers[0](query).sum().backward()
    (layers[1](query) * float("inf")).sum().backward()
    sizes = [len(layer.memory) for layer in layers]
    with pytest.raises(NotFiniteError, match=r"step 2 .*lower the learning rates"):
        optimizer.step()
    assert [len(layer.memory) for layer in layers] == sizes
    assert optimizer.steps == 1
    for layer, wanted in zip(layers, before, strict=True):
        assert torch.equal(layer(query), wanted)
    optimizer.zero_grad()
    layers[0](query).sum().backward()
    optimizer.step()  # and learning goes on
    assert len(layers[0].memory) == sizes[0] + 3


# -- a growing layer beside ordinary parameters ----------------------------------------------------


class Dense2(nn.Module):
    """A growing layer's function with plain differentiable tensor operations."""

    def __init__(self, layer: GrowingLayer) -> None:
        super().__init__()
        dense = Dense.of(layer)
        self.layer = layer
        self.key = torch.from_numpy(dense.key)
        self.weight = torch.from_numpy(dense.weight * dense.counts)
        self.value = torch.from_numpy(dense.value * dense.counts[:, None])

    def forward(self, query: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, RBFLayer):
            distance = (query[:, None] - self.key[None]).square().sum(-1) / layer.in_features
            return torch.exp(-layer.gamma * distance) @ self.value
        if isinstance(layer, DualLinear):
            return query @ self.key.T @ self.value
        assert isinstance(layer, WeightedSoftmax) or hasattr(layer, "temperature")
        scale = float(layer.temperature) * layer.in_features**0.5  # type: ignore[arg-type]
        pull = torch.exp(query @ self.key.T / scale)
        return (pull @ self.value) / (pull @ self.weight[:, None])


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_before_and_after_a_growing_layer_get_the_gradients_of_autograd(
    kind: Kind,
) -> None:
    torch.manual_seed(0)
    before, after = nn.Linear(6, 4).double(), nn.Linear(4, 3).double()
    layer = make_layer(kind, 4, 4)
    network = nn.Sequential(before, nn.Tanh(), layer, nn.Tanh(), after)
    ordinary = torch.optim.SGD(
        [parameter for parameter in network.parameters() if parameter.requires_grad], lr=0.05
    )
    functional = FunctionalSGD(network, lr_value=0.1, lr_weight=0.01, momentum=0.5, decay=0.01)
    for step in range(8):
        features, target = randn(5, 6, seed=step), torch.arange(5) % 3
        twin = nn.Sequential(before, nn.Tanh(), Dense2(layer), nn.Tanh(), after)
        parameters = list(before.parameters()) + list(after.parameters())
        wanted = torch.autograd.grad(cross_entropy(twin(features), target).sum(), parameters)
        ordinary.zero_grad()
        functional.zero_grad()
        backward(cross_entropy(network(features), target).sum())
        for parameter, gradient in zip(parameters, wanted, strict=True):
            assert parameter.grad is not None
            assert torch.allclose(parameter.grad, gradient, rtol=1e-10, atol=1e-12)
        ordinary.step()
        functional.step()
        # Forward with the gradient that reached the layer: what was stored is the rule's tuple.
        assert Dense.of(layer).born[-1] == step + 1


@pytest.mark.parametrize("kind", KINDS)
def test_residual_layers_get_the_gradients_of_autograd_through_the_network(kind: Kind) -> None:
    hidden = [make_layer(kind, 5, 5), make_layer(kind, 5, 5)]
    output = make_layer(kind, 5, 3)
    for layer in (*hidden, output):
        fill(layer, 40)
    features, target = randn(6, 5, seed=3), torch.arange(6) % 3
    grown = features.clone().requires_grad_()
    backward(cross_entropy(ResNetMLP(hidden, output)(grown), target).sum())
    plain = features.clone().requires_grad_()
    twin = ResNetMLP([Dense2(layer) for layer in hidden], Dense2(output))
    backward(cross_entropy(twin(plain), target).sum())
    assert grown.grad is not None
    assert plain.grad is not None
    assert torch.allclose(grown.grad, plain.grad, rtol=1e-10, atol=1e-12)


# -- groups and state ------------------------------------------------------------------------------


def test_groups_have_rates_of_their_own_and_defaults_for_the_rest() -> None:
    first, second = make_layer("rbf", 4, 2), make_layer("rbf", 4, 2)
    optimizer = FunctionalSGD(
        [{"layers": [first], "lr_value": 1.0, "momentum": 0.5}, {"layers": [second]}],
        lr_value=0.25,
        decay=0.125,
    )
    for layer in (first, second):
        layer(randn(2, 4)).sum().backward()
    optimizer.step()
    assert Dense.of(first).value.tolist() == [[-1.0, -1.0]] * 2
    assert Dense.of(second).value.tolist() == [[-0.25, -0.25]] * 2
    assert (first.forgetting.momentum, first.forgetting.decay) == (0.5, 0.125)
    assert (second.forgetting.momentum, second.forgetting.decay) == (0.0, 0.125)


def test_a_rate_changed_between_steps_applies_to_later_writes_only() -> None:
    layer = make_layer("rbf", 4, 2)
    optimizer = FunctionalSGD(layer, lr_value=1.0, momentum=0.5)
    for rate in (1.0, 0.25):
        optimizer.param_groups[0]["lr_value"] = rate
        optimizer.zero_grad()
        layer(randn(1, 4, seed=int(4 * rate))).sum().backward()
        optimizer.step()
    assert Dense.of(layer).value.tolist() == [[-1.0, -1.0], [-0.25, -0.25]]
    np.testing.assert_allclose(
        Dense.of(layer).counts, reference.coefficients([1, 2], 2, 0.5, 0.0), rtol=1e-14
    )


def test_the_state_restores_steps_and_rates() -> None:
    def made() -> tuple[GrowingLayer, FunctionalSGD]:
        layer = make_layer("softmax", 4, 2)
        return layer, FunctionalSGD(layer, lr_value=0.3, lr_weight=0.02, momentum=0.4, decay=0.1)

    def learn(layer: GrowingLayer, optimizer: FunctionalSGD, seeds: range) -> None:
        for seed in seeds:
            optimizer.zero_grad()
            layer(randn(3, 4, seed=seed)).square().sum().backward()
            optimizer.step()

    layer, optimizer = made()
    learn(layer, optimizer, range(5))
    optimizer.param_groups[0]["lr_value"] = 0.1
    state, tuples = optimizer.state_dict(), layer.get_extra_state()
    restored = make_layer("softmax", 4, 2)
    restored.set_extra_state(tuples)
    other = FunctionalSGD(restored)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.steps == 5
    for pair in ((layer, optimizer), (restored, other)):
        learn(*pair, range(5, 9))
    query = randn(4, 4, seed=77)
    assert torch.equal(layer(query), restored(query))


def test_a_new_optimizer_over_a_used_network_goes_on_with_its_clock() -> None:
    layer = make_layer("rbf", 4, 2)
    optimizer = FunctionalSGD(layer, lr_value=0.3, decay=0.1)
    for seed in range(5):
        optimizer.zero_grad()
        layer(randn(3, 4, seed=seed)).sum().backward()
        optimizer.step()
    query = randn(4, 4, seed=77)
    before = layer(query).detach()
    again = FunctionalSGD(layer, lr_value=0.3, decay=0.1)
    assert again.steps == 5
    assert torch.equal(layer(query), before)


def test_a_state_with_another_number_of_groups_is_refused() -> None:
    one = FunctionalSGD(make_layer("rbf", 4, 2))
    two = FunctionalSGD([{"layers": [make_layer("rbf", 4, 2)]} for _ in range(2)])
    with pytest.raises(FormatError, match="has 2 groups but this optimizer has 1"):
        one.load_state_dict(two.state_dict())


def _layer() -> GrowingLayer:
    return make_layer("rbf", 4, 2)


@pytest.mark.parametrize(("build", "message"), [
    (lambda: FunctionalSGD(nn.Linear(3, 2)), "no growing layer to write to; add one of"),
    (lambda: FunctionalSGD([]), "no growing layer to write to"),
    (lambda: FunctionalSGD([{"layers": []}]), r"has no layers; give it layers=\[…\]"),
    (lambda: FunctionalSGD([{"lr_value": 1.0}]), "has no layers"),
    (lambda: FunctionalSGD([{"layers": [nn.Linear(2, 2)]}]), "has a Linear among its layers"),
    (lambda: FunctionalSGD([{"layers": [_layer()], "lr": 1.0}]), "has no setting 'lr'; it takes"),
    (lambda: FunctionalSGD(_layer(), lr_value=-1.0), "lr_value=-1.0 must be finite and at least 0"),
    (lambda: FunctionalSGD(_layer(), lr_weight=float("nan")), "lr_weight=nan must be finite"),
    (lambda: FunctionalSGD(_layer(), lr_value=float("inf")), "lr_value=inf must be finite"),
    (lambda: FunctionalSGD(_layer(), momentum=1.0), r"momentum=1.0 must be finite and in \[0, 1\)"),
    (lambda: FunctionalSGD(_layer(), momentum=-0.1), "momentum=-0.1"),
    (lambda: FunctionalSGD(_layer(), decay=1.0), r"decay=1.0 must be finite and in \[0, 1\)"),
    (lambda: FunctionalSGD([{"layers": [_layer()], "decay": 2}]), "decay=2 must be"),
])  # fmt: skip
def test_what_cannot_be_used_is_named(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


def test_a_layer_in_two_groups_is_refused() -> None:
    layer = make_layer("rbf", 4, 2)
    with pytest.raises(ConfigError, match="in two groups"):
        FunctionalSGD([{"layers": [layer]}, {"layers": [layer]}])
    with pytest.raises(ConfigError, match="in two groups"):
        FunctionalSGD([{"layers": [layer, layer]}])
