"""Linear encoders: standardisation and PCA whitening."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.encoders.base import Encoder, as_float, flatten_features

__all__ = ["PCA", "Standardise"]

_RANK_TOLERANCE = 1e-10


class Standardise(Encoder):
    """Zero mean and unit variance, then flattened.

        x ← clip((x − m)/σ, ±clip)

    Args:
        per: "feature" (each column its own mean and deviation) or "channel" (one for each channel
            of an image, the usual normalisation of images).
        clip: bound of the result, so that one outlier cannot outweigh all other features.
        constant: value of a column to be added; 0 adds none. Networks normalise the length of a
            code away; beside a constant it survives, which matters where there are few features.

    A column of samples that never changes becomes 0.
    """

    def __init__(
        self,
        per: Literal["feature", "channel"] = "feature",
        clip: float = 10.0,
        constant: float = 0.0,
    ) -> None:
        super().__init__()
        self.per = per
        self.clip = clip
        self.constant = constant

    @property
    def width(self) -> int:
        """The number of features, and one more with a constant column."""
        return len(self.tensors["mean"]) + (self.constant != 0)

    def fit(self, features: Tensor) -> None:
        """Estimate means and deviations."""
        values = as_float(features).to(torch.float64)
        flat = values.flatten(1)  # (n, D)
        if self.per == "channel" and values.ndim > 2:
            axes = [axis for axis in range(values.ndim) if axis != 1]
            shape = [1 if axis == 0 else values.shape[axis] for axis in range(values.ndim)]
            mean = values.mean(axes, keepdim=True).expand(shape).flatten()
            deviation = values.std(axes, correction=0, keepdim=True).expand(shape).flatten()
        else:
            mean = flat.mean(0)
            deviation = flat.std(0, correction=0)
        constant = _constant(mean, deviation)
        scale = torch.where(constant, torch.zeros_like(deviation), 1.0 / deviation)
        self.tensors = {"mean": mean.to(torch.float32), "scale": scale.to(torch.float32)}

    def __call__(self, features: Tensor) -> Tensor:
        """Standardise samples (B, …) to (B, width)."""
        flat = flatten_features(features)
        mean, scale = self.tensors["mean"], self.tensors["scale"]
        codes = ((flat - mean) * scale).clamp_(-self.clip, self.clip)
        return F.pad(codes, (0, 1), value=self.constant) if self.constant else codes


class PCA(Encoder):
    """Projection on the leading principal components, whitened.

        x ← (Λ_r + ε λ₁)^{−a/2} P_r ((x − m)/σ)

    Args:
        components: r, at most; fewer where the samples span fewer dimensions.
        whiten: a, from 0 (no whitening) to 1 (full).
        floor: ε, which keeps weak components from being blown up.
        standardise: divide by each column's deviation σ first; otherwise σ = 1.
    """

    def __init__(
        self,
        components: int = 256,
        *,
        whiten: float = 1.0,
        floor: float = 0.01,
        standardise: bool = False,
    ) -> None:
        super().__init__()
        self.components = components
        self.whiten = whiten
        self.floor = floor
        self.standardise = standardise

    @property
    def width(self) -> int:
        """The number of components kept."""
        return self.tensors["projection"].shape[1]

    def fit(self, features: Tensor) -> None:
        """Find mean and components, in float64, from the smaller of the two Gram matrices."""
        rows = flatten_features(features).to(torch.float64, copy=True)  # (n, D)
        count = len(rows)
        mean = rows.mean(0)
        rows -= mean
        deviation = rows.square().mean(0).sqrt()
        gain = 1.0 / deviation if self.standardise else torch.ones_like(deviation)
        scale = torch.where(_constant(mean, deviation), torch.zeros_like(gain), gain)
        rows *= scale
        if rows.shape[1] <= count:
            variances, vectors = torch.linalg.eigh(rows.T @ rows / count)  # ascending
        else:
            variances, vectors = torch.linalg.eigh(rows @ rows.T / count)
        variances, vectors = variances.flip(0), vectors.flip(1)
        rank = int((variances > _RANK_TOLERANCE * variances[0]).sum()) if variances[0] > 0 else 0
        kept = max(1, min(self.components, rank))  # constant samples keep one, all-zero, column
        variances, basis = variances[:kept], vectors[:, :kept]
        if rank and len(basis) != rows.shape[1]:  # from vectors over samples to those over features
            basis = rows.T @ (basis / (variances * count).sqrt())  # (D, r)
        elif not rank:
            basis = rows.new_zeros(rows.shape[1], kept)
        if rank == 0:
            gain = torch.zeros_like(variances)
        else:
            gain = (variances + self.floor * variances[0]) ** (-0.5 * self.whiten)
        self.tensors = {
            "mean": mean.to(torch.float32),
            "projection": (scale[:, None] * basis * gain).to(torch.float32).contiguous(),
        }

    def __call__(self, features: Tensor) -> Tensor:
        """Project samples (B, …) to (B, r)."""
        mean, projection = self.tensors["mean"], self.tensors["projection"]
        return (flatten_features(features) - mean).to(projection.dtype) @ projection


def _constant(mean: Tensor, deviation: Tensor) -> Tensor:
    """Which columns are constant: rounding leaves them a deviation that is tiny, not zero."""
    return deviation <= 1e-7 * mean.abs().clamp_min(1e-30)
