"""A model over codes at root mean square 1, as networks have them before every layer."""

from torch import Tensor

from streamlearn.memory import Memory
from streamlearn.networks import rms_norm
from streamlearn.state import StateTree

from .base import Model, Scores

__all__ = ["NormalisedModel"]


class NormalisedModel:
    """Another model that sees `RMSNorm(codes)`; everything else is its own.

    Args:
        model: what learns.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Show the model the normalised codes."""
        self.model.start(rms_norm(codes), targets)

    def answer(self, codes: Tensor) -> Tensor:
        """The answers (B, C)."""
        return self.model.answer(rms_norm(codes))

    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score a batch, then learn it."""
        return self.model.learn(rms_norm(codes), targets, index)

    def memories(self) -> dict[str, Memory]:
        """The model's."""
        return self.model.memories()

    @property
    def nbytes(self) -> int:
        """The model's."""
        return self.model.nbytes

    def state_dict(self) -> StateTree:
        """The model's."""
        return self.model.state_dict()

    def load_state_dict(self, state: StateTree) -> None:
        """Restore the model."""
        self.model.load_state_dict(state)
