"""Prequential errors of answers that are numbers, and of two baselines beside them."""

import math
from collections.abc import Mapping
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from streamlearn.state import StateTree

__all__ = ["PrequentialErrors"]

Metrics: TypeAlias = Mapping[str, float | None]


class PrequentialErrors:
    """Cumulative and windowed errors of values: MAE, RMSE and R², and the mean loss.

    Over n samples of K numbers each, with e = answer − target:

        MAE = Σ|e| / (nK),   RMSE = √(Σe² / (nK)),   R² = 1 − Σe² / Σ(y − ȳ)²,

    ȳ being each number's mean over the same samples; R² is None where nothing varies. Sums are
    float64. Beside them stand the MAE of two baselines that know no features, over the samples that
    have one before them: no-change answers with the target before, running mean with the mean of
    all targets before.

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
        self._last: Tensor | None = None  # the target before, (K,)
        self._compared = 0  # samples that baselines answered
        self._no_change = 0.0  # Σ|y − the one before|
        self._running_mean = 0.0  # Σ|y − the mean before|
        self._moment = torch.zeros(outputs, dtype=torch.float64)  # Σ(y − ȳ)² (K,)
        # Target and error of each of the last samples, (window, 2, K).
        self._recent = torch.zeros(window, 2, outputs, dtype=torch.float64)

    def update(self, answers: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
        """Count a batch of answers (B, K) to samples with targets (B, K) and losses (B,).

        Returns:
            (B,) float64, the mean absolute error of each sample's numbers.
        """
        if len(answers) == 0:
            return torch.zeros(0, dtype=torch.float64)
        answers = answers.to(torch.float64)
        targets = targets.to(torch.float64).reshape(answers.shape)
        errors = answers - targets  # e (B, K)
        places = (self.samples + torch.arange(len(errors))) % self.window
        rows = torch.stack([targets, errors], 1)  # (B, 2, K)
        self._recent[places[-self.window :]] = rows[-self.window :]
        self._compare(targets)
        self._absolute += float(errors.abs().sum())
        self._square += float(errors.square().sum())
        # Chan, Golub & LeVeque 1979: no difference of large sums.
        mean, total = targets.mean(0), self.samples + len(errors)
        gap, both = mean - self._mean, self.samples * len(errors) / total
        self._moment += (targets - mean).square().sum(0) + gap.square() * both
        self._mean += gap * len(errors) / total
        self.samples = total
        self.loss_sum += float(losses.to(torch.float64).sum())
        return errors.abs().mean(1)

    def _compare(self, targets: Tensor) -> None:
        """Let the baselines answer to targets (B, K), each from those before it."""
        gaps = targets - self._mean  # no large sums, whatever the unit
        counts = self.samples + torch.arange(len(targets), dtype=torch.float64)[:, None]
        means = (gaps.cumsum(0) - gaps) / counts.clamp_min(1)  # before each sample
        last = targets[:1] if self._last is None else self._last[None]
        previous = torch.cat([last, targets[:-1]])
        known = int(self._last is None)  # the first of all is not answered
        self._no_change += float((targets - previous)[known:].abs().sum())
        self._running_mean += float((gaps - means)[known:].abs().sum())
        self._compared += len(targets) - known
        self._last = targets[-1].clone()

    @property
    def loss(self) -> float:
        """The mean loss of all samples so far."""
        return self.loss_sum / self.samples if self.samples else 0.0

    @property
    def metrics(self) -> Metrics:
        """mae, rmse and r2 of all samples so far, and windowed_mae, …, of the last `window`.

        Also no_change_mae and running_mean_mae.
        """
        numbers = self.samples * len(self._mean)
        whole = _errors(numbers, self._absolute, self._square, float(self._moment.sum()))
        recent = self._recent[: min(self.samples, self.window)]
        targets, errors = recent[:, 0], recent[:, 1]  # (n, K)
        moment = 0.0
        if len(recent):
            moment = float((targets - targets.mean(0)).square().sum())
        sums = float(errors.abs().sum()), float(errors.square().sum())
        part = _errors(errors.numel(), *sums, moment)
        compared = self._compared * len(self._mean)
        beside = {
            "no_change_mae": self._no_change / compared if compared else None,
            "running_mean_mae": self._running_mean / compared if compared else None,
        }
        return {**whole, **beside, **{f"windowed_{name}": value for name, value in part.items()}}

    def summary(self) -> Metrics:
        """What is noted of a run at each commit."""
        metrics = self.metrics
        named = {
            name if name.startswith("windowed") else f"prequential_{name}": value
            for name, value in metrics.items()
        }
        return {**named, "prequential_loss": self.loss}

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
            "baselines": {
                "samples": self._compared,
                "no_change": self._no_change,
                "running_mean": self._running_mean,
                "last": None if self._last is None else self._last.clone(),
            },
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that; the window is the saved one.

        A state of an older version has no baselines: they count from here on.
        """
        self.samples = int(state["samples"])
        self.loss_sum = float(state["loss_sum"])
        self._absolute, self._square = float(state["absolute"]), float(state["square"])
        self._mean, self._moment = state["mean"].clone(), state["moment"].clone()
        self._recent = state["recent"].clone()
        self.window = len(self._recent)
        beside = state.get("baselines", {})
        self._compared = int(beside.get("samples", 0))
        self._no_change = float(beside.get("no_change", 0.0))
        self._running_mean = float(beside.get("running_mean", 0.0))
        last = beside.get("last")
        self._last = None if last is None else last.clone()


def _errors(numbers: int, absolute: float, square: float, moment: float) -> dict[str, float | None]:
    """MAE, RMSE and R² from sums over so many numbers."""
    if numbers == 0:
        return {"mae": None, "rmse": None, "r2": None}
    return {
        "mae": absolute / numbers,
        "rmse": math.sqrt(square / numbers),
        "r2": 1.0 - square / moment if moment > 0 else None,
    }
