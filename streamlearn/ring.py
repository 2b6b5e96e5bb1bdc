"""A bound for a memory: once it is full, new tuples take the rows of the oldest.

First in, first out, in place: of M rows behind the starting rows, tuple s (of all that were ever
written, counted from 0) has row

    first + s mod M

so that where the ring stands is one number. Retrieval does not ask for the order of rows, and every
row has its birth step, by which it ages. Rows that were dropped are taken again when their turn
comes.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from streamlearn.errors import ConfigError, RunStateError
from streamlearn.memory import PRIOR, Checked, Memory

__all__ = ["Ring", "Run"]


class Run(NamedTuple):
    """New tuples that stand side by side: the first one, how many, and the row of the first.

    there: how many of these rows are there already. dropped: how many of those were dropped.
    """

    start: int
    size: int
    row: int
    there: int
    dropped: int


class Ring:
    """The most tuples that a memory keeps, and which rows new ones take.

    Args:
        memory: with its starting rows, which stay and count, and at most as many others as there
            is room for. If it is full the ring stands where births begin anew, so that an optimizer
            that is made for a network that was loaded goes on as the one before.
        rows: the most rows that the memory is to have.

    Attributes:
        size: M, rows that are taken in turn.
        written: tuples that were ever written, those that are gone too.
        gone: tuples that went before, out of a memory that had room for more.

    Raises:
        ConfigError: no room beside the starting rows, or for what is there.
    """

    def __init__(self, memory: Memory, rows: int) -> None:
        self.memory = memory
        born = memory.gather(torch.arange(len(memory)), ("born",))["born"].cpu()
        self.first = int((born == PRIOR).sum())
        self.size = rows - self.first
        self.gone = 0
        if self.size < 1:
            beside = f"beside the {self.first} starting rows of a layer" if self.first else ""
            raise ConfigError(
                f"memory.rows={rows} leaves no room for tuples {beside}".rstrip()
                + "; raise it, or lower layer.start_rows"
            )
        self.written = len(memory) - self.first
        if self.written > self.size:
            raise ConfigError(
                f"memory.rows={rows} is less than the {len(memory)} tuples that a layer has; raise "
                "it, or begin with an empty layer"
            )
        if self.written == self.size:
            falls = born[self.first + 1 :] < born[self.first : -1]
            self.written += int(falls.nonzero()[0]) + 1 if bool(falls.any()) else 0

    @property
    def left(self) -> int:
        """Tuples that went for others."""
        return self.gone + max(0, self.written - self.size)

    def newest(self, count: int) -> torch.Tensor:
        """The rows of so many tuples at most that were written last, the oldest first, (n,) int64.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        runs = self.runs(0, self.written)
        rows = torch.cat([torch.zeros(0, dtype=torch.int64), *(torch.arange(*run) for run in runs)])
        born = self.memory.gather(rows, ("born",))["born"].cpu()
        live = rows[born > PRIOR]
        return live[len(live) - min(count, len(live)) :]

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The rows of tuples from the `start`-th on, those that are there last, as half-open runs.

        Args:
            start: number of a tuple, counted from the first that was ever written.
            stop: of the one behind the last.
        """
        start = max(start, stop - self.size)
        while start < stop:
            place = start % self.size
            count = min(stop - start, self.size - place)
            yield self.first + place, self.first + place + count
            start += count

    def plan(self, count: int) -> list[Run]:
        """Where so many new tuples go; the last `size` of them, if there are more.

        Raises:
            RunStateError: the memory has other rows than were written.
            FormatError, StorageError: the store cannot say which rows were dropped.
        """
        memory = self.memory
        expected = self.first + min(self.written, self.size)
        if len(memory) != expected:
            raise RunStateError(
                f"a layer has {len(memory)} tuples where its ring has written {expected}; load the "
                "memory and the optimizer's state of the same moment"
            )
        planned = []
        start = max(0, count - self.size)
        for row, stop in self.runs(self.written, self.written + count):
            there = min(max(len(memory) - row, 0), stop - row)
            dropped = memory.dropped(row, row + there)
            planned.append(Run(start, stop - row, row, there, dropped))
            start += stop - row
        return sorted(planned, key=lambda run: run.row)  # rows are added in their order

    def put(self, planned: Sequence[Run], checked: Checked, born: int) -> None:
        """Store new tuples where `plan` said; nothing may have been stored since.

        Args:
            planned: for all of the tuples.
            checked: the tuples.
            born: the step that wrote them.
        """
        memory = self.memory
        for start, size, row, there, dropped in planned:
            if there:
                part = checked.part(start, start + there)
                memory.overwrite(row, part, born, dropped=dropped)
            if there < size:
                memory.append_checked(checked.part(start + there, start + size), born)
        self.written += len(checked.key)
