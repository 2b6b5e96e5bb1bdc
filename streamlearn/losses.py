"""Losses of each sample by itself: never averaged over the batch, since each sample is written."""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "LOSSES",
    "VALUE_LOSSES",
    "Loss",
    "LossName",
    "absolute_error",
    "cross_entropy",
    "log_shares",
    "squared_error",
]

LossName: TypeAlias = Literal["auto", "cross_entropy", "squared_error", "absolute_error"]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """−log softmax(s)_y of each sample, (B,); target (B,) int64 class indices."""
    return F.cross_entropy(output, target, reduction="none")


def log_shares(target: Tensor, classes: int) -> Tensor:
    """The logarithm of each class's share in a batch, (classes,); −∞ for one that is not there.

    Added to outputs, it makes cross-entropy fit what the classes' likelihoods say, whatever their
    shares are, and classes that are absent neither gain nor lose.

    Source: Ren et al., arXiv 2007.10740; Menon et al., arXiv 2007.07314.
    """
    return (target.bincount(minlength=classes) / len(target)).log()


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """½‖s − y‖² of each sample, (B,).

    Args:
        output: s (B, C).
        target: y (B, C), or (B,) int64 class indices, which stand for one-hot rows.
    """
    if not target.is_floating_point():
        target = F.one_hot(target, output.shape[-1])
    return 0.5 * (output - target.to(output.dtype)).square().sum(-1)


def absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Σ|s − y| of each sample, (B,); its gradient is the error's sign, so outliers weigh no more.

    Args:
        output: s (B, K).
        target: y (B, K).
    """
    return (output - target.to(output.dtype)).abs().sum(-1)


def _clipped_shares(output: Tensor) -> Tensor:
    """Outputs fitted to one-hot rows as probabilities: clipped to [0, 1] and normalised."""
    clipped = output.clamp(0, 1) + 1e-6
    return clipped / clipped.sum(-1, keepdim=True)


def _log_loss(probabilities: Tensor, target: Tensor) -> Tensor:
    chosen = probabilities.gather(1, target[:, None])[:, 0]
    return -chosen.clamp_min(1e-12).log()


class Loss(NamedTuple):
    """A loss of each sample, and how outputs trained by it become answers.

    An answer is a row of class probabilities, or of values where targets are numbers.

    per_sample: (outputs, targets) → (B,). answers: outputs → (B, C).
    of_answers: the loss of given answers, (answers, targets) → (B,).
    values: whether answers are values rather than probabilities.
    """

    per_sample: Callable[[Tensor, Tensor], Tensor]
    answers: Callable[[Tensor], Tensor]
    of_answers: Callable[[Tensor, Tensor], Tensor]
    values: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """Of answers: float32 for probabilities; float64 for values, which may be large."""
        return torch.float64 if self.values else torch.float32

    def blank(self, count: int, width: int) -> Tensor:
        """Answers before anything is known (count, width): all classes alike, or zeros."""
        return torch.full((count, width), 0.0 if self.values else 1.0 / width, dtype=self.dtype)


def _as_they_are(output: Tensor) -> Tensor:
    return output


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(cross_entropy, lambda output: torch.softmax(output, -1), _log_loss),
    "squared_error": Loss(squared_error, _clipped_shares, squared_error),
}
"""Where targets are classes, the default first."""

VALUE_LOSSES: dict[str, Loss] = {
    "squared_error": Loss(squared_error, _as_they_are, squared_error, values=True),
    "absolute_error": Loss(absolute_error, _as_they_are, absolute_error, values=True),
}
"""Where targets are numbers, the default first."""
