"""Linear encoders, chains and modules."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from streamlearn.encoders import PCA, Chain, Encoder, ModuleEncoder, PatchFeatures, Standardise
from streamlearn.encoders.torchvision import backbone
from streamlearn.errors import ConfigError, DataError, DataNotFoundError, ShapeError
from streamlearn.state import flatten, unflatten

from .. import reference
from .making import arrays, randn


def images(count: int, channels: int = 3, side: int = 12, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, channels, side, side)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)


def stretched(count: int, width: int, seed: int = 0) -> Tensor:
    """Correlated rows whose variances differ a hundredfold, float32."""
    mixing = randn(width, width, seed=seed + 1) * torch.logspace(0, -1, width, dtype=torch.float64)
    return (randn(count, width, seed=seed) @ mixing.T + 3.0).float()


# -- standardise -----------------------------------------------------------------------------------


def test_standardised_columns_have_mean_zero_and_variance_one() -> None:
    rows = stretched(500, 6)
    encoder = Standardise()
    assert not encoder.fitted
    encoder.fit(rows)
    codes = arrays(encoder(rows))
    assert encoder.fitted
    assert encoder.width == 6
    np.testing.assert_allclose(codes.mean(0), 0.0, atol=1e-5)
    np.testing.assert_allclose(codes.std(0), 1.0, rtol=1e-5)
    wanted = (arrays(rows) - arrays(rows).mean(0)) / arrays(rows).std(0)
    np.testing.assert_allclose(codes, wanted, atol=1e-5)


def test_a_constant_column_becomes_zero_whatever_comes_later() -> None:
    rows = stretched(50, 3)
    rows[:, 1] = 0.1
    encoder = Standardise()
    encoder.fit(rows)
    later = stretched(4, 3, seed=9)
    codes = encoder(later)
    assert codes.isfinite().all()
    assert torch.equal(codes[:, 1], torch.zeros(4))


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6, 1e-30, 255.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_constant_samples_have_finite_codes(value: float, dtype: torch.dtype, count: int) -> None:
    rows = torch.full((count, 4), value, dtype=dtype)
    for encoder in (Standardise(), PCA(2), PCA(2, standardise=True, floor=0.0)):
        encoder.fit(rows)
        assert torch.equal(encoder(rows), torch.zeros(count, encoder.width))
        assert encoder(rows + 1.0).isfinite().all()


def test_standardised_values_are_clipped() -> None:
    encoder = Standardise(clip=2.5)
    encoder.fit(randn(100, 3).float())
    codes = encoder(torch.tensor([[1e30, -1e30, 0.0], [3e38, -3e38, 1e39]]).clamp(-3e38, 3e38))
    assert codes[0, :2].tolist() == [2.5, -2.5]
    assert codes.isfinite().all()
    assert codes.abs().max() <= 2.5


def test_a_constant_column_keeps_the_length_of_few_features() -> None:
    rows = stretched(40, 2)
    plain, longer = Standardise(), Standardise(constant=0.5)
    plain.fit(rows)
    longer.fit(rows)
    assert (plain.width, longer.width) == (2, 3)
    assert torch.equal(longer(rows)[:, :2], plain(rows))
    assert torch.equal(longer(rows)[:, 2], torch.full((40,), 0.5))


def test_channels_of_images_are_standardised_together() -> None:
    batch = images(20, channels=3, side=5)
    batch[:, 1] //= 4
    encoder = Standardise(per="channel")
    encoder.fit(batch)
    codes = arrays(encoder(batch)).reshape(20, 3, 25)
    values = arrays(batch).reshape(20, 3, 25) / 255.0
    mean, deviation = values.mean((0, 2)), values.std((0, 2))
    wanted = (values - mean[:, None]) / deviation[:, None]
    np.testing.assert_allclose(codes, wanted, atol=1e-5)
    assert encoder.width == 75


def test_channel_statistics_of_vectors_are_those_of_each_feature() -> None:
    rows = stretched(40, 3)
    one, other = Standardise(per="channel"), Standardise()
    one.fit(rows)
    other.fit(rows)
    assert torch.equal(one(rows), other(rows))


def test_uint8_and_float_images_encode_alike() -> None:
    batch = images(30, side=4)
    for encoder in (Standardise(), PCA(5), PCA(5, standardise=True)):
        encoder.fit(batch)
        np.testing.assert_allclose(
            arrays(encoder(batch)), arrays(encoder(batch.float() / 255.0)), atol=1e-5
        )


# -- PCA -------------------------------------------------------------------------------------------


def up_to_sign(found: Tensor, wanted: reference.Array, tolerance: float) -> None:
    codes = arrays(found)
    assert codes.shape == wanted.shape
    signs = np.sign((codes * wanted).sum(0))
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(codes * signs, wanted, atol=tolerance * scale)


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize(("whiten", "floor"), [(1.0, 0.01), (0.0, 0.01), (0.5, 0.0), (1.0, 0.3)])
@pytest.mark.parametrize(("count", "width"), [(60, 8), (8, 8), (6, 20)])
def test_components_are_those_of_the_reference(
    count: int, width: int, whiten: float, floor: float, standardise: bool
) -> None:
    rows = stretched(count, width)
    encoder = PCA(5, whiten=whiten, floor=floor, standardise=standardise)
    encoder.fit(rows)
    wanted, _ = reference.pca(arrays(rows), 5, whiten, floor, standardise)
    up_to_sign(encoder(rows), wanted, 1e-4)


def test_whitened_components_have_the_variance_of_their_share() -> None:
    rows, floor = stretched(800, 6), 0.05
    encoder = PCA(6, whiten=1.0, floor=floor)
    encoder.fit(rows)
    _, variances = reference.pca(arrays(rows), 6, 1.0, floor, standardise=False)
    wanted = variances / (variances + floor * variances[0])
    codes = arrays(encoder(rows))
    np.testing.assert_allclose(codes.var(0), wanted, rtol=1e-4)
    covariance = np.cov(codes.T, bias=True)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0.0, atol=1e-5)


def test_without_whitening_distances_are_kept() -> None:
    rows = stretched(50, 6)
    encoder = PCA(6, whiten=0.0)
    encoder.fit(rows)
    codes = encoder(rows)
    distances = [
        (values[:, None] - values[None]).square().sum(-1).sqrt() for values in (codes, rows)
    ]
    np.testing.assert_allclose(arrays(distances[0]), arrays(distances[1]), atol=1e-4)


@pytest.mark.parametrize("count", [40, 5])
def test_only_components_that_the_samples_span_are_kept(count: int) -> None:
    rows = randn(count, 2) @ randn(2, 9, seed=3)
    encoder = PCA(6, floor=0.0)
    encoder.fit(rows)
    assert encoder.width == 2
    np.testing.assert_allclose(arrays(encoder(rows)).var(0), 1.0, rtol=1e-4)


def test_fewer_samples_than_components_keep_one_component_less_than_samples() -> None:
    rows = stretched(5, 30)
    encoder = PCA(20)
    encoder.fit(rows)
    assert encoder.width == 4
    assert encoder(rows).isfinite().all()


def test_one_sample_is_enough_to_fit() -> None:
    for encoder in (Standardise(), PCA(20), PCA(20, standardise=True)):
        encoder.fit(torch.tensor([[1.0, 2.0, 3.0]]))
        assert encoder(stretched(4, 3)).isfinite().all()
        assert encoder(stretched(4, 3)).shape == (4, encoder.width)


def test_a_constant_column_beside_others_leaves_the_components_finite() -> None:
    rows = stretched(50, 4)
    rows[:, 2] = 1e6
    encoder = PCA(4, standardise=True)
    encoder.fit(rows)
    assert encoder.width == 3
    later = rows.clone()
    later[:, 2] += 1.0
    assert torch.equal(encoder(later), encoder(rows))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool])
def test_features_of_every_numeric_dtype_are_encoded(dtype: torch.dtype) -> None:
    rows = (4 * randn(30, 5)).to(dtype)
    for encoder in (Standardise(), PCA(3)):
        encoder.fit(rows)
        codes = encoder(rows)
        assert codes.is_floating_point()
        assert codes.isfinite().all()


def test_fitting_leaves_the_samples_as_they_are() -> None:
    for dtype in (torch.float32, torch.float64):
        rows = stretched(20, 4).to(dtype)
        before = rows.clone()
        for encoder in (Standardise(), PCA(3), PCA(3, standardise=True)):
            encoder.fit(rows)
            encoder(rows)
            assert torch.equal(rows, before)


@given(st.integers(1, 12), st.integers(1, 8), st.integers(0, 1000), st.booleans())
@settings(max_examples=40, deadline=None)
def test_linear_encoders_are_finite_for_any_few_rows(
    count: int, width: int, seed: int, standardise: bool
) -> None:
    rows = torch.randint(-2, 3, (count, width), generator=torch.Generator().manual_seed(seed))
    encoder = PCA(4, standardise=standardise)
    encoder.fit(rows)
    assert 1 <= encoder.width <= min(4, max(1, count - 1), width)
    assert encoder(rows).isfinite().all()
    assert encoder(rows).abs().max() < 100


# -- chains, modules, states -----------------------------------------------------------------------


def test_a_chain_fits_each_stage_on_what_the_one_before_makes() -> None:
    rows = stretched(60, 5)
    chain = Chain([Standardise(), PCA(3)])
    assert not chain.fitted
    chain.fit(rows)
    first = Standardise()
    first.fit(rows)
    second = PCA(3)
    second.fit(first(rows))
    assert chain.fitted
    assert chain.width == 3
    assert torch.equal(chain(rows), second(first(rows)))


class Halving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Conv2d(1, 2, 3)
        self.noise = nn.Dropout(0.5)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.noise(self.linear(values))
        return result


def test_a_module_is_frozen_and_its_flattened_output_is_the_code() -> None:
    module = Halving()
    encoder = ModuleEncoder(module, prepare=lambda values: values - 0.5, batch=4)
    batch = images(9, channels=1, side=6)
    assert not encoder.fitted
    with pytest.raises(ShapeError, match="known only after fit"):
        _ = encoder.width
    encoder.fit(batch)
    assert encoder.width == 2 * 4 * 4
    codes = encoder(batch)
    assert codes.shape == (9, 32)
    assert not codes.requires_grad
    assert torch.equal(codes, encoder(batch))  # no dropout
    with torch.no_grad():
        wanted = module.linear(batch.float() / 255.0 - 0.5).flatten(1)
    assert torch.allclose(codes, wanted, atol=1e-6)
    assert all(not parameter.requires_grad for parameter in module.parameters())
    assert encoder(batch[:0]).shape == (0, 32)


def test_a_backbone_takes_images_only_and_any_other_module_what_it_can() -> None:
    with pytest.raises(ShapeError, match=r"takes images .* shape \(7,\); choose encoder=pca"):
        ModuleEncoder(nn.Identity(), images=True).check((7,))
    ModuleEncoder(nn.Identity(), images=True).check((3, 8, 8))
    ModuleEncoder(nn.Identity(), prepare=lambda values: values - 0.5).check((7,))


@pytest.mark.parametrize("name", ["standardise", "pca", "patch", "chain", "module"])
def test_fitting_and_encoding_at_once_is_fitting_then_encoding(name: str) -> None:
    batch = images(150)
    together, apart = made()[name], made()[name]
    pulses: list[int] = []
    codes = together.fit_encode(batch, lambda: pulses.append(1))
    apart.fit(batch)
    wanted = apart(batch)
    assert codes.shape == wanted.shape
    # Chunks of another size round otherwise, and a rectified mean near 0 has a steep square root.
    scale = float(wanted.abs().max())
    np.testing.assert_allclose(arrays(codes), arrays(wanted), atol=1e-3 * scale)
    assert len(pulses) >= 1 + 3


def made() -> dict[str, Encoder]:
    torch.manual_seed(0)
    return {
        "standardise": Standardise(),
        "pca": PCA(3),
        "patch": PatchFeatures(filters=4, patch=3, pool=2),
        "chain": Chain([PatchFeatures(filters=4, patch=3, pool=2), PCA(3, standardise=True)]),
        "module": ModuleEncoder(nn.Conv2d(3, 2, 3)),
    }


@pytest.mark.parametrize("name", ["standardise", "pca", "patch", "chain", "module"])
def test_a_state_through_json_and_tensors_restores_the_same_bits(name: str) -> None:
    batch = images(20)
    encoder, restored = made()[name], made()[name]
    encoder.fit(batch)
    tensors, tree = flatten(encoder.state_dict())
    restored.load_state_dict(unflatten(tensors, json.loads(json.dumps(tree))))
    assert restored.fitted
    assert restored.width == encoder.width
    assert torch.equal(restored(batch), encoder(batch))
    # A product's last bit can depend on the layout, which no file keeps.
    assert all(tensor.is_contiguous() for tensor in encoder.tensors.values())
    assert encoder(batch[:0]).shape == (0, encoder.width)


@pytest.mark.parametrize("name", ["standardise", "pca", "patch", "chain", "module"])
def test_the_code_of_an_image_does_not_depend_on_its_batch(name: str) -> None:
    batch = images(9)
    encoder = made()[name]
    encoder.fit(batch)
    alone = torch.cat([encoder(image[None]) for image in batch])
    np.testing.assert_allclose(arrays(alone), arrays(encoder(batch)), atol=2e-5)


def test_features_without_a_batch_dimension_are_refused() -> None:
    encoder = Standardise()
    encoder.fit(torch.zeros(2, 3))
    with pytest.raises(ShapeError, match=r"shape \(3,\) but must be a batch, .*features\[None\]"):
        encoder(torch.zeros(3))


# -- frozen backbones ------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_backbone_with_weights_from_disk_encodes_grey_and_colour_images(
    suffix: str, tmp_path: Path
) -> None:
    import torchvision

    model = torchvision.models.mobilenet_v3_small(weights=None, width_mult=1.0)
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save(model.state_dict(), path)
    else:
        save_file(model.state_dict(), path)
    module, prepare = backbone("mobilenet_v3_small", path, 32)
    encoder = ModuleEncoder(module, prepare=prepare)
    for channels in (1, 3):
        batch = images(2, channels=channels, side=8)
        encoder.fit(batch)
        assert encoder(batch).shape == (2, 576)
        assert encoder(batch).isfinite().all()


def test_a_backbone_that_cannot_be_had_is_explained(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pth"
    wrong.write_bytes(b"not weights")
    other = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, other)
    with pytest.raises(ConfigError, match="'resnet81' is not a torchvision model; did you mean"):
        backbone("resnet81", wrong, 32)
    with pytest.raises(DataNotFoundError, match=r"encoder.weights='.*none.pth' is not a file"):
        backbone("resnet18", tmp_path / "none.pth", 32)
    for path in (wrong, other):
        with pytest.raises(DataError, match="is not a state_dict of resnet18"):
            backbone("resnet18", path, 32)
