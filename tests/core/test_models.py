"""What every kind of learner must do: score first, go on to the same bits, refuse, count bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamlearn import Learner
from streamlearn.errors import ConfigError, FormatError, NotFiniteError
from streamlearn.models import FeatureMap, FeaturesModel, NetworkModel

from .making import arrays
from .test_learner import CLASSES, blobs, content, feed, learner

PARAMETRIC = {"kind": "parametric", "batch": 8, "dtype": "float32"}
NARROW = {"hidden": 2, "width": 12}

KINDS: dict[str, dict[str, Any]] = {
    "growing": {},
    **{
        name: {"learner": {**PARAMETRIC, "optimizer": name}, "network": NARROW}
        for name in ("sgd", "muon", "foof", "delta")
    },
    "cosine": {
        "learner": {**PARAMETRIC, "optimizer": "adamw", "lr": 0.01, "schedule": "cosine",
                    "schedule_samples": 400, "warmup": 40},
        "network": NARROW,
    },
    "mixed": {
        "learner": {**PARAMETRIC, "optimizer": "mesa"},
        "network": {**NARROW, "layers": "mixed", "growing": 1},
        "optimizer": {"momentum": 0.5, "decay": 0.01},
    },
    "growing output": {
        "learner": {**PARAMETRIC, "optimizer": "adamw"},
        "network": {**NARROW, "layers": "dense", "output": "growing"},
    },
    "parametric softmax": {
        "learner": {**PARAMETRIC, "optimizer": "adam", "lr": 0.01},
        "layer": {"kind": "parametric-softmax", "width": 20},
        "network": {"hidden": 1},
    },
    "unweighted parametric softmax": {
        "learner": {**PARAMETRIC, "optimizer": "adam", "lr": 0.01},
        "layer": {"kind": "parametric-softmax", "width": 20, "weighted": False},
        "network": {"hidden": 0},
    },
    "knn": {"learner": {"kind": "knn"}},
    "knn by cosine": {"learner": {"kind": "knn", "metric": "cosine", "weighting": "distance"}},
    "knn by product": {"learner": {"kind": "knn", "metric": "dot", "weighting": "kernel"}},
    "normalised": {"learner": {"kind": "ridge", "normalise": True, "refresh": 1}},
    "ridge": {"learner": {"kind": "ridge"}},
    "discriminant": {"learner": {"kind": "discriminant"}},
    "kernel": {"learner": {"kind": "kernel", "first": 20}},
    "features": {"learner": {"kind": "features", "count": 30}},
    "nystroem": {"learner": {"kind": "features", "map": "nystroem", "count": 30, "lr": 0.5,
                             "schedule": "constant"}},
}  # fmt: skip


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def make(kind: str, **changes: Any) -> Learner:
    sections = {**KINDS[kind]}
    section = {"batch": 8, "dtype": "float32", **sections.pop("learner", {})}
    return learner(**{"learner": {**section, **changes}, **sections})


def test_every_kind_learns_a_toy_problem_and_scores_it_before(kind: str) -> None:
    model = make(kind)
    scores = feed(model, *blobs(360, seed=1))
    for part in scores:
        assert part.probabilities.dtype == part.losses.dtype == torch.float32
        assert part.probabilities.device.type == "cpu"
        torch.testing.assert_close(part.probabilities.sum(-1), torch.ones(8))
        assert part.losses.isfinite().all()
    features, targets = blobs(400, seed=2)
    least = 0.6 if kind in ("sgd", "delta") else 0.8
    assert (model.predict(features) == targets).float().mean().item() > least
    assert model.samples == 360
    assert model.nbytes > 0


def test_every_sample_is_scored_before_it_is_learnt(kind: str) -> None:
    fresh = {"refresh": 1} if kind in ("ridge", "discriminant") else {}
    model = make(kind, **fresh)
    features, targets = blobs(72)
    for start in range(0, 72, 8):
        rows = slice(start, start + 8)
        before = model.predict_proba(features[rows])
        scores = model.learn(features[rows], targets[rows])
        if kind != "kernel":  # which scores by its newest solution
            torch.testing.assert_close(scores.probabilities, before, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("fed", "dtype"), [
    (39, "float32"), (41, "bfloat16"), (64, "float64"),
])  # fmt: skip
def test_a_saved_learner_goes_on_with_the_same_bits(
    kind: str, fed: int, dtype: str, tmp_path: Path
) -> None:
    model = make(kind, dtype=dtype)
    feed(model, *blobs(fed))
    model.save(tmp_path / "one")
    restored = Learner.load(tmp_path / "one")
    assert content(restored) == content(model)
    probe, _ = blobs(30, seed=7)
    assert torch.equal(restored.predict_proba(probe), model.predict_proba(probe))
    assert restored.nbytes == model.nbytes
    ours, theirs = (feed(one, *blobs(29, seed=5)) for one in (model, restored))
    for found, wanted in zip(theirs, ours, strict=True):
        assert torch.equal(found.probabilities, wanted.probabilities)
        assert torch.equal(found.losses, wanted.losses)
    assert content(restored) == content(model)


def test_predicting_between_batches_changes_nothing(kind: str) -> None:
    plain, asked = make(kind), make(kind)
    features, targets = blobs(96)
    probe, _ = blobs(20, seed=8)
    for start in range(0, 96, 8):
        rows = slice(start, start + 8)
        plain.learn(features[rows], targets[rows])
        asked.predict_proba(probe)
        with torch.inference_mode():
            asked.predict_proba(probe[:8])
        asked.learn(features[rows], targets[rows])
    assert content(plain) == content(asked)


def test_the_same_seed_gives_the_same_bits_whatever_the_global_generator_says(kind: str) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = make(kind)
        feed(model, *blobs(64))
        found.append(content(model))
    assert found[0] == found[1]


def test_a_fit_that_is_interrupted_leaves_no_model(kind: str) -> None:
    model, smooth = make(kind), make(kind)
    features, targets = blobs(40)
    feed(smooth, features, targets)
    for start in range(0, 40, 8):
        model.learn(features[start : start + 8], targets[start : start + 8], fit=False)
    calls = iter(range(100))

    def interrupt() -> None:
        if next(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.flush(interrupt)
    assert (model.fitted, model.samples, model.memories(), model.nbytes) == (False, 0, {}, 0)
    assert model.flush()
    assert content(model) == content(smooth)


def test_a_state_of_another_network_is_refused(tmp_path: Path) -> None:
    wide = learner(learner=PARAMETRIC, network={"hidden": 1, "width": 20})
    narrow = learner(learner=PARAMETRIC, network={"hidden": 1, "width": 10})
    adam = learner(learner={**PARAMETRIC, "optimizer": "adam"}, network={"hidden": 1, "width": 20})
    for model in (wide, narrow, adam):
        feed(model, *blobs(48))
    with pytest.raises(FormatError, match=r"another one than this \(hidden.0.first.weight differs"):
        narrow.load_state_dict(wide.state_dict())
    with pytest.raises(FormatError, match="build it with the same class over the same network"):
        adam.load_state_dict(wide.state_dict())


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = make("mixed")
    feed(model, *blobs(48))
    before = content(model)
    assert isinstance(model.model, NetworkModel)
    output = model.model.network.output
    assert isinstance(output, torch.nn.Linear)
    with torch.no_grad():
        output.bias[0] = float("inf")
    with pytest.raises(NotFiniteError, match=r"NaN or infinite after 48 samples; lower learner.lr"):
        feed(model, *blobs(8, seed=3))
    with torch.no_grad():
        output.bias[0] = 0.0
    rest = content(model)
    assert rest[2] == before[2]  # no tuple was stored
    feed(model, *blobs(8, seed=3))
    assert model.samples == 56


@pytest.mark.parametrize("optimizer", ["foof", "delta"])
def test_a_batch_that_the_optimizer_refuses_leaves_no_tuple(optimizer: str) -> None:
    model = learner(
        learner={**PARAMETRIC, "optimizer": optimizer},
        network={**NARROW, "layers": "mixed", "growing": 1},
    )
    feed(model, *blobs(48))
    assert isinstance(model.model, NetworkModel)
    output = model.model.network.output
    assert isinstance(output, torch.nn.Linear)
    kept = output.weight.detach().clone()
    with torch.no_grad():
        output.weight.mul_(-1e25)  # gradients are finite then, their squares not
    before = content(model)
    with pytest.raises(NotFiniteError, match="no parameter was changed"):
        model.learn(*blobs(8, seed=3))
    assert content(model) == before
    with torch.no_grad():
        output.weight.copy_(kept)
    model.learn(*blobs(8, seed=3))
    assert model.samples == 56


def test_a_kernel_machine_refuses_more_than_its_limit() -> None:
    model = learner(learner={"kind": "kernel", "batch": 8, "limit": 50, "dtype": "float32"})
    feed(model, *blobs(48))
    before = content(model)
    with pytest.raises(ConfigError, match=r"learnt 48 samples and learner\.limit=50 lets no"):
        model.learn(*blobs(8))
    assert content(model) == before
    model.learn(*blobs(2))


@pytest.mark.parametrize("fed", [40, 48])
def test_weights_that_overflow_are_taken_back(fed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("features")
    feed(model, *blobs(fed))
    assert isinstance(model.model, FeaturesModel)
    before = content(model)
    with monkeypatch.context() as patch:
        huge = 1e305 * np.random.default_rng(0).choice([-1.0, 1.0], (8, 30))
        patch.setattr(FeatureMap, "__call__", lambda self, codes: huge)
        with pytest.raises(NotFiniteError, match=r"SGD's weights overflow .* lower learner\.lr"):
            model.learn(*blobs(8))
    assert content(model) == before
    model.learn(*blobs(8))


@pytest.mark.parametrize(("changes", "factor"), [
    ({}, [1, 1, 1]),
    ({"warmup": 64}, [41 / 64, 49 / 64, 57 / 64]),
    ({"schedule": "linear", "schedule_samples": 80}, [0.5, 0.4, 0.3]),
    ({"schedule": "cosine", "schedule_samples": 80}, [0.5, 0.345491503, 0.206107374]),
])  # fmt: skip
def test_rates_follow_their_schedule(changes: dict[str, Any], factor: list[float]) -> None:
    model = learner(learner={**PARAMETRIC, "optimizer": "sgd", "lr": 0.01, **changes})
    feed(model, *blobs(40))
    found = []
    for step in range(3):
        feed(model, *blobs(8, seed=step))
        assert isinstance(model.model, NetworkModel)
        assert model.model.optimizer is not None
        found.append(model.model.optimizer.param_groups[0]["lr"] / 0.01)
    assert found == pytest.approx(factor)


def test_a_dense_network_begins_as_one_that_says_nothing() -> None:
    model = learner(learner={**PARAMETRIC, "optimizer": "sgd", "lr": 0.0}, network=NARROW)
    feed(model, *blobs(48))
    found = arrays(model.predict_proba(blobs(5)[0]))
    assert found == pytest.approx(1 / CLASSES)


@pytest.mark.parametrize(("sections", "message"), [
    ({"learner": {"kind": "parametric", "lamda": 1}}, "learner.lamda is not a setting"),
    ({"learner": {"kind": "knn", "wieghting": 1}}, "did you mean learner.weighting"),
    ({"learner": {"kind": "parametric", "damping": 1}},
     "learner.damping means nothing for learner.optimizer=muon, which takes lr, momentum"),
    ({"learner": {"kind": "parametric", "schedule_samples": 9}}, "nothing without a schedule"),
    ({"learner": {"kind": "knn", "metric": "dot", "weighting": "distance"}}, "has no distances"),
    ({"learner": {"kind": "knn", "bandwidth": 2}}, "learner.bandwidth=2 means nothing for"),
    ({"learner": {"kind": "ridge", "regularisation": 0}}, "learner.regularisation=0 .* greater"),
    ({"layer": "parametric-softmax"}, "trained by gradients .* set learner=parametric"),
    ({"network": {"layers": "dense"}}, "network.layers=dense is not made of growing layers alone"),
    ({"learner": "parametric", "network": {"layers": "growing"}},
     "learner=parametric has nothing to train .* set learner=growing"),
])  # fmt: skip
def test_settings_that_do_not_fit_a_kind_are_refused(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Learner(3, **sections)
    assert "\n" not in str(caught.value)
