"""Bounds of bytes hold at every step, whatever goes; pruning and merging change what they say."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError
from streamlearn.eviction import levelled
from streamlearn.layers import RBFLayer, WeightedSoftmax
from streamlearn.memory import DEAD, PRIOR, Tuples
from streamlearn.merging import distance_of
from streamlearn.pruning import faded, merge, near, prune
from streamlearn.retrieval import Forgetting

from .making import randn
from .test_learner import blobs, content, feed, growth_of, learner

F64 = torch.float64
REHEARSALS: tuple[dict[str, Any], ...] = (
    {},
    {"rehearsal": 3, "rehearse": "balanced"},
    {"rehearsal": 2, "rehearse": "loss"},
)


def bounded(policy: str, budget: int, **training: Any) -> Any:
    return learner(
        memory={"budget": budget, "policy": policy},
        learner={"batch": 8, "dtype": "float32", **training},
        network={"hidden": 1},
    )


@settings(max_examples=8, deadline=None)
@given(
    policy=st.sampled_from(("oldest", "newest", "balanced", "least", "merge")),
    training=st.sampled_from(REHEARSALS),
    budget=st.integers(6_000, 20_000),
    parts=st.lists(st.integers(1, 30), min_size=4, max_size=10),
    seed=st.integers(0, 99),
)
def test_a_budget_holds_at_every_step_and_a_copy_goes_on_with_the_same_bits(
    policy: str, training: dict[str, Any], budget: int, parts: list[int], seed: int
) -> None:
    model = bounded(policy, budget, **training)
    features, targets = blobs(60 + sum(parts), seed=seed)
    feed(model, features[:60], targets[:60])
    other: Any = None
    start = 60
    for number, count in enumerate(parts):
        if number == len(parts) // 2:
            other = copy.deepcopy(model)
            state = model.state_dict()
            other.load_state_dict(state)
            for name, memory in model.memories().items():
                for block in memory.host_blocks():
                    other.memories()[name].load_columns(block)
        rows = slice(start, start + count)
        start += count
        for one in (model, other):
            if one is not None:
                one.learn(features[rows], targets[rows])
        bounds = model.bounds()
        assert bounds["used"] <= bounds["budget"] == budget
        assert {len(memory) for memory in model.memories().values()} == {
            min(16 + start, bounds["rows"])
        }
        assert bounds["left"] == max(0, 16 + start - bounds["rows"])
    assert content(model) == content(other)


def test_the_least_budget_that_a_message_names_is_enough() -> None:
    features, targets = blobs(60)
    with pytest.raises(ConfigError, match=r"memory.budget=900 leaves no room") as caught:
        feed(bounded("oldest", 900), features, targets)
    least = int(str(caught.value).split("memory.budget to ")[1].split()[0])
    feed(bounded("oldest", least), features, targets)
    with pytest.raises(ConfigError, match="leaves no room"):
        feed(bounded("oldest", least - 1), features, targets)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=6), st.data())
def test_classes_are_levelled_as_by_one_at_a_time(
    counts: list[tuple[int, int]], data: st.DataObject
) -> None:
    have, new = np.array(counts, np.int64).T
    wanted = data.draw(st.integers(0, int(have.sum())))
    share = levelled(have, new, wanted)
    left, after = have.copy(), have + new
    for _ in range(wanted):
        name = max(np.flatnonzero(left).tolist(), key=lambda c: after[c])
        left[name] -= 1
        after[name] -= 1
    assert share.sum() == wanted
    assert (share >= 0).all()
    assert (share <= have).all()
    np.testing.assert_array_equal(np.sort(have + new - share), np.sort(after))


def test_balanced_keeps_what_is_rare_and_least_what_counts() -> None:
    features, targets = blobs(400)
    order = torch.argsort(targets, stable=True)
    kept = {}
    for policy in ("oldest", "balanced"):
        model = bounded(policy, 9_000, rehearsal=1)
        feed(model, features[order], targets[order])
        memory = model.memories()["hidden.0"]
        found = memory.gather(torch.arange(16, len(memory)), ("target",))["target"]
        kept[policy] = torch.bincount(found, minlength=3)
    assert int(kept["oldest"].min()) == 0
    assert int(kept["balanced"].max() - kept["balanced"].min()) <= 1


def test_newest_lets_none_in_once_there_is_no_room() -> None:
    features, targets = blobs(400)
    model, half = bounded("newest", 9_000), bounded("newest", 9_000)
    feed(model, features, targets)
    feed(half, features[:200], targets[:200])
    room = model.bounds()["rows"] - 16
    assert 0 < room < 200
    assert model.bounds()["left"] == 400 - room
    for name, memory in model.memories().items():
        found = memory.gather(torch.arange(16, len(memory)), ("sample",))["sample"]
        assert torch.equal(found, torch.arange(room))
        same = zip(memory.host_blocks(), half.memories()[name].host_blocks(), strict=True)
        for block, other in same:
            assert {k: v.tobytes() for k, v in block.items()} == {
                k: v.tobytes() for k, v in other.items()
            }


def test_newest_keeps_the_first_of_a_step_and_of_rows_that_are_to_be_fewer() -> None:
    features, targets = blobs(120)
    model = learner(memory={"rows": 19, "policy": "newest"}, network={"hidden": 1})
    feed(model, features, targets)
    for memory in model.memories().values():
        found = memory.gather(torch.arange(16, len(memory)), ("sample",))["sample"]
        assert found.tolist() == [0, 1, 2]  # of the eight of the first step
    eviction = growth_of(model).eviction
    assert eviction is not None
    assert eviction.staying(18, 100).tolist() == list(range(18))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"layer": {"kind": "softmax", "gate": 0.1}},
            r"layer\.gate do not go together, for that lets in tuples of",
        ),
        ({"optimizer": {"train": "values"}}, r"train=values .* changes which tuples count"),
    ],
)
def test_a_policy_is_refused_with_the_reason(sections: Any, message: str) -> None:
    memory = {"rows": 50, "policy": "newest"}
    with pytest.raises(ConfigError, match=rf"policy=newest and .*{message}.*policy=oldest"):
        learner(memory=memory, **sections)


def filled(decay: float = 0.0, momentum: float = 0.0) -> WeightedSoftmax:
    start = torch.Generator().manual_seed(0)
    layer = WeightedSoftmax(6, 3, dtype=torch.float64, block_rows=512, generator=start)
    keys = randn(500, 6, seed=1)
    keys = torch.cat([keys, keys[::3], keys[::5]])
    for born, part in enumerate(torch.split(keys, 100), start=1):
        tuples = Tuples(part, randn(len(part), seed=born).abs(), randn(len(part), 3, seed=-born))
        layer.memory.append(tuples, born=born)
    layer.forgetting = Forgetting(11, momentum, decay)
    return layer.eval()


@settings(max_examples=10, deadline=None)
@given(decay=st.sampled_from((0.0, 0.03, 0.3)), below=st.floats(0, 2), distance=st.floats(0, 1.5))
def test_merging_and_pruning_keep_the_sum_of_weights_above_zero(
    decay: float, below: float, distance: float
) -> None:
    layer = filled(decay)
    memory, query = layer.memory, randn(40, 6, seed=9)
    before = layer(query)
    expected = memory.gather(torch.arange(16))
    (found,) = prune([layer], distance=0.0)
    assert found.merged == 167 + 100
    assert (layer(query) - before).abs().max() <= 1e-10
    layer.forgetting = Forgetting(15, 0.0, decay)  # and later, too
    other = filled(decay)
    other.forgetting = layer.forgetting
    assert (layer(query) - other(query)).abs().max() <= 1e-10
    fades = faded(memory, layer.forgetting, below)
    (found,) = prune([layer], below=below, distance=distance)
    assert found.faded == len(fades)
    assert found.bytes == (found.faded + found.merged) * memory.row_bytes
    rows = memory.gather(torch.arange(len(memory)))
    assert float(rows["weight"][rows["born"] == PRIOR].sum()) == pytest.approx(1.0)
    assert bool((rows["weight"] >= 0).all())
    assert bool(torch.isfinite(layer(query)).all())
    for name, column in memory.gather(torch.arange(16)).items():
        assert torch.equal(column, expected[name])


def test_near_keys_are_no_nearer_than_asked_for_after_merging() -> None:
    layer = filled()
    prune([layer], distance=0.7)
    rows = layer.memory.gather(torch.arange(16, len(layer.memory)))
    keys = rows["key"][rows["born"] > 0]
    apart = torch.cdist(keys, keys) / 6**0.5 + 9 * torch.eye(len(keys))
    assert len(keys) < 500
    assert float(apart.min()) > 0.7


def test_merging_under_momentum_and_odd_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"optimizer.momentum=0.5 .* leave merging out"):
        prune([filled(momentum=0.5)], distance=0.0)
    with pytest.raises(ConfigError, match="below=-1 must be"):
        prune([filled()], below=-1.0)


@settings(max_examples=6, deadline=None)
@given(kind=st.sampled_from(("softmax", "rbf")), similarity=st.floats(0.3, 1.0))
def test_near_tuples_are_projected_as_by_a_loop_and_what_changes_is_bounded(
    kind: str, similarity: float
) -> None:
    layer: Any = filled(0.03) if kind == "softmax" else RBFLayer(6, 3, gamma=6.0, dtype=F64)
    if kind == "rbf":
        near_ones = randn(40, 6, seed=1).repeat(5, 1) + 0.2 * randn(200, 6, seed=2)
        layer.memory.append(Tuples(near_ones, torch.zeros(200).double(), randn(200, 3)), born=1)
        layer.forgetting = Forgetting(2, 0.0, 0.0)
    layer.eval()
    memory, c = layer.memory, layer.kernel.scale
    before, query = memory.gather(torch.arange(len(memory))), randn(30, 6, seed=9)
    answer = layer(query)
    rows, into = near(memory, distance_of(layer.kernel, similarity, 6))
    key, weight, value = before["key"], before["weight"].clone(), before["value"].clone()
    missed = 0.0
    for i, j in zip(rows.tolist(), into.tolist(), strict=True):
        apart = (key[i] - key[j]).square().sum()
        ratio = (
            (-0.5 * c * apart).exp() if kind == "rbf" else (c * (key[i] - key[j]) @ key[j]).exp()
        )
        assert float((-0.5 * c * apart).exp()) >= similarity - 1e-9
        age = layer.forgetting.decay
        share = ratio * (1 - age) ** float(before["born"][j] - before["born"][i])
        weight[j] += share * before["weight"][i]
        value[j] += share * before["value"][i]
        missed += float(before["value"][i].norm() * (1 - (-c * apart).exp()).clamp_min(0).sqrt())
    (found,) = prune([layer], similarity=similarity)
    after = memory.gather(torch.arange(len(memory)))
    assert found.merged == len(rows)
    kept = after["born"] != DEAD
    assert (after["weight"] - weight)[kept].abs().max() <= 1e-10
    assert (after["value"] - value)[kept].abs().max() <= 1e-10
    assert torch.equal(after["key"][kept], key[kept])
    assert bool((after["weight"] >= 0).all())
    if kind == "rbf":  # ‖δs‖ is at most the norm in the kernel's space
        assert float((layer(query) - answer).norm(dim=1).max()) <= missed + 1e-9


def test_merging_keeps_more_of_the_answers_than_dropping_the_same_tuples() -> None:
    layers = [filled() for _ in range(2)]
    query = randn(40, 6, seed=9)
    expected = layers[0](query)
    rows, into = near(layers[0].memory, 0.7)
    merge(layers[0].memory, layers[0].forgetting, rows, into, layers[0].kernel)
    layers[1].memory.drop(rows)
    errors = [float((layer(query) - expected).norm()) for layer in layers]
    assert errors[0] < 0.5 * errors[1]
