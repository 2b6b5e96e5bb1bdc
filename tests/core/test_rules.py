"""Write rules against their definitions, and that what they write descends."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from streamlearn.layers import GaugeSoftmax, GrowingLayer, WeightedSoftmax
from streamlearn.memory import Tuples
from streamlearn.optim import FunctionalSGD
from streamlearn.rules import clipped_write, gauge_write, kernel_write

from .. import reference
from .making import Dense, Kind, arrays, backward, fill, make_layer, randn


def test_a_kernel_write_is_the_query_with_the_negative_gradient() -> None:
    query, output, gradient = randn(4, 5), randn(4, 3, seed=1), randn(4, 3, seed=2)
    key, weight, value = kernel_write(query, output, gradient, lr_value=0.3)
    assert torch.equal(key, query)
    assert torch.equal(weight, torch.zeros(4, dtype=torch.float64))
    np.testing.assert_allclose(arrays(value), -0.3 * arrays(gradient), rtol=1e-15)


@pytest.mark.parametrize("bound", [None, 0.5])
def test_a_clipped_write_is_the_reference_of_each_sample(bound: float | None) -> None:
    query, output, gradient = randn(40, 5), 2 * randn(40, 3, seed=1), randn(40, 3, seed=2)
    key, weight, value = clipped_write(
        query, output, gradient, lr_value=0.3, lr_weight=0.07, bound=bound
    )
    assert torch.equal(key, query)
    for row in range(40):
        wanted = reference.clipped_tuple(
            arrays(output)[row], arrays(gradient)[row], 0.3, 0.07, bound
        )
        assert float(weight[row]) == pytest.approx(wanted[0], rel=1e-14, abs=1e-300)
        np.testing.assert_allclose(arrays(value)[row], wanted[1], rtol=1e-15)
    assert (weight >= 0).all()
    assert 5 < int((weight == 0).sum()) < 35  # both sides of the clipping were seen
    if bound is not None:
        assert float(weight.max()) == pytest.approx(0.07 * bound, rel=1e-14)


def test_a_tuple_whose_weight_was_clipped_still_pulls_the_output() -> None:
    layer = make_layer("softmax", 4, 2)
    query = randn(1, 4, seed=3)
    before = layer(query).detach()
    layer.memory.append(
        Tuples(query, torch.zeros(1), torch.tensor([[0.5, -0.25]], dtype=torch.float64)), born=0
    )
    dense = Dense.of(layer)
    assert dense.weight[-1] == 0.0
    pull = layer(query).detach() - before
    assert float(pull[0, 0]) > 0.1
    assert float(pull[0, 1]) == pytest.approx(-0.5 * float(pull[0, 0]), rel=1e-12)


def gauge_layer(count: int) -> GaugeSoftmax:
    layer = make_layer("gauge", 5, 3, alpha=0.7)
    fill(layer, count)
    assert isinstance(layer, GaugeSoftmax)
    return layer


def test_a_gauge_write_equals_the_construction_in_the_virtual_gauge() -> None:
    layer = gauge_layer(60)
    dense = Dense.of(layer)
    queries, gradients = randn(20, 5, seed=8), randn(20, 3, seed=9)
    outputs = layer(queries).detach()
    found = gauge_write(queries, outputs, gradients, lr_value=0.4, lr_weight=0.02, alpha=0.7)
    for row in range(20):
        weight, value, back = reference.gauge_tuple(
            arrays(queries)[row], dense.key, dense.weight, dense.value, layer.temperature,
            arrays(gradients)[row], lr_value=0.4, lr_weight=0.02, alpha=0.7,
        )  # fmt: skip
        assert float(found.weight[row]) == pytest.approx(weight, rel=1e-12)
        np.testing.assert_allclose(arrays(found.value)[row], value, rtol=1e-11, atol=1e-15)
        # The round trip leaves the older tuples where they were.
        np.testing.assert_allclose(back, dense.value, rtol=1e-12, atol=1e-14)


def test_a_gauge_write_has_a_positive_weight_whatever_the_output_and_the_gradient() -> None:
    output, gradient = 50 * randn(200, 3, seed=1), randn(200, 3, seed=2)
    gradient[0] *= 1e-12
    gradient[1] *= 1e12
    for alpha in (0.01, 1.0, 10.0):
        weight = gauge_write(
            randn(200, 5), output, gradient, lr_value=1.0, lr_weight=0.003, alpha=alpha
        ).weight
        assert (weight > 0).all()
        norm = arrays(gradient.norm(dim=-1))
        np.testing.assert_allclose(arrays(weight), 0.003 * alpha * norm, rtol=1e-13)


def test_a_gauge_write_of_a_zero_gradient_stores_nothing() -> None:
    gradient = randn(4, 3)
    gradient[1] = 0.0
    gradient[3] = 0.0
    query = randn(4, 5, seed=1)
    found = gauge_write(
        query, randn(4, 3, seed=2), gradient, lr_value=1.0, lr_weight=0.1, alpha=1.0
    )
    assert torch.equal(found.key, query[[0, 2]])
    assert len(found.weight) == len(found.value) == 2
    none = gauge_write(query, query[:, :3], gradient * 0, lr_value=1.0, lr_weight=0.1, alpha=1.0)
    assert len(none.key) == 0


def test_a_gauge_step_leaves_the_older_tuples_untouched_to_the_bit() -> None:
    layer = gauge_layer(100)
    optimizer = FunctionalSGD(layer, lr_value=0.5, lr_weight=0.01)
    before = {name: column.copy() for name, column in layer.memory.host_columns(0).items()}
    layer(randn(8, 5)).square().sum().backward()
    optimizer.step()
    after = layer.memory.host_columns(0)
    count = len(before["weight"])
    assert len(after["weight"]) == count + 8
    for name, column in before.items():
        assert np.array_equal(after[name][:count], column)
    assert (Dense.of(layer).weight[count:] > 0).all()


def test_a_gauge_write_does_not_depend_on_the_gauge_along_the_gradient() -> None:
    """Where all values are shifted by ξ ∥ g, and the target with them, the same step is taken."""
    plain, shifted = gauge_layer(60), gauge_layer(60)
    query, target = randn(1, 5, seed=3), randn(1, 3, seed=4)
    offset = 0.7 * (plain(query).detach() - target)  # ξ
    moved = shifted.memory.blocks[0]
    moved.side[:, :3] += moved.weight[:, None] * offset  # ṽ + wξ
    for layer, there in ((plain, target), (shifted, target + offset)):
        optimizer = FunctionalSGD(layer, lr_value=0.3, lr_weight=0.02)
        optimizer.zero_grad()
        backward(_loss(layer(query), there))
        optimizer.step()
    written, moved_written = Dense.of(plain), Dense.of(shifted)
    assert moved_written.weight[-1] == pytest.approx(written.weight[-1], rel=1e-9)
    wanted = written.value[-1] + written.weight[-1] * arrays(offset[0])
    np.testing.assert_allclose(moved_written.value[-1], wanted, rtol=1e-9)
    probe = randn(9, 5, seed=6)
    np.testing.assert_allclose(
        arrays(shifted(probe)), arrays(plain(probe) + offset), rtol=1e-9, atol=1e-12
    )


def _loss(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (output - target).square().sum()


@pytest.mark.parametrize("kind", ["softmax", "gauge", "rbf", "linear"])
def test_a_small_step_lowers_the_loss_of_its_batch(kind: Kind) -> None:
    layer = make_layer(kind, 6, 4)
    fill(layer, 40)
    query, target = randn(10, 6, seed=5), randn(10, 4, seed=6)
    optimizer = FunctionalSGD(layer, lr_value=1e-3, lr_weight=1e-4)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = _loss(layer(query), target)
        losses.append(loss.item())
        backward(loss)
        optimizer.step()
    losses.append(_loss(layer(query), target).item())
    assert all(after < before for before, after in itertools.pairwise(losses))


def change_of_loss(
    layer: GrowingLayer, query: Tensor, target: Tensor, written: Tuples, size: float
) -> float:
    """The loss with `size` times the written tuples, less the loss without."""
    before = _loss(layer(query), target).item()
    layer.memory.append(Tuples(written.key, size * written.weight, size * written.value), born=7)
    return _loss(layer(query), target).item() - before


@pytest.mark.parametrize("kind", ["rbf", "linear"])
def test_a_kernel_step_changes_the_loss_by_minus_the_rate_times_the_squared_norm(
    kind: Kind,
) -> None:
    """The functional gradient is Σ φ(q_b, ·) g_b, of squared norm Σ_bc φ(q_b, q_c)⟨g_b, g_c⟩."""
    layer = make_layer(kind, 6, 4)
    fill(layer, 40)
    query, target = randn(10, 6, seed=5), randn(10, 4, seed=6)
    output = layer(query).detach()
    gradient = output - target
    phi = reference.rbf_phi(layer.gamma) if kind == "rbf" else reference.dot_phi  # type: ignore[arg-type]
    squared = sum(
        phi(arrays(query)[b], arrays(query)[c])
        * float(np.dot(arrays(gradient)[b], arrays(gradient)[c]))
        for b in range(10) for c in range(10)
    )  # fmt: skip
    step = 1e-7
    change = change_of_loss(
        layer, query, target, kernel_write(query, output, gradient, lr_value=1.0), step
    )
    assert squared > 0
    assert change / step == pytest.approx(-squared, rel=1e-4)


def test_a_clipped_step_changes_the_loss_by_the_inner_product_in_the_decoupled_weight_space() -> (
    None
):
    """Numerator and denominator are functions N and Z; ∂L/∂N is e_b g_b/Z_b, ∂L/∂Z −e_b⟨g, s⟩/Z_b.

    Paired with what the rule adds, −η_v g_c and η_w max(0, ⟨s_c, g_c⟩) at q_c.
    """
    layer = make_layer("softmax", 6, 4)
    assert isinstance(layer, WeightedSoftmax)
    fill(layer, 40)
    query, target = randn(10, 6, seed=5), randn(10, 4, seed=6)
    output = layer(query).detach()
    gradient = output - target
    dense, scale = Dense.of(layer), 1.0 / (layer.temperature * 6**0.5)
    q, g, s = arrays(query), arrays(gradient), arrays(output)
    predicted = 0.0
    for b in range(10):
        total = sum(
            np.exp(scale * np.dot(key, q[b])) * weight
            for key, weight in zip(dense.key, dense.weight, strict=True)
        )
        for c in range(10):
            pull = np.exp(scale * np.dot(q[c], q[b])) / total
            weight = 0.05 * max(0.0, float(np.dot(s[c], g[c])))
            predicted -= pull * (0.3 * np.dot(g[b], g[c]) + np.dot(g[b], s[b]) * weight)
    written = clipped_write(query, output, gradient, lr_value=0.3, lr_weight=0.05)
    assert 0 < int((written.weight > 0).sum()) < 10
    step = 1e-7 * _loss(output, target).item() / abs(predicted)
    change = change_of_loss(layer, query, target, written, step)
    assert predicted < 0
    assert change / step == pytest.approx(predicted, rel=1e-4)


def test_a_single_clipped_write_descends_also_where_its_weight_is_clipped() -> None:
    for seed in range(10):
        layer = make_layer("softmax", 6, 4)
        fill(layer, 40)
        query, target = randn(1, 6, seed=seed), 0.3 * randn(1, 4, seed=seed + 50)
        output = layer(query).detach()
        written = clipped_write(query, output, output - target, lr_value=0.3, lr_weight=0.05)
        assert change_of_loss(layer, query, target, written, 1e-9) < 0
