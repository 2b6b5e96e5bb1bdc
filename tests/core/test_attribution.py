"""Contributions of stored tuples: against naive loops, and their sums against the forward pass."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from streamlearn.attribution import Attribution, answer_of_top, attribute, purity, queries
from streamlearn.dense import linear
from streamlearn.layers import DualLinear, GrowingLayer, WeightedSoftmax
from streamlearn.memory import DEAD, PRIOR, SAMPLE, SAMPLE_NOTE, Tuples
from streamlearn.networks import ResNetMLP
from streamlearn.retrieval import Forgetting
from streamlearn.tiers import Tiers

from .making import KINDS, Dense, Kind, fill, make_layer, randn

D, C, B = 6, 3, 5
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}


def shares(layer: GrowingLayer, query: Tensor) -> np.ndarray:
    """a (B, N) of all rows by a loop over pairs, in float64."""
    dense = Dense.of(layer)
    found = np.zeros((len(query), len(dense.key)))
    for b, q in enumerate(query.double().numpy()):
        for i, k in enumerate(dense.key):
            if layer.kernel.kind == "rbf":
                score = math.exp(-0.5 * layer.kernel.scale * float(((k - q) ** 2).sum()))
            else:
                score = layer.kernel.scale * float(k @ q)
                score = score if layer.kernel.kind == "dot" else math.exp(score)
            found[b, i] = 0.0 if dense.born[i] == DEAD else dense.counts[i] * score
        if layer.kernel.normalised:
            found[b] /= found[b] @ dense.weight
    return found


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
def test_contributions_are_those_of_a_naive_loop_and_sum_to_the_output(
    kind: Kind, dtype: torch.dtype
) -> None:
    layer = make_layer(kind, D, C, dtype=dtype)
    fill(layer, 1300)
    layer.forgetting = Forgetting(7, 0.3, 0.05)
    layer.memory.drop(torch.tensor([30, 700]))
    query = randn(B, D, dtype=dtype)
    outputs = torch.tensor([[0, 2]]).repeat(B, 1)
    found = attribute(layer, query, outputs=outputs, top=4, steps=7, spans=7)
    tolerance = TOLERANCE[dtype]
    said = layer(query).double()
    torch.testing.assert_close(found.output, said, rtol=tolerance, atol=tolerance)
    dense, share = Dense.of(layer), shares(layer, query)
    stored = np.array(dense.born) > PRIOR
    for m, output in enumerate((0, 2)):
        contribution = np.where(stored, share * dense.value[:, output], np.nan)
        for b in range(B):
            ordered = np.argsort(-contribution[b])[:4]  # NaN goes to the end
            lowest = np.argsort(contribution[b])[:4]
            assert found.helpers.row[b, m].tolist() == ordered.tolist()
            assert found.hurters.row[b, m].tolist() == lowest.tolist()
            expected = torch.from_numpy(contribution[b][ordered])
            torch.testing.assert_close(
                found.helpers.score[b, m], expected, rtol=1e-6, atol=tolerance
            )
    attention = np.abs(share) / np.abs(share).sum(-1, keepdims=True)
    ranked = np.argsort(-np.where(stored, attention, -1), axis=-1)[:, :4]
    assert found.attended.row.tolist() == ranked.tolist()
    effective = torch.from_numpy(1 / (attention**2).sum(-1))
    torch.testing.assert_close(found.effective, effective, rtol=1e-5, atol=0)
    by_birth = [attention[:, np.array(dense.born) == step].sum(-1) for step in range(1, 8)]
    torch.testing.assert_close(
        found.spans, torch.from_numpy(np.stack(by_birth, -1)), rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_it_is_the_same_in_every_tier(dtype: torch.dtype) -> None:
    def grown(tiers: Tiers | None) -> WeightedSoftmax:
        layer = WeightedSoftmax(
            D, C, dtype=dtype, block_rows=512, tiers=tiers, notes=SAMPLE_NOTE,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        for step in range(1, 5):
            tuples = Tuples(randn(600, D, seed=step), 0.01 * torch.ones(600), randn(600, C))
            layer.memory.append(tuples, step, {SAMPLE: 600 * step + torch.arange(600)})
        return layer

    query, outputs = randn(B, D, seed=9), torch.ones(B, 1, dtype=torch.int64)
    layer = grown(None)
    budget = {8: 480_000, 4: 250_000, 2: 160_000}[dtype.itemsize]
    small = grown(Tiers(torch.device("cpu"), host_budget=budget))
    assert small.memory.tiers.disk_bytes > 0
    here = attribute(layer, query, outputs=outputs, top=9, steps=4)
    there = attribute(small, query, outputs=outputs, top=9, steps=4)
    for one, other in zip(_tensors(here), _tensors(there), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(here.attended.sample, here.attended.row - 16 + 600)


def _tensors(found: Attribution) -> list[Tensor]:
    return [t for part in found for t in (part if isinstance(part, tuple) else (part,))]


def test_what_no_tuple_makes_stands_beside() -> None:
    layer = DualLinear(D, C, weight=randn(C, D), dtype=torch.float64)
    fill(layer, 40)
    layer.forgetting = Forgetting(7, 0.0, 0.1)
    query = randn(B, D, seed=3)
    found = attribute(layer, query)
    torch.testing.assert_close(found.beside, 0.9**7 * query @ randn(C, D).T)
    torch.testing.assert_close(found.output, layer(query))


def test_large_exponents_do_not_overflow() -> None:
    layer = WeightedSoftmax(D, C, temperature=0.001, dtype=torch.float64)
    fill(layer, 700, size=3.0)
    query = 5 * randn(B, D, seed=2)
    found = attribute(layer, query)
    torch.testing.assert_close(found.output, layer(query), rtol=1e-9, atol=1e-9)


def test_the_queries_of_a_network_are_what_its_layers_get() -> None:
    seed = torch.Generator().manual_seed(0)
    hidden, output = make_layer("softmax", D, D), make_layer("rbf", D, C)
    fill(hidden, 50)
    fill(output, 50)
    network = ResNetMLP([hidden, linear(D, D, seed, dtype=torch.float64)], output).eval()
    said, found = queries(network, randn(B, D))
    assert list(found) == ["hidden.0", "output"]  # a dense layer has no rows
    torch.testing.assert_close(output(found["output"]), said)
    torch.testing.assert_close(attribute(output, found["output"]).output, said)
    assert not hidden._forward_pre_hooks


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_of_the_top_rows_is_the_whole_answer_with_all_of_them(kind: Kind) -> None:
    layer = make_layer(kind, D, C)
    fill(layer, 600)
    query = randn(B, D, seed=4)
    whole = layer(query)
    torch.testing.assert_close(answer_of_top(layer, query, 5000), whole)
    torch.testing.assert_close(answer_of_top(layer, query, 600), whole)
    few = answer_of_top(layer, query, 10)
    dense, share = Dense.of(layer), shares(layer, query)
    stored = np.array(dense.born) > PRIOR
    for b in range(B):
        kept = ~stored
        kept[np.argsort(-np.where(stored, np.abs(share[b]), -1))[:10]] = True
        expected = (share[b] * kept) @ dense.value
        if layer.kernel.normalised:
            expected /= (share[b] * kept) @ dense.weight
        torch.testing.assert_close(few[b], torch.from_numpy(expected))


def test_tokens_are_averaged_and_groups_are_counted() -> None:
    layer = make_layer("rbf", D, C)
    fill(layer, 90)
    query = randn(2 * B, D, seed=5)
    groups = torch.arange(90) % 4
    found = attribute(
        layer, query, each=2, top=90, groups=3,
        group_of=lambda rows, samples: torch.where(groups[rows] < 3, groups[rows], -1),
    )  # fmt: skip
    size = torch.from_numpy(np.abs(shares(layer, query))).reshape(B, 2, 90).mean(1)
    size /= size.sum(-1, keepdim=True)
    for group in range(4):
        torch.testing.assert_close(found.groups[:, group], size[:, groups == group].sum(-1))
    pure = purity(found.attended, groups[found.attended.row], torch.zeros(B, dtype=torch.int64))
    assert pure.tolist() == pytest.approx([23 / 90] * B)
    own = found.attended.sample.new_full((B,), -1)
    assert bool(
        purity(found.attended, groups[found.attended.row], own, but=own).isnan().all()
    )  # all samples are unknown, and left out
