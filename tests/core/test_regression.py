"""Learners of numbers: against naive float64 references, scored first, restored, refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor

from streamlearn import Learner
from streamlearn.errors import ConfigError, FormatError, NotFiniteError, ShapeError
from streamlearn.layers import DualLinear, WeightedSoftmax
from streamlearn.losses import VALUE_LOSSES, absolute_error, squared_error
from streamlearn.memory import Memory
from streamlearn.models import KernelModel, KNNModel, NetworkModel, RidgeModel, ScaledModel
from streamlearn.networks import ResNetMLP
from streamlearn.optim import FunctionalSGD
from streamlearn.tasks import Classes, Outputs, task_from

from .. import reference
from .making import Dense, arrays, backward, generator, randn
from .test_learner import content, feed

WIDTH, OUTPUTS = 5, 2
CPU = torch.device("cpu")
LOSS = VALUE_LOSSES["squared_error"]

PARAMETRIC = {"kind": "parametric", "optimizer": "adam", "lr": 0.02}
KINDS: dict[str, dict[str, Any]] = {
    "growing": {"layer": {"kind": "softmax", "lr_value": 0.1}},
    "gauge": {"layer": {"kind": "gauge", "lr_value": 0.1}},
    "rbf": {"layer": {"kind": "rbf", "lr_value": 0.3}},
    "linear": {"layer": {"kind": "linear", "lr_value": 0.02}, "network": {"hidden": 0}},
    "dense": {"learner": PARAMETRIC, "network": {"hidden": 1, "width": 12}},
    "parametric softmax": {
        "learner": PARAMETRIC,
        "layer": {"kind": "parametric-softmax", "width": 30},
        "network": {"hidden": 0},
    },
    "knn": {"learner": {"kind": "knn", "k": 5, "weighting": "distance"}},
    "ridge": {"learner": {"kind": "ridge", "refresh": 1}},
    "kernel": {"learner": {"kind": "kernel", "first": 16}},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def plane(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two numbers that depend on five linearly, in units far from 1, and far from 0."""
    features = randn(count, WIDTH, seed=seed).float()
    weight = randn(OUTPUTS, WIDTH, seed=77)
    unit, far = torch.tensor([100.0, 0.01]), torch.tensor([5000.0, -3.0])
    return features, far + unit * (features.double() @ weight.T)


def learner(sections: dict[str, Any], outputs: int = OUTPUTS, **changes: Any) -> Learner:
    section = {"batch": 8, "dtype": "float32", **sections.get("learner", {}), **changes}
    encoder = {"kind": "standardise", "fit": 40}
    return Learner(outputs=outputs, **{**sections, "encoder": encoder, "learner": section})


def make(kind: str, **changes: Any) -> Learner:
    return learner(KINDS[kind], **changes)


def r2(answers: Tensor, targets: Tensor) -> float:
    """Of the output that is determined worst."""
    rest = (answers - targets).square().sum(0) / (targets - targets.mean(0)).square().sum(0)
    return float(1 - rest.max())


def test_every_kind_learns_a_plane_in_its_own_units(kind: str) -> None:
    model = make(kind)
    for part in feed(model, *plane(600, seed=1)):
        assert part.answers.dtype == torch.float64
        assert part.answers.shape == (8, OUTPUTS)
        assert part.losses.dtype == torch.float32
        assert part.losses.isfinite().all()
    features, targets = plane(200, seed=2)
    assert r2(model.predict(features), targets) > 0.5
    assert torch.equal(model.predict(features), model.answer(features))
    assert model.classes == ()
    assert model.nbytes > 0


def test_every_sample_is_scored_before_it_is_learnt(kind: str) -> None:
    model = make(kind)
    features, targets = plane(96)
    for start in range(0, 96, 8):
        rows = slice(start, start + 8)
        before = model.predict(features[rows])
        scores = model.learn(features[rows], targets[rows])
        wanted = squared_error(scores.answers, targets[rows])
        torch.testing.assert_close(scores.losses.double(), wanted, rtol=1e-6, atol=0)
        if kind != "kernel":  # which scores by its newest solution
            torch.testing.assert_close(scores.answers, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("fed", "dtype"), [
    (39, "float32"), (41, "bfloat16"), (64, "float64"),
])  # fmt: skip
def test_a_saved_learner_goes_on_with_the_same_bits(
    kind: str, fed: int, dtype: str, tmp_path: Path
) -> None:
    model = make(kind, dtype=dtype)
    feed(model, *plane(fed))
    model.save(tmp_path / "one")
    restored = Learner.load(tmp_path / "one")
    assert restored.task == Outputs(OUTPUTS)
    assert content(restored) == content(model)
    assert restored.nbytes == model.nbytes
    ours, theirs = (feed(one, *plane(29, seed=5)) for one in (model, restored))
    for found, wanted in zip(theirs, ours, strict=True):
        assert torch.equal(found.answers, wanted.answers)
        assert torch.equal(found.losses, wanted.losses)
    assert content(restored) == content(model)


def test_predicting_between_batches_changes_nothing(kind: str) -> None:
    plain, asked = make(kind), make(kind)
    features, targets = plane(96)
    for start in range(0, 96, 8):
        rows = slice(start, start + 8)
        plain.learn(features[rows], targets[rows])
        asked.predict(features)
        asked.learn(features[rows], targets[rows])
    assert content(plain) == content(asked)


def test_the_unit_of_targets_does_not_matter(kind: str) -> None:
    one, other = make(kind), make(kind)
    features, targets = plane(120)
    feed(one, features, targets)
    feed(other, features, 4 * targets + 512)  # powers of two: nothing is rounded but the mean
    found, wanted = other.predict(features), 4 * one.predict(features) + 512
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_unscaled_targets_are_learnt_as_they_are() -> None:
    model = make("ridge", scale_targets=False)
    features, targets = plane(80)
    feed(model, features, targets)
    assert not isinstance(model.model, ScaledModel)
    assert isinstance(make_fitted("ridge").model, ScaledModel)
    torch.testing.assert_close(model.predict(features), targets, rtol=0.1, atol=20)


def make_fitted(kind: str) -> Learner:
    model = make(kind)
    feed(model, *plane(48))
    return model


@pytest.mark.parametrize("value", [0.0, 7.3, -1e12])
def test_targets_that_do_not_vary_are_learnt(value: float) -> None:
    model = make("growing")
    features = plane(80)[0]
    feed(model, features, torch.full((80, OUTPUTS), value))
    torch.testing.assert_close(model.predict(features), torch.full((80, OUTPUTS), value).double())


# -- before the encoder is fitted ------------------------------------------------------------------


def test_until_the_encoder_is_fitted_the_answer_is_the_mean_so_far() -> None:
    model = make("growing")
    features, targets = plane(40)
    assert torch.equal(model.predict(features), torch.zeros(40, OUTPUTS).double())
    for start in range(0, 40, 8):
        rows = slice(start, start + 8)
        scores = model.learn(features[rows], targets[rows], fit=False)
        wanted = targets[:start].mean(0) if start else torch.zeros(OUTPUTS).double()
        torch.testing.assert_close(scores.answers, wanted.repeat(8, 1))
    assert model.ready


# -- the losses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "value", "slope"), [
    (squared_error, lambda e: 0.5 * (e * e).sum(-1), lambda e: e),
    (absolute_error, lambda e: np.abs(e).sum(-1), np.sign),
])  # fmt: skip
def test_losses_and_their_gradients_are_those_of_each_sample(
    loss: Callable[..., Tensor], value: Callable[..., Any], slope: Callable[..., Any]
) -> None:
    output, target = randn(7, 3, seed=1).requires_grad_(), randn(7, 3, seed=2)
    errors = arrays(output) - arrays(target)
    losses = loss(output, target)
    backward(losses.sum())
    np.testing.assert_allclose(arrays(losses), value(errors), atol=1e-14)
    assert output.grad is not None
    np.testing.assert_allclose(arrays(output.grad), slope(errors), atol=1e-14)


# -- against references ----------------------------------------------------------------------------


def normalised(codes: Tensor) -> reference.Array:
    rows = arrays(codes)
    found: reference.Array = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + 1e-8)
    return found


def test_a_growing_softmax_is_functional_descent_on_the_squared_error() -> None:
    layer = WeightedSoftmax(
        WIDTH, OUTPUTS, temperature=0.8, generator=generator(5), dtype=torch.float64, block_rows=512
    )
    growth = FunctionalSGD(layer, lr_value=0.2, lr_weight=0.01)
    model = NetworkModel(ResNetMLP([], layer), LOSS, growth=growth)
    tuples = Dense.of(layer)
    keys, weights, values = tuples.key, tuples.weight, tuples.value
    codes, targets = table(96)
    queries = normalised(codes)
    for start in range(0, 96, 8):
        rows = slice(start, start + 8)
        scores = model.learn(codes[rows], targets[rows])
        new = []
        for place, query in enumerate(queries[rows]):
            output = reference.softmax_output(query, keys, weights, values, 0.8, np.ones(len(keys)))
            gradient = output - arrays(targets)[start + place]
            np.testing.assert_allclose(arrays(scores.answers)[place], output, atol=1e-11)
            new.append(reference.clipped_tuple(output, gradient, 0.2, 0.01, None))
        keys = np.concatenate([keys, queries[rows]])
        weights = np.concatenate([weights, [weight for weight, _ in new]])
        values = np.concatenate([values, [value for _, value in new]])
    np.testing.assert_allclose(Dense.of(layer).value, values, atol=1e-11)
    np.testing.assert_allclose(Dense.of(layer).weight, weights, atol=1e-11)


def test_a_growing_linear_layer_is_gradient_descent_on_the_squared_error() -> None:
    layer = DualLinear(WIDTH, OUTPUTS, dtype=torch.float64, block_rows=512)
    model = NetworkModel(ResNetMLP([], layer), LOSS, growth=FunctionalSGD(layer, lr_value=0.01))
    codes, targets = table(200)
    queries = normalised(codes)
    weight = np.zeros((OUTPUTS, WIDTH))
    for start in range(0, 200, 8):
        rows = slice(start, start + 8)
        model.learn(codes[rows], targets[rows])
        errors = queries[rows] @ weight.T - arrays(targets)[rows]
        weight -= 0.01 * errors.T @ queries[rows]
    np.testing.assert_allclose(arrays(model.answer(codes)), queries @ weight.T, atol=1e-11)


def memory() -> Memory:
    return Memory(WIDTH, OUTPUTS, dtype=torch.float64, block_rows=512)


def table(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    codes = randn(count, WIDTH, seed=seed)
    return codes, torch.stack([codes[:, 0].sin() + 7, codes[:, 1] * codes[:, 2]], 1)


def taught(model: RidgeModel | KernelModel | KNNModel, count: int = 120) -> tuple[Tensor, Tensor]:
    codes, targets = table(count)
    model.start(codes[:20], targets[:20])
    for start in range(0, count, 7):
        model.learn(codes[start : start + 7], targets[start : start + 7])
    return codes, targets


def test_ridge_is_batch_ridge() -> None:
    model = RidgeModel(WIDTH, OUTPUTS, LOSS, regularisation=2.5, refresh=8, device=CPU)
    codes, targets = taught(model)
    probe = table(30, seed=1)[0]
    batch = Ridge(alpha=2.5).fit(codes.numpy(), targets.numpy())
    np.testing.assert_allclose(arrays(model.answer(probe)), batch.predict(probe.numpy()), atol=1e-9)


@pytest.mark.parametrize("bias", [True, False])
def test_a_kernel_machine_is_kernel_ridge_in_closed_form(bias: bool) -> None:
    model = KernelModel(
        memory(), LOSS, regularisation=0.3, bandwidth=1.7, scale=1.0, bias=bias, first=16, limit=500
    )
    codes, targets = (arrays(part) for part in taught(model))
    probe = arrays(table(30, seed=1)[0])

    def kernel(left: Any, right: Any) -> Any:
        square = np.square(left[:, None] - right[None]).sum(-1)
        return np.exp(-square / (2 * 1.7**2))

    count = len(codes)
    system = kernel(codes, codes) + 0.3 * np.eye(count)
    right = targets
    if bias:
        system = np.block([[system, np.ones((count, 1))], [np.ones((1, count)), np.zeros((1, 1))]])
        right = np.concatenate([targets, np.zeros((1, OUTPUTS))])
    solved = np.linalg.solve(system, right)
    wanted = kernel(probe, codes) @ solved[:count] + (solved[count] if bias else 0.0)
    np.testing.assert_allclose(arrays(model.answer(torch.from_numpy(probe))), wanted, atol=1e-8)


@pytest.mark.parametrize("weighting", ["uniform", "distance"])
def test_neighbours_are_averaged(weighting: Any) -> None:
    model = KNNModel(memory(), LOSS, k=4, weighting=weighting)
    codes, targets = taught(model)
    probe = table(30, seed=1)[0]
    batch = KNeighborsRegressor(4, weights=weighting).fit(codes.numpy(), targets.numpy())
    np.testing.assert_allclose(arrays(model.answer(probe)), batch.predict(probe.numpy()), atol=1e-9)
    near = model.answer(codes)
    if weighting == "distance":  # a sample that is there outvotes all others
        torch.testing.assert_close(near, targets)


def test_values_are_not_rounded_with_the_codes() -> None:
    model = learner({"learner": {"kind": "knn", "k": 1}}, dtype="bfloat16", scale_targets=False)
    features, targets = plane(48)
    feed(model, features, targets)
    torch.testing.assert_close(model.predict(features), targets, rtol=1e-6, atol=0)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("targets", "error", "message"), [
    (torch.zeros(8), ShapeError, r"shape \(8,\) .* must be \(8, 2\) numbers"),
    (torch.zeros(8, 3), ShapeError, r"shape \(8, 3\)"),
    (torch.zeros(7, 2), ShapeError, r"shape \(7, 2\)"),
    (torch.zeros(8, 2, dtype=torch.complex64), ShapeError, "complex64"),
    (torch.tensor([[0.0, 1.0]] * 7 + [[2.0, float("nan")]]), NotFiniteError,
     "target 1 of row 7 is nan, where numbers up to 1e\\+15 can be learnt"),
    (torch.tensor([[float("-inf"), 1.0]] * 8), NotFiniteError, "target 0 of row 0 is -inf"),
    (torch.full((8, 2), 1e16), NotFiniteError, "target 0 of row 0 is 1e\\+16"),
])  # fmt: skip
@pytest.mark.parametrize("fed", [0, 48])
def test_targets_that_cannot_be_learnt_change_nothing(
    targets: Tensor, error: type[Exception], message: str, fed: int
) -> None:
    model = make("growing")
    if fed:
        feed(model, *plane(fed))
    before = content(model)
    with pytest.raises(error, match=message) as caught:
        model.learn(plane(8)[0], targets)
    assert "\n" not in str(caught.value)
    assert content(model) == before


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.float64])
def test_one_output_may_come_as_a_row_of_any_real_type(dtype: torch.dtype) -> None:
    features = plane(48)[0]
    targets = torch.arange(48).to(dtype)
    row, column = (learner(KINDS["growing"], outputs=1) for _ in range(2))
    feed(row, features, targets)
    feed(column, features, targets[:, None])
    assert content(row) == content(column)
    assert row.predict(features).shape == (48, 1)
    assert row.learn(torch.zeros(0, WIDTH), torch.zeros(0)).answers.shape == (0, 1)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"outputs": 2, "learner": {"loss": "cross_entropy"}},
     "learner.loss=cross_entropy does not fit targets that are numbers; choose squared_error or"),
    ({"classes": 2, "learner": {"loss": "absolute_error"}},
     "learner.loss=absolute_error does not fit targets that are classes"),
    ({"outputs": 2, "learner": "discriminant"}, "learner=discriminant only knows classes"),
    ({"outputs": 2, "learner": "features"}, "learner=features only knows classes"),
    ({"outputs": 2, "learner": {"cold_start": "chance"}}, "learner.cold_start=chance means noth"),
    ({"classes": 2, "learner": {"scale_targets": True}}, "learner.scale_targets=true means noth"),
    ({"outputs": 0}, "outputs=0 is not possible"),
    ({}, "give either classes=… for a classifier or outputs=… for a regression, not neither"),
    ({"classes": 2, "outputs": 2}, "not both"),
])  # fmt: skip
def test_settings_of_the_other_task_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Learner(**arguments)
    assert "\n" not in str(caught.value)


def test_a_regression_has_no_probabilities() -> None:
    with pytest.raises(ConfigError, match="answers with numbers; call predict"):
        make("growing").predict_proba(plane(3)[0])


def test_the_state_of_another_task_is_refused() -> None:
    values, one, classes = Learner(outputs=2), Learner(outputs=1), Learner(2)
    with pytest.raises(FormatError, match="answers with 2 values but this one with 1 values"):
        one.load_state_dict(values.state_dict())
    with pytest.raises(FormatError, match="answers with classes but this one with 2 values"):
        values.load_state_dict(classes.state_dict())
    with pytest.raises(FormatError, match=r"answers with 2 values .* build it with outputs=2"):
        classes.load_state_dict(values.state_dict())


def test_a_task_is_what_was_asked_for() -> None:
    assert task_from(3, None) == Classes(("0", "1", "2"))
    assert task_from(["a", "b"], None) == Classes(("a", "b"))
    assert task_from(None, 4) == task_from(Outputs(4), None) == Outputs(4)
