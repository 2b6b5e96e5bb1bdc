"""Whitened patches as convolution filters: strong image features without any training.

Filters are random patches of the stream's own first images, brought to zero mean and unit variance
and ZCA-whitened (Coates, Ng & Lee 2011, "An analysis of single-layer networks in unsupervised
feature learning"). Every image is convolved with them, both signs are rectified, and averages are
taken over a grid of cells.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.encoders.base import Encoder, as_float
from streamlearn.errors import ConfigError, ShapeError

__all__ = ["PatchFeatures"]

_SAMPLED_PATCHES = 50_000
_CHUNK = 4
"""Images at a time: their responses (4 × 729 × 400 floats) then stay near the cache."""


class PatchFeatures(Encoder):
    """Rectified, pooled responses of whitened random patches.

    For each patch p of an image, with n(p) = (p − mean)/√(var + contrast) and Z the ZCA matrix
    (Σ + zca·I)^{−1/2} of normalised patches with mean m:

        r_f = f · Z (n(p) − m),   max(0, r_f − bias) and max(0, −r_f − bias),

    averaged over `pool` × `pool` cells and raised to `power`.

    Args:
        filters: random patches drawn as filters. With `mirror` each comes with its mirror image,
            and the responses of a pair are averaged over mirrored cells: the features do not
            change when the image is flipped left to right.
        patch: side of a patch, in pixels.
        pool: cells along each side.
        bias: what a response must exceed.
        contrast: added to a patch's variance, in units of (1/255)².
        zca: added to the whitening's covariance.
        power: exponent of the pooled features; ½ evens out strong responses.
        mirror: see `filters`.
        seed: of the drawn patches.
        dtype: of the convolution.
    """

    def __init__(
        self,
        *,
        filters: int = 200,
        patch: int = 6,
        pool: int = 3,
        bias: float = 0.5,
        contrast: float = 10.0,
        zca: float = 0.1,
        power: float = 0.5,
        mirror: bool = True,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.filters = filters
        self.patch = patch
        self.pool = pool
        self.bias = bias
        self.contrast = contrast
        self.zca = zca
        self.power = power
        self.mirror = mirror
        self.seed = seed
        self.dtype = dtype

    @property
    def width(self) -> int:
        """Two signs of each filter in each cell."""
        return 2 * self.filters * self.pool**2

    def check(self, shape: tuple[int, ...]) -> None:
        """Whether samples are images (channels, height, width), and large enough."""
        if len(shape) != 3:
            raise ShapeError(
                f"the patch encoder needs images (channels, height, width) but the samples have "
                f"shape {shape}; choose encoder=pca or encoder=standardise"
            )
        if min(shape[1:]) < self.patch + self.pool - 1:
            raise ConfigError(
                f"images of {shape[1]}×{shape[2]} pixels are too small for "
                f"encoder.patch={self.patch} and encoder.pool={self.pool}; lower one of them"
            )

    def fit(self, features: Tensor) -> None:
        """Draw and whiten filters from images (n, channels, height, width)."""
        self.check(tuple(features.shape[1:]))
        generator = torch.Generator().manual_seed(self.seed)
        patches = self._draw(features.cpu(), generator)  # (n, channels, patch, patch)
        patches = self._normalise(patches)
        rows = patches.flatten(1).to(torch.float64)
        mean, moment = rows.mean(0), rows.T @ rows / len(rows)  # m, E[n nᵀ]
        if self.mirror:  # of the patches and their mirror images together
            flipped = torch.arange(rows.shape[1]).reshape(patches.shape[1:]).flip(-1).flatten()
            mean = 0.5 * (mean + mean[flipped])
            moment = 0.5 * (moment + moment[flipped][:, flipped])
        variances, basis = torch.linalg.eigh(moment - torch.outer(mean, mean))
        whitening = basis @ ((variances.clamp_min(0) + self.zca).rsqrt()[:, None] * basis.T)  # Z
        chosen = torch.randperm(len(rows), generator=generator)[: self.filters]
        chosen = chosen.repeat(-(-self.filters // len(chosen)))[: self.filters]
        filters = (rows[chosen] - mean) @ whitening
        filters = filters / filters.norm(dim=1, keepdim=True).clamp_min(1e-12)
        shape = (-1, *features.shape[1:2], self.patch, self.patch)
        if self.mirror:
            filters = torch.cat([filters, filters.reshape(shape).flip(-1).flatten(1)])
        folded = filters @ whitening  # f Z, so that r = fZ·n(p) − fZ·m
        offset = -(folded @ mean)
        folded = folded - folded.mean(1, keepdim=True)  # the patch's mean drops out
        self.tensors = {
            "filters": folded.reshape(shape).to(torch.float32).contiguous(),
            "offset": offset.to(torch.float32),
        }

    def _draw(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Random patches (n, channels, patch, patch) as floats in [0, 1]."""
        count, _, height, width = images.shape
        amount = min(_SAMPLED_PATCHES, 50 * count)
        which = torch.randint(count, (amount,), generator=generator)
        top = torch.randint(height - self.patch + 1, (amount,), generator=generator)
        left = torch.randint(width - self.patch + 1, (amount,), generator=generator)
        span = torch.arange(self.patch)
        rows = (top[:, None] + span)[:, None, :, None]  # (n, 1, patch, 1)
        columns = (left[:, None] + span)[:, None, None, :]  # (n, 1, 1, patch)
        channels = torch.arange(images.shape[1])[None, :, None, None]
        return as_float(images[which[:, None, None, None], channels, rows, columns])

    def _normalise(self, patches: Tensor) -> Tensor:
        mean = patches.mean((1, 2, 3), keepdim=True)
        variance = patches.var((1, 2, 3), correction=0, keepdim=True)
        return (patches - mean) * (variance + self._contrast).rsqrt()

    @property
    def _contrast(self) -> float:
        return self.contrast / 255.0**2

    def __call__(self, features: Tensor) -> Tensor:
        """Encode images (B, channels, height, width) to (B, width) float32 rows."""
        filters = self.tensors["filters"]
        weight = filters.to(self.dtype).to(memory_format=torch.channels_last)
        grid = self._cells(features.shape[-2:]).to(filters.device, self.dtype)
        chunks = [
            self._encode(as_float(features[start : start + _CHUNK]), weight, grid)
            for start in range(0, len(features), _CHUNK)
        ]
        return torch.cat(chunks) if chunks else filters.new_zeros(0, self.width)

    def _encode(self, images: Tensor, weight: Tensor, grid: Tensor) -> Tensor:
        count = len(images)
        response = F.conv2d(images.to(self.dtype).to(memory_format=torch.channels_last), weight)
        # A patch's deviation from two box sums, over all of its channels and pixels.
        mean = F.avg_pool2d(images.mean(1, keepdim=True), self.patch, 1)
        square = F.avg_pool2d(images.square().mean(1, keepdim=True), self.patch, 1)
        inverse = ((square - mean.square()).clamp_min(0) + self._contrast).rsqrt()
        # Channels last, so a row is one position with all of its filters: (n, positions, filters).
        rows = response.permute(0, 2, 3, 1).reshape(count, -1, len(weight))
        rows.mul_(inverse.to(self.dtype).reshape(count, -1, 1))
        rows.add_(self.tensors["offset"].to(self.dtype))
        # Mean of max(r, b) less b is that of max(0, r − b); a GEMM does the averaging.
        positive = torch.matmul(grid, rows.clamp_min(self.bias)) - self.bias
        negative = -torch.matmul(grid, rows.clamp_max_(-self.bias)) - self.bias
        pooled = torch.stack([positive, negative], 2).to(torch.float32)  # (n, cells, 2, filters)
        if self.mirror:
            pooled = self._fold(pooled)
        return pooled.clamp_min_(0).pow_(self.power).flatten(1)

    def _fold(self, pooled: Tensor) -> Tensor:
        """Average each filter with its mirror image over mirrored cells."""
        cells = pooled.reshape(len(pooled), self.pool, self.pool, 2, 2, self.filters)
        plain, mirrored = cells[..., 0, :], cells[..., 1, :]  # (n, row, column, sign, filters)
        return 0.5 * (plain + mirrored.flip(2))

    def _cells(self, size: torch.Size) -> Tensor:
        """The averaging matrix (cells, positions); cells are as equal as can be and symmetric."""
        height, width = (side - self.patch + 1 for side in size)
        rows, columns = _segments(height, self.pool), _segments(width, self.pool)
        grid = torch.zeros(self.pool, self.pool, height, width)
        for i, (top, bottom) in enumerate(rows):
            for j, (left, right) in enumerate(columns):
                grid[i, j, top:bottom, left:right] = 1.0 / ((bottom - top) * (right - left))
        return grid.reshape(self.pool**2, height * width)


def _segments(length: int, parts: int) -> list[tuple[int, int]]:
    """Split a length symmetrically; parts overlap by a position where it does not divide.

    The middle one of an odd number of parts is a position longer where symmetry wants that.
    """
    size = -(-length // parts)
    left = [round(index * (length - size) / max(parts - 1, 1)) for index in range(parts // 2)]
    spans = [(start, start + size) for start in left]
    middle = (length - size) // 2
    mirrored = [(length - stop, length - start) for start, stop in reversed(spans)]
    return spans + [(middle, length - middle)] * (parts % 2) + mirrored
