"""What a learner asks of a model: scores and learning over codes, and a complete state."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from streamlearn.losses import Loss
from streamlearn.memory import Memory
from streamlearn.state import StateTree

__all__ = ["Model", "Scores", "scored", "tensor_bytes"]


class Scores(NamedTuple):
    """What a learner said of a batch before it learnt from it.

    probabilities: (B, classes) float32. losses: (B,) float32, each sample's own.
    """

    probabilities: Tensor
    losses: Tensor


class Model(Protocol):
    """A classifier of codes (B, D) that learns them batch after batch.

    A learner stands before it: it encodes samples, checks them, and scores those that come before
    the encoder is fitted. Models of every kind are restored to the bit.
    """

    def start(self, codes: Tensor) -> None:
        """Look at the codes that the encoder was fitted on, (n, D), before any of them is learnt.

        Called once for a new model and not for a restored one.
        """

    def predict_proba(self, codes: Tensor) -> Tensor:
        """Class probabilities (B, classes), float32 on the CPU, by all that was learnt so far."""

    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score a batch, then learn it.

        Args:
            codes: (B, D), finite, on the model's device.
            targets: (B,) int64 class indices.
            index: (B,) int64, which sample each is, each once; models may use it to know a sample
                of an earlier epoch again.

        Raises:
            NotFiniteError: what would be stored is not finite; nothing was learnt.
        """

    def memories(self) -> dict[str, Memory]:
        """The memories by layer name, saved block by block; empty for models without."""

    @property
    def nbytes(self) -> int:
        """Bytes of all that predicting and going on with learning need."""

    def state_dict(self) -> StateTree:
        """Everything but the tuples of `memories()`."""

    def load_state_dict(self, state: StateTree) -> None:
        """Restore that; the memories are empty afterwards and want their tuples.

        Raises:
            FormatError: the state of another model.
        """


def scored(probabilities: Tensor, targets: Tensor, loss: Loss) -> Scores:
    """Scores of probabilities (B, classes), with the loss that these have."""
    shares = probabilities.to("cpu", torch.float32)
    return Scores(shares, loss.of_probabilities(shares, targets.to("cpu")).to(torch.float32))


def tensor_bytes(value: object) -> int:
    """Bytes of all tensors in a state tree, at any depth."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(tensor_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(tensor_bytes(item) for item in value)
    return 0
