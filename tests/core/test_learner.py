"""The learner: scored before learnt, held back, flushed, refused, and the same bits every time."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streamlearn import Learner
from streamlearn.bits import to_bits
from streamlearn.build import build_encoder, build_growth, build_network
from streamlearn.encoders import ModuleEncoder
from streamlearn.errors import ConfigError, NotFiniteError, ShapeError
from streamlearn.layers import GrowingLayer
from streamlearn.losses import LOSSES
from streamlearn.models import NetworkModel
from streamlearn.optim import FunctionalSGD
from streamlearn.state import flatten

from .making import arrays

CLASSES = 3
KINDS = ("softmax", "gauge", "rbf", "linear")


def blobs(count: int, seed: int = 0, width: int = 6, spread: float = 0.6) -> tuple[Tensor, Tensor]:
    """Three classes around three corners of a cube."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    corners = torch.eye(CLASSES, width) * 2.0
    return corners[targets] + spread * torch.randn(count, width, generator=generator), targets


def pictures(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three classes of 10×10 images: vertical stripes, horizontal ones, noise."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(CLASSES, (count,), generator=generator)
    images = torch.randint(0, 256, (count, 1, 10, 10), generator=generator)
    stripes = (torch.arange(10) // 2 % 2 * 180).expand(10, 10)
    images[targets == 0] = images[targets == 0] // 4 + stripes
    images[targets == 1] = images[targets == 1] // 4 + stripes.T
    return images.to(torch.uint8), targets


def learner(**sections: Any) -> Learner:
    defaults = {
        "encoder": {"kind": "standardise", "fit": 40},
        "learner": {"batch": 8, "dtype": "float32"},
    }
    return Learner(CLASSES, **{**defaults, **sections})


def growth_of(model: Learner) -> FunctionalSGD:
    assert isinstance(model.model, NetworkModel)
    assert model.model.growth is not None
    return model.model.growth


def feed(model: Learner, features: Tensor, targets: Tensor, size: int = 8) -> list[Any]:
    return [
        model.learn(features[start : start + size], targets[start : start + size])
        for start in range(0, len(features), size)
    ]


def content(model: Learner) -> list[Any]:
    """Everything that a learner knows, so that two of them can be compared."""
    tensors, tree = flatten(model.state_dict())
    rows = [
        (name, column, array.tobytes())
        for name, memory in model.memories().items()
        for block in memory.host_blocks()
        for column, array in block.items()
    ]
    return [tree, [(name, to_bits(tensor).tobytes()) for name, tensor in tensors.items()], rows]


# -- scored, then learnt ---------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_before_anything_is_learnt_predictions_are_uniform(loss: str) -> None:
    model = learner(learner={"loss": loss})
    features, targets = blobs(5)
    assert torch.equal(model.predict_proba(features), torch.full((5, 3), 1 / 3))
    scores = model.learn(features, targets)
    assert torch.equal(scores.probabilities, torch.full((5, 3), 1 / 3))
    if loss == "cross_entropy":
        np.testing.assert_allclose(arrays(scores.losses), np.log(3), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_every_sample_is_scored_before_it_is_learnt(kind: str, loss: str) -> None:
    model = learner(layer=kind, learner={"batch": 8, "dtype": "float32", "loss": loss})
    features, targets = blobs(120)
    of_answers = LOSSES[loss].of_answers
    for start in range(0, 120, 8):
        rows = slice(start, start + 8)
        before = model.predict_proba(features[rows])
        fitted = model.fitted
        scores = model.learn(features[rows], targets[rows])
        np.testing.assert_allclose(arrays(scores.probabilities), arrays(before), atol=1e-5)
        assert scores.probabilities.dtype == scores.losses.dtype == torch.float32
        assert scores.losses.shape == (8,)
        if not fitted or loss == "cross_entropy":
            wanted = of_answers(before, targets[rows])  # 27.6 at most, for probability 0
            found = arrays(scores.losses).clip(max=-np.log(1e-12))
            np.testing.assert_allclose(found, arrays(wanted), rtol=1e-4, atol=1e-5)
    assert model.samples == 120


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_and_loss_learns_a_toy_problem(kind: str, loss: str) -> None:
    rates = {"linear": {"lr_value": 0.03, "lr_value_hidden": 0.003}, "rbf": {"lr_value": 1.0}}
    model = learner(
        layer={"kind": kind, **rates.get(kind, {})},
        learner={"loss": loss, "batch": 8, "dtype": "float32"},
    )
    feed(model, *blobs(600, seed=1))
    features, targets = blobs(400, seed=2)
    accuracy = (model.predict(features) == targets).float().mean().item()
    assert accuracy > 0.8
    shares = model.predict_proba(features)
    np.testing.assert_allclose(arrays(shares.sum(-1)), 1.0, rtol=1e-5)


@pytest.mark.parametrize("encoder", [
    {"kind": "pca", "width": 5, "fit": 40}, {"kind": "patch", "filters": 8, "pool": 2, "fit": 40},
    {"kind": "standardise", "per": "channel", "fit": 40},
])  # fmt: skip
def test_images_are_learnt_with_every_encoder(encoder: dict[str, Any]) -> None:
    model = learner(encoder=encoder)
    feed(model, *pictures(300, seed=1))
    features, targets = pictures(200, seed=2)
    assert (model.predict(features) == targets).float().mean().item() > 0.8


def test_samples_held_back_are_scored_online_and_that_beats_chance() -> None:
    model = learner(encoder={"kind": "standardise", "fit": 400})
    features, targets = blobs(400, seed=3)
    scores = feed(model, features[:396], targets[:396])
    assert not model.fitted
    predicted = torch.cat([part.probabilities.argmax(-1) for part in scores])
    assert (predicted[200:] == targets[200:396]).float().mean().item() > 0.6


def test_by_chance_means_by_chance() -> None:
    model = learner(learner={"cold_start": "chance", "batch": 8, "dtype": "float32"})
    features, targets = blobs(64)
    scores = feed(model, features, targets)
    for part in scores[:5]:
        assert torch.equal(part.probabilities, torch.full((8, 3), 1 / 3))
    assert model.fitted
    assert not torch.allclose(scores[5].probabilities, torch.full((8, 3), 1 / 3))


# -- holding back and flushing ---------------------------------------------------------------------


def test_the_samples_held_back_are_learnt_in_their_order_once_the_encoder_is_fitted() -> None:
    model = learner()
    features, targets = blobs(42)
    for start in (0, 10, 20, 30):  # ragged batches
        stop = {30: 42}.get(start, start + 10)
        assert model.held == start
        model.learn(features[start:stop], targets[start:stop])
    assert (model.held, model.samples, model.fitted) == (0, 42, True)
    # The same by hand: fit on all, then batches of learner.batch.
    encoder = build_encoder(model.settings, model.hardware)
    encoder.fit(features)
    network = build_network(model.settings, encoder.width, CLASSES, model.hardware)
    optimizer = build_growth(model.settings, network)
    assert optimizer is not None
    for start in range(0, 42, 8):
        optimizer.zero_grad()
        output = network(encoder(features[start : start + 8]))
        model.loss.per_sample(output, targets[start : start + 8]).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    network.eval()
    probe, _ = blobs(20, seed=9)
    with torch.no_grad():
        wanted = torch.softmax(network(encoder(probe)), -1)
    assert torch.equal(model.predict_proba(probe), wanted)
    assert optimizer.steps == 6
    assert growth_of(model).steps == 6


def test_five_samples_with_a_constant_column_are_scored_and_learnt_at_the_streams_end() -> None:
    model = Learner(2)  # encoder.fit=2048
    features = torch.tensor([[1.0, 7.0], [2.0, 7.0], [1.1, 7.0], [2.2, 7.0], [0.9, 7.0]])
    targets = torch.tensor([0, 1, 0, 1, 0])
    for row in range(5):
        scores = model.learn(features[row : row + 1], targets[row : row + 1])
        assert scores.probabilities.isfinite().all()
        assert scores.losses.isfinite().all()
    assert (model.held, model.samples, model.fitted) == (5, 0, False)
    assert model.flush()
    assert (model.held, model.samples, model.fitted) == (0, 5, True)
    assert not model.flush()
    assert model.predict_proba(torch.tensor([[1.0, 8.0]])).isfinite().all()


def test_129_samples_at_batch_128_are_all_learnt() -> None:
    model = learner(encoder={"kind": "standardise", "fit": 16},
                    learner={"batch": 128, "dtype": "float32"})  # fmt: skip
    scores = feed(model, *blobs(129), size=128)
    assert [len(part.losses) for part in scores] == [128, 1]
    assert model.samples == 129
    assert {len(memory) for memory in model.memories().values()} == {16 + 129}


@pytest.mark.parametrize("encoder", ["standardise", "pca"])
def test_constant_samples_make_no_nan(encoder: str) -> None:
    model = learner(encoder={"kind": encoder, "fit": 8})
    scores = feed(model, torch.full((24, 4), 0.1), torch.arange(24) % 3)
    assert all(part.probabilities.isfinite().all() for part in scores)
    assert model.predict_proba(torch.randn(3, 4)).isfinite().all()


def test_flushing_without_samples_does_nothing() -> None:
    model = learner()
    assert not model.flush()
    assert not model.fitted
    assert model.memories() == {}


def test_a_buffer_that_is_used_again_for_every_batch_is_no_harm() -> None:
    features, targets = blobs(80)
    plain, reused = learner(), learner()
    feed(plain, features, targets)
    buffer, labels = torch.zeros(8, 6), torch.zeros(8, dtype=torch.int64)
    for start in range(0, 80, 8):
        buffer.copy_(features[start : start + 8])
        labels.copy_(targets[start : start + 8])
        reused.learn(buffer, labels)
    assert content(plain) == content(reused)


def test_learning_and_predicting_leave_the_callers_tensors_as_they_are() -> None:
    features, targets = blobs(80)
    features.requires_grad_()
    kept = features.detach().clone()
    model = learner()
    feed(model, features, targets)
    model.predict_proba(features)
    assert features.grad is None
    assert torch.equal(features, kept)


def test_images_as_uint8_and_as_floats_may_alternate_while_samples_are_held_back() -> None:
    images, targets = pictures(48)
    plain, mixed = learner(), learner()
    for start in range(0, 48, 8):
        rows = slice(start, start + 8)
        plain.learn(images[rows].float() / 255.0, targets[rows])
        batch = images[rows] if start % 16 else images[rows].float() / 255.0
        mixed.learn(batch, targets[rows])
    probe, _ = pictures(9, seed=5)
    np.testing.assert_allclose(
        arrays(mixed.predict_proba(probe)), arrays(plain.predict_proba(probe)), atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.int32])
@pytest.mark.parametrize("encoder", ["standardise", "pca"])
def test_features_of_every_numeric_dtype_are_learnt(dtype: torch.dtype, encoder: str) -> None:
    model = learner(encoder={"kind": encoder, "fit": 40})
    features, targets = blobs(80)
    feed(model, (10 * features).to(dtype), targets.to(torch.int32))
    assert model.samples == 80
    assert model.predict_proba((10 * features).to(dtype)).isfinite().all()


def test_empty_batches_are_answered_and_change_nothing() -> None:
    model = learner()
    for size in (0, 48):
        if size:
            feed(model, *blobs(size))
        before = content(model)
        scores = model.learn(torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64))
        assert scores.probabilities.shape == (0, 3)
        assert scores.losses.shape == (0,)
        assert model.predict_proba(torch.zeros(0, 6)).shape == (0, 3)
        assert model.predict(torch.zeros(0, 6)).shape == (0,)
        assert content(model) == before


# -- refusing --------------------------------------------------------------------------------------

GOOD = blobs(8, seed=4)


def poisoned(number: float) -> Tensor:
    features = GOOD[0].clone()
    features[5, 2] = number
    return features


BAD: list[tuple[Any, Any, type[Exception], str]] = [
    (torch.zeros(8, 5), GOOD[1], ShapeError, r"shape \(5,\) but this learner began with \(6,\)"),
    (torch.zeros(8, 6, 1), GOOD[1], ShapeError, r"samples have shape \(6, 1\)"),
    (torch.zeros(6), GOOD[1], ShapeError, r"must be a batch, .*features\[None\]"),
    (GOOD[0], GOOD[1][:7], ShapeError, r"targets have shape \(7,\) .* \(8,\) integers"),
    (GOOD[0], GOOD[1][:, None], ShapeError, r"targets have shape \(8, 1\)"),
    (GOOD[0], GOOD[1].float(), ShapeError, r"dtype torch.float32 but must be \(8,\) integers"),
    (GOOD[0], GOOD[1] + 1, ConfigError, "target 3 is outside the 3 classes; .* from 0 to 2"),
    (GOOD[0], GOOD[1] - 1, ConfigError, "target -1 is outside the 3 classes"),
    (poisoned(float("nan")), GOOD[1], NotFiniteError, "feature 2 of row 5 is nan; .*fill in"),
    (poisoned(float("inf")), GOOD[1], NotFiniteError, "feature 2 of row 5 is inf"),
    (poisoned(-float("inf")), GOOD[1], NotFiniteError, "feature 2 of row 5 is -inf"),
    (poisoned(1e30).square(), GOOD[1], NotFiniteError, "feature 2 of row 5 is inf"),
]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("fed", [8, 80])
def test_a_bad_batch_is_refused_and_leaves_the_learner_as_it_was(
    bad: tuple[Any, Any, type[Exception], str], fed: int
) -> None:
    model, twin = learner(), learner()
    for one in (model, twin):
        feed(one, *blobs(fed))
    features, targets, error, message = bad
    before = content(model)
    with pytest.raises(error, match=message):
        model.learn(features, targets)
    if features is not GOOD[0]:
        with pytest.raises(error, match=message):
            model.predict_proba(features)
    assert content(model) == before
    for one in (model, twin):
        feed(one, *blobs(80, seed=6))
    assert content(model) == content(twin)


@pytest.mark.parametrize("bad", BAD[2:])
def test_a_bad_first_batch_does_not_decide_what_samples_look_like(
    bad: tuple[Any, Any, type[Exception], str],
) -> None:
    model = learner()
    features, targets, error, message = bad
    with pytest.raises(error, match=message):
        model.learn(features, targets)
    feed(model, *blobs(48, width=4))
    assert model.samples == 48


def test_predicting_does_not_decide_what_samples_look_like() -> None:
    model = learner()
    model.predict_proba(torch.zeros(2, 9))
    feed(model, *blobs(48))
    assert model.samples == 48


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_would_store_nan_leaves_the_learner_as_it_was(kind: str) -> None:
    model = learner(layer={"kind": kind})
    feed(model, *blobs(48))
    growth = growth_of(model)
    before, rates = content(model), [g["lr_value"] for g in growth.param_groups]
    # Only the output layer overflows, after the hidden layer's tuples were found good.
    growth.param_groups[-1]["lr_value"] = 1e39
    with pytest.raises(NotFiniteError, match="would store a NaN or infinity"):
        feed(model, *blobs(8, seed=3))
    for group, rate in zip(growth.param_groups, rates, strict=True):
        group["lr_value"] = rate
    assert content(model) == before
    feed(model, *blobs(8, seed=3))
    assert model.samples == 56


@pytest.mark.parametrize("size", [3e38, 3e25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_too_large_to_encode_is_named_and_changes_nothing(
    dtype: torch.dtype, size: float
) -> None:
    model = learner(encoder={"kind": "pca", "fit": 40, "width": 3})
    feed(model, *blobs(48))
    features, targets = blobs(8, seed=3)
    features = features.to(dtype)
    features[6] = size
    before = content(model)
    for attempt in (lambda: model.learn(features, targets), lambda: model.predict(features)):
        with pytest.raises(NotFiniteError, match=r"of row 6, whose largest feature is 3e\+"):
            attempt()
    assert content(model) == before


def test_samples_that_the_encoder_cannot_take_are_refused_at_once() -> None:
    model = learner(encoder={"kind": "patch", "fit": 40})
    with pytest.raises(ShapeError, match="the patch encoder needs images"):
        model.learn(*blobs(8))
    with pytest.raises(ConfigError, match="4×4 pixels are too small"):
        model.learn(torch.zeros(8, 1, 4, 4), blobs(8)[1])
    assert model.held == 0
    feed(model, *pictures(48))
    assert model.samples == 48


class Failing(ModuleEncoder):
    """Fails once, at its call of this number; the first is made by `fit`."""

    def __init__(self, call: int) -> None:
        super().__init__(nn.Identity())
        self.calls_left = call

    def __call__(self, features: Tensor) -> Tensor:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise NotFiniteError("not this time")
        return super().__call__(features)


@pytest.mark.parametrize("call", [1, 2])  # while fitting, and while encoding
def test_a_fit_that_fails_holds_the_samples_back_still(call: int) -> None:
    model = Learner(CLASSES, learner().settings, encoder=Failing(call))
    smooth = Learner(CLASSES, learner().settings, encoder=ModuleEncoder(nn.Identity()))
    features, targets = blobs(40)
    feed(smooth, features, targets)
    with pytest.raises(NotFiniteError, match="not this time"):
        feed(model, features, targets)
    assert (model.held, model.samples, model.fitted) == (40, 0, False)
    assert model.memories() == {}
    assert model.predict_proba(features).isfinite().all()

    pulses = itertools.count()

    def interrupt() -> None:
        if next(pulses) == 4:  # some were learnt already
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.flush(interrupt)
    assert (model.held, model.samples, model.fitted) == (40, 0, False)
    assert model.flush()
    assert (model.held, model.samples, model.fitted) == (0, 40, True)
    probe, _ = blobs(20, seed=9)
    assert torch.equal(model.predict_proba(probe), smooth.predict_proba(probe))


# -- the same bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(kind: str, dtype: str) -> None:
    def made(seed: int) -> list[Any]:
        torch.manual_seed(torch.initial_seed() % 1000 + seed)  # the global generator plays no part
        model = learner(layer=kind, seed=seed, encoder={"kind": "patch", "filters": 4, "fit": 16},
                        learner={"dtype": dtype, "batch": 8})  # fmt: skip
        feed(model, *pictures(32))
        return content(model)

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_predicting_between_batches_changes_nothing() -> None:
    plain, asked = learner(), learner()
    features, targets = blobs(96)
    probe, _ = blobs(300, seed=8)
    for start in range(0, 96, 8):
        rows = slice(start, start + 8)
        plain.learn(features[rows], targets[rows])
        asked.predict_proba(probe)
        asked.predict(probe[:1])
        asked.learn(features[rows], targets[rows])
        with torch.inference_mode():
            asked.predict_proba(probe[:8])
    assert content(plain) == content(asked)


def test_momentum_and_decay_reach_the_layers() -> None:
    model = learner(optimizer={"momentum": 0.5, "decay": 0.01})
    feed(model, *blobs(80))
    assert isinstance(model.model, NetworkModel)
    output = model.model.network.output
    assert isinstance(output, GrowingLayer)
    clock = output.forgetting
    assert (clock.step, clock.momentum, clock.decay) == (10, 0.5, 0.01)
    assert model.predict_proba(blobs(9)[0]).isfinite().all()


def test_the_fit_may_be_left_to_flush() -> None:
    plain, later = learner(), learner()
    features, targets = blobs(40)
    feed(plain, features, targets)
    for start in range(0, 40, 8):
        assert not later.ready
        later.learn(features[start : start + 8], targets[start : start + 8], fit=False)
    assert later.ready
    assert not later.fitted
    assert later.flush()
    assert not later.ready
    assert content(later) == content(plain)


def test_two_classes_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="class 'cat' is there twice"):
        Learner(["cat", "dog", "cat"])


def test_class_names_keep_their_order() -> None:
    model = Learner(["cat", "año", "007"])
    assert model.classes == ("cat", "año", "007")
    assert Learner(2).classes == ("0", "1")


def test_a_module_of_ones_own_may_be_the_encoder() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
    model = Learner(CLASSES, learner().settings, encoder=ModuleEncoder(module))
    feed(model, *blobs(400, seed=1))
    features, targets = blobs(200, seed=2)
    assert (model.predict(features) == targets).float().mean().item() > 0.8
    assert model.memories()["output"].key_width == 12
    assert all(parameter.grad is None for parameter in module.parameters())
