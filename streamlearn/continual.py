"""What is kept of what was learnt: accuracies after each experience of a stream on all of them.

R[i][j] is the held-out accuracy on the classes of experience j after experience i was learnt, both
counted from 1, among all T experiences' classes; or on items of all classes in the domain of
experience j, where domains come in turn. After the first n:

    average accuracy    A_n = 1/n Σ_{j≤n} R[n][j]
    anytime accuracy    1/n Σ_{i≤n} A_i
    forgetting          1/(n−1) Σ_{j<n} (max_{j≤i<n} R[i][j] − R[n][j])
    backward transfer   1/(n−1) Σ_{j<n} (R[n][j] − R[j][j])
    forward transfer    1/(n−1) Σ_{2≤j≤n} (R[j−1][j] − b),  b = 1/classes, of chance

Source: Lopez-Paz and Ranzato, arXiv 1706.08840 (the transfers); Chaudhry et al., arXiv 1801.10112
(forgetting); Rebuffi et al., arXiv 1611.07725 (the average over time).
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamlearn.errors import ConfigError, FormatError
from streamlearn.events import Testing
from streamlearn.learner import Learner
from streamlearn.state import StateTree
from streamlearn.streams.base import Dataset, Rows
from streamlearn.streams.experiences import Experience, labels_of
from streamlearn.streams.splits import InDomains

__all__ = [
    "AccuracyMatrix",
    "anytime_accuracy",
    "average_accuracy",
    "backward_transfer",
    "forgetting",
    "forward_transfer",
]

Matrix: TypeAlias = Sequence[Sequence[float]]

_ROWS = 512
_SEED = 0x3A7
"""Of which held-out samples are looked at: the same ones in every run."""


def average_accuracy(rows: Matrix) -> float | None:
    """A_n over the n experiences that were learnt; None before the first."""
    return _mean(rows[-1][: len(rows)]) if rows else None


def anytime_accuracy(rows: Matrix) -> float | None:
    """The mean of A_1, …, A_n."""
    return _mean([_mean(row[:number]) or 0.0 for number, row in enumerate(rows, start=1)])


def forgetting(rows: Matrix) -> float | None:
    """How far earlier experiences' accuracies fell from their best; None before the second."""
    last = len(rows) - 1
    return _mean([max(row[j] for row in rows[j:last]) - rows[last][j] for j in range(last)])


def backward_transfer(rows: Matrix) -> float | None:
    """How earlier experiences' accuracies changed since they were learnt."""
    last = len(rows) - 1
    return _mean([rows[last][j] - rows[j][j] for j in range(last)])


def forward_transfer(rows: Matrix, chance: float) -> float | None:
    """How much better than chance experiences were before they were learnt."""
    return _mean([rows[j - 1][j] - chance for j in range(1, len(rows))])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


class AccuracyMatrix:
    """Scores held-out samples of every experience whenever one was learnt.

    Args:
        dataset: held-out samples; `InDomains` where domains are the experiences.
        experiences: of the stream.
        classes: their number.
        samples: at most so many of each experience, always the same ones; None is all.

    Attributes:
        rows: R, one row for each experience that was learnt.

    Raises:
        ConfigError: an experience has no held-out samples.
    """

    def __init__(
        self,
        dataset: Dataset,
        experiences: Sequence[Experience],
        classes: int,
        samples: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._chance = 1.0 / classes
        order = np.argsort(np.random.PCG64(_SEED).random_raw(len(dataset)), kind="stable")
        self._items: list[NDArray[np.int64]]
        self._domains: tuple[str, ...] = ()
        if isinstance(dataset, InDomains):
            self._domains = dataset.domains.names
            self._items = [np.sort(order[:samples]) for _ in experiences]
        else:
            labels = labels_of(dataset)
            self._items = [
                np.sort(order[np.isin(labels[order], experience.classes)][:samples])
                for experience in experiences
            ]
        for number, items in enumerate(self._items, start=1):
            if not len(items):
                raise ConfigError(
                    f"no held-out sample is of experience {number}; set evaluation.matrix=false, "
                    "or other data.experiences"
                )
        self.rows: list[list[float]] = []

    def score(self, learner: Learner) -> Iterator[Testing]:
        """Score all samples with a learner as it is, and add a row once that is done."""
        row: list[float] = []
        done, total = 0, sum(len(items) for items in self._items)
        for number, items in enumerate(self._items):
            correct = seen = 0
            for start in range(0, len(items), _ROWS):
                part = self._read(number, items[start : start + _ROWS])
                hits = learner.predict(part.features) == part.targets
                correct, seen = correct + int(hits.sum()), seen + len(hits)
                done += min(_ROWS, len(items) - start)
                yield Testing(done, total)
            row.append(correct / seen if seen else 0.0)
        self.rows.append(row)

    def _read(self, number: int, items: NDArray[np.int64]) -> Rows:
        """Held-out items as an experience has them."""
        if isinstance(self._dataset, InDomains):
            return self._dataset.read_in(number, items)
        return self._dataset.read(items)

    def figures(self) -> dict[str, float | None]:
        """All that is said of the matrix, by name."""
        return {
            "average_accuracy": average_accuracy(self.rows),
            "anytime_accuracy": anytime_accuracy(self.rows),
            "forgetting": forgetting(self.rows),
            "backward_transfer": backward_transfer(self.rows),
            "forward_transfer": forward_transfer(self.rows, self._chance),
        }

    def summary(self) -> dict[str, Any]:
        """The figures, the matrix itself, and the domains' names where these come in turn."""
        named = {"domains": list(self._domains)} if self._domains else {}
        return {**self.figures(), "matrix": [list(row) for row in self.rows], **named}

    def state_dict(self) -> StateTree:
        """The rows so far."""
        return {"rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore them.

        Raises:
            FormatError: there are other experiences.
        """
        rows = [[float(value) for value in row] for row in state["rows"]]
        if any(len(row) != len(self._items) for row in rows):
            raise FormatError(
                f"the saved accuracy matrix is of {len(rows[0])} experiences but the stream has "
                f"{len(self._items)}; give back the data that the run began with"
            )
        self.rows = rows
