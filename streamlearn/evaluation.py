"""Prequential evaluation: every sample is scored before it is learnt.

The counts are our own few lines rather than river's metrics: they are updated by batch and must be
restored, to the bit and without pickle, when a run is resumed. river's metrics can be computed from
the confusion matrix kept here.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from streamlearn.state import StateTree
from streamlearn.tasks import Classes, Task

__all__ = ["Evaluation", "Prequential", "PrequentialErrors", "evaluation_of"]

Metrics: TypeAlias = Mapping[str, float | None]


class Prequential:
    """Cumulative and windowed accuracy, loss and a confusion matrix.

    Args:
        classes: their number.
        window: samples in the window.
    """

    metrics: ClassVar[Metrics] = {}
    """None beside accuracy and loss."""

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

    def summary(self) -> Metrics:
        """What is noted of a run at each commit."""
        return {
            "prequential_accuracy": self.accuracy,
            "windowed_accuracy": self.windowed_accuracy,
            "prequential_loss": self.loss,
        }

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


class PrequentialErrors:
    """Cumulative and windowed errors of values: MAE, RMSE and R², and the mean loss.

    Over n samples of K numbers each, with e = answer − target:

        MAE = Σ|e| / (nK),   RMSE = √(Σe² / (nK)),   R² = 1 − Σe² / Σ(y − ȳ)²,

    ȳ being each number's mean over the same samples; R² is None where nothing varies. Sums are
    float64.

    Args:
        outputs: K.
        window: samples in the window.
    """

    accuracy: ClassVar[None] = None
    """There are no classes."""

    windowed_accuracy: ClassVar[None] = None

    def __init__(self, outputs: int, window: int = 1000) -> None:
        self.window = window
        self.samples = 0
        self.loss_sum = 0.0
        self._absolute = 0.0  # Σ|e|
        self._square = 0.0  # Σe²
        self._mean = torch.zeros(outputs, dtype=torch.float64)  # ȳ (K,)
        self._moment = torch.zeros(outputs, dtype=torch.float64)  # Σ(y − ȳ)² (K,)
        # Target and error of each of the last samples, (window, 2, K).
        self._recent = torch.zeros(window, 2, outputs, dtype=torch.float64)

    def update(self, answers: Tensor, targets: Tensor, losses: Tensor) -> None:
        """Count a batch of answers (B, K) to samples with targets (B, K) and losses (B,)."""
        if len(answers) == 0:
            return
        answers = answers.to(torch.float64)
        targets = targets.to(torch.float64).reshape(answers.shape)
        errors = answers - targets  # e (B, K)
        places = (self.samples + torch.arange(len(errors))) % self.window
        rows = torch.stack([targets, errors], 1)  # (B, 2, K)
        self._recent[places[-self.window :]] = rows[-self.window :]
        self._absolute += float(errors.abs().sum())
        self._square += float(errors.square().sum())
        # Chan, Golub & LeVeque 1979: no difference of large sums.
        mean, total = targets.mean(0), self.samples + len(errors)
        gap, both = mean - self._mean, self.samples * len(errors) / total
        self._moment += (targets - mean).square().sum(0) + gap.square() * both
        self._mean += gap * len(errors) / total
        self.samples = total
        self.loss_sum += float(losses.to(torch.float64).sum())

    @property
    def loss(self) -> float:
        """The mean loss of all samples so far."""
        return self.loss_sum / self.samples if self.samples else 0.0

    @property
    def metrics(self) -> Metrics:
        """mae, rmse and r2 of all samples so far, and windowed_mae, …, of the last `window`."""
        numbers = self.samples * len(self._mean)
        whole = _errors(numbers, self._absolute, self._square, float(self._moment.sum()))
        recent = self._recent[: min(self.samples, self.window)]
        targets, errors = recent[:, 0], recent[:, 1]  # (n, K)
        moment = 0.0
        if len(recent):
            moment = float((targets - targets.mean(0)).square().sum())
        sums = float(errors.abs().sum()), float(errors.square().sum())
        part = _errors(errors.numel(), *sums, moment)
        return {**whole, **{f"windowed_{name}": value for name, value in part.items()}}

    def summary(self) -> Metrics:
        """What is noted of a run at each commit."""
        metrics = self.metrics
        whole = {f"prequential_{name}": metrics[name] for name in ("mae", "rmse", "r2")}
        recent = {name: value for name, value in metrics.items() if name.startswith("windowed")}
        return {**whole, **recent, "prequential_loss": self.loss}

    def state_dict(self) -> StateTree:
        """All sums, and the window."""
        return {
            "samples": self.samples,
            "loss_sum": self.loss_sum,
            "absolute": self._absolute,
            "square": self._square,
            "mean": self._mean.clone(),
            "moment": self._moment.clone(),
            "recent": self._recent.clone(),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that; the window is the saved one."""
        self.samples = int(state["samples"])
        self.loss_sum = float(state["loss_sum"])
        self._absolute, self._square = float(state["absolute"]), float(state["square"])
        self._mean, self._moment = state["mean"].clone(), state["moment"].clone()
        self._recent = state["recent"].clone()
        self.window = len(self._recent)


def _errors(numbers: int, absolute: float, square: float, moment: float) -> dict[str, float | None]:
    """MAE, RMSE and R² from sums over so many numbers."""
    if numbers == 0:
        return {"mae": None, "rmse": None, "r2": None}
    return {
        "mae": absolute / numbers,
        "rmse": math.sqrt(square / numbers),
        "r2": 1.0 - square / moment if moment > 0 else None,
    }


Evaluation: TypeAlias = Prequential | PrequentialErrors


def evaluation_of(task: Task, window: int = 1000) -> Evaluation:
    """The evaluation that suits what targets are."""
    if isinstance(task, Classes):
        return Prequential(task.width, window)
    return PrequentialErrors(task.width, window)
