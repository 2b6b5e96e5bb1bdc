"""Views of images: how they are encoded, what is learnt over them, and where they are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from streamlearn import Learner
from streamlearn.attribution import attribute
from streamlearn.encoders import PCA, Views
from streamlearn.errors import ConfigError, ShapeError
from streamlearn.krls import LeastSquaresLayer, RecursiveLeastSquares
from streamlearn.networks import ResNetMLP, rms_norm

from .making import randn
from .test_learner import content, feed, pictures

SECTIONS: dict[str, Any] = {
    "encoder": {"kind": "pca", "fit": 40, "width": 12, "shifts": 1, "mirror": True},
    "network": {"hidden": 0, "output": "least-squares"},
    "least_squares": {"keys": 30},
    "learner": {"batch": 8, "dtype": "float32"},
}


def images(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 9, 8), generator=generator).to(torch.uint8)


def test_each_view_is_the_code_of_the_image_moved_and_mirrored_by_hand() -> None:
    views = Views(PCA(6), shifts=1, stride=2, mirror=True)
    views.fit(images(60))
    some = images(5, seed=1)
    codes = views(some)
    assert codes.shape == (5, views.count, views.width) == (5, 18, 6)
    assert torch.equal(codes[:, 0], views.encoder(some))
    assert torch.equal(codes[:, 1], views.encoder(some.flip(-1)))
    for place, (down, right) in enumerate(views.moves):
        # Row i shows row i + down; what lies outside is mirrored at the edge.
        rows = [abs(i + down) if i + down < 9 else 16 - i - down for i in range(9)]
        columns = [abs(j + right) if j + right < 8 else 14 - j - right for j in range(8)]
        moved = some[:, :, rows][..., columns]
        torch.testing.assert_close(codes[:, 2 * place], views.encoder(moved))
    assert len(set(views.moves)) == 9
    mean = views.encoder.state_dict()["mean"].reshape(3, 9, 8)  # of mirror images too
    torch.testing.assert_close(mean, mean.flip(-1))


def test_over_views_it_is_ridge_regression_on_averaged_kernels() -> None:
    count, views, keys = 90, 5, 40
    given, y = randn(count, views, 4), randn(count, 2, seed=1)
    x = rms_norm(given)
    layer = LeastSquaresLayer(
        4, 2, keys, gamma=1.5, regularisation=0.3, gate=0.0, averaged=True,
        dtype=torch.float64, statistics=torch.float64,
    )  # fmt: skip
    network, solver = ResNetMLP([], layer), RecursiveLeastSquares([layer], refresh=0.3)
    # All keys in one step: sums of samples before a key are exact for unmoved ones alone.
    for start, stop in zip(
        (0, *range(keys, count, 8)), (*range(keys, count, 8), count), strict=True
    ):
        rows = slice(start, stop)
        solver.zero_grad()
        (0.5 * (network(given[rows]) - y[rows]).square().sum()).backward()
        solver.step()
    stored = layer.memory.gather(torch.arange(keys), ("key",))["key"]
    assert sorted(map(tuple, stored.tolist())) == sorted(map(tuple, x[:keys, 0].tolist()))
    near = (-1.5 / 4 * torch.cdist(x.flatten(0, 1), stored).square()).exp()
    features = near.reshape(count, views, keys).mean(1)  # (N, n)
    gram = (-1.5 / 4 * torch.cdist(stored, stored).square()).exp()
    values = torch.linalg.solve(features.T @ features + 0.3 * gram, features.T @ y)
    network.eval()
    solver.freshen()
    torch.testing.assert_close(network(given), features @ values, rtol=0, atol=1e-8)
    # And each key's contribution to an answer is the mean over the views.
    found = attribute(layer, x[:7].flatten(0, 1), each=views, averaged=True)
    torch.testing.assert_close(found.output, network(given[:7]), rtol=0, atol=1e-10)


def test_keys_that_come_step_by_step_are_samples_as_they_are() -> None:
    given, y = rms_norm(randn(48, 5, 4)), randn(48, 2, seed=1)
    layer = LeastSquaresLayer(
        4, 2, 20, gamma=1.5, averaged=True, dtype=torch.float64, statistics=torch.float64
    )
    network, solver = ResNetMLP([], layer), RecursiveLeastSquares([layer])
    for start in range(0, 48, 6):
        rows = slice(start, start + 6)
        solver.zero_grad()
        (0.5 * (network(given[rows]) - y[rows]).square().sum()).backward()
        solver.step()
    keys = layer.memory.gather(torch.arange(20), ("key",))["key"]
    factor = layer.sums.factor.tril()
    torch.testing.assert_close(factor @ factor.mT, layer.among(keys, keys))
    assert layer.sums.weight == 48
    assert layer.sums.outside == 28  # keys count as spanned, see docs/decisions/025


def test_an_image_and_its_mirror_image_are_answered_alike() -> None:
    chosen = SECTIONS | {"encoder": {**SECTIONS["encoder"], "shifts": 0}}
    model = Learner(3, **chosen)
    features, targets = pictures(200)
    feed(model, features, targets)
    other, _ = pictures(30, seed=5)
    torch.testing.assert_close(model.predict_proba(other), model.predict_proba(other.flip(-1)))


def test_it_goes_on_from_its_file_to_the_bit(tmp_path: Path) -> None:
    features, targets = pictures(120)
    whole, half = Learner(3, **SECTIONS), Learner(3, **SECTIONS)
    feed(whole, features, targets)
    feed(half, features[:80], targets[:80])
    half.save(tmp_path / "half")
    other = Learner.load(tmp_path / "half")
    feed(other, features[80:], targets[80:])
    assert content(other) == content(whole)
    fresh, _ = pictures(10, seed=3)
    assert torch.equal(other.predict_proba(fresh), whole.predict_proba(fresh))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"network": {"hidden": 1, "output": "least-squares"}}, "encoder.shifts=1 gives several"),
        ({"network": {"hidden": 0}}, "set network.output=least-squares network.hidden=0"),
        (
            {"network": {"hidden": 0}, "encoder": {"kind": "pca", "mirror": True}},
            "encoder.mirror=true gives several",
        ),
        ({"learner": {"kind": "ridge"}}, "encoder.shifts=1 gives several"),
        ({"learner": {"rehearsal": 4}}, "learner.rehearsal=0"),
    ],
)
def test_views_are_refused_where_nothing_averages_over_them(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(3, **(SECTIONS | sections))


def test_samples_that_cannot_be_moved_are_refused_before_they_are_held_back() -> None:
    model = Learner(3, **SECTIONS)
    with pytest.raises(ShapeError, match="need images"):
        model.learn(torch.randn(4, 10), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ConfigError, match="2×9 pixels cannot be moved by 2"):
        model.learn(torch.zeros(1, 1, 2, 9, dtype=torch.uint8), torch.tensor([0]))
    assert model.held == 0
