"""Losses of each sample by itself: never averaged over the batch, since each sample is written."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["LOSSES", "Loss", "LossName", "cross_entropy", "squared_error"]

LossName = Literal["cross_entropy", "squared_error"]


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """−log softmax(s)_y of each sample, (B,); target (B,) int64 class indices."""
    return F.cross_entropy(output, target, reduction="none")


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """½‖s − y‖² of each sample, (B,).

    Args:
        output: s (B, C).
        target: y (B, C), or (B,) int64 class indices, which stand for one-hot rows.
    """
    if not target.is_floating_point():
        target = F.one_hot(target, output.shape[-1])
    return 0.5 * (output - target.to(output.dtype)).square().sum(-1)


def _clipped_shares(output: Tensor) -> Tensor:
    """Outputs fitted to one-hot rows as probabilities: clipped to [0, 1] and normalised."""
    clipped = output.clamp(0, 1) + 1e-6
    return clipped / clipped.sum(-1, keepdim=True)


def _log_loss(probabilities: Tensor, target: Tensor) -> Tensor:
    chosen = probabilities.gather(1, target[:, None])[:, 0]
    return -chosen.clamp_min(1e-12).log()


class Loss(NamedTuple):
    """A loss of each sample, and how outputs trained by it become class probabilities.

    per_sample: (outputs, targets) → (B,). probabilities: outputs → (B, C).
    of_probabilities: the loss of given class probabilities, (probabilities, targets) → (B,).
    """

    per_sample: Callable[[Tensor, Tensor], Tensor]
    probabilities: Callable[[Tensor], Tensor]
    of_probabilities: Callable[[Tensor, Tensor], Tensor]


LOSSES: dict[LossName, Loss] = {
    "cross_entropy": Loss(cross_entropy, lambda output: torch.softmax(output, -1), _log_loss),
    "squared_error": Loss(squared_error, _clipped_shares, squared_error),
}
