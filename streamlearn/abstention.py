"""Answers that are withheld: a classifier that is not sure enough abstains.

With n samples, of which a were answered since the largest probability was at least P, and h of
these rightly:

    coverage             a / n
    selective accuracy   h / a

(El-Yaniv & Wiener 2010). Both together are never above the accuracy of all answers: what is
withheld may have been right, so `coverage · selective accuracy ≤ accuracy`.
"""

import torch
from torch import Tensor

from streamlearn.errors import ConfigError
from streamlearn.state import StateTree

__all__ = ["Abstention", "check_threshold"]


def check_threshold(threshold: float | None, name: str) -> None:
    """Refuse a probability below which nothing, or everything, would be withheld.

    Args:
        threshold: P.
        name: of the setting, for the message.

    Raises:
        ConfigError: it is not in (0, 1].
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ConfigError(
            f"{name}={threshold} must be above 0 and at most 1; it is the probability below which "
            "no answer is given"
        )


class Abstention:
    """Counts of the answers that were sure enough.

    Args:
        threshold: P, the probability below which an answer counts as withheld.

    Attributes:
        samples: counted; fewer than were evaluated where a run began without these figures.
        answered: those whose largest probability was P or more.
        correct: how many of these were answered rightly.

    Raises:
        ConfigError: a threshold that is not in (0, 1].
    """

    def __init__(self, threshold: float) -> None:
        check_threshold(threshold, "evaluation.abstain")
        self.threshold = threshold
        self.samples = 0
        self.answered = 0
        self.correct = 0

    def update(self, probabilities: Tensor, right: Tensor) -> None:
        """Count a batch of probabilities (B, C), and whether each answer was right, (B,)."""
        answered = probabilities.amax(-1) >= self.threshold
        self.samples += len(right)
        self.answered += int(answered.sum())
        self.correct += int(torch.logical_and(answered, right).sum())

    def figures(self) -> dict[str, float | None]:
        """Share answered and accuracy of these; None without samples, or without answers."""
        return {
            "coverage": self.answered / self.samples if self.samples else None,
            "selective_accuracy": self.correct / self.answered if self.answered else None,
        }

    def state_dict(self) -> StateTree:
        """All counts."""
        return {"samples": self.samples, "answered": self.answered, "correct": self.correct}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore them."""
        self.samples, self.answered = int(state["samples"]), int(state["answered"])
        self.correct = int(state["correct"])
