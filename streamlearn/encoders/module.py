"""Any torch module as a frozen encoder: a backbone that was trained elsewhere."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from streamlearn.encoders.base import Encoder, as_float
from streamlearn.errors import ShapeError
from streamlearn.state import StateTree

__all__ = ["ModuleEncoder"]


class ModuleEncoder(Encoder):
    """A module, frozen and in evaluation mode, whose flattened output is the code.

    Args:
        module: maps (B, …) to (B, …); its weights are not part of the learner's state, since they
            never change: build the same module when loading.
        prepare: applied to float features in [0, 1] before the module (resize, normalise).
        batch: samples at a time.
        images: whether samples must be images, as a backbone's must.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        prepare: Callable[[Tensor], Tensor] | None = None,
        batch: int = 64,
        images: bool = False,
    ) -> None:
        super().__init__()
        self.module = module.eval().requires_grad_(False)
        self.prepare = prepare
        self.batch = batch
        self.images = images
        self._width: int | None = None

    @property
    def fitted(self) -> bool:
        """Whether the width of the output is known."""
        return self._width is not None

    @property
    def width(self) -> int:
        """The width of the module's flattened output."""
        if self._width is None:
            raise ShapeError("the encoder's width is known only after fit()")
        return self._width

    def check(self, shape: tuple[int, ...]) -> None:
        """Whether samples are images, where they must be."""
        if self.images and len(shape) != 3:
            raise ShapeError(
                f"this encoder takes images (channels, height, width) but the samples have "
                f"shape {shape}; choose encoder=pca or encoder=standardise"
            )

    def fit(self, features: Tensor) -> None:
        """Nothing is fitted; one sample tells the output's width."""
        self._width = self(features[:1]).shape[1]

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        """Encode samples (B, …) to (B, width)."""
        parts = []
        for start in range(0, len(features), self.batch):
            values = as_float(features[start : start + self.batch])
            if self.prepare is not None:
                values = self.prepare(values)
            parts.append(self.module(values).flatten(1))
        return torch.cat(parts) if parts else torch.zeros(0, self.width)

    def to(self, device: torch.device) -> None:
        """Move the module to a device."""
        self.module.to(device)

    def state_dict(self) -> StateTree:
        """The width only."""
        return {"width": self._width}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore the width."""
        self._width = None if state["width"] is None else int(state["width"])
