"""The memory of a growing layer: fixed-size blocks of (weight, key, weighted value) tuples.

A block is the unit of everything: of computing (one pair of GEMMs), of storing (one shard) and of
caching. Blocks are filled in order and never change their place, so retrieval, a sum over blocks in
block order, gives the same bits wherever a block lives: on the device, in host memory, or in a
store, from where it is read whenever it is needed.
"""

import contextlib
import math
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.bits import from_bits, to_bits
from streamlearn.blocks import (
    COLUMNS,
    DEAD,
    PRIOR,
    ROW_MULTIPLE,
    Block,
    BlockStore,
    Column,
    Columns,
    Layout,
    accumulation_dtype,
    square_norms,
)
from streamlearn.errors import (
    ConfigError,
    FormatError,
    NotFiniteError,
    ShapeError,
    StorageError,
    StreamlearnError,
)
from streamlearn.journal import (
    ALL,
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

__all__ = [
    "DEAD",
    "PRIOR",
    "Block",
    "BlockSnapshot",
    "BlockStore",
    "Column",
    "Columns",
    "Memory",
    "MemorySnapshot",
    "Tuples",
    "accumulation_dtype",
    "decay_coefficients",
]

_TENSORS = {
    "key": ("key", "key_square"),
    "weight": ("weight", "side"),
    "value": ("side",),
    "born": ("born",),
}
"""Which tensors of a block a column is kept in."""


class Tuples(NamedTuple):
    """Tuples to be stored: key (n, D), weight (n,), weighted value ṽ = w·v (n, C)."""

    key: Tensor
    weight: Tensor
    value: Tensor


class Memory:
    """Blocks of tuples; rows are added at the end, and may be rewritten or dropped in their place.

    Args:
        key_width: D.
        value_width: C.
        dtype: of keys and values; weights are kept in float32 (float64 for a float64 memory).
        device: where blocks live.
        block_rows: tuples in a block, a multiple of 512.
        tiers: the budgets that this memory shares with others; None sets no limits.

    Attributes:
        live: rows that were not dropped.
        max_key_square: the largest ‖k‖² that was ever stored.
        store: who keeps blocks that have no room in memory; may be set at any time. Where it is
            None, they go to temporary files.
        rewrites: how often rows were changed in their place.
        slots: the place of each block.
    """

    def __init__(
        self,
        key_width: int,
        value_width: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_rows: int = 4096,
        tiers: Tiers | None = None,
    ) -> None:
        if block_rows < ROW_MULTIPLE or block_rows % ROW_MULTIPLE:
            raise ShapeError(
                f"memory.block_rows={block_rows} must be a positive multiple of {ROW_MULTIPLE}"
            )
        self.layout = Layout(block_rows, key_width, value_width, dtype)
        self.key_width = key_width
        self.value_width = value_width
        self.side_width = self.layout.side_width
        self.dtype = dtype
        self.device = torch.device(device)
        self.block_rows = block_rows
        self.store: BlockStore | None = None
        self.live = 0
        self.max_key_square = 0.0
        self.rewrites = 0
        self.slots: list[Slot] = []
        self.tiers = Tiers(self.device) if tiers is None else tiers
        self._account = self.tiers.add(self)
        self._away = 0
        self._journal = Journal()
        self._spill: SpillStore | None = None

    def __len__(self) -> int:
        if not self.slots:
            return 0
        return (len(self.slots) - 1) * self.block_rows + self.slots[-1].count

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
        """What one tuple takes: key and weighted value in `dtype`, weight and birth step."""
        return self.layout.row_bytes

    @property
    def nbytes(self) -> int:
        """What the stored tuples take, `len(self) * row_bytes`."""
        return len(self) * self.row_bytes

    # -- growing ---------------------------------------------------------------------------------

    def append(self, tuples: Tuples, born: int) -> None:
        """Store tuples at the end, all born at the same step.

        Args:
            tuples: key (n, D), weight (n,), value (n, C); rounded to the memory's dtype.
            born: the step that wrote them, or `PRIOR`.

        Raises:
            ShapeError, NotFiniteError, StorageError, ConfigError: as `check` does; nothing was
                stored.
        """
        self.check(tuples, born)
        self._append({name: column.detach() for name, column in tuples._asdict().items()}, born)

    def check(self, tuples: Tuples, born: int) -> None:
        """Whether tuples may be stored, so that several memories can be written all or none.

        Raises:
            ShapeError: a width that differs from the memory's.
            NotFiniteError: a NaN or infinity, once rounded to the memory's dtype, or a key whose
                square is none: it would spoil every later retrieval.
            StorageError, ConfigError: a budget cannot be kept, see `Tiers.settle`.
        """
        self.tiers.settle()
        key, weight, value = tuples
        count = len(key)
        expected = ((count, self.key_width), (count,), (count, self.value_width))
        if (key.shape, weight.shape, value.shape) != expected:
            raise ShapeError(
                f"tuples have shapes {tuple(key.shape)}, {tuple(weight.shape)} and "
                f"{tuple(value.shape)} but this memory stores {expected}; "
                "give the layer the widths that it was built with"
            )
        if not self._finite(tuples._asdict()):
            raise NotFiniteError(
                f"step {born} would store a NaN or infinity in the memory; lower the learning "
                "rates (layer.lr_value, layer.lr_weight) or look for such numbers in the data"
            )

    def _finite(self, columns: Mapping[str, Tensor]) -> bool:
        """Whether all numbers are, once rounded to the memory's dtype, and the squares of keys."""
        # A sum is NaN or infinite as soon as one term is: one small reduction instead of a mask.
        total = torch.zeros((), dtype=self.layout.wide, device=self.device)
        for name, column in columns.items():
            rounded = column.detach().to(self.device, self.dtype).to(self.layout.wide)
            total = total + (rounded.square().sum() if name == "key" else rounded.sum())
        return bool(torch.isfinite(total))

    def _append(self, columns: Mapping[str, Tensor], born: int | Tensor) -> None:
        count, start = len(columns["key"]), 0
        while start < count:
            slot = self._tail()
            block = self._filling(slot)
            stop = min(start + self.block_rows - block.count, count)
            rows = slice(block.count, block.count + stop - start)
            part: dict[str, Tensor | int] = {
                name: column[start:stop] for name, column in columns.items()
            }
            part["born"] = born if isinstance(born, int) else born[start:stop]
            block.write(self.layout, rows, part)
            self._journal.grew(len(self.slots) - 1, rows.start)
            slot.count = block.count = self._account.tail = rows.stop
            self.live += stop - start
            largest = float(block.key_square[rows].max())
            self.max_key_square = max(self.max_key_square, largest)
            start = stop
            if slot.count == self.block_rows:
                self._account.tail = 0
                self.tiers.admit(self._account, len(self.slots) - 1, present=True)
                # A store that refuses takes nothing back: `check` raises it before the next rows.
                with contextlib.suppress(StreamlearnError):
                    self.tiers.settle()

    def _tail(self) -> Slot:
        if not self.slots or self.slots[-1].count == self.block_rows:
            self.slots.append(Slot(0, Block.empty(self.layout, self.device)))
        return self.slots[-1]

    def _filling(self, slot: Slot) -> Block:
        """The block of the last slot, which is read in where it lies in a store only."""
        if slot.block is not None:
            return slot.block
        index = len(self.slots) - 1
        stored = self._stored(index, slot, frozenset(COLUMNS))
        block = Block.empty(self.layout, self.device)
        block.write(
            self.layout,
            slice(0, slot.count),
            {
                name: from_bits(array, self._dtype_of(name)).to(self.device)
                for name, array in stored.items()
            },
        )
        block.count = slot.count
        slot.block, slot.patch = block, None
        self._away -= 1
        self._account.tail_present = True
        return block

    def clear(self) -> None:
        """Drop every tuple, the starting rows too, and leave the store that some may lie in."""
        self.slots.clear()
        self.tiers.remove(self._account)
        self._account = self.tiers.add(self)
        self._journal.clear()
        self._away = 0
        self.store = self._spill = None
        self.live = 0
        self.max_key_square = 0.0

    # -- changing rows in their place ------------------------------------------------------------

    def rewrite(
        self,
        rows: Tensor,
        *,
        key: Tensor | None = None,
        weight: Tensor | None = None,
        value: Tensor | None = None,
        born: int | Tensor | None = None,
    ) -> None:
        """Change columns of rows in their place; a block that is not in memory is not read.

        Args:
            rows: (n,) int64 row numbers, each once.
            key: (n, D), rounded to the memory's dtype as the others.
            weight: (n,).
            value: (n, C).
            born: (n,) int64, or one step for all; at least `PRIOR`. Brings dropped rows back.

        Raises:
            ShapeError: a row that is not there, is there twice or was dropped, or another width.
            NotFiniteError: a NaN or infinity, as for `append`. Nothing was changed, in each case.
            FormatError, StorageError: the store cannot say which rows were dropped.
        """
        chosen = self._rows(rows, unique=True)
        count = len(chosen)
        given = {"key": key, "weight": weight, "value": value}
        columns = {
            name: tensor.detach().to(self.device)
            for name, tensor in given.items()
            if tensor is not None
        }
        if isinstance(born, int):
            born = torch.full((count,), born, dtype=torch.int64)
        if born is not None:
            columns["born"] = born.detach().to(self.device, torch.int64)
        for name, tensor in columns.items():
            width = self.layout.columns()[name].width
            expected = (count,) if width is None else (count, width)
            if tensor.shape != expected:
                raise ShapeError(
                    f"{name} has shape {tuple(tensor.shape)} but {count} rows of this memory need "
                    f"{expected}; give the widths that it was built with"
                )
        if not count:
            return
        if born is not None and int(born.min()) < PRIOR:
            raise ShapeError(
                f"born={int(born.min())} is no step; give a step, or call drop to drop rows"
            )
        if not self._finite({n: tensor for n, tensor in columns.items() if n != "born"}):
            raise NotFiniteError(
                "a rewrite would store a NaN or infinity in the memory; leave such rows out"
            )
        dead = self._dead(chosen)
        if born is None and dead.any():
            raise ShapeError(
                f"row {chosen[dead][0]} was dropped; give born=… to bring it back, or leave it out"
            )
        self._put(chosen, columns)
        self.live += int(dead.sum())

    def drop(self, rows: Tensor) -> None:
        """Let rows contribute exactly nothing from now on: all zero, born `DEAD`.

        Args:
            rows: (n,) int64 row numbers, each once; those that were dropped before stay so.

        Raises:
            ShapeError: a row that is not there or is there twice; nothing was changed.
            FormatError, StorageError: the store cannot say which rows were dropped.
        """
        chosen = self._rows(rows, unique=True)
        chosen = chosen[~self._dead(chosen)]
        if not len(chosen):
            return
        shape = len(chosen)
        zeros = torch.zeros(shape, dtype=self.layout.wide, device=self.device)
        self._put(
            chosen,
            {
                "key": zeros[:, None].expand(shape, self.key_width),
                "weight": zeros,
                "value": zeros[:, None].expand(shape, self.value_width),
                "born": torch.full((shape,), DEAD, dtype=torch.int64, device=self.device),
            },
        )
        self.live -= shape

    def _put(self, rows: NDArray[np.int64], columns: Mapping[str, Tensor]) -> None:
        """Write columns, (n, …) on the device, into rows that are all there."""
        rounded = {
            name: column if name == "born" else column.to(self._dtype_of(name))
            for name, column in columns.items()
        }
        if "key" in rounded:  # the same number wherever the rows are
            largest = square_norms(rounded["key"].to(self.layout.wide)).max()
            self.max_key_square = max(self.max_key_square, float(largest))
        names = frozenset(rounded)
        self.tiers.quiet()
        for index, local, places in self._by_block(rows):
            slot = self.slots[index]
            part = {name: column[torch.from_numpy(places)] for name, column in rounded.items()}
            if slot.block is None:
                bits = {name: to_bits(column) for name, column in part.items()}
                slot.patch = Patch.over(slot.patch, local, bits)
            else:
                self._unshare(index, slot.block, names)
                where = slot.block.key.device
                there = torch.from_numpy(local).to(where)
                slot.block.write(
                    self.layout, there, {name: column.to(where) for name, column in part.items()}
                )
            self._journal.rewrote(index, names, int(local[0]), slot.count)
        self.rewrites += 1

    def _unshare(self, index: int, block: Block, names: Collection[str]) -> None:
        """Give a block tensors of its own where snapshots hold those that are to change."""
        for snapshot in self._journal.snapshots(index):
            for name in {tensor for column in names for tensor in _TENSORS[column]}:
                if snapshot.holds(name, block):
                    setattr(block, name, getattr(block, name).clone())

    def gather(self, rows: Tensor, columns: Collection[str] = COLUMNS) -> dict[str, Tensor]:
        """Columns of some rows, wherever they live, on the memory's device.

        Args:
            rows: (n,) int64 row numbers, in any order, also repeated.
            columns: names among key, weight, value and born.

        Raises:
            ShapeError: a row or column that is not there.
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        known = self.layout.columns()
        unknown = next((name for name in columns if name not in known), None)
        if unknown is not None:
            raise ShapeError(f"{unknown!r} is no column; choose of {', '.join(known)}")
        chosen = self._rows(rows, unique=False)
        result = {
            name: torch.empty(
                (len(chosen),) if column.width is None else (len(chosen), column.width),
                dtype=self._dtype_of(name),
                device=self.device,
            )
            for name, column in known.items()
            if name in columns
        }
        for index, local, places in self._by_block(chosen):
            slot = self.slots[index]
            there = torch.from_numpy(places).to(self.device)
            if slot.block is not None:
                found = slot.block.filled(self.layout, columns)
                picked = torch.from_numpy(local).to(slot.block.key.device)
                for name, tensor in found.items():
                    result[name][there] = tensor[picked].to(self.device)
                continue
            for name, array in self._stored(index, slot, frozenset(columns)).items():
                tensor = from_bits(array[local], self._dtype_of(name))
                result[name][there] = tensor.to(self.device)
        return result

    def _dtype_of(self, name: str) -> torch.dtype:
        if name == "born":
            return torch.int64
        return self.layout.wide if name == "weight" else self.dtype

    def _rows(self, rows: Tensor, *, unique: bool) -> NDArray[np.int64]:
        if rows.ndim != 1 or rows.dtype != torch.int64:
            raise ShapeError(
                f"rows have shape {tuple(rows.shape)} and dtype {rows.dtype} but must be (n,) int64"
            )
        chosen: NDArray[np.int64] = rows.detach().cpu().numpy()
        outside = (chosen < 0) | (chosen >= len(self))
        if outside.any():
            raise ShapeError(
                f"row {chosen[outside][0]} is not among the {len(self)} rows of this memory; "
                "count rows from 0"
            )
        if unique and len(chosen):
            ordered = np.sort(chosen)
            twice = ordered[1:][ordered[1:] == ordered[:-1]]
            if len(twice):
                raise ShapeError(f"row {twice[0]} is there twice; give each row once")
        return chosen

    def _by_block(
        self, rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """For each block: its index, the rows in it, ascending, and where they stand in `rows`."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        indices, starts = np.unique(ordered // self.block_rows, return_index=True)
        stops = [*starts[1:].tolist(), len(rows)]
        for index, start, stop in zip(indices.tolist(), starts.tolist(), stops, strict=True):
            yield index, ordered[start:stop] - index * self.block_rows, order[start:stop]

    def _dead(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows were dropped, (n,)."""
        if self.live == len(self):
            return np.zeros(len(rows), dtype=np.bool_)
        born = self.gather(torch.from_numpy(rows), ("born",))["born"]
        dead: NDArray[np.bool_] = (born == DEAD).cpu().numpy()
        return dead

    # -- what retrieval asks for -----------------------------------------------------------------

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
            if self.slots[-1].count < self.block_rows:
                self._filling(self.slots[-1])
            yield from self.tiers.scan(self, born=born, norms=norms)
            return
        for slot in self.slots:
            if slot.block is not None:
                yield slot.block

    def came_in(self, index: int, block: Block) -> None:
        """A block was read, patch and all, and stays in memory where it belongs."""
        slot = self.slots[index]
        slot.block, slot.patch = block, None
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
            self._spill.write(index, columns, ALL, rewritten=frozenset())
            slot.spilled = True  # and still a change, for nothing else has it
            return
        change = self._journal.pending(index)
        if change is not None:
            columns = block.host_columns(self.layout)
            self.store.write(index, columns, change.names, rewritten=change.rewritten)
            self._journal.stored(index)

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

    def coefficients(self, block: Block, step: int, momentum: float, decay: float) -> Tensor:
        """How much each row of a block counts `step − born` steps after its birth, c(n), (rows,).

        See `decay_coefficients`. The rows that a memory starts with (`PRIOR`) count 1 for ever.
        """
        born = block.born[: block.padded]
        age = (step - born).clamp_min(0).to(torch.float64)
        coefficient = decay_coefficients(age, momentum, decay)
        coefficient = torch.where(born == PRIOR, torch.ones_like(coefficient), coefficient)
        return coefficient.to(block.weight.dtype)

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
        account, self._account = self._account, self.tiers.add(self)
        self._account.tail = account.tail
        for index, slot in enumerate(self.slots):
            if slot.block is not None:
                slot.block.to(device)
            if slot.count == self.block_rows:
                self.tiers.admit(self._account, index, present=True)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy needs: the tuples themselves, wherever they are."""
        layout = self.layout
        return {
            "widths": (layout.key_width, layout.value_width),
            "options": {
                "dtype": layout.dtype,
                "device": self.device,
                "block_rows": layout.rows,
                "tiers": self.tiers,
            },
            "columns": list(self.host_blocks()),
            "max_key_square": self.max_key_square,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become a copy, to the bit; blocks without room go to temporary files again."""
        Memory.__init__(self, *state["widths"], **state["options"])
        for columns in state["columns"]:
            self.load_columns(columns)
        self.max_key_square = state["max_key_square"]

    # -- what storage asks for -------------------------------------------------------------------

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
        return self._stored(index, slot, frozenset(COLUMNS))

    def host_tensors(self, index: int) -> dict[str, Tensor]:
        """The same as tensors, in the dtypes that they have in the memory."""
        return {
            name: from_bits(array, self._dtype_of(name))
            for name, array in self.host_columns(index).items()
        }

    def host_blocks(self) -> Iterator[Columns]:
        """The filled rows of every block on the host, in block order."""
        for index in range(len(self.slots)):
            yield self.host_columns(index)

    def load_columns(self, columns: Columns) -> None:
        """Append rows exactly as `host_columns` gave them.

        A bfloat16 column may also come as the float32 that it equals.

        Raises:
            FormatError: a column is missing or has another width.
        """
        described = self.columns()
        count = len(columns["key"]) if "key" in columns else 0
        for name, column in described.items():
            shape = (count,) if column.width is None else (count, column.width)
            found = columns[name].shape if name in columns else None
            if found != shape:
                raise FormatError(
                    f"column {name!r} has shape {found} where this memory needs {shape}; "
                    "the stored memory belongs to another layer or is damaged"
                )
        tensors = {
            name: from_bits(columns[name], self._dtype_of(name)).to(self.device)
            for name in described
        }
        born = tensors.pop("born")
        self._append(tensors, born)
        self.live -= int((columns["born"] == DEAD).sum())

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
        full, rest = divmod(rows, self.block_rows)
        self.slots = [Slot(self.block_rows, None) for _ in range(full)]
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
        changes = self._journal.take()
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
                    self._spill.discard(block.index, ALL)
            if slot.patch is block.patch:
                slot.patch = None

    def touch_all(self) -> None:
        """Let every block count as changed, as for whoever has none of them yet."""
        for index in range(len(self.slots)):
            self._journal.touch(index)


def decay_coefficients(age: Tensor, momentum: float, decay: float) -> Tensor:
    """What a tuple written n steps ago counts now, under momentum μ and decay γ.

    With `V ← μV + G`, `F ← (1−γ)F − ηV` a single write G contributes after n more steps

        c(n) = Σ_{j=0..n} (1−γ)^{n−j} μ^j = ((1−γ)^{n+1} − μ^{n+1}) / ((1−γ) − μ),

    and (n+1)·μⁿ where 1−γ = μ. No state but the birth step is needed. With a the larger of 1−γ and
    μ, b the smaller and r = b/a it is computed as aⁿ (1 − r^{n+1})/(1 − r), which does not cancel
    where the two come close: 1 − r = (a − b)/a is exact there.

    Args:
        age: n, any shape, float64.
        momentum: μ in [0, 1).
        decay: γ in [0, 1).

    Source: arXiv 2610.03858, appendices A.4 and D.
    """
    larger, smaller = max(1.0 - decay, momentum), min(1.0 - decay, momentum)
    if smaller == larger:
        return (age + 1) * larger**age
    gap = (larger - smaller) / larger  # 1 − r
    log_ratio = math.log1p(-gap) if gap < 1 else -math.inf
    return larger**age * torch.expm1((age + 1) * log_ratio) / -gap
