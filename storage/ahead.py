"""Full blocks, written by a thread before the commit that will name them.

A block that is full is done with, unless its rows are rewritten. Written as soon as there is
something worth writing, it does not wait for the next commit, nor that for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pending import Pending

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from streamlearn.memory import Memory, MemorySnapshot

    from .commits import Commits

__all__ = ["Ahead"]

_LEAST_BYTES = 16 << 20
_MOST_BYTES = 64 << 20
"""A commit waits until what is being written ahead of it is written."""


class Ahead:
    """What is written ahead of commits.

    Args:
        turn: held by whoever writes to the run.

    Attributes:
        refused: whether the system refused a block; the next commit says why, and until then no
            other block is tried.
    """

    def __init__(self, turn: threading.Lock) -> None:
        self.refused = False
        self._turn = turn

    def begin(self, commits: Commits, memories: Mapping[str, Memory]) -> Pending[None] | None:
        """Begin to write full blocks, if there are enough of them.

        Args:
            commits: of the run.
            memories: those that the run has, by their layers' names.
        """
        if self.refused:
            return None
        snapshots: dict[str, MemorySnapshot] = {}
        left = _MOST_BYTES
        for name, memory in memories.items():
            grown = memory.grown()
            if not grown:
                continue
            size = memory.layout.rows * memory.row_bytes
            chosen = grown[: max(left // size, 1)]
            if len(chosen) * size >= _LEAST_BYTES and left > 0:
                snapshots[name] = memory.snapshot_of(chosen)
                left -= len(chosen) * size
        if not snapshots:
            return None

        def write() -> None:
            for name, snapshot in snapshots.items():
                with self._turn:
                    commits.write_blocks(
                        name,
                        ((b.index, b.columns(), b.rewritten) for b in snapshot.blocks),
                    )

        def end(happened: bool) -> None:
            self.refused = not happened
            for name, snapshot in snapshots.items():
                if happened:
                    memories[name].saved(snapshot)
                else:
                    memories[name].restore(snapshot)

        pending = Pending(write, end)
        pending.start()
        return pending
