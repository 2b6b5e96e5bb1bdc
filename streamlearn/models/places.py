"""Where the tuples of samples are that may come again."""

import torch
from torch import Tensor

from streamlearn.state import StateTree

__all__ = ["Places"]


class Places:
    """Which tuple of every layer belongs to which sample, by the order of their first coming.

    Attributes:
        stored: samples that have tuples.
    """

    def __init__(self) -> None:
        self.stored = 0
        self._of = torch.full((0,), -1, dtype=torch.int64)

    def of(self, count: int, index: Tensor | None) -> Tensor:
        """The places of a batch, (B,) int64; those of new samples follow what is stored.

        A sample that is in the batch twice is a new one the second time.

        Args:
            count: B.
            index: (B,) which samples these are; None for new ones that will not be known again.
        """
        if index is None:
            return self.stored + torch.arange(count)
        index = index.to("cpu", torch.int64)
        if count and int(index.max()) >= len(self._of):
            room = max(int(index.max()) + 1, 2 * len(self._of)) - len(self._of)
            self._of = torch.cat([self._of, torch.full((room,), -1, dtype=torch.int64)])
        places = self._of[index]
        new = (places < 0) | _twice(index)
        places[new] = self.stored + torch.arange(int(new.sum()))
        return places

    def keep(self, places: Tensor, index: Tensor | None) -> None:
        """Remember what `of` gave, once the tuples are stored."""
        self.stored += int((places >= self.stored).sum())
        if index is not None:
            index = index.to("cpu", torch.int64)
            first = ~_twice(index)
            self._of[index[first]] = places[first]

    def state_dict(self) -> StateTree:
        """All places."""
        known = int((self._of >= 0).nonzero().max()) + 1 if bool((self._of >= 0).any()) else 0
        return {"stored": self.stored, "places": self._of[:known]}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all places."""
        self.stored = int(state["stored"])
        self._of = state["places"].clone()


def _twice(index: Tensor) -> Tensor:
    """Which entries were there before in the same batch, (B,)."""
    order = index.argsort(stable=True)
    twice = torch.zeros(len(index), dtype=torch.bool)
    twice[order[1:]] = index[order[1:]] == index[order[:-1]]
    return twice
