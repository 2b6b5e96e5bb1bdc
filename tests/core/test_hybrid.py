"""Stored tuples as parameters: exact gradients, steps by each row's own age, and the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from streamlearn import Learner
from streamlearn.errors import ConfigError
from streamlearn.hybrid import COUNT, LEAST_PRIOR_WEIGHT, HybridAdamW, hybrid_notes
from streamlearn.layers import DualLinear, GrowingLayer, RBFLayer
from streamlearn.memory import PRIOR, SAMPLE_NOTE, Memory, Tuples
from streamlearn.retrieval import Forgetting
from streamlearn.rowgradients import Traced
from streamlearn.settings import settings_of
from streamlearn.tiers import Tiers
from streamlearn.widening import widen_memory

from .making import GAMMA, KINDS, Kind, backward, fill, make_layer, randn
from .test_learner import blobs, content, feed, learner

D, C = 6, 3


def rows_of(memory: Memory) -> dict[str, Tensor]:
    return memory.gather(torch.arange(len(memory)))


def trainable(kind: Kind, dtype: torch.dtype = torch.float64, **options: Any) -> GrowingLayer:
    weighted = kind in ("softmax", "gauge")
    notes = hybrid_notes(D, C, dtype, "all", weighted=weighted)
    return make_layer(kind, D, C, dtype=dtype, notes=notes, **options)


def answered(
    layer: GrowingLayer, query: Tensor, key: Tensor, weight: Tensor, value: Tensor
) -> Tensor:
    """The layer's output as autograd understands it."""
    memory, clock = layer.memory, layer.forgetting
    coefficients = torch.cat(
        [
            memory.coefficients(tile, clock.step, clock.momentum, clock.decay)[: tile.count]
            for tile in memory.tiles()
        ]
    )
    if isinstance(layer, RBFLayer):
        scores = (-GAMMA * torch.cdist(query, key).square() / D).exp() * coefficients
        return scores @ value
    if isinstance(layer, DualLinear):
        return (query @ key.T * coefficients) @ value
    scores = (layer.kernel.scale * query @ key.T).exp() * coefficients
    return (scores @ value) / (scores @ weight)[:, None]


@pytest.mark.parametrize("size", [1.0, 20.0])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_rows_are_those_of_autograd(kind: Kind, size: float) -> None:
    """Also where exponents are so large that they are shifted, which is at size 20."""
    layer = trainable(kind)
    fill(layer, 700, size=size if kind in ("softmax", "gauge") else 1.0)
    layer.forgetting = Forgetting(9, 0.3, 0.02)
    memory = layer.memory
    if size > 1:  # a tuple without weight above the shift has its exponent held: no gradient then
        weight = randn(len(memory), seed=8).abs() + 0.01
        memory.rewrite(torch.arange(len(memory)), weight=weight)
    there = rows_of(memory)
    key, weight, value = (
        there[name].clone().requires_grad_() for name in ("key", "weight", "value")
    )
    target = randn(5, C, seed=3)
    query = randn(5, D, seed=2)
    backward((answered(layer, query, key, weight, value) - target).square().sum())
    backward((layer(query) - target).square().sum())
    traced = Traced(memory, layer.kernel, layer.forgetting, layer.traces)
    start, found = 0, []
    for tile in memory.tiles():
        found.append(traced.gradients(tile, start, keys=True))
        start += tile.count
    assert len(found) == 2
    pairs = [(torch.cat([one.value for one in found]), value.grad)]
    pairs.append((torch.cat([one.key for one in found if one.key is not None]), key.grad))
    if layer.weighted:
        pairs.append((torch.cat([one.weight for one in found]), weight.grad))
    for mine, autograd in pairs:
        assert autograd is not None
        scale = float(autograd.abs().max())
        assert scale > 0
        torch.testing.assert_close(mine, autograd, rtol=1e-10, atol=1e-10 * scale)


def test_a_row_born_late_takes_the_same_first_step_as_one_born_early() -> None:
    layer = trainable("rbf")
    optimizer = HybridAdamW([layer], "all", lr=0.01, lr_key=0.02)
    first = Tuples(randn(3, D), torch.zeros(3), randn(3, C, seed=1))
    layer.memory.append(first, born=0)
    steps = []
    for step in range(12):
        if step == 11:
            layer.memory.append(first, born=11)
        before = rows_of(layer.memory)
        backward((layer(randn(4, D, seed=step)) - 1).square().sum())
        optimizer.step()
        layer.traces.clear()
        after = rows_of(layer.memory)
        steps.append({name: (after[name] - before[name]).abs() for name in ("key", "value")})
    for name, rate in (("value", 0.01), ("key", 0.02)):
        expected = torch.full_like(steps[0][name], rate)  # |m̂|/√û is 1 at the first step
        torch.testing.assert_close(steps[0][name], expected, rtol=1e-4, atol=0)
        torch.testing.assert_close(steps[11][name][3:], expected, rtol=1e-4, atol=0)
    assert rows_of(layer.memory)[COUNT].tolist() == [12] * 3 + [1] * 3


def test_all_of_it_is_torch_adamw_with_its_settings() -> None:
    layer = trainable("gauge")
    fill(layer, 40)
    there = rows_of(layer.memory)
    key, weight, value = (there[n].clone().requires_grad_() for n in ("key", "weight", "value"))
    optimizer = HybridAdamW(
        layer, "all", lr=1e-4, lr_weight=1e-6, lr_key=1e-3, betas=(0.8, 0.9), weight_decay=0.3
    )
    groups = [
        {"params": [key], "lr": 1e-3, "weight_decay": 0.0},
        {"params": [weight], "lr": 1e-6, "weight_decay": 0.0},
        {"params": [value], "lr": 1e-4, "weight_decay": 0.3},
    ]
    theirs = torch.optim.AdamW(groups, betas=(0.8, 0.9), eps=1e-8)
    for step in range(9):
        query, target = randn(4, D, seed=step), randn(4, C, seed=90 + step)
        backward((layer(query) - target).square().sum())
        optimizer.step()
        layer.traces.clear()
        theirs.zero_grad()
        backward((answered(layer, query, key, weight, value) - target).square().sum())
        theirs.step()
        with torch.no_grad():
            weight.clamp_(min=0)
    found = rows_of(layer.memory)
    for name, expected in (("key", key), ("weight", weight), ("value", value)):
        torch.testing.assert_close(found[name], expected.detach(), rtol=1e-9, atol=1e-12)


def test_weights_stay_above_zero_together_and_every_so_manieth_step_trains() -> None:
    layer = trainable("softmax")
    fill(layer, 30)
    layer.memory.drop(torch.tensor([20, 21]))
    optimizer = HybridAdamW([layer], "weights+values", lr=0.5, every=3)
    for step in range(7):
        backward((layer(randn(4, D, seed=step)) * randn(4, C, seed=step)).sum())
        optimizer.step()
        layer.traces.clear()
    there = rows_of(layer.memory)
    prior = there["born"] == PRIOR
    assert float(there["weight"].min()) == 0.0
    assert float(there["weight"][prior].min()) >= LEAST_PRIOR_WEIGHT
    dropped = torch.zeros(len(prior), dtype=torch.bool)
    dropped[20:22] = True
    assert there[COUNT].tolist() == torch.where(dropped, 0, 2).tolist()
    assert float(there["value"][dropped].abs().max()) == 0.0


def test_every_tier_is_trained_to_the_same_bits_and_bfloat16_loses_no_small_step() -> None:
    ends = []
    for away in (False, True):
        layer = trainable("softmax", torch.bfloat16)
        if away:
            size = layer.memory.layout.block_bytes
            tiers = Tiers(torch.device("cpu"), host_budget=5 * size)
            layer = trainable("softmax", torch.bfloat16, tiers=tiers)
        fill(layer, 3000)
        assert bool(layer.memory.tiers.disk_bytes) == away
        before = rows_of(layer.memory)
        optimizer = HybridAdamW([layer], "all", lr=1e-5)
        for _ in range(4):
            backward((layer(randn(4, D, seed=7)) - 1).square().sum())
            optimizer.step()
            layer.traces.clear()
        ends.append(rows_of(layer.memory))
    for name, column in ends[0].items():
        assert torch.equal(column, ends[1][name]), name
    key = ends[0]["key"].float() + ends[0]["adam_key_rest"] - before["key"].float()
    assert float((key.abs() - 4e-5).abs().median()) < 1e-6  # far below a bfloat16's last bit


def test_wider_memories_take_the_moments_along() -> None:
    wide = Memory(
        4 * D, C + 2, notes=hybrid_notes(4 * D, C + 2, torch.float32, "all", weighted=True)
    )
    narrow = trainable("softmax", torch.float32)
    optimizer = HybridAdamW([narrow], "all")
    backward(narrow(randn(4, D)).square().sum())
    optimizer.step()
    widen_memory(wide, narrow.memory)
    old, new = rows_of(narrow.memory), rows_of(wide)
    assert torch.equal(new["adam_key_mean"][:, :D], old["adam_key_mean"] / 2)
    assert torch.equal(new["adam_key_square"][:, :D], old["adam_key_square"] / 4)
    assert torch.equal(new["adam_value_mean"][:, :C], old["adam_value_mean"])
    assert not bool(new["adam_value_mean"][:, C:].any())


@pytest.mark.parametrize(
    "sections",
    [
        {"layer": {"kind": "softmax", "gate": 2.0, "refused": "nearest"}},
        {"layer": {"kind": "gauge", "gate": 2.0}, "memory": {"rows": 60}},
        {"learner": {"rehearsal": 4, "batch": 8, "dtype": "float32"}},
    ],
    ids=["gate", "ring", "rehearsal"],
)
def test_a_learner_goes_on_from_its_file_to_the_bit(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    trained = {"optimizer": {"train": "all", "lr": 0.003, "every": 2}, **sections}
    model = learner(**trained)
    features, targets = blobs(300)
    feed(model, features[:160], targets[:160])
    model.save(tmp_path / "model.safetensors")
    other = Learner.load(tmp_path / "model.safetensors")
    assert content(model) == content(other)
    for one in (model, other):
        feed(one, features[160:], targets[160:])
    assert content(model) == content(other)
    memory = model.memories()["output"]
    assert int(rows_of(memory)[COUNT].max()) > 4
    accuracy = float((model.predict(features) == targets).float().mean())
    assert accuracy > 0.8


def test_what_it_is_made_of_is_checked() -> None:
    layer = make_layer("softmax", D, C, notes=SAMPLE_NOTE)
    with pytest.raises(ConfigError, match="no column 'adam_value_mean' of the right width"):
        HybridAdamW([layer], "values")
    with pytest.raises(ConfigError, match="train='none' trains nothing"):
        HybridAdamW([layer], "none")
    with pytest.raises(ConfigError, match="rate value=-1"):
        HybridAdamW([layer], "values", lr=-1)
    with pytest.raises(ConfigError, match="no growing layer"):
        HybridAdamW([], "values")
    with pytest.raises(ConfigError, match="betas="):
        HybridAdamW([layer], "values", every=0)


@pytest.mark.parametrize(("sections", "message"), [
    ({"optimizer": {"lr": 0.1}}, "optimizer.lr=0.1 means nothing where no tuple is trained"),
    ({"optimizer": {"train": "values", "lr_key": 0.1}}, "optimizer.lr_key=0.1 means nothing"),
    ({"optimizer": {"train": "values", "lr_weight": 0.1}}, "optimizer.lr_weight=0.1 means"),
    ({"optimizer": {"train": "weights+values"}, "layer": "rbf"}, "layer=rbf has none"),
    ({"optimizer": {"train": "values"}, "learner": "ridge"}, "of which learner=ridge has none"),
    ({"layer": {"kind": "rbf", "gate": 1.0}, "learner": "ridge"}, "layer.gate=1.0 is about"),
    ({"layer": {"kind": "rbf", "gate": 0}}, "layer.gate=0 .* greater than 0"),
    ({"layer": {"kind": "softmax", "refused": "nearest"}}, "no gate refuses; set layer.gate"),
    ({"layer": {"kind": "softmax", "gate": 1}, "learner": {"kind": "growing", "rehearsal": 4}},
     "layer.gate=1.0 leaves samples without tuples of their own, which learner.rehearsal"),
    ({"layer": {"kind": "softmax", "gate": 1}, "learner": {"kind": "growing", "revisit": "update"}},
     "layer.gate=1.0 leaves samples without tuples of their own, which learner.revisit=update"),
    ({"layer": {"kind": "softmax", "gate": 1, "refused": "nearest"}, "optimizer": {"decay": 0.1}},
     "layer.refused=nearest needs tuples whose age does not matter"),
])  # fmt: skip
def test_settings_that_do_not_fit(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(sections)
