"""Prequential evaluation: every sample is scored before it is learnt.

The counts are our own few lines rather than river's metrics: they are updated by batch and must be
restored, to the bit and without pickle, when a run is resumed. river's metrics can be computed from
the confusion matrix kept here.
"""

import torch
from torch import Tensor

from streamlearn.state import StateTree

__all__ = ["Prequential"]


class Prequential:
    """Cumulative and windowed accuracy, loss and a confusion matrix.

    Args:
        classes: their number.
        window: samples in the window.
    """

    def __init__(self, classes: int, window: int = 1000) -> None:
        self.window = window
        self.samples = 0
        self.correct = 0
        self.loss_sum = 0.0
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64)
        self._recent = torch.zeros(window, dtype=torch.uint8)

    def update(self, probabilities: Tensor, targets: Tensor, losses: Tensor) -> None:
        """Count a batch of scores (B, classes) of samples with targets (B,) and losses (B,)."""
        predicted = probabilities.argmax(-1)
        hits = (predicted == targets).to(torch.uint8)  # (B,)
        classes = len(self.confusion)
        cells = torch.bincount(targets * classes + predicted, minlength=classes * classes)
        self.confusion += cells.reshape(classes, classes)
        places = (self.samples + torch.arange(len(hits))) % self.window
        self._recent[places[-self.window :]] = hits[-self.window :]
        self.samples += len(hits)
        self.correct += int(hits.sum())
        self.loss_sum += float(losses.to(torch.float64).sum())

    @property
    def accuracy(self) -> float:
        """Share of all samples so far that were predicted right before they were learnt."""
        return self.correct / self.samples if self.samples else 0.0

    @property
    def windowed_accuracy(self) -> float:
        """The same share over the last `window` samples."""
        seen = min(self.samples, self.window)
        return int(self._recent[:seen].sum()) / seen if seen else 0.0

    @property
    def loss(self) -> float:
        """The mean loss of all samples so far."""
        return self.loss_sum / self.samples if self.samples else 0.0

    def state_dict(self) -> StateTree:
        """All counts."""
        return {
            "samples": self.samples,
            "correct": self.correct,
            "loss_sum": self.loss_sum,
            "confusion": self.confusion.clone(),
            "recent": self._recent.clone(),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all counts; the window is the saved one."""
        self.samples = int(state["samples"])
        self.correct = int(state["correct"])
        self.loss_sum = float(state["loss_sum"])
        self.confusion = state["confusion"].clone()
        self._recent = state["recent"].clone()
        self.window = len(self._recent)
