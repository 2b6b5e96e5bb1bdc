"""Retrieval and its gradient against loops over tuples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from streamlearn import retrieval
from streamlearn.errors import GraphError, ShapeError
from streamlearn.layers import GrowingLayer, WeightedSoftmax
from streamlearn.memory import Tuples
from streamlearn.retrieval import Forgetting, retrieve

from ..reference import Array
from .making import (
    KINDS,
    Dense,
    Kind,
    arrays,
    backward,
    fill,
    make_layer,
    randn,
    relative,
)

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.04}
"""Of outputs and gradients, as a share of the largest. bfloat16 keeps 8 bits in every GEMM."""


def normalised(rows: Tensor) -> Tensor:
    return rows / rows.square().mean(-1, keepdim=True).sqrt()


def answer(layer: GrowingLayer, query: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the gradient to the query of ⟨gradient, output⟩."""
    query = query.detach().requires_grad_()
    output = layer(query)
    (found,) = torch.autograd.grad(output, query, gradient.to(output.dtype))
    return output.detach(), found


def expected(layer: GrowingLayer, query: Tensor, gradient: Tensor) -> tuple[Array, Array]:
    dense = Dense.of(layer)
    rows = np.array([dense.output(layer, row) for row in arrays(query)])
    pulls = np.array(
        [
            dense.gradient(layer, row, pull)
            for row, pull in zip(arrays(query), arrays(gradient), strict=True)
        ]
    )
    return rows, pulls


def compare(layer: GrowingLayer, query: Tensor, tolerance: float) -> None:
    gradient = randn(len(query), layer.out_features, seed=77, dtype=query.dtype)
    output, pull = answer(layer, query, gradient)
    output_expected, pull_expected = expected(layer, query, gradient)
    assert relative(output, output_expected) < tolerance
    assert relative(pull, pull_expected) < tolerance


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_are_those_of_the_reference_over_several_blocks(
    kind: Kind, dtype: torch.dtype
) -> None:
    layer = make_layer(kind, 6, 3, dtype=dtype)
    fill(layer, 1150)
    assert len(layer.memory.blocks) == 3
    assert 0 < layer.memory.blocks[-1].count < 512
    query = normalised(randn(5, 6, seed=3)).to(torch.float32 if dtype != torch.float64 else dtype)
    compare(layer, query, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("momentum", "decay"), [(0.8, 0.0), (0.0, 0.1), (0.6, 0.2), (0.9, 0.1)])
def test_outputs_and_gradients_are_exact_under_momentum_and_decay(
    kind: Kind, dtype: torch.dtype, momentum: float, decay: float
) -> None:
    layer = make_layer(kind, 5, 4, dtype=dtype)
    fill(layer, 600)
    layer.forgetting = Forgetting(11, momentum, decay)
    compare(layer, normalised(randn(3, 5, seed=4)).to(dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3, 511, 512, 513])
def test_partly_filled_and_just_full_blocks_and_batches_of_one_are_exact(
    kind: Kind, count: int
) -> None:
    layer = make_layer(kind, 3, 2)
    fill(layer, count, steps=1)
    compare(layer, randn(1, 3, seed=9), 1e-10)


@pytest.mark.parametrize("outputs", [1, 14, 15, 16, 17])
def test_every_width_of_values_is_exact_wherever_the_padding_begins(outputs: int) -> None:
    layer = make_layer("softmax", 4, outputs)
    fill(layer, 40)
    compare(layer, randn(2, 4, seed=9), 1e-10)


@pytest.mark.parametrize("kind", ["softmax", "gauge"])
@pytest.mark.parametrize("logit", [100.0, 1000.0, -1000.0, 5000.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_logits_beyond_60_and_beyond_1000_are_exact(
    kind: Kind, logit: float, dtype: torch.dtype
) -> None:
    """All keys lie near one far point, so that many of them share the answer."""
    layer = make_layer(kind, 6, 3, dtype=dtype, temperature=1.0)
    size = (abs(logit) * 6**0.5) ** 0.5
    far = size * torch.nn.functional.normalize(randn(6, seed=8), dim=0)
    layer.memory.clear()
    tuples = Tuples(far + randn(700, 6) / size, randn(700, seed=1).abs(), randn(700, 3, seed=2))
    layer.memory.append(tuples, born=1)
    layer.forgetting = Forgetting(1)
    query = (math.copysign(1.0, logit) * (far + randn(4, 6, seed=3) / size)).to(dtype)
    logits = arrays(query) @ Dense.of(layer).key.T / 6**0.5
    assert 0.5 * abs(logit) < abs(logits.max()) < 2 * abs(logit)
    # A rounded logit of 5,000 is off by 5,000·2⁻²⁴ in float32, which is a relative error of its
    # pull; pulls of keys that are nearly equal cancel in the gradient and leave ten times as much.
    compare(layer, query, (1e-11 if dtype == torch.float64 else 5e-6) * abs(logit))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [4.0, 30.0, 1000.0])
def test_keys_and_queries_far_apart_make_no_nan(
    kind: Kind, dtype: torch.dtype, size: float
) -> None:
    layer = make_layer(kind, 6, 3, dtype=dtype)
    fill(layer, 700, size=size)
    layer.forgetting = Forgetting(9, 0.5, 0.1)
    query = size * torch.cat([randn(4, 6, seed=3), -randn(4, 6, seed=3), torch.zeros(1, 6)])
    for part in answer(layer, query, randn(9, 3, seed=4)):
        assert part.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tuple_without_weight_and_with_a_huge_logit_makes_no_nan(dtype: torch.dtype) -> None:
    layer = make_layer("softmax", 4, 2, dtype=dtype, temperature=1.0)
    far = torch.full((1, 4), 50.0)
    layer.memory.append(Tuples(far, torch.zeros(1), torch.zeros(1, 2)), born=1)
    query = far.clone().requires_grad_()
    output = layer(query)
    output.sum().backward()
    assert output.isfinite().all()
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_a_decayed_tuple_with_a_huge_logit_leaves_the_denominator_positive() -> None:
    layer = make_layer("softmax", 4, 2, dtype=torch.float32, temperature=1.0)
    far = torch.full((1, 4), 20.0)
    layer.memory.append(Tuples(far, torch.ones(1), torch.ones(1, 2)), born=1)
    layer.forgetting = Forgetting(20_000, 0.0, 0.1)  # 0.9^19999 is 0 in float32
    assert layer(far).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_queries_may_have_any_leading_dimensions(kind: Kind) -> None:
    layer = make_layer(kind, 4, 3)
    fill(layer, 30)
    query = randn(2, 3, 5, 4, seed=2)
    flat = layer(query.reshape(-1, 4))
    assert torch.equal(layer(query), flat.reshape(2, 3, 5, 3))
    alone = layer(query[0, 0, 0])
    assert alone.shape == (3,)
    assert torch.allclose(alone, flat[0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_batch_gets_an_empty_answer_and_gradient(kind: Kind) -> None:
    layer = make_layer(kind, 4, 3)
    fill(layer, 30)
    query = torch.zeros(0, 4, dtype=torch.float64, requires_grad=True)
    output = layer(query)
    output.sum().backward()
    assert output.shape == (0, 3)
    assert query.grad is not None
    assert query.grad.shape == (0, 4)


@pytest.mark.parametrize("kind", ["rbf", "linear"])
def test_a_layer_without_tuples_answers_zero(kind: Kind) -> None:
    layer = make_layer(kind, 4, 3)
    query = randn(2, 4).requires_grad_()
    output = layer(query)
    assert torch.equal(output, torch.zeros(2, 3, dtype=torch.float64))
    output.sum().backward()
    assert query.grad is not None
    assert torch.equal(query.grad, torch.zeros(2, 4, dtype=torch.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_autograd_checks_the_gradient_numerically(kind: Kind) -> None:
    layer = make_layer(kind, 4, 3)
    fill(layer, 60)
    layer.forgetting = Forgetting(9, 0.5, 0.05)
    query = randn(3, 4, seed=6).requires_grad_()
    assert torch.autograd.gradcheck(layer, query)


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    layer = make_layer("softmax", 4, 3)
    fill(layer, 20)
    query = randn(2, 4).requires_grad_()
    (first,) = torch.autograd.grad(layer(query).square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        backward(first.sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["softmax", "rbf"])
@pytest.mark.parametrize("size", [1.0, 20.0])
def test_recomputed_scores_give_the_same_bits_as_kept_ones(
    kind: Kind, dtype: torch.dtype, size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make_layer(kind, 8, 3, dtype=dtype)
    fill(layer, 1100, size=size)
    layer.forgetting = Forgetting(8, 0.5, 0.01)
    query = size * randn(6, 8, seed=3, dtype=torch.float32)
    gradient = randn(6, 3, seed=4, dtype=torch.float32)
    kept = answer(layer, query, gradient)
    monkeypatch.setattr(retrieval, "CACHE_BYTES", 0)
    computed = answer(layer, query, gradient)
    assert torch.equal(kept[0], computed[0])
    assert torch.equal(kept[1], computed[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_backward_pass_through_a_retained_graph_gives_the_same_bits(kind: Kind) -> None:
    layer = make_layer(kind, 4, 3, dtype=torch.float32)
    fill(layer, 700)
    query = randn(3, 4, dtype=torch.float32).requires_grad_()
    output = layer(query).sum()
    (first,) = torch.autograd.grad(output, query, retain_graph=True)
    (second,) = torch.autograd.grad(output, query)
    assert torch.equal(first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_interleaved_forward_passes_do_not_share_their_scores(kind: Kind) -> None:
    layer = make_layer(kind, 4, 3)
    fill(layer, 600)
    queries = [randn(3, 4, seed=seed).requires_grad_() for seed in range(3)]
    outputs = [layer(query) for query in queries]
    together = [torch.autograd.grad(outputs[index].sum(), queries[index])[0] for index in (1, 2, 0)]
    alone = [
        torch.autograd.grad(layer(queries[index]).sum(), queries[index])[0] for index in (1, 2, 0)
    ]
    for found, wanted in zip(together, alone, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("wants_gradient", [False, True])
def test_answers_given_in_inference_mode_do_not_spoil_later_training(wants_gradient: bool) -> None:
    layer = make_layer("softmax", 4, 3)
    fill(layer, 20)
    query = randn(2, 4).requires_grad_(wants_gradient)
    with torch.inference_mode():
        before = layer(query)
    after = layer(query)
    after.sum().backward()
    torch.testing.assert_close(before, after.detach())


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.sampled_from(KINDS))
@settings(max_examples=25, deadline=None)
def test_retrieval_does_not_depend_on_how_rows_were_split_into_appends(
    parts: list[int], kind: Kind
) -> None:
    whole = make_layer(kind, 7, 3, dtype=torch.float32)
    split = make_layer(kind, 7, 3, dtype=torch.float32)
    count = sum(parts)
    tuples = Tuples(randn(count, 7, seed=1), randn(count, seed=2).abs(), randn(count, 3, seed=3))
    whole.memory.append(tuples, born=1)
    start = 0
    for part in parts:
        rows = slice(start, start + part)
        split.memory.append(Tuples(*(column[rows] for column in tuples)), born=1)
        start += part
    query, gradient = randn(4, 7, seed=4, dtype=torch.float32), randn(4, 3, seed=5)
    for found, wanted in zip(
        answer(split, query, gradient), answer(whole, query, gradient), strict=True
    ):
        assert torch.equal(found, wanted)


@given(st.permutations(range(540)), st.sampled_from(KINDS))
@settings(max_examples=15, deadline=None)
def test_retrieval_is_invariant_to_tuple_order(order: list[int], kind: Kind) -> None:
    plain, permuted = make_layer(kind, 5, 3), make_layer(kind, 5, 3)
    tuples = Tuples(randn(540, 5, seed=1), randn(540, seed=2).abs(), randn(540, 3, seed=3))
    plain.memory.append(tuples, born=1)
    permuted.memory.append(Tuples(*(column[order] for column in tuples)), born=1)
    query, gradient = randn(3, 5, seed=4), randn(3, 3, seed=5)
    for found, wanted in zip(
        answer(permuted, query, gradient), answer(plain, query, gradient), strict=True
    ):
        assert relative(found, arrays(wanted)) < 1e-11


@pytest.mark.parametrize("kind", KINDS)
def test_equal_keys_merge_exactly(kind: Kind) -> None:
    twice, merged = make_layer(kind, 5, 3), make_layer(kind, 5, 3)
    key = randn(4, 5, seed=1)
    first = Tuples(key, randn(4, seed=2).abs(), randn(4, 3, seed=3))
    second = Tuples(key, randn(4, seed=4).abs(), randn(4, 3, seed=5))
    twice.memory.append(first, born=1)
    twice.memory.append(second, born=1)
    both = Tuples(key, first.weight + second.weight, first.value + second.value)
    merged.memory.append(both, born=1)
    query, gradient = randn(6, 5, seed=6), randn(6, 3, seed=7)
    for found, wanted in zip(
        answer(twice, query, gradient), answer(merged, query, gradient), strict=True
    ):
        assert relative(found, arrays(wanted)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_answer_comes_in_the_dtype_of_the_query(dtype: torch.dtype) -> None:
    layer = make_layer("softmax", 4, 3, dtype=torch.float32)
    query = randn(2, 4, dtype=dtype).requires_grad_()
    output = layer(query)
    output.sum().backward()
    assert output.dtype == dtype
    assert query.grad is not None
    assert query.grad.dtype == dtype


@pytest.mark.parametrize("wants_gradient", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_growing_between_forward_and_backward_is_refused(kind: Kind, wants_gradient: bool) -> None:
    layer = make_layer(kind, 4, 3)
    output = layer(randn(2, 4).requires_grad_(wants_gradient))
    before = len(layer.memory)
    fill(layer, 1, steps=1)
    with pytest.raises(GraphError, match=rf"from {before} to {before + 1} tuples .* before step"):
        output.sum().backward()
    assert all(trace.gradient is None for trace in layer.traces)


def test_changing_a_query_in_place_before_backward_is_refused_as_anywhere_in_torch() -> None:
    layer = make_layer("softmax", 4, 3)
    query = randn(2, 4)
    output = layer(query)
    query += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_a_query_of_another_width_is_refused_with_both_widths() -> None:
    layer = make_layer("softmax", 64, 3)
    with pytest.raises(ShapeError, match=r"width 65 .* width 64; .*in_features=65"):
        layer(torch.zeros(1, 65))


def test_retrieval_alone_needs_neither_layer_nor_pool() -> None:
    layer = make_layer("softmax", 4, 3)
    assert isinstance(layer, WeightedSoftmax)
    fill(layer, 20)
    query = randn(2, 4)
    assert torch.equal(retrieve(query, layer.memory, layer.kernel), layer(query).detach())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1.0, 40.0])
def test_a_query_can_be_answered_without_one_row(kind: Kind, size: float) -> None:
    """Value and gradient are those of a memory that lacks the row, also where exponents shift."""
    layer = make_layer(kind, 5, 3)
    fill(layer, 700, size=size)
    rows = torch.tensor([-1, 3, 511, 512, 690])
    query = randn(5, 5, seed=4).requires_grad_()
    layer.without = rows
    found = layer(query)
    backward((found * randn(5, 3, seed=6)).sum())
    for place, row in enumerate(rows.tolist()):
        lacking = make_layer(kind, 5, 3)
        fill(lacking, 700, size=size)
        if row >= 0:
            lacking.memory.drop(torch.tensor([row]))
        alone = query.detach()[place : place + 1].requires_grad_()
        answer = lacking(alone)
        backward((answer * randn(5, 3, seed=6)[place : place + 1]).sum())
        torch.testing.assert_close(found[place : place + 1], answer)
        assert alone.grad is not None
        assert query.grad is not None
        torch.testing.assert_close(query.grad[place : place + 1], alone.grad)
