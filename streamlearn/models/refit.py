"""What models share that gather statistics and solve for their weights now and then.

A solution costs more than an update, so while learning it is renewed only so often; whoever asks
for predictions always gets those of all that was learnt. Both are kept apart, so that asking
changes nothing that is learnt or scored later.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from streamlearn.losses import Loss
from streamlearn.memory import Memory
from streamlearn.state import StateTree

from .base import Scores, scored, tensor_bytes

__all__ = ["RefittedModel"]

Solution = dict[str, Tensor]


class RefittedModel(ABC):
    """A model of exact statistics, and of solutions made from them.

    Args:
        classes: their number, or that of values.
        loss: of answers.
        device: where all is kept.

    Attributes:
        samples: learnt so far.
        steps: batches learnt so far.
    """

    def __init__(self, classes: int, loss: Loss, device: torch.device) -> None:
        self.classes = classes
        self.loss = loss
        self.device = device
        self.samples = 0
        self.steps = 0
        self._solution: Solution | None = None  # what scores are made with while learning
        self._fresh: Solution | None = None  # of all samples, made when asked for

    @abstractmethod
    def observe(self, codes: Tensor, targets: Tensor) -> None:
        """Add a batch to the statistics."""

    @abstractmethod
    def due(self) -> bool:
        """Whether the solution is to be renewed after this batch."""

    @abstractmethod
    def solve(self) -> Solution:
        """The solution of all samples so far."""

    @abstractmethod
    def shares(self, solution: Solution, codes: Tensor) -> Tensor:
        """Answers (B, C) to codes (B, D) by a solution."""

    @abstractmethod
    def statistics(self) -> StateTree:
        """The statistics, which `load_statistics` restores."""

    @abstractmethod
    def load_statistics(self, state: StateTree) -> None:
        """Restore the statistics."""

    def start(self, codes: Tensor, targets: Tensor) -> None:  # noqa: B027 — most want nothing of them
        """Look at the codes that the encoder was fitted on."""

    def answer(self, codes: Tensor) -> Tensor:
        """The answers (B, C) by all that was learnt; `Loss.blank` before that."""
        if self._fresh is None and self.samples:
            self._fresh = self.solve()
        return self._answer(self._fresh, codes)

    def _answer(self, solution: Solution | None, codes: Tensor) -> Tensor:
        if solution is None:
            return self.loss.blank(len(codes), self.classes)
        return self.shares(solution, codes.to(self.device)).to("cpu", self.loss.dtype)

    @torch.no_grad()
    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score a batch by the newest solution, then learn it."""
        scores = scored(self._answer(self._solution, codes), targets, self.loss)
        self.observe(codes.to(self.device), targets.to(self.device))
        self.samples += len(codes)
        self.steps += 1
        self._fresh = None
        if self.due():
            self._solution = self._fresh = self.solve()
        return scores

    def memories(self) -> dict[str, Memory]:
        """None: statistics do not grow."""
        return {}

    @property
    def nbytes(self) -> int:
        """Statistics, solution and tuples."""
        tuples = sum(memory.nbytes for memory in self.memories().values())
        return tuples + tensor_bytes([self.statistics(), self._solution or {}])

    def state_dict(self) -> StateTree:
        """Statistics, counts, and the solution by which the next batch is scored."""
        return {
            "samples": self.samples,
            "steps": self.steps,
            "statistics": self.statistics(),
            "solution": self._solution,
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that."""
        self.samples = int(state["samples"])
        self.steps = int(state["steps"])
        self.load_statistics(state["statistics"])
        solution = state["solution"]
        self._solution = None if solution is None else {
            name: tensor.to(self.device, copy=True) for name, tensor in solution.items()
        }  # fmt: skip
        self._fresh = None
        for memory in self.memories().values():
            memory.clear()
