"""Encoders: from what a stream yields to the fixed-width vectors that a network learns from.

An encoder is fitted once, on the first samples of the stream, and frozen from then on.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from streamlearn.errors import ShapeError
from streamlearn.state import StateTree

__all__ = ["Chain", "Encoder", "as_float", "flatten_features"]

_ENCODE_ROWS = 64


class Encoder(ABC):
    """A map from features to vectors, fitted on samples.

    Attributes:
        tensors: all that was fitted, by name and contiguous; empty until `fit`.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    @property
    def fitted(self) -> bool:
        """Whether `fit` was called, or a fitted state loaded."""
        return bool(self.tensors)

    @property
    @abstractmethod
    def width(self) -> int:
        """The width of the vectors; known once fitted."""

    def check(self, shape: tuple[int, ...]) -> None:  # noqa: B027 — most take any shape
        """Whether samples of this shape can be encoded, to be told before they are held back.

        Raises:
            ShapeError, ConfigError: they cannot.
        """

    @abstractmethod
    def fit(self, features: Tensor) -> None:
        """Fit on samples (n, …), n ≥ 1, and freeze."""

    @abstractmethod
    def __call__(self, features: Tensor) -> Tensor:
        """Encode samples (B, …) as float vectors (B, width)."""

    def fit_encode(self, features: Tensor, pulse: Callable[[], None]) -> Tensor:
        """Fit on samples and encode them, (n, width).

        Args:
            features: the samples (n, …).
            pulse: called every so often; whatever it raises ends the work.
        """
        pulse()
        self.fit(features)
        codes = []
        for start in range(0, len(features), _ENCODE_ROWS):
            pulse()
            codes.append(self(features[start : start + _ENCODE_ROWS]))
        return torch.cat(codes)

    def to(self, device: torch.device) -> None:
        """Move what was fitted to a device."""
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}

    def state_dict(self) -> StateTree:
        """What was fitted."""
        return dict(self.tensors)

    def load_state_dict(self, state: StateTree) -> None:
        """Restore what was fitted.

        In memory of its own: how a tensor is aligned and laid out can decide the last bit of a
        product, and a file's tensors come as they stand in the file.
        """
        self.tensors = {
            name: tensor.clone(memory_format=torch.contiguous_format)
            for name, tensor in state.items()
        }


class Chain(Encoder):
    """Encoders one after the other, each fitted on what the one before makes of the samples."""

    def __init__(self, stages: Sequence[Encoder]) -> None:
        super().__init__()
        self.stages = list(stages)

    @property
    def fitted(self) -> bool:
        """Whether every stage is."""
        return all(stage.fitted for stage in self.stages)

    @property
    def width(self) -> int:
        """The last stage's."""
        return self.stages[-1].width

    def check(self, shape: tuple[int, ...]) -> None:
        """Whether the first stage takes samples of this shape."""
        self.stages[0].check(shape)

    def fit(self, features: Tensor) -> None:
        """Fit stage after stage."""
        for stage in self.stages:
            stage.fit(features)
            if stage is not self.stages[-1]:
                features = stage(features)

    def fit_encode(self, features: Tensor, pulse: Callable[[], None]) -> Tensor:
        """Fit and encode stage after stage; each stage encodes the samples once."""
        for stage in self.stages:
            features = stage.fit_encode(features, pulse)
        return features

    def __call__(self, features: Tensor) -> Tensor:
        """Encode samples through every stage."""
        for stage in self.stages:
            features = stage(features)
        return features

    def to(self, device: torch.device) -> None:
        """Move every stage to a device."""
        for stage in self.stages:
            stage.to(device)

    def state_dict(self) -> StateTree:
        """Each stage's state, by its place."""
        return {str(index): stage.state_dict() for index, stage in enumerate(self.stages)}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore each stage's state."""
        for index, stage in enumerate(self.stages):
            stage.load_state_dict(state[str(index)])


def as_float(features: Tensor) -> Tensor:
    """Floating features: uint8 images divided by 255, anything else as float32 (float64 stays)."""
    if features.dtype == torch.uint8:
        return features.to(torch.float32) / 255.0
    return features if features.dtype == torch.float64 else features.to(torch.float32)


def flatten_features(features: Tensor) -> Tensor:
    """Features as float rows (B, D)."""
    if features.ndim < 2:
        raise ShapeError(
            f"features have shape {tuple(features.shape)} but must be a batch, (B, …); "
            "add a first dimension with features[None]"
        )
    return as_float(features).flatten(1)
