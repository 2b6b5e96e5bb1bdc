"""A reservoir: a uniform sample of all that came, learnt again beside each batch."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from streamlearn import Learner
from streamlearn.errors import ConfigError, FormatError, NotFiniteError
from streamlearn.losses import LOSSES, cross_entropy
from streamlearn.models import NetworkModel, Replayed, Reservoir, ScaledModel, reservoir_columns
from streamlearn.models.reservoir import _KEPT

from .making import arrays, backward, randn
from .test_learner import CLASSES, blobs, content, feed, learner

D = 4
NOBODY = Replayed(np.zeros(0, np.int64), torch.zeros(0, D), torch.zeros(0, dtype=torch.int64))


def reservoir(size: int, count: int = 8, how: Any = "uniform", seed: int = 1) -> Reservoir:
    return Reservoir(size, reservoir_columns(D, None, torch.float64, how), count, how, seed)


def numbered(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples whose codes are their numbers, of three classes; more is lost on later ones."""
    numbers = torch.arange(start, stop)
    return numbers[:, None].expand(-1, D).double(), numbers % 3, numbers.double()


def filled(size: int, samples: int, batch: int = 16, **options: Any) -> Reservoir:
    found = reservoir(size, **options)
    for start in range(0, samples, batch):
        found.keep(*numbered(start, min(start + batch, samples)), NOBODY)
    return found


def kept(one: Reservoir) -> list[float]:
    return [*one.state_dict()["code"][:, 0].tolist()]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    sizes=st.lists(st.integers(0, 30), max_size=8),
    seed=st.integers(0, 2**63 - 1),
)
def test_what_is_kept_is_that_of_algorithm_r_whatever_the_batches(
    size: int, sizes: list[int], seed: int
) -> None:
    found = reservoir(size, seed=seed)
    for stop, count in zip(np.cumsum(sizes).tolist(), sizes, strict=True):
        found.keep(*numbered(stop - count, stop), NOBODY)
    words = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_KEPT,)))
    expected: list[float] = []
    for number in range(sum(sizes)):
        slot = int(words.random_raw()) % (number + 1)
        if number < size:
            expected.append(number)
        elif slot < size:
            expected[slot] = number
    assert kept(found) == expected
    assert found.seen == sum(sizes)
    assert len(found) == len(expected) == min(size, sum(sizes))
    assert found.nbytes == len(found) * (8 * D + 8)


def test_every_sample_is_kept_alike() -> None:
    counts = np.zeros(200)
    for seed in range(500):
        counts[np.array(kept(filled(20, 200, seed=seed)), int)] += 1
    np.testing.assert_allclose(counts.reshape(10, 20).mean(1), 50, rtol=0.1)


@pytest.mark.parametrize("how", ["uniform", "balanced", "loss"])
@pytest.mark.parametrize("samples", [0, 1, 7, 200])
def test_no_sample_is_drawn_twice_at_a_step(how: str, samples: int) -> None:
    one = filled(50, samples, how=how, count=12)
    drawn = one.draw()
    assert len(set(drawn.slots.tolist())) == len(drawn.slots) == min(12, samples)
    assert drawn.codes[:, 0].tolist() == [kept(one)[slot] for slot in drawn.slots]
    assert torch.equal(drawn.targets, drawn.codes[:, 0].long() % 3)
    np.testing.assert_array_equal(one.draw().slots, drawn.slots)
    one.keep(*numbered(samples, samples + 1), NOBODY)
    if samples > 12:
        assert one.draw().codes[:, 0].tolist() != drawn.codes[:, 0].tolist()


def test_draws_are_uniform_balanced_or_by_loss() -> None:
    drawn = {}
    for how in ("uniform", "balanced", "loss"):
        one = reservoir(100, 12, how)
        codes, _, losses = numbered(0, 100)
        one.keep(codes, (torch.arange(100) >= 90).long(), losses, NOBODY)
        parts = []
        for step in range(300):
            one.seen = 100 + step
            parts.append(one.draw().slots)
        drawn[how] = np.bincount(np.concatenate(parts), minlength=100)
    np.testing.assert_allclose(drawn["uniform"], 36, atol=20)
    assert drawn["balanced"][90:].sum() == drawn["balanced"][:90].sum() == 1800
    fifths = drawn["loss"].reshape(5, 20).sum(1) / 3600
    np.testing.assert_allclose(fifths, np.array([1.2, 1.6, 2, 2.4, 2.8]) / 10, atol=0.02)


def test_what_was_lost_on_a_sample_is_that_of_its_last_coming() -> None:
    one = filled(30, 20, how="loss")
    again = one.draw()
    new = numbered(20, 25)
    one.keep(new[0], new[1], torch.cat([new[2], torch.full((8,), 0.5).double()]), again)
    losses = one.state_dict()["loss"]
    expected = torch.arange(25).double()
    expected[torch.from_numpy(again.slots)] = 0.5
    assert torch.equal(losses, expected)


# -- in a network ----------------------------------------------------------------------------------


def dense(count: int = 6, size: Any = 30, **options: Any) -> Learner:
    section: dict[str, Any] = {
        "kind": "parametric", "optimizer": "adamw", "batch": 8, "dtype": "float32",
        "rehearsal": count, "reservoir": size if count else None,
    }  # fmt: skip
    network = {"hidden": 1, "width": 16}
    return learner(learner=section | options, network=network)


def reservoir_of(model: Learner) -> Reservoir:
    inner = model.model.model if isinstance(model.model, ScaledModel) else model.model
    assert isinstance(inner, NetworkModel)
    assert inner.reservoir is not None
    return inner.reservoir


def test_a_step_is_that_of_the_batch_and_the_samples_that_come_again() -> None:
    """The loss is summed over both: a linear layer and plain SGD, step by step."""
    net = nn.Linear(D, CLASSES, dtype=torch.float64)
    twin = copy.deepcopy(net)
    store = reservoir(25, 5)
    model = NetworkModel(
        net,
        LOSSES["cross_entropy"],
        optimizer=torch.optim.SGD(net.parameters(), lr=0.05),
        reservoir=store,
    )
    codes, targets = randn(90, D, seed=2), torch.arange(90) % CLASSES
    for start in range(0, 90, 6):
        part = slice(start, start + 6)
        again = store.draw()
        assert len(again.slots) == min(5, start)
        every = torch.cat([codes[part], again.codes])
        losses = cross_entropy(twin(every), torch.cat([targets[part], again.targets]))
        twin.zero_grad()
        backward(losses.sum())
        scores = model.learn(codes[part], targets[part])
        np.testing.assert_allclose(arrays(scores.losses), arrays(losses[:6].detach()), rtol=1e-5)
        assert scores.answers.shape == (6, CLASSES)
        with torch.no_grad():
            for parameter in twin.parameters():
                assert parameter.grad is not None
                parameter.sub_(0.05 * parameter.grad)
        torch.testing.assert_close(net.weight, twin.weight)
    assert store.seen == model.samples == 90


def test_a_network_with_a_reservoir_remembers_what_came_first() -> None:
    features, targets = blobs(640, spread=0.8)
    order = torch.cat([torch.arange(40), 40 + targets[40:].argsort(stable=True)])
    found = {}
    for count in (0, 16):
        model = dense(count, 60, lr=0.01)
        feed(model, features[order], targets[order])
        found[count] = float((model.predict(features) == targets).double().mean())
    assert found[16] > 0.8 > found[0] + 0.2


@pytest.mark.parametrize("how", ["uniform", "balanced", "loss"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_learner_with_a_reservoir_goes_on_with_the_same_bits(
    how: str, dtype: str, tmp_path: Path
) -> None:
    model = dense(rehearse=how, dtype=dtype, optimizer="muon")
    features, targets = blobs(160)
    for start in range(0, 160, 32):
        model.save(tmp_path / "a")
        restored = Learner.load(tmp_path / "a")
        assert content(restored) == content(model)
        assert restored.nbytes == model.nbytes
        for one in (model, restored, copy.deepcopy(model)):
            feed(one, features[start : start + 32], targets[start : start + 32])
        assert content(restored) == content(model)
    assert len(reservoir_of(model)) == 30


def test_bytes_are_what_the_samples_take() -> None:
    without = dense(0)
    model = dense(5, "2KiB")
    for one in (without, model):
        feed(one, *blobs(200))
    store = reservoir_of(model)
    assert store.nbytes == len(store) * (7 * 4 + 8) <= 2048  # seven numbers of a code, a class
    assert len(store) == 2048 // 36
    assert model.nbytes == without.nbytes + store.nbytes


def test_numbers_come_again_as_the_network_sees_them() -> None:
    features, classes = blobs(120)
    targets = torch.stack([classes.double() * 100, features.sum(1).double()], 1)
    model = Learner(
        outputs=2,
        encoder={"kind": "standardise", "fit": 40},
        learner={"kind": "parametric", "rehearsal": 16, "reservoir": 500, "rehearse": "loss"},
    )
    feed(model, features, targets)
    assert isinstance(model.model, ScaledModel)
    scaled = (targets - model.model.mean) / model.model.deviation
    state = reservoir_of(model).state_dict()
    assert torch.equal(state["target"], scaled)
    np.testing.assert_allclose(arrays(state["code"]), arrays(model.encode(features)), rtol=1e-2)


def test_a_step_that_is_refused_keeps_nothing() -> None:
    model = dense()
    features, targets = blobs(80)
    feed(model, features, targets)
    before = content(model)
    assert isinstance(model.model, NetworkModel)
    parameter = next(model.model.network.parameters())
    hook: Any = parameter.register_hook
    handle = hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(NotFiniteError, match="a gradient is NaN"):
        model.learn(features[:8], targets[:8])
    handle.remove()
    assert content(model) == before


def test_the_state_of_another_reservoir_is_refused() -> None:
    state = filled(20, 50).state_dict()
    with pytest.raises(FormatError, match="keeps another code than this one of 30 samples"):
        filled(30, 50).load_state_dict(state)
    with pytest.raises(FormatError, match="keeps another loss than this one of 20"):
        filled(20, 50, how="loss").load_state_dict(state)


@pytest.mark.parametrize(("given", "message"), [
    ({"reservoir": 50}, r"reservoir=50 keeps samples that nothing draws; set learner\.rehearsal"),
    ({"rehearsal": 8, "reservoir": 0}, r"reservoir=0 keeps no sample to draw from"),
    ({"rehearsal": 8, "reservoir": "0 MB"}, r"reservoir=0 keeps no sample to draw from"),
    ({"rehearsal": 8, "reservoir": -5}, r"reservoir=-5 cannot be used: give samples, such as 50"),
    ({"rehearsal": 8, "reservoir": True}, r"reservoir=True cannot be used: give samples"),
    ({"rehearsal": 8, "reservoir": 1.5}, r"reservoir=1\.5 cannot be used: give samples"),
    ({"rehearsal": 8, "reservoir": "many"}, r"reservoir=many cannot be used: give samples"),
    ({"rehearsal": 8, "reservoir": "64 Mub"}, r"reservoir=64 Mub cannot be used: give samples"),
    ({"rehearsal": 8}, r"that layer does not grow; set .* learner\.reservoir=64MiB to keep"),
])  # fmt: skip
def test_words_that_mean_no_reservoir_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(CLASSES, learner={"kind": "parametric", **given})


def test_layers_that_grow_need_no_reservoir_and_a_sample_needs_room() -> None:
    section = {"kind": "parametric", "rehearsal": 8, "reservoir": "5 MB"}
    with pytest.raises(ConfigError, match="for networks of fixed size, and layers of this one"):
        Learner(CLASSES, learner=section, network={"layers": "mixed"})
    with pytest.raises(ConfigError, match="reservoir is not a setting"):
        Learner(CLASSES, learner={"kind": "growing", "reservoir": 5})
    model = dense(5, "35B")
    with pytest.raises(ConfigError, match="35B has no room for one sample, which takes 36 bytes"):
        feed(model, *blobs(80))
    numbers = {"kind": "parametric", "rehearsal": 8, "reservoir": 9, "rehearse": "balanced"}
    with pytest.raises(ConfigError, match="rehearse=balanced is about classes"):
        Learner(outputs=1, learner=numbers)
    for text in ("5000", " 5000 ", 5000):
        settings_ = {"kind": "parametric", "rehearsal": 8, "reservoir": text}
        assert Learner(CLASSES, learner=settings_).settings.learner.reservoir == 5000  # type: ignore[union-attr]
