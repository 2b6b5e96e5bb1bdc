"""A store in a dictionary, and memories of which only so many blocks fit."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.errors import FormatError, StorageError
from streamlearn.memory import Columns, Memory, MemorySnapshot
from streamlearn.tiers import Tiers

CPU = torch.device("cpu")


class Shelf:
    """A `BlockStore` that checks what it is told of rows that were there before."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, str], NDArray[np.generic]] = {}
        self.reads: list[tuple[int, frozenset[str]]] = []
        self.writes: list[int] = []
        self.refuses_to_write = False
        self.refuses_to_read: set[int] = set()

    def read(self, index: int, out: Mapping[str, NDArray[np.generic]]) -> None:
        self.reads.append((index, frozenset(out)))
        if index in self.refuses_to_read:
            raise FormatError(f"block {index} is damaged")
        for name, array in out.items():
            assert array.flags.c_contiguous
            rows = self.kept[index, name]
            assert array.dtype == rows.dtype
            array[...] = rows[: len(array)]

    def write(
        self, index: int, columns: Columns, names: frozenset[str], *, rewritten: frozenset[str]
    ) -> None:
        if self.refuses_to_write:
            raise StorageError("no room on the shelf")
        self.writes.append(index)
        self._put(index, columns, names, rewritten)

    def commit(self, snapshot: MemorySnapshot) -> None:
        """What a checkpoint does."""
        for block in snapshot.blocks:
            if block.index not in snapshot.changes:  # newer rows of it were written since
                continue
            columns = block.columns()
            assert set(columns) == block.names
            assert all(len(rows) == block.count for rows in columns.values())
            self._put(block.index, columns, block.names, block.rewritten)

    def _put(
        self, index: int, columns: Columns, names: frozenset[str], rewritten: frozenset[str]
    ) -> None:
        assert names
        assert rewritten <= names
        for name in names:
            before = self.kept.get((index, name))
            if before is not None and name not in rewritten:
                assert before.tobytes() == columns[name][: len(before)].tobytes()
            self.kept[index, name] = columns[name].copy()


def least(memory: Memory) -> int:
    """The smallest budget that a lone memory of this shape can have."""
    probe = Tiers(CPU, host_budget=1)
    probe.add(memory)
    return probe.least


def tiers_for(width: int, outputs: int, dtype: torch.dtype, blocks: int, rows: int = 512) -> Tiers:
    """Tiers in which this many full blocks of one memory stay on the host."""
    memory = Memory(width, outputs, dtype=dtype, block_rows=rows)
    return Tiers(CPU, host_budget=least(memory) + blocks * memory.layout.block_bytes)


def resident_bytes(tiers: Tiers, *memories: Memory) -> int:
    """Everything that a budget counts, as it is now."""
    blocks = [block for memory in memories for block in memory.blocks]
    tensors = [tensor for block in blocks for tensor in block.tensors().values()]
    return tiers.buffer_bytes + sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def rows_of(memory: Memory) -> dict[str, NDArray[np.generic]]:
    """All rows, by column, wherever they are."""
    blocks = list(memory.host_blocks())
    return {
        name: np.concatenate([block[name] for block in blocks] or [column.empty(0)])
        for name, column in memory.columns().items()
    }
