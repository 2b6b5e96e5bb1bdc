"""What changed in a memory since it was last saved: a journal by block, and snapshots of it.

A snapshot takes the journal with it and costs as much as there are changed blocks. It holds tensors
and patches, never rows: appending fills rows that it does not look at, and whoever rewrites rows of
a tensor that a snapshot holds copies the tensor first. So another thread can write it to a file
while learning goes on.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from streamlearn.blocks import Block, Columns, Layout

__all__ = ["BlockSnapshot", "Change", "Journal", "MemorySnapshot", "Patch", "Reader"]

_NONE: frozenset[str] = frozenset()

Reader = Callable[[int, Mapping[str, NDArray[np.generic]]], None]
"""`BlockStore.read` of one store."""


class Patch:
    """Rows that were rewritten in a block that lies in a store; never changed once made.

    columns: for each, the rows (n,) int64, ascending, and what is in them now, (n, …).
    """

    __slots__ = ("columns",)

    def __init__(
        self, columns: Mapping[str, tuple[NDArray[np.int64], NDArray[np.generic]]]
    ) -> None:
        self.columns = columns

    @classmethod
    def over(cls, older: Self | None, rows: NDArray[np.int64], columns: Columns) -> Self:
        """The patch that says what an older one says, but for these rows and columns."""
        merged = dict(older.columns) if older is not None else {}
        for name, values in columns.items():
            before = merged.get(name)
            together = (
                (rows, values)
                if before is None
                else (np.concatenate([rows, before[0]]), np.concatenate([values, before[1]]))
            )
            chosen, first = np.unique(together[0], return_index=True)  # the newer stands first
            merged[name] = chosen, together[1][first]
        return cls(merged)

    def lay(self, out: Mapping[str, NDArray[np.generic]]) -> None:
        """Put the rewritten rows over the columns of a block as it was stored."""
        for name, (rows, values) in self.columns.items():
            if name in out:
                out[name][rows] = values

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return sum(rows.nbytes + values.nbytes for rows, values in self.columns.values())


class Change(NamedTuple):
    """What changed in a block.

    names: the columns that did. rewritten: those of them in which rows below `since` did.
    since: how many rows it had when this change began.
    """

    names: frozenset[str]
    rewritten: frozenset[str]
    since: int

    def and_then(self, newer: "Change | None") -> "Change":
        """Both changes as one."""
        if newer is None:
            return self
        return Change(
            self.names | newer.names,
            self.rewritten | newer.rewritten,
            min(self.since, newer.since),
        )


class BlockSnapshot:
    """A changed block at the moment of a snapshot.

    index: of the block. count: its rows. names: the columns that changed. rewritten: those in which
    rows that were there before changed; the others only grew.
    """

    __slots__ = ("_layout", "_read", "block", "count", "index", "names", "patch", "rewritten")

    def __init__(
        self,
        index: int,
        count: int,
        change: Change,
        layout: Layout,
        *,
        block: Block | None,
        patch: Patch | None,
        read: Reader,
    ) -> None:
        self.index = index
        self.count = count
        self.names = change.names
        self.rewritten = change.rewritten
        self.block = block
        self.patch = patch
        self._layout = layout
        self._read = read

    def columns(self) -> Columns:
        """The rows of `names`, at that moment; from any thread, until it is saved or restored.

        Raises:
            FormatError, StorageError: the block lies in a store that cannot be read.
        """
        if self.block is not None:
            return self.block.host_columns(self._layout, self.names)
        return stored_columns(
            self.index, self.count, self.names, self._layout, self._read, self.patch
        )

    def holds(self, name: str, block: Block) -> bool:
        """Whether a tensor of a block is this snapshot's too."""
        return self.block is not None and self.block.tensors()[name] is block.tensors()[name]


def stored_columns(
    index: int,
    count: int,
    names: frozenset[str],
    layout: Layout,
    read: Reader,
    patch: Patch | None,
) -> dict[str, NDArray[np.generic]]:
    """Columns of a block that lies in a store, with its patch laid over them."""
    out = {name: column.empty(count) for name, column in layout.columns().items() if name in names}
    read(index, out)
    if patch is not None:
        patch.lay(out)
    return out


@dataclass(frozen=True, eq=False)
class MemorySnapshot:
    """A memory at one moment, as far as it changed since the snapshot before.

    rows: of the memory. live: those that were not dropped. blocks: the changed ones, in order.
    """

    rows: int
    live: int
    max_key_square: float
    blocks: tuple[BlockSnapshot, ...]
    changes: dict[int, Change]


class Journal:
    """The changes that no snapshot has taken, and the snapshots that are neither saved nor back.

    Args:
        names: all columns.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._changes: dict[int, Change] = {}
        self._rewriting = False
        self._taken: list[tuple[MemorySnapshot, dict[int, BlockSnapshot]]] = []

    def grew(self, index: int, before: int) -> None:
        """Rows were added to a block that had `before`."""
        known = self._changes.get(index)
        if known is None or len(known.names) < len(self._names):
            self._changes[index] = Change(self._names, _NONE, before).and_then(known)

    def rewrote(self, index: int, names: frozenset[str], first: int, count: int) -> None:
        """Rows from `first` on changed in a block of `count` rows."""
        known = self._changes.get(index, Change(_NONE, _NONE, count))
        rewritten = names if first < known.since else _NONE
        self._rewriting = True
        self._changes[index] = known.and_then(Change(names, rewritten, known.since))

    def touch(self, index: int) -> None:
        """All of a block is new to whoever saves it next."""
        self._changes[index] = Change(self._names, _NONE, 0)

    def pending(self, index: int) -> Change | None:
        """What is not known to be saved of a block."""
        change = self._changes.get(index)
        for snapshot, _ in reversed(self._taken):
            older = snapshot.changes.get(index)
            change = change if older is None else older.and_then(change)
        return change

    def stored(self, index: int) -> None:
        """A block was given to the store as it is."""
        self._changes.pop(index, None)
        for snapshot, _ in self._taken:
            snapshot.changes.pop(index, None)

    def take(self) -> dict[int, Change]:
        """The changes so far, in block order; the journal begins anew."""
        changes, self._changes = dict(sorted(self._changes.items())), {}
        self._rewriting = False
        return changes

    def grown(self, full: int) -> list[int]:
        """Which of the first `full` blocks only grew since the last `take`, if all of them did.

        While rows are rewritten as well, blocks that are full are not done with.
        """
        if self._rewriting:
            return []
        return sorted(index for index in self._changes if index < full)

    def take_only(self, indices: list[int]) -> dict[int, Change]:
        """The changes of these blocks; the others stay."""
        return {index: self._changes.pop(index) for index in indices}

    def hand_out(self, snapshot: MemorySnapshot) -> None:
        """Remember a snapshot until it is saved or back."""
        self._taken.append((snapshot, {block.index: block for block in snapshot.blocks}))

    def settle(self, snapshot: MemorySnapshot, *, saved: bool) -> bool:
        """Forget a snapshot; its changes are changes again unless they were saved.

        Returns:
            Whether it was still open.
        """
        left = [pair for pair in self._taken if pair[0] is not snapshot]
        if len(left) == len(self._taken):
            return False
        self._taken = left
        if not saved:
            counts = {block.index: block.count for block in snapshot.blocks}
            for index, change in snapshot.changes.items():
                newer = self._changes.get(index)
                # A store may have taken in all of its rows before it failed; whoever changes them
                # from now on changes rows that were there before.
                since = counts[index] if newer is None else newer.since
                self._changes[index] = change.and_then(newer)._replace(since=since)
        return True

    def snapshots(self, index: int) -> Iterator[BlockSnapshot]:
        """What open snapshots hold of a block."""
        for _, blocks in self._taken:
            if index in blocks:
                yield blocks[index]

    def clear(self) -> None:
        """Forget everything."""
        self._changes.clear()
        self._taken.clear()
