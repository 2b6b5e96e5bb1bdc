"""What a learner asks of a model: scores and learning over codes, and a complete state."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from streamlearn.losses import Loss
from streamlearn.memory import Memory
from streamlearn.state import StateTree

__all__ = ["Model", "Scores", "Taken", "scored", "tensor_bytes"]


class Scores(NamedTuple):
    """What a learner said of a batch before it learnt from it.

    answers: (B, classes) float32 probabilities, or (B, K) float64 values in a regression.
    losses: (B,) float32, each sample's own.
    """

    answers: Tensor
    losses: Tensor

    @property
    def probabilities(self) -> Tensor:
        """The answers of a classifier, by their own name."""
        return self.answers


class Taken(NamedTuple):
    """What came of rows that a learner answered to and then learnt.

    answers: (B, C) of the labelled rows. targets: (B,) class indices, or (B, K) numbers.
    losses: (B,).
    """

    answers: Tensor
    targets: Tensor
    losses: Tensor


class Model(Protocol):
    """What answers to codes (B, D), and learns them batch after batch.

    An answer is a row of class probabilities, or of values: see `Loss.values`.

    A learner stands before it: it encodes samples, checks them, and scores those that come before
    the encoder is fitted. Models of every kind are restored to the bit.
    """

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Look at the samples that the encoder was fitted on, before any of them is learnt.

        codes (n, D), targets as `learn` takes them.

        Called once for a new model and not for a restored one.
        """

    def answer(self, codes: Tensor) -> Tensor:
        """The answers (B, C) by all that was learnt so far, on the CPU, as `Scores` has them."""

    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score a batch, then learn it.

        Args:
            codes: (B, D), finite, on the model's device.
            targets: (B,) int64 class indices, or (B, K) float64 numbers.
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


def scored(answers: Tensor, targets: Tensor, loss: Loss) -> Scores:
    """Scores of answers (B, C), with the loss that these have."""
    answers = answers.to("cpu", loss.dtype)
    return Scores(answers, loss.of_answers(answers, targets.to("cpu")).to(torch.float32))


def tensor_bytes(value: object) -> int:
    """Bytes of all tensors in a state tree, at any depth."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(tensor_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(tensor_bytes(item) for item in value)
    return 0
