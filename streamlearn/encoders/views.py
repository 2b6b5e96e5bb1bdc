"""Views: an image encoded several times, moved and mirrored, so that a layer may average over them.

A network over views answers `f(x) = mean_v g(T_v x)`: what it says hardly changes when the image is
moved or flipped, whichever of its keys are asked. Averaging costs time, and not a byte of memory,
where the samples that would teach the same are other tuples.

Source: Haasdonk & Burkhardt, "Invariant kernel functions for pattern analysis and machine
learning", 2007.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.encoders.base import Encoder, as_float
from streamlearn.errors import ConfigError, ShapeError
from streamlearn.state import StateTree

__all__ = ["Views"]


class Views(Encoder):
    """Codes (B, V, D) of each image in V views, by an encoder that all of them share.

    The image is moved by `stride · (−shifts … shifts)` pixels along each side, mirrored at its
    edges where it leaves a gap; with `mirror` each of these is also flipped left to right. View 0
    is the image as it is.

    Args:
        encoder: fitted on the images, with `mirror` on their mirror images too.
        shifts: moves each way, along each side.
        stride: pixels of a move.
        mirror: see above.
    """

    def __init__(
        self, encoder: Encoder, *, shifts: int = 2, stride: int = 2, mirror: bool = True
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.mirror = mirror
        along = [stride * move for move in range(-shifts, shifts + 1)]
        both = [(down, right) for down in along for right in along]
        self.moves = [(0, 0), *(move for move in both if move != (0, 0))]
        self.most = stride * shifts

    @property
    def fitted(self) -> bool:
        """Whether the encoder is."""
        return self.encoder.fitted

    @property
    def width(self) -> int:
        """D, that of a view."""
        return self.encoder.width

    @property
    def count(self) -> int:
        """V."""
        return len(self.moves) * (1 + self.mirror)

    def check(self, shape: tuple[int, ...]) -> None:
        """Whether samples are images (channels, height, width), and large enough."""
        if len(shape) != 3:
            raise ShapeError(
                f"encoder.shifts and encoder.mirror need images (channels, height, width) but the "
                f"samples have shape {shape}; set encoder.shifts=0 encoder.mirror=false"
            )
        if min(shape[1:]) <= self.most:
            raise ConfigError(
                f"images of {shape[1]}×{shape[2]} pixels cannot be moved by {self.most}; lower "
                "encoder.shifts or encoder.stride"
            )
        self.encoder.check(shape)

    def fit(self, features: Tensor) -> None:
        """Fit the encoder on images (n, channels, height, width)."""
        self.check(tuple(features.shape[1:]))
        both = torch.cat([features, features.flip(-1)]) if self.mirror else features
        self.encoder.fit(both)

    def __call__(self, features: Tensor) -> Tensor:
        """Encode images (B, channels, height, width) as (B, V, D)."""
        self.check(tuple(features.shape[1:]))
        height, width = features.shape[2:]
        images = as_float(features)
        padded = F.pad(images, (self.most,) * 4, mode="reflect") if self.most else images
        codes = []
        for down, right in self.moves:
            top, left = self.most + down, self.most + right
            moved = padded[:, :, top : top + height, left : left + width]
            codes.append(self.encoder(moved))
            if self.mirror:
                codes.append(self.encoder(moved.flip(-1)))
        return torch.stack(codes, 1)

    def to(self, device: torch.device) -> None:
        """Move the encoder to a device."""
        self.encoder.to(device)

    def state_dict(self) -> StateTree:
        """The encoder's."""
        return self.encoder.state_dict()

    def load_state_dict(self, state: StateTree) -> None:
        """Restore the encoder."""
        self.encoder.load_state_dict(state)
