"""Prequential counts of a classifier: every sample is scored before it is learnt.

Nothing but whole numbers and sums is kept, updated by batch and restored to the bit; see
`agreement` for the figures that follow from them.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from streamlearn.abstention import Abstention
from streamlearn.agreement import Baselines, Calibration, balanced_accuracy, kappa, macro_f1
from streamlearn.state import StateTree

__all__ = ["Arrival", "Prequential"]

Metrics: TypeAlias = Mapping[str, float | None]


class Arrival(NamedTuple):
    """A class that was among the targets for the first time, and the number of that sample."""

    label: int
    sample: int


class Prequential:
    """Cumulative and windowed accuracy, loss, a confusion matrix, and what follows from it.

    Args:
        classes: their number; it grows with the width of the probabilities.
        window: samples in the window.
        abstain: the probability below which an answer counts as withheld, see `abstention`; the
            accuracies and all other figures are those of all answers nevertheless.

    Raises:
        ConfigError: such a probability is not possible.

    Attributes:
        confusion: (C, C) int64, samples of class y that were predicted as p at [y, p].
        first_seen: (C,) int64, the number of each class's first sample, from 1; 0 where it has not
            come, or had when these numbers were not kept yet.
        arrived: the classes that came with the last batch, in the order of their samples.
    """

    def __init__(self, classes: int, window: int = 1000, abstain: float | None = None) -> None:
        self.window = window
        self.samples = 0
        self.correct = 0
        self.loss_sum = 0.0
        self.confusion = torch.zeros(classes, classes, dtype=torch.int64)
        self.first_seen = torch.zeros(classes, dtype=torch.int64)
        self.arrived: tuple[Arrival, ...] = ()
        self._recent = torch.zeros(window, dtype=torch.uint8)
        self._baselines = Baselines()
        self._calibration = Calibration()
        self._abstention = None if abstain is None else Abstention(abstain)
        self._count()

    def _count(self) -> None:
        """Take the sums of the confusion matrix, which go along with it."""
        cells = self.confusion.numpy()
        self._actual, self._predicted = cells.sum(1), cells.sum(0)  # r, q (C,)
        self._hits = cells.diagonal().copy()  # h (C,)

    def _widen(self, classes: int) -> None:
        """Room for more classes, of which there was no sample yet."""
        more = classes - len(self.confusion)
        if more > 0:
            self.confusion = torch.nn.functional.pad(self.confusion, (0, more, 0, more))
            self.first_seen = torch.nn.functional.pad(self.first_seen, (0, more))
            self._count()

    def update(self, probabilities: Tensor, targets: Tensor, losses: Tensor) -> Tensor:
        """Count a batch of scores (B, classes) of samples with targets (B,) and losses (B,).

        More classes than before are new ones behind the others; all figures go on. A row of zeros
        is the answer of a learner that knows no class yet: it is wrong, whatever the target.

        Returns:
            (B,) float64, 1 for each sample that was predicted wrong, else 0.
        """
        self._widen(probabilities.shape[1])
        predicted = probabilities.argmax(-1)
        blank = ~probabilities.any(-1)
        if bool(blank.any()):
            self._widen(2)
            predicted = torch.where(blank, (targets + 1) % len(self.confusion), predicted)
        right = predicted == targets  # (B,)
        actual = targets.numpy()
        self._note_arrivals(actual)
        correct = int(right.sum())
        self._baselines.update(actual, self._actual, correct)
        wide = probabilities.to(torch.float64).numpy()
        self._calibration.update(wide, actual, right.numpy())
        if self._abstention is not None:
            self._abstention.update(probabilities, right)
        cells = self.confusion.numpy()
        np.add.at(cells, (actual, predicted.numpy()), 1)
        np.add.at(self._actual, actual, 1)
        np.add.at(self._predicted, predicted.numpy(), 1)
        np.add.at(self._hits, actual[right.numpy()], 1)
        places = (self.samples + torch.arange(len(right))) % self.window
        self._recent[places[-self.window :]] = right.to(torch.uint8)[-self.window :]
        self.samples += len(right)
        self.correct += correct
        self.loss_sum += float(losses.to(torch.float64).sum())
        return (~right).to(torch.float64)

    def _note_arrivals(self, targets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        self.arrived = ()
        places = np.flatnonzero(self._actual[targets] == 0)
        if not len(places):
            return
        labels, firsts = np.unique(targets[places], return_index=True)
        found = sorted(zip(places[firsts].tolist(), labels.tolist(), strict=True))
        self.arrived = tuple(Arrival(label, self.samples + place + 1) for place, label in found)
        for label, sample in self.arrived:
            self.first_seen[label] = sample

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

    @property
    def abstain(self) -> float | None:
        """The probability below which an answer counts as withheld, if any."""
        return None if self._abstention is None else self._abstention.threshold

    @property
    def metrics(self) -> Metrics:
        """The figures of `agreement` and `abstention` over all samples; None before the first."""
        whole: dict[str, float | None] = dict.fromkeys(("kappa", "balanced_accuracy", "macro_f1"))
        if self.samples:
            whole = {
                "kappa": kappa(self._actual, self._predicted, self.correct),
                "balanced_accuracy": balanced_accuracy(self._actual, self._hits),
                "macro_f1": macro_f1(self._actual, self._predicted, self._hits),
            }
        sure = {} if self._abstention is None else self._abstention.figures()
        return {**whole, **self._baselines.figures(), **self._calibration.figures(), **sure}

    def by_class(self) -> dict[str, list[int] | list[float | None]]:
        """For each class: samples, recall (None without samples), and first_seen (0: not)."""
        pairs = zip(self._hits.tolist(), self._actual.tolist(), strict=True)
        return {
            "samples": self._actual.tolist(),
            "recall": [hits / count if count else None for hits, count in pairs],
            "first_seen": self.first_seen.tolist(),
        }

    def summary(self) -> Metrics:
        """What is noted of a run at each commit."""
        return {
            "prequential_accuracy": self.accuracy,
            "windowed_accuracy": self.windowed_accuracy,
            "prequential_loss": self.loss,
            **{f"prequential_{name}": value for name, value in self.metrics.items()},
        }

    def state_dict(self) -> StateTree:
        """All counts."""
        sure = self._abstention
        return {
            "samples": self.samples,
            "correct": self.correct,
            "loss_sum": self.loss_sum,
            "confusion": self.confusion.clone(),
            "recent": self._recent.clone(),
            "first_seen": self.first_seen.clone(),
            "baselines": self._baselines.state_dict(),
            "calibration": self._calibration.state_dict(),
            **({} if sure is None else {"abstention": sure.state_dict()}),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all counts; the window is the saved one.

        A state of an older version has no baselines and no calibration: they count from here on.
        """
        self.samples = int(state["samples"])
        self.correct = int(state["correct"])
        self.loss_sum = float(state["loss_sum"])
        self.confusion = state["confusion"].clone()
        self._recent = state["recent"].clone()
        self.window = len(self._recent)
        seen = state.get("first_seen")
        blank = torch.zeros(len(self.confusion), dtype=torch.int64)
        self.first_seen = blank if seen is None else seen.clone()
        self.arrived = ()
        self._baselines, self._calibration = Baselines(), Calibration()
        if "baselines" in state:
            self._baselines.load_state_dict(state["baselines"])
            self._calibration.load_state_dict(state["calibration"])
        if self._abstention is not None:
            self._abstention = Abstention(self._abstention.threshold)
            if "abstention" in state:
                self._abstention.load_state_dict(state["abstention"])
        self._count()
