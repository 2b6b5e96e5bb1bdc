"""The whitened-patch encoder against loops over patches."""

import numpy as np
import pytest
import torch
from torch import Tensor

from streamlearn.encoders import Chain, PatchFeatures
from streamlearn.encoders.linear import PCA
from streamlearn.encoders.patches import _segments
from streamlearn.errors import ConfigError, ShapeError

from .. import reference
from .making import arrays
from .test_encoders import images

SETTINGS = {"filters": 5, "patch": 4, "bias": 0.2, "contrast": 20.0, "zca": 0.15}


def wanted_features(
    encoder: PatchFeatures, fitted_on: Tensor, batch: Tensor, cells: list[tuple[int, int, int, int]]
) -> reference.Array:
    """The reference's features; only which patches are drawn is taken from the encoder."""
    generator = torch.Generator().manual_seed(encoder.seed)
    patches = arrays(encoder._draw(fitted_on, generator))
    chosen = torch.randperm(len(patches), generator=generator)[: encoder.filters].tolist()
    filters, whitening, mean = reference.patch_filters(
        patches, chosen, encoder.contrast, encoder.zca, encoder.mirror
    )

    def pooled(image: reference.Array) -> reference.Array:
        return reference.patch_features(
            image, filters, whitening, mean, side=encoder.patch, cells=cells, bias=encoder.bias,
            contrast=encoder.contrast, power=1.0,
        )  # fmt: skip

    rows = []
    for image in arrays(batch) / 255.0:
        features = pooled(image)
        if encoder.mirror:  # the average over the image and its mirror image
            features = 0.5 * (features + pooled(reference.mirrored(image)))
        rows.append((features**encoder.power).flatten())
    return np.array(rows)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_features_are_those_of_the_reference(mirror: bool, channels: int, power: float) -> None:
    batch = images(8, channels=channels, side=9)
    encoder = PatchFeatures(**SETTINGS, pool=3, power=power, mirror=mirror)  # type: ignore[arg-type]
    encoder.fit(batch)
    cells = [(r, r + 2, c, c + 2) for r in (0, 2, 4) for c in (0, 2, 4)]  # of 6 × 6 positions
    wanted = wanted_features(encoder, batch, batch[:3], cells)
    found = arrays(encoder(batch[:3]))
    assert found.shape == (3, encoder.width)
    assert (wanted > 0).mean() > 0.5
    np.testing.assert_allclose(found, wanted, atol=2e-4)


def test_oblong_images_and_one_cell_are_those_of_the_reference() -> None:
    batch = images(6, side=9)[:, :, :, :7]
    encoder = PatchFeatures(**SETTINGS, pool=1)  # type: ignore[arg-type]
    encoder.fit(batch)
    wanted = wanted_features(encoder, batch, batch[:2], [(0, 6, 0, 4)])
    np.testing.assert_allclose(arrays(encoder(batch[:2])), wanted, atol=2e-4)


@pytest.mark.parametrize("side", [9, 10, 11, 12, 28])
@pytest.mark.parametrize("pool", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_and_its_mirror_image_have_the_same_features(
    side: int, pool: int, channels: int
) -> None:
    batch = images(10, channels=channels, side=side)
    encoder = PatchFeatures(filters=7, patch=6, pool=pool)
    encoder.fit(batch)
    features = encoder(batch)
    flipped = encoder(batch.flip(-1))
    assert features.abs().max() > 0.1
    # A rectified mean near 0 has a steep square root: compare what was averaged.
    np.testing.assert_allclose(arrays(flipped) ** 2, arrays(features) ** 2, atol=1e-5)


def test_without_mirroring_a_mirror_image_has_other_features() -> None:
    batch = images(10, side=12)
    encoder = PatchFeatures(filters=7, patch=6, pool=2, mirror=False)
    encoder.fit(batch)
    assert float((encoder(batch) - encoder(batch.flip(-1))).abs().max()) > 0.05


def test_cells_are_symmetric_cover_everything_and_differ_by_one_position_at_most() -> None:
    for parts in range(1, 9):
        for length in range(parts, 70):
            spans = _segments(length, parts)
            assert len(spans) == parts
            assert spans == [(length - stop, length - start) for start, stop in spans[::-1]]
            assert {x for start, stop in spans for x in range(start, stop)} == set(range(length))
            sizes = [stop - start for start, stop in spans]
            assert max(sizes) - min(sizes) <= 1
            if length % parts == 0:
                step = length // parts
                assert spans == [(i * step, (i + 1) * step) for i in range(parts)]


@pytest.mark.parametrize("value", [0, 17, 255])
def test_constant_images_have_finite_features(value: int) -> None:
    batch = torch.full((5, 3, 12, 12), value, dtype=torch.uint8)
    encoder = Chain([PatchFeatures(filters=6), PCA(4, standardise=True)])
    encoder.fit(batch)
    assert encoder(batch).isfinite().all()
    assert encoder(images(5)).isfinite().all()


def test_constant_images_among_others_have_finite_features() -> None:
    batch = images(10)
    batch[::2] = 200
    encoder = PatchFeatures(filters=6)
    encoder.fit(batch)
    features = encoder(batch)
    assert features.isfinite().all()
    np.testing.assert_allclose(arrays(features[0]), arrays(features[2]), atol=1e-6)


def test_brightness_and_contrast_hardly_change_features() -> None:
    batch = images(6) // 2
    encoder = PatchFeatures(filters=6, contrast=1e-3)
    encoder.fit(batch)
    np.testing.assert_allclose(arrays(encoder(batch)), arrays(encoder(batch + 60)), atol=5e-3)
    np.testing.assert_allclose(arrays(encoder(batch)), arrays(encoder(batch * 2)), atol=5e-3)


def test_more_filters_than_patches_are_drawn_again() -> None:
    batch = images(1)
    encoder = PatchFeatures(filters=70)  # one image gives 50 patches
    encoder.fit(batch)
    assert encoder(batch).shape == (1, encoder.width) == (1, 2 * 70 * 9)


def test_the_same_seed_draws_the_same_filters_and_another_seed_others() -> None:
    batch = images(10)

    def features(seed: int) -> Tensor:
        encoder = PatchFeatures(filters=6, seed=seed)
        encoder.fit(batch)
        return encoder(batch)

    assert torch.equal(features(3), features(3))
    assert not torch.allclose(features(3), features(4))


def test_bfloat16_features_are_near_those_of_float32() -> None:
    batch = images(10)
    exact, rounded = PatchFeatures(filters=8), PatchFeatures(filters=8, dtype=torch.bfloat16)
    exact.fit(batch)
    rounded.fit(batch)
    assert rounded(batch).dtype == torch.float32
    np.testing.assert_allclose(arrays(rounded(batch)), arrays(exact(batch)), atol=0.08)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float_images_encode_as_their_uint8_twins(dtype: torch.dtype) -> None:
    batch = images(10)
    encoder = PatchFeatures(filters=8)
    encoder.fit(batch)
    np.testing.assert_allclose(
        arrays(encoder(batch)), arrays(encoder(batch.to(dtype) / 255)), atol=1e-3
    )


@pytest.mark.parametrize(("batch", "error", "message"), [
    (torch.zeros(3, 10), ShapeError, r"shape \(10,\); choose encoder=pca"),
    (torch.zeros(3, 10, 10), ShapeError, r"shape \(10, 10\)"),
    (torch.zeros(3, 1, 7, 20), ConfigError, "7×20 pixels are too small for encoder.patch=6 and"),
    (torch.zeros(3, 1, 20, 7), ConfigError, "20×7 pixels are too small .*encoder.pool=3"),
])  # fmt: skip
def test_samples_that_are_no_images_or_too_small_are_refused(
    batch: Tensor, error: type[Exception], message: str
) -> None:
    encoder = PatchFeatures()
    with pytest.raises(error, match=message):
        encoder.fit(batch)
    with pytest.raises(error, match=message):  # and can be, before anything is held back
        Chain([encoder, PCA()]).check(tuple(batch.shape[1:]))
    assert not encoder.fitted


def test_the_smallest_images_that_fit_are_encoded() -> None:
    batch = images(4, side=8)  # 3 positions a side for 3 cells
    encoder = PatchFeatures(filters=4)
    encoder.fit(batch)
    assert encoder(batch).shape == (4, 2 * 4 * 9)
