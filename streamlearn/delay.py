"""Labels that come late: samples are answered to as they come, and learnt with their label.

With a delay of d samples (verification latency) the label of a mini-batch that ends at position p
is there once the stream has come to p + d, and at the end of the stream. A score is that of the
answer that was given when the sample came.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.errors import ConfigError
from streamlearn.hardware import Hardware
from streamlearn.memory import Memory
from streamlearn.models import Taken
from streamlearn.settings import LearnerSettings
from streamlearn.state import StateTree
from streamlearn.tasks import Task
from streamlearn.tiers import InTiers

__all__ = ["Delayed", "StreamLearner"]


class StreamLearner(Protocol):
    """What a loop asks of a learner; rows are what its stream hands out."""

    @property
    def settings(self) -> LearnerSettings:
        """All settings."""
        ...

    @property
    def hardware(self) -> Hardware:
        """Device and dtype."""
        ...

    @property
    def task(self) -> Task:
        """What targets are."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names, as far as they are known."""
        ...

    @property
    def labels(self) -> Sequence[Any]:
        """The classes themselves, in the same order."""
        ...

    @property
    def tiers(self) -> InTiers:
        """Where the tuples of all memories are."""
        ...

    @property
    def samples(self) -> int:
        """How many were learnt."""
        ...

    @property
    def ready(self) -> bool:
        """Whether enough samples are held back for `flush`."""
        ...

    @property
    def held(self) -> int:
        """How many samples are held back."""
        ...

    @property
    def fitted(self) -> bool:
        """Whether the model learns."""
        ...

    @property
    def encoder(self) -> Any:
        """What turns samples into codes, with its `width`."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that it needs to predict and to go on learning."""
        ...

    def bounds(self) -> dict[str, int]:
        """Bounds of the memory, and what they have cost; empty where there are none."""
        ...

    def take(self, rows: Any) -> Taken:
        """Answer to rows, then learn them."""
        ...

    def labelled(self, rows: Any) -> Any:
        """The rows that have a label."""
        ...

    def without_label(self, rows: Any) -> list[int]:
        """The numbers of the others among them."""
        ...

    def truths(self, rows: Any) -> Sequence[Any]:
        """The label or number of each row as people know it, None where there is none."""
        ...

    def answer(self, features: Any) -> Tensor:
        """The answers (B, C) to samples."""
        ...

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of each answer, (B,)."""
        ...

    def boost(self, factor: float, samples: int) -> bool:
        """Learn faster for the next samples."""
        ...

    def forget(self, samples: int) -> bool:
        """Drop what was stored before the last samples."""
        ...

    def flush(self, pulse: Any = ...) -> bool:
        """Learn what is held back."""
        ...

    def memories(self) -> dict[str, Memory]:
        """The memories by layer name."""
        ...

    def rows_state(self, rows: Any) -> StateTree:
        """Rows as a state tree."""
        ...

    def rows_from(self, state: Any) -> Any:
        """The rows of a state tree."""
        ...

    def state_dict(self) -> StateTree:
        """Everything but the tuples."""
        ...

    def load_state_dict(self, state: StateTree) -> None:
        """Restore that."""
        ...


class _Waiting(NamedTuple):
    rows: Any
    answers: Tensor
    position: int


class Delayed:
    """The samples whose labels have not come.

    Args:
        learner: answers and learns.
        delay: d, in samples; 0 lets everything pass at once.

    Raises:
        ConfigError: a delay below 0.
    """

    def __init__(self, learner: StreamLearner, delay: int = 0) -> None:
        if delay < 0:
            raise ConfigError(f"stream.delay={delay} must be at least 0 samples")
        self.delay = delay
        self._learner = learner
        self._waiting: deque[_Waiting] = deque()

    @property
    def waiting(self) -> int:
        """How many mini-batches wait."""
        return len(self._waiting)

    @property
    def samples(self) -> int:
        """How many samples wait."""
        return sum(len(one.answers) for one in self._waiting)

    def admit(self, rows: Any, position: int) -> Tensor:
        """Answer to rows and let them wait.

        Args:
            rows: of the stream.
            position: where it stands after them.

        Returns:
            The answers to those that have a label.

        Raises:
            StreamlearnError: rows that cannot be answered to; they do not wait.
        """
        known = self._learner.labelled(rows)
        answers = self._learner.answer(known.features)
        self._waiting.append(_Waiting(known, answers, position))
        return answers

    def due(self, position: int) -> bool:
        """Whether labels are there once the stream stands at a position."""
        return bool(self._waiting) and self._waiting[0].position + self.delay <= position

    def late(self) -> Taken:
        """Learn the rows that have waited longest, and say what was answered when they came.

        Raises:
            StreamlearnError: they cannot be learnt; they wait still.
        """
        rows, answers, _ = self._waiting[0]
        taken = self._learner.take(rows)
        self._waiting.popleft()
        if len(answers) == 0:
            return taken
        missing = taken.answers.shape[-1] - answers.shape[-1]  # classes that have come since
        answers = F.pad(answers, (0, missing)) if missing > 0 else answers
        return Taken(answers, taken.targets, self._learner.losses(answers, taken.targets))

    def state_dict(self) -> StateTree:
        """The rows that wait, and what was answered to them."""
        return {
            "waiting": [
                {
                    "rows": self._learner.rows_state(one.rows),
                    "answers": one.answers.clone(memory_format=torch.contiguous_format),
                    "position": one.position,
                }
                for one in self._waiting
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        self._waiting = deque(
            _Waiting(self._learner.rows_from(one["rows"]), one["answers"], int(one["position"]))
            for one in state.get("waiting", [])
        )
