"""Rehearsal: stored samples come again, and what they teach goes into their own tuples."""

import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn import Learner
from streamlearn.errors import ConfigError, NotFiniteError, RunStateError, ShapeError
from streamlearn.kernels import default_temperature
from streamlearn.layers import DualLinear, RBFLayer, WeightedSoftmax
from streamlearn.losses import LOSSES, cross_entropy, log_shares
from streamlearn.memory import Column, Memory, Tuples
from streamlearn.models import NetworkModel, Rehearsal, ScaledModel, notes_for
from streamlearn.models.draws import FLOOR, loss_keys
from streamlearn.networks import ResNetMLP
from streamlearn.optim import FunctionalSGD
from streamlearn.widening import widen_memory

from .. import reference
from ..reference import Array
from .making import arrays, backward, generator, randn, relative
from .test_learner import CLASSES, blobs, content, feed, growth_of, learner

D, C = 6, 3
NOTES = notes_for(None, torch.float64, "loss")
HOWS = ["uniform", "balanced", "loss"]


def made(count: int = 12, how: str = "uniform", **sections: Any) -> Learner:
    section = {"batch": 8, "dtype": "float64", "rehearsal": count, "rehearse": how}
    return learner(**{"learner": section, "network": {"hidden": 1}, **sections})


def rehearsal_of(model: Learner) -> Rehearsal:
    assert isinstance(model.model, NetworkModel)
    assert model.model.rehearsal is not None
    return model.model.rehearsal


# -- against the reference -------------------------------------------------------------------------


EPSILON = 1e-8


def _scale(rows: Array) -> Array:
    """What RMSNorm divides by."""
    scale: Array = np.sqrt((rows**2).mean(-1, keepdims=True) + EPSILON)
    return scale


class Twin:
    """One residual and one output layer of weighted softmax, as lists of tuples."""

    def __init__(self, model: ResNetMLP, leave_out: bool) -> None:
        self.leave_out = leave_out
        self.memories: list[dict[str, list[Array]]] = []
        for layer in (model.hidden[0], model.output):
            assert isinstance(layer, WeightedSoftmax)
            columns = layer.memory.gather(torch.arange(len(layer.memory)))
            self.memories.append(
                {name: list(arrays(columns[name])) for name in ("key", "weight", "value")}
            )
        self.targets: list[int | None] = [None] * len(self.memories[0]["key"])
        self.scales: list[float] = [0.0] * len(self.targets)

    def _tuples(self, layer: int, own: int) -> tuple[Array, Array, Array, float, Array]:
        memory = self.memories[layer]
        key, weight, value = (np.array(memory[name]) for name in ("key", "weight", "value"))
        counts = np.ones(len(key))
        if self.leave_out and own >= 0:
            counts[own] = 0
        return key, weight, value, default_temperature(key.shape[1]), counts

    def retrieve(self, layer: int, query: Array, own: list[int]) -> Array:
        pairs = zip(query, own, strict=True)
        return np.array([reference.softmax_output(q, *self._tuples(layer, o)) for q, o in pairs])

    def gradient(self, layer: int, query: Array, gradient: Array, own: list[int]) -> Array:
        rows = zip(query, gradient, own, strict=True)
        return np.array(
            [reference.softmax_gradient(q, *self._tuples(layer, o), g) for q, g, o in rows]
        )

    def step(self, codes: Array, targets: list[int], rows: list[int], rates: Any) -> None:
        """Append a batch, and add what rows would store again to what they hold."""
        again = np.array([self.scales[r] * self.memories[0]["key"][r] for r in rows])
        wanted = targets + [int(self.targets[r] or 0) for r in rows]
        own = [-1] * len(codes) + rows
        entering = np.concatenate([codes, again.reshape(-1, codes.shape[1])])
        query0 = entering / _scale(entering)
        out0 = self.retrieve(0, query0, own)
        inner = entering + out0
        query1 = inner / _scale(inner)
        out1 = self.retrieve(1, query1, own)
        shares = np.exp(out1 - out1.max(-1, keepdims=True))
        g1 = shares / shares.sum(-1, keepdims=True) - np.eye(out1.shape[1])[wanted]
        through = self.gradient(1, query1, g1, own)
        g0 = (through - query1 * (query1 * through).mean(-1, keepdims=True)) / _scale(inner)
        for layer, (query, output, gradient) in enumerate([(query0, out0, g0), (query1, out1, g1)]):
            memory = self.memories[layer]
            for i in range(len(entering)):
                weight = rates["lr_weight"] * max(0.0, float(output[i] @ gradient[i]))
                value = -rates["lr_value"] * gradient[i]
                if i < len(codes):
                    memory["key"].append(query[i])
                    memory["weight"].append(np.array(weight))
                    memory["value"].append(value)
                else:
                    row = rows[i - len(codes)]
                    memory["weight"][row] = memory["weight"][row] + weight
                    memory["value"][row] = memory["value"][row] + value
        self.targets += targets
        self.scales += list(np.sqrt((codes**2).mean(-1)))


def network(count: int, how: Any = "uniform", leave_out: bool = False) -> NetworkModel:
    options: dict[str, Any] = {"dtype": torch.float64, "generator": generator(3), "block_rows": 512}
    hidden = WeightedSoftmax(D, D, notes=NOTES, start_values="random", **options)
    output = WeightedSoftmax(D, C, start_values="random", **options)
    growth = FunctionalSGD(nn_of(hidden, output), lr_value=0.3, lr_weight=0.01)
    return NetworkModel(
        ResNetMLP([hidden], output),
        LOSSES["cross_entropy"],
        growth=growth,
        rehearsal=Rehearsal([hidden, output], count, how, seed=4),
        leave_out=leave_out,
    )


def nn_of(*layers: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.ModuleList(layers)


@pytest.mark.parametrize(
    ("how", "leave_out"), [("uniform", True), ("balanced", False), ("loss", True)]
)
def test_steps_with_rehearsal_are_those_of_the_reference(how: str, leave_out: bool) -> None:
    model = network(7, how, leave_out)
    assert isinstance(model.network, ResNetMLP)
    twin = Twin(model.network, leave_out)
    rates = {"lr_value": 0.3, "lr_weight": 0.01}
    codes, targets = randn(60, D, seed=1) * 1.7, torch.arange(60) % C
    for start in range(0, 60, 5):
        part = slice(start, start + 5)
        assert model.growth is not None
        assert model.rehearsal is not None
        rows = model.rehearsal.draw(model.growth.steps).rows.tolist()
        twin.step(arrays(codes[part]), targets[part].tolist(), rows, rates)
        model.learn(codes[part], targets[part])
    for memory, expected in zip(model.memories().values(), twin.memories, strict=True):
        found = memory.gather(torch.arange(len(memory)))
        for name, rows_ in expected.items():
            assert relative(found[name], np.array(rows_)) < 1e-10, name


@pytest.mark.parametrize("kind", ["softmax", "rbf", "linear", "decoupled", "unweighted"])
def test_a_stored_sample_comes_again_as_it_was(kind: str) -> None:
    """Its key times its scale is its code, up to rounding, so the forward pass is the same."""
    model = made(40, layer=kind)
    features, targets = blobs(120)
    feed(model, features, targets)
    again = rehearsal_of(model).draw(99)
    first = 0 if kind in ("rbf", "linear") else 16
    places = again.rows - first
    codes = model.encode(features).to(torch.float64)
    assert len(places) == 40
    assert torch.equal(again.targets, targets[places])
    np.testing.assert_allclose(arrays(again.codes), arrays(codes[places]), rtol=1e-6, atol=1e-7)
    assert isinstance(model.model, NetworkModel)
    np.testing.assert_allclose(
        arrays(model.model.answer(again.codes)),
        arrays(model.model.answer(codes[places])),
        atol=1e-6,
    )


def test_a_sample_without_any_feature_comes_again_as_zeros() -> None:
    model = network(8)
    model.learn(torch.zeros(3, D, dtype=torch.float64), torch.tensor([0, 1, 2]))
    assert model.rehearsal is not None
    again = model.rehearsal.draw(5)
    assert again.targets.tolist() == [0, 1, 2]
    assert not again.codes.any()
    model.learn(torch.zeros(3, D, dtype=torch.float64), torch.tensor([0, 1, 2]))


# -- what it does not change -----------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(count=st.integers(0, 40), how=st.sampled_from(HOWS), size=st.integers(1, 9))
def test_rows_are_those_of_the_samples_however_many_come_again(
    count: int, how: str, size: int
) -> None:
    model = made(count, how)
    features, targets = blobs(60)
    feed(model, features, targets, size)
    assert [len(memory) for memory in model.memories().values()] == [16 + 60] * 2
    assert model.samples == 60


def test_scores_are_of_the_batch_alone() -> None:
    model = made()
    features, targets = blobs(80)
    feed(model, features, targets)
    expected = model.predict_proba(features[:8])
    scores = model.learn(features[:8], targets[:8])
    assert scores.answers.shape == (8, CLASSES)
    assert scores.losses.shape == (8,)
    np.testing.assert_allclose(arrays(scores.answers), arrays(expected), atol=1e-6)


def test_keys_births_and_notes_stay() -> None:
    model = made()
    features, targets = blobs(120)
    feed(model, features[:60], targets[:60])
    memory = next(iter(model.memories().values()))
    rows = torch.arange(16, 16 + 60)
    before = memory.gather(rows)
    feed(model, features[60:], targets[60:])
    after = memory.gather(rows)
    for name in ("key", "born", "target", "scale"):
        assert torch.equal(after[name], before[name])
    assert torch.equal(after["target"], targets[:60])
    assert (after["value"] != before["value"]).any()


def test_it_remembers_what_came_first() -> None:
    """Classes in turn: without rehearsal the last one is answered, with it all are."""
    features, targets = blobs(300, spread=0.8)
    order = targets.argsort(stable=True)
    found = {}
    for count in (0, 32):
        model = made(count, "balanced", seed=1)
        feed(model, features[order], targets[order])
        found[count] = float((model.predict(features) == targets).double().mean())
    assert found[32] > 0.85 > found[0] + 0.2


def test_an_update_that_is_not_finite_changes_nothing_and_is_drawn_again() -> None:
    model = made()
    features, targets = blobs(80)
    feed(model, features, targets)
    before, growth = content(model), growth_of(model)
    twin = copy.deepcopy(model)
    rate = growth.param_groups[-1]["lr_value"]
    growth.param_groups[-1]["lr_value"] = float("inf")
    with pytest.raises(NotFiniteError, match="NaN or infinity"):
        model.learn(features[:8], targets[:8])
    growth.param_groups[-1]["lr_value"] = rate
    assert content(model) == before
    for one in (model, twin):
        one.learn(features[:8], targets[:8])
    assert content(model) == content(twin)


# -- draws -----------------------------------------------------------------------------------------


def stocked(counts: list[int], count: int, how: Any) -> tuple[Rehearsal, Memory]:
    """Start rows, then so many samples of each class, shuffled."""
    layer = RBFLayer(D, C, notes=NOTES, dtype=torch.float64, block_rows=512)
    rehearsal = Rehearsal([layer], count, how, seed=2)
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    targets = targets[torch.randperm(len(targets), generator=generator(1))]
    rows = len(targets)
    tuples = Tuples(randn(rows, D), torch.zeros(rows), randn(rows, C, seed=1))
    losses = torch.rand(rows, generator=generator(5), dtype=torch.float64)
    notes = {"target": targets, "scale": torch.ones(rows), "loss": losses}
    layer.memory.append(tuples, 1, notes)
    return rehearsal, layer.memory


def test_balanced_draws_are_balanced() -> None:
    rehearsal, _ = stocked([900, 90, 9, 500], 40, "balanced")
    total = torch.zeros(4, dtype=torch.int64)
    for step in range(50):
        drawn = rehearsal.draw(step).targets.bincount(minlength=4)
        assert drawn.sum() == 40
        assert drawn[2] == 9  # it has no more
        assert int(drawn[[0, 1, 3]].max() - drawn[[0, 1, 3]].min()) <= 1
        total += drawn
    assert int(total[[0, 1, 3]].max() - total[[0, 1, 3]].min()) < 25


def test_uniform_draws_are_uniform() -> None:
    rehearsal, memory = stocked([700, 300], 50, "uniform")
    drawn = torch.cat([rehearsal.draw(step).rows for step in range(400)]).bincount(minlength=1000)
    assert len(memory) == 1000
    assert drawn.sum() == 20_000
    assert drawn.min() > 0
    assert drawn.max() < 45
    assert abs(float(drawn.double().var()) - 19) < 3  # 400 draws with chance 1/20


def test_chances_by_loss_are_those_of_the_formula() -> None:
    """First draws: p ∝ ℓ/ℓ̄ + ε. All of R: as one is drawn after the other without replacement."""
    losses = np.array([0.0, 0.5, 1.0, 2.0, 4.0])
    words = np.random.PCG64(3).random_raw(5 * 20_000).reshape(-1, 5)
    order = np.array([loss_keys(row, losses) for row in words]).argsort(1)
    chances = losses / losses.mean() + FLOOR
    chances /= chances.sum()
    np.testing.assert_allclose(np.bincount(order[:, 0]) / len(order), chances, atol=0.01)
    second = sum(chances[i] * np.where(np.arange(5) == i, 0, chances) / (1 - chances[i])
                 for i in range(5))  # fmt: skip
    np.testing.assert_allclose(np.bincount(order[:, 1]) / len(order), second, atol=0.01)
    assert np.isfinite(loss_keys(words[0], np.zeros(5))).all()  # then all are alike
    assert np.isfinite(loss_keys(np.full(5, 2**64 - 1, np.uint64), losses)).all()
    assert np.isfinite(loss_keys(np.zeros(5, np.uint64), np.full(5, 1e30))).all()


def test_samples_on_which_more_is_lost_come_more_often() -> None:
    rehearsal, memory = stocked([700, 300], 50, "loss")
    losses = memory.gather(torch.arange(1000), ("loss",))["loss"].numpy()
    drawn = torch.cat([rehearsal.draw(step).rows for step in range(400)]).bincount(minlength=1000)
    fifths = [drawn.numpy()[part].mean() for part in np.array_split(losses.argsort(), 5)]
    expected = np.array([0.2, 0.6, 1.0, 1.4, 1.8]) + FLOOR
    np.testing.assert_allclose(
        np.array(fifths) / np.sum(fifths), expected / expected.sum(), atol=0.02
    )


@pytest.mark.parametrize("kind", ["growing", "parametric"])
def test_the_loss_of_a_sample_is_what_was_last_seen_of_it(kind: str) -> None:
    section = {"kind": kind, "batch": 8, "dtype": "float64", "rehearsal": 9, "rehearse": "loss"}
    more = {"optimizer": "sgd"} if kind == "parametric" else {}
    layers = "mixed" if kind == "parametric" else None
    model = learner(learner=section | more, network={"hidden": 1, "layers": layers})
    features, targets = blobs(120)
    inner = rehearsal_of(model) if model.model is not None else None
    expected = np.full(120, np.nan)
    for start in range(0, 120, 8):
        part = slice(start, start + 8)
        if model.model is not None:
            assert isinstance(model.model, NetworkModel)
            inner = rehearsal_of(model)
            step = model.model.growth.steps if model.model.growth is not None else 0
            rows = inner.draw(step).rows.numpy()
        scores = model.learn(features[part], targets[part])
        if inner is not None:
            expected[part] = scores.losses.numpy()
            memory = next(iter(model.memories().values()))
            first = len(memory) - inner.stored
            kept = memory.gather(torch.arange(first, len(memory)), ("loss",))["loss"].numpy()
            new = ~np.isnan(expected[: start + 8])
            new[rows - first] = False
            np.testing.assert_allclose(kept[new], expected[: start + 8][new], rtol=1e-6)
            expected[rows - first] = np.nan  # another one now
            assert (kept >= 0).all()
    assert inner is not None
    inner.draw(0)
    np.testing.assert_array_equal(inner._losses, memory.gather(
        torch.arange(first, len(memory)), ("loss",))["loss"].numpy())  # fmt: skip


def test_samples_that_were_dropped_and_come_back_are_drawn_again() -> None:
    rehearsal, memory = stocked([100], 20, "loss")
    memory.drop(torch.arange(90))
    assert rehearsal.draw(0).rows.tolist() == [*range(90, 100)]
    memory.rewrite(torch.arange(5), born=1)
    assert rehearsal.draw(0).rows.tolist() == [*range(5), *range(90, 100)]


def test_drawing_by_loss_costs_little() -> None:
    """And asks a store for nothing but what is drawn."""
    rehearsal, memory = stocked([100_000], 64, "loss")
    rehearsal.draw(0)
    asked: list[int] = []
    gather = memory.gather

    def counted(rows: torch.Tensor, columns: Any = None) -> dict[str, torch.Tensor]:
        asked.append(len(rows))
        return gather(rows, columns)

    memory.gather = counted  # type: ignore[method-assign]
    began = time.perf_counter()
    for step in range(10):
        rehearsal.draw(step)
    assert time.perf_counter() - began < 1.0  # 5 ms each where nothing else runs
    assert max(asked) == 64


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("stored", [0, 1, 7, 30, 160])
def test_no_sample_is_drawn_twice_at_a_step(how: str, stored: int) -> None:
    rehearsal, _ = stocked([stored, 0, stored // 2], 30, how)
    for step in range(10):
        rows = rehearsal.draw(step).rows
        assert len(rows) == len(set(rows.tolist())) == min(30, stored + stored // 2)
        assert torch.equal(rehearsal.draw(step).rows, rows)


@pytest.mark.parametrize("how", HOWS)
def test_what_was_dropped_is_never_drawn(how: str) -> None:
    rehearsal, memory = stocked([40, 30], 20, how)
    rehearsal.draw(0)
    dropped = torch.arange(0, 70, 2)
    memory.drop(dropped)
    seen = torch.cat([rehearsal.draw(step).rows for step in range(30)])
    assert set(seen.tolist()) == set(range(1, 70, 2))
    memory.drop(torch.arange(70))
    assert len(rehearsal.draw(1).rows) == 0


def test_a_sample_that_is_dropped_in_a_deeper_layer_is_not_drawn() -> None:
    model = made(70)
    features, targets = blobs(60)
    feed(model, features, targets)
    model.memories()["output"].drop(torch.arange(20, 50))
    rows = rehearsal_of(model).draw(7).rows
    assert rows.tolist() == [*range(16, 20), *range(50, 76)]
    feed(model, features, targets)


def test_layers_whose_rows_do_not_belong_together_are_refused() -> None:
    model = made()
    features, targets = blobs(60)
    feed(model, features, targets)
    model.memories()["output"].append(
        Tuples(torch.zeros(1, 7), torch.zeros(1), torch.zeros(1, CLASSES)), 3
    )
    with pytest.raises(RunStateError, match="76 and 77 tuples, so that their rows"):
        model.learn(features[:8], targets[:8])


# -- classes of a step as if they were equally many ------------------------------------------------


def test_adjusted_gradients_are_those_of_a_softmax_weighted_by_the_classes_shares() -> None:
    output = randn(7, 4).requires_grad_()
    target = torch.tensor([0, 0, 0, 0, 2, 2, 3])
    shares = torch.tensor([4, 0, 2, 1], dtype=torch.float64) / 7
    backward(cross_entropy(output + log_shares(target, 4), target).sum())
    weighted = shares * output.detach().exp()
    expected = weighted / weighted.sum(-1, keepdim=True) - torch.eye(4, dtype=torch.float64)[target]
    assert output.grad is not None
    torch.testing.assert_close(output.grad, expected)
    assert not output.grad[:, 1].any()  # it was not there


def test_only_what_is_learnt_is_adjusted_not_what_is_said() -> None:
    plain, adjusted = made(0), made(0, learner={"batch": 8, "dtype": "float64", "adjust": "batch"})
    features, targets = blobs(60)
    for model in (plain, adjusted):
        feed(model, features[:40], targets[:40], 40)
    balanced = torch.tensor([0, 1, 2])
    for model in (plain, adjusted):
        model.model = copy.deepcopy(plain.model)
    assert isinstance(adjusted.model, NetworkModel)
    adjusted.model.adjust = True
    said = [model.learn(features[balanced], balanced) for model in (plain, adjusted)]
    assert torch.equal(said[0].losses, said[1].losses)
    np.testing.assert_allclose(  # with equal shares nothing is another
        arrays(plain.predict_proba(features)), arrays(adjusted.predict_proba(features)), atol=1e-7
    )
    said = [model.learn(features[:2], torch.tensor([0, 0])) for model in (plain, adjusted)]
    np.testing.assert_allclose(arrays(said[0].losses), arrays(said[1].losses), atol=1e-6)
    assert not torch.equal(plain.predict_proba(features), adjusted.predict_proba(features))


# -- saved, and in every tier ----------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("parametric", [False, True])
def test_a_learner_that_rehearses_goes_on_with_the_same_bits(
    how: str, parametric: bool, tmp_path: Path
) -> None:
    section: dict[str, Any] = {"batch": 8, "rehearsal": 20, "rehearse": how, "dtype": "float32"}
    hidden: dict[str, Any] = {"hidden": 2}
    if parametric:
        section |= {"kind": "parametric", "optimizer": "sgd"}
        hidden |= {"layers": "mixed", "width": 9}
    model = learner(learner=section, network=hidden)
    features, targets = blobs(160)
    for start in range(0, 160, 32):
        model.save(tmp_path / "a")
        restored = Learner.load(tmp_path / "a")
        assert content(restored) == content(model)
        assert restored.nbytes == model.nbytes
        for one in (model, restored, copy.deepcopy(model)):
            feed(one, features[start : start + 32], targets[start : start + 32])
        assert content(restored) == content(model)


@pytest.mark.parametrize("how", HOWS)
def test_a_budget_changes_no_bit(how: str) -> None:
    features, targets = blobs(2200)
    found = []
    for budget in (None, 800_000):
        model = made(
            24, how, memory={"block_rows": 512, "host_budget": budget}, network={"hidden": 1}
        )
        feed(model, features, targets, 40)
        found.append(content(model))
        if budget is not None:
            assert model.tiers.disk_bytes > 0
    assert found[0] == found[1]


def test_samples_of_an_earlier_epoch_are_not_rehearsed_beside_themselves() -> None:
    model = made(
        300,
        learner={"batch": 8, "dtype": "float64", "rehearsal": 300, "revisit": "update"},
    )
    features, targets = blobs(64)
    for _ in range(3):
        for start in range(0, 64, 8):
            index = torch.arange(start, start + 8)
            model.learn(features[index], targets[index], index=index)
    assert [len(memory) for memory in model.memories().values()] == [16 + 64] * 2


def test_numbers_are_rehearsed_as_well() -> None:
    features, classes = blobs(120)
    targets = torch.stack([classes.double() * 100, features.sum(1).double()], 1)
    model = Learner(
        outputs=2,
        encoder={"kind": "standardise", "fit": 40},
        learner={"batch": 8, "dtype": "float64", "rehearsal": 16},
    )
    feed(model, features, targets)
    assert isinstance(model.model, ScaledModel)
    inner = model.model.model
    assert isinstance(inner, NetworkModel)
    assert inner.rehearsal is not None
    again = inner.rehearsal.draw(3)
    scaled = (targets - model.model.mean) / model.model.deviation
    np.testing.assert_array_equal(arrays(again.targets), arrays(scaled[again.rows - 16]))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sections", "message"), [
    ({"layer": "gauge"}, r"rehearsal=9 needs one tuple a sample, and layer=gauge .*rehearsal=0"),
    ({"optimizer": {"decay": 0.1}}, r"age does not matter; set optimizer\.momentum=0"),
    ({"learner": {"kind": "parametric", "rehearsal": 9}}, "that layer does not grow"),
    ({"learner": {"kind": "parametric", "rehearsal": 9}, "layer": "parametric-softmax"},
     "that layer does not grow; set learner=growing, learner.reservoir=64MiB"),
    ({"learner": {"kind": "parametric", "rehearsal": 9}, "network": "vit"}, "network=vit may"),
    ({"learner": {"rehearsal": -1}}, "rehearsal=-1"),
    ({"learner": {"rehearsal": 9, "rehearse": "often"}}, "rehearse"),
])  # fmt: skip
def test_what_cannot_be_rehearsed_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(CLASSES, **{"learner": {"rehearsal": 9}, **sections})


def test_numbers_have_no_classes_to_balance() -> None:
    for name, word in (("rehearse", "balanced"), ("adjust", "batch")):
        with pytest.raises(ConfigError, match=f"{name}={word} is about classes, but the targets"):
            Learner(outputs=1, learner={name: word})
    with pytest.raises(ConfigError, match="this learner minimises squared_error"):
        Learner(CLASSES, learner={"adjust": "batch", "loss": "squared_error"})


# -- notes -----------------------------------------------------------------------------------------


def test_notes_are_columns_that_retrieval_does_not_see() -> None:
    notes = {"target": Column(None, "int64"), "place": Column(2, "float64")}
    layer = DualLinear(D, C, notes=notes, dtype=torch.bfloat16, block_rows=512)
    plain = DualLinear(D, C, dtype=torch.bfloat16, block_rows=512)
    rows = Tuples(randn(700, D), torch.zeros(700), randn(700, C, seed=1))
    noted = {"target": torch.arange(700), "place": randn(700, 2, seed=2)}
    layer.memory.append(rows, 1, noted)
    plain.memory.append(rows, 1)
    query = randn(5, D, seed=3)
    assert torch.equal(layer(query), plain(query))
    assert layer.memory.row_bytes == plain.memory.row_bytes + 8 + 16
    found = layer.memory.gather(torch.tensor([3, 699, 512]), ("target", "place"))
    assert found["target"].tolist() == [3, 699, 512]
    assert torch.equal(found["place"], noted["place"][[3, 699, 512]])
    layer.memory.append(rows, 2)
    assert not layer.memory.gather(torch.arange(700, 1400), ("target",))["target"].any()
    again = copy.deepcopy(layer.memory)
    for index in range(layer.memory.block_count):
        for name, column in layer.memory.host_columns(index).items():
            np.testing.assert_array_equal(again.host_columns(index)[name], column)
    with pytest.raises(ShapeError, match=r"note 'target' has shape \(3,\) where 700 rows"):
        layer.memory.append(rows, 2, {"target": torch.arange(3)})
    with pytest.raises(ShapeError, match="it has no notes"):
        plain.memory.append(rows, 2, {"target": torch.arange(700)})


def test_a_wider_model_rehearses_the_same_samples() -> None:
    layer = RBFLayer(D, C, notes=NOTES, dtype=torch.float64, block_rows=512)
    wider = RBFLayer(4 * D, C + 2, notes=NOTES, dtype=torch.float64, block_rows=512)
    codes, targets = 2.5 * randn(30, D, seed=8), torch.arange(30) % C
    scale = codes.square().mean(-1).sqrt()
    tuples = Tuples(codes / scale[:, None], torch.zeros(30), randn(30, C))
    layer.memory.append(tuples, 1, {"target": targets, "scale": scale})
    rehearsal = Rehearsal([wider], 9, "balanced", seed=2)
    widen_memory(wider.memory, layer.memory)
    again = rehearsal.draw(4)
    assert torch.equal(again.targets, targets[again.rows])
    torch.testing.assert_close(again.codes[:, :D], codes[again.rows])
    assert not again.codes[:, D:].any()
