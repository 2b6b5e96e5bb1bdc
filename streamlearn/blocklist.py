"""The blocks of a memory, each in its tier, and what storage asks of them.

Blocks are filled in order and never change their place, so retrieval, a sum over blocks in block
order, gives the same bits wherever a block lives: on the device, in host memory, or in a store,
from where it is read whenever it is needed.
"""

import contextlib
from collections.abc import Generator, Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.bits import from_bits
from streamlearn.blocks import (
    ROW_MULTIPLE,
    SINGLE_ROWS,
    TILE_ROWS,
    Block,
    BlockStore,
    Column,
    Columns,
    Layout,
)
from streamlearn.errors import ConfigError, ShapeError, StorageError
from streamlearn.journal import (
    BlockSnapshot,
    Change,
    Journal,
    MemorySnapshot,
    Patch,
    Reader,
    stored_columns,
)
from streamlearn.slots import Slot, Tier
from streamlearn.spill import SpillStore
from streamlearn.tiers import Tiers

__all__ = ["BlockList"]


class BlockList:
    """Blocks of one layout, in order; all are full but the last.

    Args:
        layout: of every block.
        device: where they are computed with.
        tiers: the budgets that they share with those of other lists; None sets no limits.

    Attributes:
        live: rows that were not dropped.
        generation: how often it was cleared.
        max_key_square: the largest ‖k‖² that was ever stored.
        store: who keeps blocks that have no room in memory; may be set at any time. Where it is
            None, they go to temporary files.
        slots: the place of each block.
        names: of all columns.
    """

    def __init__(self, layout: Layout, device: torch.device, tiers: Tiers | None) -> None:
        self.layout = layout
        self.device = device
        self.tiers = Tiers(device) if tiers is None else tiers
        self.store: BlockStore | None = None
        self.live = 0
        self.generation = 0
        self.max_key_square = 0.0
        self.slots: list[Slot] = []
        self._account = self.tiers.add(self)
        self._away = 0
        self.names = frozenset(layout.columns())
        self._journal = Journal(self.names)
        self._spill: SpillStore | None = None
        self._patched: set[int] = set()
        self._scratch: list[Tensor] = []

    def __len__(self) -> int:
        if not self.slots:
            return 0
        return (len(self.slots) - 1) * self.layout.rows + self.slots[-1].count

    @property
    def blocks(self) -> list[Block]:
        """The blocks that are in memory, in order; all of them unless budgets are set."""
        return [slot.block for slot in self.slots if slot.block is not None]

    @property
    def block_count(self) -> int:
        """How many blocks there are, wherever they live."""
        return len(self.slots)

    @property
    def padded(self) -> int:
        """The rows that a scan computes over: the last block's are rounded up."""
        count = len(self)
        return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE

    @property
    def row_bytes(self) -> int:
        """What one tuple takes: key and weighted value in `dtype`, weight, birth step, notes."""
        return self.layout.row_bytes

    @property
    def nbytes(self) -> int:
        """What the stored tuples take, `len(self) * row_bytes`."""
        return len(self) * self.row_bytes

    def clear(self) -> None:
        """Drop every tuple, the starting rows too, and leave the store that some may lie in."""
        self.slots.clear()
        self.generation += 1
        self.tiers.remove(self._account)
        self._account = self.tiers.add(self)
        self._journal.clear()
        self._away = 0
        self._patched.clear()
        self.store = self._spill = None
        self.live = 0
        self.max_key_square = 0.0

    def to(self, device: torch.device) -> None:
        """Move every block to a device; the memory has tiers of its own there.

        Raises:
            ConfigError: budgets are set for the device where it is.
        """
        if device == self.device:
            return
        if self.tiers.limited:
            raise ConfigError(
                f"a memory with budgets on {self.device} cannot be moved to {device}; save the "
                f"learner and load it with device={device.type!r}"
            )
        for _ in self.scan():  # what was never read comes in
            pass
        self.tiers.remove(self._account)
        self.device, self.tiers = device, Tiers(device)
        self._scratch.clear()
        account, self._account = self._account, self.tiers.add(self)
        self._account.tail = account.tail
        for index, slot in enumerate(self.slots):
            if slot.block is not None:
                slot.block.to(device)
            if slot.count == self.layout.rows:
                self.tiers.admit(self._account, index, present=True)

    def _tail(self) -> Slot:
        if not self.slots or self.slots[-1].count == self.layout.rows:
            self.slots.append(Slot(0, Block.empty(self.layout, self.device)))
        return self.slots[-1]

    def _filling(self, slot: Slot) -> Block:
        """The block of the last slot, which is read in where it lies in a store only."""
        if slot.block is not None:
            return slot.block
        index = len(self.slots) - 1
        stored = self._stored(index, slot, self.names)
        block = Block.empty(self.layout, self.device)
        block.write(
            self.layout,
            slice(0, slot.count),
            {
                name: from_bits(array, self.layout.dtype_of(name)).to(self.device)
                for name, array in stored.items()
            },
        )
        block.count = slot.count
        slot.block = block
        self._set_patch(index, None)
        self._away -= 1
        self._account.tail_present = True
        return block

    # -- where blocks are --------------------------------------------------------------------------

    def scan(self, *, born: bool = True, norms: bool = True) -> Generator[Block, None, None]:
        """Every block, in block order, on the device; each is valid until the next is asked for.

        Close the iterator if it is left before its end (`contextlib.closing`), so that others get
        its buffers; rows must not be added or changed meanwhile.

        Args:
            born: whether birth steps are needed; where not, those of passing blocks are not read.
            norms: the same of `key_square`, which is not computed.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        if self._away:
            if self.slots[-1].count < self.layout.rows:
                self._filling(self.slots[-1])
            yield from self.tiers.scan(self, born=born, norms=norms)
            return
        for slot in self.slots:
            if slot.block is not None:
                yield slot.block

    def tiles(
        self, *, born: bool = True, norms: bool = True, single: bool = False
    ) -> Generator[Block, None, None]:
        """The blocks of `scan`, each in parts of as many rows as are computed with at a time.

        Sums over them have the same bits whatever the rows of a block; for a single query, that is
        so of blocks of at least `SINGLE_ROWS` rows. int8 keys come as the
        numbers that they stand for, in the memory's dtype, in scratch memory that the next part is
        put in.

        Args:
            born: as for `scan`.
            norms: as for `scan`.
            single: whether one query is asked, for which parts are larger.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        with contextlib.closing(self.scan(born=born, norms=norms)) as blocks:
            for block in blocks:
                if single and not self.layout.quantised:
                    yield from block.tiles(SINGLE_ROWS)
                else:
                    yield from self.parts(block)

    def parts(self, block: Block) -> Generator[Block, None, None]:
        """A block as `tiles` gives it."""
        if not self.layout.quantised:
            yield from block.tiles()
            return
        scratch = self._scratch.pop() if self._scratch else self._new_scratch()
        try:
            for tile in block.tiles():
                padded = slice(0, tile.padded)
                numbers = tile.shared()
                numbers.key = tile.numbers(self.layout, padded, scratch[padded])
                yield numbers
        finally:
            self._scratch.append(scratch)

    @torch.inference_mode(False)  # or it could not be written outside inference mode later
    def _new_scratch(self) -> Tensor:
        shape = min(TILE_ROWS, self.layout.rows), self.layout.key_width
        return torch.empty(shape, dtype=self.layout.dtype, device=self.device)

    def block_at(self, index: int) -> Block:
        """A block on the device: the one that is there, or a copy of it from wherever it is.

        Rows may be changed while it is looked at; a copy does not see that.

        Raises:
            FormatError, StorageError: it lies in a store that cannot be read.
        """
        slot = self.slots[index]
        if slot.block is not None and slot.block.key.device.type == self.device.type:
            return slot.block
        block = Block.empty(self.layout, self.device)
        columns = {name: rows.to(self.device) for name, rows in self.host_tensors(index).items()}
        block.write(self.layout, slice(0, slot.count), columns)
        block.count = slot.count
        return block

    def came_in(self, index: int, block: Block) -> None:
        """A block was read, patch and all, and stays in memory where it belongs."""
        slot = self.slots[index]
        slot.block = block
        self._set_patch(index, None)
        self._account.present[slot.tier] += 1
        if slot.tier is Tier.DEVICE:
            self._away -= 1

    def move(self, index: int, tier: Tier) -> None:
        """Let a block belong to a farther tier, and move or store what is in memory of it.

        Raises:
            StorageError: the store refused; the block is where it was.
        """
        slot = self.slots[index]
        block = slot.block
        if block is not None:
            if tier is Tier.DISK:
                self._keep(index, slot, block)
                slot.block = None
            else:
                slot.block = block.pinned(self.layout)
            if slot.tier is Tier.DEVICE:
                self._away += 1
        slot.tier = tier

    def _keep(self, index: int, slot: Slot, block: Block) -> None:
        """Let the store have a block as it is."""
        if self.store is None:
            if self._spill is None:
                self._spill = SpillStore()
            columns = block.host_columns(self.layout)
            self._spill.write(index, columns, self.names, rewritten=frozenset())
            slot.spilled = True  # and still a change, for nothing else has it
            return
        change = self._journal.pending(index)
        if change is not None:
            columns = block.host_columns(self.layout)
            self.store.write(index, columns, change.names, rewritten=change.rewritten)
            self._journal.stored(index)

    def _set_patch(self, index: int, patch: Patch | None) -> None:
        slot = self.slots[index]
        self._account.patches += _size(patch) - _size(slot.patch)
        slot.patch = patch
        if patch is None:
            self._patched.discard(index)
        else:
            self._patched.add(index)

    def _fold(self) -> None:
        """Write patches into the store once they take as much as a block, the largest first.

        Those that an open snapshot refers to wait, for it reads the block as it was stored.

        Raises:
            FormatError, StorageError: the store refused; a patch stays until it is written.
        """
        if self._account.patches <= self.layout.block_bytes:
            return
        free = (index for index in self._patched if not any(self._journal.snapshots(index)))
        for index in sorted(free, key=lambda index: -_size(self.slots[index].patch)):
            slot = self.slots[index]
            store = self._spill if slot.spilled else self.store
            change = self._journal.pending(index)
            if store is None or change is None or slot.patch is None:
                continue
            names = frozenset(slot.patch.columns) if slot.spilled else change.names
            columns = self._stored(index, slot, names)
            store.write(index, columns, names, rewritten=change.rewritten & names)
            if not slot.spilled:
                self._journal.stored(index)
            self._set_patch(index, None)
            if self._account.patches <= self.layout.block_bytes // 2:
                return

    def _stored(
        self, index: int, slot: Slot, names: frozenset[str]
    ) -> dict[str, NDArray[np.generic]]:
        return stored_columns(index, slot.count, names, self.layout, self.read, slot.patch)

    def read(self, index: int, out: Mapping[str, NDArray[np.generic]]) -> None:
        """Fill arrays with columns of a block as its store has it; from any thread.

        Raises:
            FormatError, StorageError: see `BlockStore.read`.
        """
        self._reader(self.slots[index])(index, out)

    def _reader(self, slot: Slot) -> Reader:
        store = self._spill if slot.spilled else self.store
        if store is None:
            raise StorageError(
                f"{len(self.slots)} blocks of a memory lie in a store that was taken away; "
                "set the memory's store again"
            )
        return store.read

    # -- what storage asks for ---------------------------------------------------------------------

    def columns(self) -> dict[str, Column]:
        """The columns in their canonical order, with the width and dtype of each."""
        return self.layout.columns()

    def host_columns(self, index: int) -> Columns:
        """The filled rows of a block on the host, bfloat16 as its bits, from wherever they are.

        Raises:
            FormatError, StorageError: the block lies in a store that cannot be read.
        """
        slot = self.slots[index]
        if slot.block is not None:
            return slot.block.host_columns(self.layout)
        return self._stored(index, slot, self.names)

    def host_tensors(self, index: int) -> dict[str, Tensor]:
        """The same as tensors, in the dtypes that they have in the memory."""
        return {
            name: from_bits(array, self.layout.dtype_of(name))
            for name, array in self.host_columns(index).items()
        }

    def host_blocks(self) -> Iterator[Columns]:
        """The filled rows of every block on the host, in block order."""
        for index in range(len(self.slots)):
            yield self.host_columns(index)

    def open(self, rows: int, *, max_key_square: float, live: int, store: BlockStore) -> None:
        """Let an empty memory have rows that lie in a store; nothing is read yet.

        Args:
            rows: how many.
            max_key_square: the largest ‖k‖² that was ever among them.
            live: how many of them were not dropped.
            store: who has them.

        Raises:
            ShapeError: the memory has rows already.
        """
        if self.slots:
            raise ShapeError(
                f"the memory has {len(self)} rows already; open rows in an empty one, see clear()"
            )
        full, rest = divmod(rows, self.layout.rows)
        self.slots = [Slot(self.layout.rows, None) for _ in range(full)]
        if rest:
            self.slots.append(Slot(rest, None))
        self._away = len(self.slots)
        self.store = store
        self.live = live
        self.max_key_square = max_key_square
        self._account.tail, self._account.tail_present = rest, not rest
        for index in range(full):
            self.tiers.admit(self._account, index, present=False)
        self.tiers.settle()

    def snapshot(self) -> MemorySnapshot:
        """The blocks that changed since the last snapshot, as they are now.

        It is cheap and stays as it is, whatever happens to the memory, so another thread may save
        it; then call `saved` or `restore`. Those three belong to the thread that learns.
        """
        return self._snapshot_of(self._journal.take())

    def grown(self) -> list[int]:
        """Full blocks of which nobody has a snapshot yet, unless rows are rewritten in between."""
        full = len(self.slots) - bool(self.slots and self.slots[-1].count < self.layout.rows)
        return self._journal.grown(full)

    def snapshot_of(self, indices: list[int]) -> MemorySnapshot:
        """The same as `snapshot` of some of the `grown` blocks, to be saved ahead of the others."""
        return self._snapshot_of(self._journal.take_only(indices))

    def _snapshot_of(self, changes: dict[int, Change]) -> MemorySnapshot:
        snapshot = MemorySnapshot(
            rows=len(self),
            live=self.live,
            max_key_square=self.max_key_square,
            blocks=tuple(self._block_snapshot(*item) for item in changes.items()),
            changes=changes,
        )
        self._journal.hand_out(snapshot)
        return snapshot

    def _block_snapshot(self, index: int, change: Change) -> BlockSnapshot:
        slot = self.slots[index]
        return BlockSnapshot(
            index,
            slot.count,
            change,
            self.layout,
            block=None if slot.block is None else slot.block.shared(),
            patch=slot.patch,
            read=self.read if slot.block is not None else self._reader(slot),
        )

    def restore(self, snapshot: MemorySnapshot) -> None:
        """A snapshot was not saved: what changed before it will be in the next one too."""
        self._journal.settle(snapshot, saved=False)

    def saved(self, snapshot: MemorySnapshot) -> None:
        """A snapshot was saved, and the store gives its blocks back as they were in it."""
        if not self._journal.settle(snapshot, saved=True):
            return
        for block in snapshot.blocks:
            slot = self.slots[block.index]
            if slot.spilled:
                if self.store is None:
                    continue
                slot.spilled = False
                if self._spill is not None and not any(self._journal.snapshots(block.index)):
                    self._spill.discard(block.index, self.names)
            if slot.patch is block.patch:
                self._set_patch(block.index, None)

    def touch_all(self) -> None:
        """Let every block count as changed, as for whoever has none of them yet."""
        for index in range(len(self.slots)):
            self._journal.touch(index)


def _size(patch: Patch | None) -> int:
    return 0 if patch is None else patch.nbytes
