"""A regression over standardised targets: models learn numbers of order 1, whatever the unit."""

import torch
from torch import Tensor

from streamlearn.losses import Loss
from streamlearn.memory import Memory
from streamlearn.state import StateTree

from .base import Model, Scores, scored
from .network import NetworkModel, Seen

__all__ = ["ScaledModel"]


class ScaledModel:
    """Another model that sees `z = (y − m)/d` for y, and whose answers are turned back.

    m and d are each target's mean and standard deviation among the samples that the encoder was
    fitted on; from there on they stay, so that what a model has stored goes on meaning the same. A
    target that did not vary keeps d = 1. Losses are those of the answers in the targets' own unit.

    Args:
        model: what learns.
        width: K, numbers of a target.
        loss: of values.
    """

    def __init__(self, model: Model, width: int, loss: Loss) -> None:
        self.model = model
        self.loss = loss
        self.mean = torch.zeros(width, dtype=torch.float64)  # m
        self.deviation = torch.ones(width, dtype=torch.float64)  # d

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Take mean and deviation from these targets (n, K)."""
        wide = targets.to("cpu", torch.float64)
        self.mean = wide.mean(0)
        deviation = (wide - self.mean).square().mean(0).sqrt()
        # What is left of equal numbers after rounding is no variation.
        varies = deviation > 1e-12 * self.mean.abs().clamp_min(1e-290)
        self.deviation = torch.where(varies, deviation, 1.0)
        self.model.start(codes, self._scaled(targets))

    def answer(self, codes: Tensor) -> Tensor:
        """The answers (B, K) float64, in the targets' own unit."""
        return self.mean + self.deviation * self.model.answer(codes)

    def see(self, codes: Tensor) -> Seen | None:
        """What the model makes of codes, if it is a network."""
        if not isinstance(self.model, NetworkModel):
            return None
        seen = self.model.see(codes)
        return seen._replace(mean=self.mean, deviation=self.deviation)

    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score a batch, then learn it."""
        answers = self.model.learn(codes, self._scaled(targets), index).answers
        return scored(self.mean + self.deviation * answers, targets, self.loss)

    def _scaled(self, targets: Tensor) -> Tensor:
        return (targets.to("cpu", torch.float64) - self.mean) / self.deviation

    def memories(self) -> dict[str, Memory]:
        """The model's."""
        return self.model.memories()

    @property
    def nbytes(self) -> int:
        """The model's, and two numbers a target."""
        return self.model.nbytes + self.mean.nbytes + self.deviation.nbytes

    def state_dict(self) -> StateTree:
        """Mean, deviation, and the model's state."""
        return {
            "mean": self.mean.clone(),
            "deviation": self.deviation.clone(),
            "model": self.model.state_dict(),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all three."""
        self.mean, self.deviation = state["mean"].clone(), state["deviation"].clone()
        self.model.load_state_dict(state["model"])
