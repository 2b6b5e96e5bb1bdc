"""Figures of a classifier from counts: chance-corrected agreement, baselines, calibration.

With n samples, of which `confusion[y, p]` were of class y and predicted as p; r_c of class c, q_c
predicted as c, h_c both (the hits); p₀ = Σh_c / n the accuracy:

    kappa               κ  = (p₀ − p_e) / (1 − p_e),   p_e = Σ r_c q_c / n²        (Cohen 1960)
    kappa_t             κ_t = (p₀ − p_t) / (1 − p_t),  p_t that of the no-change baseline
    kappa_m             κ_m = (p₀ − p_m) / (1 − p_m),  p_m that of the majority baseline
    balanced accuracy   mean of h_c / r_c over the classes with r_c > 0
    macro F1            mean of 2h_c / (r_c + q_c) over the classes with r_c + q_c > 0
    log loss            mean of −ln p(y), p clipped to [1e-15, 1 − 1e-15]
    calibration error   Σ_b |Σ_{i in b} (hit_i − confidence_i)| / n over 15 bins of equal width of
                        the confidence, the probability of the class that is predicted (Guo 2017)

κ_t and κ_m are those of Bifet & al. 2015, "Efficient online evaluation of big data stream
classifiers". A κ whose denominator is 0 is 0, as in river. These are river's figures (`CohenKappa`,
`BalancedAccuracy`, `MacroF1`, `CrossEntropy`), which tests compare to 1e-9; they are sums over
batches here, since river's metrics are updated in Python sample by sample, which takes longer than
a small learner's step, and cannot be restored without pickle.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.state import StateTree

__all__ = [
    "Baselines",
    "Calibration",
    "above",
    "balanced_accuracy",
    "kappa",
    "log_losses",
    "macro_f1",
]

BINS = 15
"""Of confidence."""

_CELLS = 1 << 20
_CLIP = 1e-15

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def above(accuracy: float, baseline: float) -> float:
    """How much of the way from a baseline's accuracy to 1 an accuracy is, at most 1."""
    return (accuracy - baseline) / (1.0 - baseline) if baseline < 1.0 else 0.0


def kappa(actual: Counts, predicted: Counts, hits: int) -> float:
    """Cohen's κ of r (C,), q (C,) and Σh; in whole numbers up to the last division."""
    samples = int(actual.sum())
    chance = sum(int(r) * int(q) for r, q in zip(actual, predicted, strict=True) if r and q)
    square = samples * samples
    return (samples * hits - chance) / (square - chance) if square > chance else 0.0


def balanced_accuracy(actual: Counts, hits: Counts) -> float:
    """The mean recall of the classes that there were."""
    there = actual > 0
    return float(np.mean(hits[there] / actual[there])) if there.any() else 0.0


def macro_f1(actual: Counts, predicted: Counts, hits: Counts) -> float:
    """The mean F1 of the classes that there were, or that were predicted."""
    both = actual + predicted
    there = both > 0
    return float(np.mean(2 * hits[there] / both[there])) if there.any() else 0.0


def log_losses(probabilities: Floats, targets: Counts) -> Floats:
    """−ln of each target's probability, clipped, (B,)."""
    chosen = np.take_along_axis(probabilities, targets[:, None], axis=1)[:, 0]
    losses: Floats = -np.log(np.clip(chosen, _CLIP, 1.0 - _CLIP))
    return losses


class Baselines:
    """How often two predictors that know no features would have been right.

    No-change predicts the label of the sample before, majority the class that most samples before
    are of, the one with the lowest index where several are. Neither is right about the first of
    all.

    Attributes:
        samples: counted; fewer than were evaluated where a run began without these figures.
        correct: how many of these the learner predicted right.
        no_change, majority: how many of them the baselines did.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.correct = 0
        self.no_change = 0
        self.majority = 0
        self._last = -1  # the label before, if any

    def update(self, targets: Counts, before: Counts, correct: int) -> None:
        """Count a batch.

        Args:
            targets: (B,) class indices, in the order of the stream.
            before: (C,) samples of each class before this batch.
            correct: of the batch, by the learner.
        """
        if not len(targets):
            return
        previous = np.concatenate([[self._last], targets[:-1]])
        self.no_change += int((previous == targets).sum())
        self.majority += _majority_hits(targets, before)
        self._last = int(targets[-1])
        self.samples += len(targets)
        self.correct += correct

    def figures(self) -> dict[str, float | None]:
        """kappa_t, kappa_m and both accuracies; None before the first sample."""
        names = ("kappa_t", "kappa_m", "no_change_accuracy", "majority_accuracy")
        if not self.samples:
            return dict.fromkeys(names)
        own, no_change, majority = (
            count / self.samples for count in (self.correct, self.no_change, self.majority)
        )
        values = above(own, no_change), above(own, majority), no_change, majority
        return dict(zip(names, values, strict=True))

    def state_dict(self) -> StateTree:
        """All counts."""
        return {
            "samples": self.samples,
            "correct": self.correct,
            "no_change": self.no_change,
            "majority": self.majority,
            "last": self._last,
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore them."""
        self.samples, self.correct = int(state["samples"]), int(state["correct"])
        self.no_change, self.majority = int(state["no_change"]), int(state["majority"])
        self._last = int(state["last"])


def _majority_hits(targets: Counts, before: Counts) -> int:
    """How many of a batch are of the class that was the most frequent before each of them."""
    counts = before.copy()
    hits = 0
    rows = max(1, _CELLS // len(counts))
    for start in range(0, len(targets), rows):
        part = targets[start : start + rows]
        ones = np.zeros((len(part), len(counts)), np.int64)
        ones[np.arange(len(part)), part] = 1
        total = counts + ones.cumsum(0)  # after each sample
        known = total - ones  # before it
        first = int(counts.sum() == 0)  # nothing is known before the first of all
        hits += int((known.argmax(1) == part)[first:].sum())
        counts = total[-1]
    return hits


class Calibration:
    """Log loss and expected calibration error.

    Attributes:
        samples: counted, as in `Baselines`.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._log_loss = 0.0
        self._hits = np.zeros(BINS, np.float64)
        self._confidence = np.zeros(BINS, np.float64)

    def update(self, probabilities: Floats, targets: Counts, hits: NDArray[np.bool_]) -> None:
        """Count a batch of probabilities (B, C), targets (B,), and whether each was predicted."""
        if not len(targets):
            return
        confidence = probabilities.max(1)
        bins = np.clip((confidence * BINS).astype(np.int64), 0, BINS - 1)
        self._hits += np.bincount(bins, hits.astype(np.float64), BINS)
        self._confidence += np.bincount(bins, confidence, BINS)
        self._log_loss += float(log_losses(probabilities, targets).sum())
        self.samples += len(targets)

    def figures(self) -> dict[str, float | None]:
        """log_loss and calibration_error; None before the first sample."""
        if not self.samples:
            return {"log_loss": None, "calibration_error": None}
        gaps = np.abs(self._hits - self._confidence)
        return {
            "log_loss": self._log_loss / self.samples,
            "calibration_error": float(gaps.sum()) / self.samples,
        }

    def state_dict(self) -> StateTree:
        """All sums."""
        return {
            "samples": self.samples,
            "log_loss": self._log_loss,
            "bins": torch.from_numpy(np.stack([self._hits, self._confidence])),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore them."""
        self.samples, self._log_loss = int(state["samples"]), float(state["log_loss"])
        self._hits, self._confidence = state["bins"].numpy().copy()
