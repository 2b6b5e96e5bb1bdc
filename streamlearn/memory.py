"""The memory of a growing layer: fixed-size blocks of (weight, key, weighted value) tuples.

A block is the unit of everything: of computing (one pair of GEMMs), of storing (one shard) and of
caching. Rows are added at the end, and may be rewritten or dropped in their place; where the blocks
live is `blocklist`'s concern.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.bits import from_bits, to_bits
from streamlearn.blocklist import BlockList
from streamlearn.blocks import (
    DEAD,
    KEY_SCALE,
    PRIOR,
    ROW_MULTIPLE,
    SAMPLE,
    SAMPLE_NOTE,
    THUMBNAIL,
    UNKNOWN,
    Block,
    BlockStore,
    Column,
    Columns,
    Layout,
    accumulation_dtype,
    block_rows_for,
    square_norms,
)
from streamlearn.decay import decay_coefficients
from streamlearn.errors import FormatError, NotFiniteError, ShapeError, StreamlearnError
from streamlearn.journal import BlockSnapshot, MemorySnapshot, Patch
from streamlearn.quantise import dequantised, quantised
from streamlearn.tiers import Tiers

__all__ = [
    "DEAD",
    "KEY_SCALE",
    "PRIOR",
    "SAMPLE",
    "SAMPLE_NOTE",
    "UNKNOWN",
    "Block",
    "BlockSnapshot",
    "BlockStore",
    "Checked",
    "Column",
    "Columns",
    "KeysName",
    "Memory",
    "MemorySnapshot",
    "Tuples",
    "accumulation_dtype",
    "decay_coefficients",
]

KeysName = Literal["plain", "int8"]
"""How keys are kept: in the memory's dtype, or as a byte a number with a scale a row."""

_TENSORS = {
    "key": ("key", "key_square"),
    "weight": ("weight", "side"),
    "value": ("side",),
    "born": ("born",),
}
"""Which tensors of a block a column is kept in; a note in that of its name."""


class Tuples(NamedTuple):
    """Tuples to be stored: key (n, D), weight (n,), weighted value ṽ = w·v (n, C)."""

    key: Tensor
    weight: Tensor
    value: Tensor


class Checked(NamedTuple):
    """Tuples that a memory can store.

    key: (n, D), what the memory's keys will be, in `Layout.exact_keys`. weight (n,), value (n, C),
    key_square (n,) ‖k‖²: in its accumulation dtype. largest: of the latter, 0 if there are none.
    notes: by name.
    """

    key: Tensor
    weight: Tensor
    value: Tensor
    key_square: Tensor
    largest: float
    notes: Mapping[str, Tensor] = {}

    def part(self, start: int, stop: int) -> "Checked":
        """Those from `start` to before `stop`."""
        rows = slice(start, stop)
        if (start, stop) == (0, len(self.key)):
            return self
        return Checked(
            self.key[rows],
            self.weight[rows],
            self.value[rows],
            self.key_square[rows],
            self.largest,
            {name: note[rows] for name, note in self.notes.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence["Checked"]) -> "Checked":
        """Several one behind the other, of one memory, with the same notes."""
        if len(parts) == 1:
            return parts[0]
        key, weight, value, square, largest, notes = zip(*parts, strict=True)
        return cls(
            torch.cat(key),
            torch.cat(weight),
            torch.cat(value),
            torch.cat(square),
            max(largest),
            {name: torch.cat([note[name] for note in notes]) for name in notes[0]},
        )


class Memory(BlockList):
    """Blocks of tuples; rows are added at the end, and may be rewritten or dropped in their place.

    Args:
        key_width: D.
        value_width: C.
        dtype: of keys and values; weights are kept in float32 (float64 for a float64 memory).
        device: where blocks live.
        block_rows: tuples in a block, a multiple of 512; see `block_rows_for` if not given.
        tiers: the budgets that this memory shares with others; None sets no limits.
        notes: columns that are kept beside each tuple, by name, and that no retrieval looks at.
        keys: "int8" keeps keys as in `quantise`, at a quarter to a half of the bytes, and computes
            with what they stand for, rounded to `dtype`.

    Attributes:
        rewrites: how often rows were changed in their place.
    """

    def __init__(
        self,
        key_width: int,
        value_width: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_rows: int | None = None,
        tiers: Tiers | None = None,
        notes: Mapping[str, Column] | None = None,
        keys: KeysName = "plain",
    ) -> None:
        short = keys == "int8"
        if block_rows is None:
            block_rows = block_rows_for(key_width, value_width, dtype, quantised=short)
        if block_rows < ROW_MULTIPLE or block_rows % ROW_MULTIPLE:
            raise ShapeError(
                f"memory.block_rows={block_rows} must be a positive multiple of {ROW_MULTIPLE}"
            )
        layout = Layout(
            block_rows, key_width, value_width, dtype, tuple((notes or {}).items()), short
        )
        super().__init__(layout, torch.device(device), tiers)
        self.key_width = key_width
        self.value_width = value_width
        self.side_width = layout.side_width
        self.dtype = dtype
        self.keys: KeysName = keys
        self.block_rows = block_rows
        self.rewrites = 0

    @property
    def identified(self) -> bool:
        """Whether each tuple says which sample it is of, in the note `SAMPLE`."""
        return any(name == SAMPLE for name, _ in self.layout.notes)

    def append(self, tuples: Tuples, born: int, notes: Mapping[str, Tensor] | None = None) -> None:
        """Store tuples at the end, all born at the same step.

        Args:
            tuples: key (n, D), weight (n,), value (n, C); rounded to what the memory keeps.
            born: the step that wrote them, or `PRIOR`.
            notes: by column, (n, …); zeros where they are left out.

        Raises:
            ShapeError, NotFiniteError, StorageError, ConfigError: as `check` does; nothing was
                stored.
        """
        self.append_checked(self.check(tuples, born, notes), born)

    def append_checked(self, checked: Checked, born: int) -> None:
        """Store what `check` gave, all born at the same step."""
        columns = checked._asdict()
        columns |= columns.pop("notes")
        self._append(columns, born, columns.pop("largest"))

    def check(
        self, tuples: Tuples, born: int, notes: Mapping[str, Tensor] | None = None
    ) -> Checked:
        """Whether tuples may be stored, so that several memories can be written all or none.

        Returns:
            The tuples as they will be stored, for `append_checked`.

        Raises:
            ShapeError: a width that differs from the memory's.
            NotFiniteError: a NaN or infinity, once rounded to the memory's dtype, or a key whose
                square is none: it would spoil every later retrieval.
            FormatError, StorageError, ConfigError: a budget cannot be kept, see `Tiers.settle`, or
                the store refuses rows that were rewritten.
        """
        self.tiers.settle()
        self._fold()
        key, weight, value = tuples
        count = key.shape[0]
        expected = ((count, self.key_width), (count,), (count, self.value_width))
        if (key.shape, weight.shape, value.shape) != expected:
            raise ShapeError(
                f"tuples have shapes {tuple(key.shape)}, {tuple(weight.shape)} and "
                f"{tuple(value.shape)} but this memory stores {expected}; "
                "give the layer the widths that it was built with"
            )
        wide = self.layout.wide
        if self.layout.quantised:
            rounded = self._numbers(*quantised(key.detach().to(self.device)))
        else:
            rounded = key.detach().to(self.device, self.dtype)
        square = square_norms(rounded.to(self.dtype).to(wide))  # (n,)
        given = weight.detach().to(self.device, wide), value.detach().to(self.device, wide)
        largest = float(square.numpy().max() if square.is_cpu else square.max()) if count else 0.0
        if not (math.isfinite(largest) and self._storable(*given)):
            raise NotFiniteError(
                f"step {born} would store a NaN or infinity in the memory; lower the learning "
                "rates (layer.lr_value, layer.lr_weight) or look for such numbers in the data"
            )
        return Checked(rounded, *given, square, largest, self._noted(notes or {}, count))

    def _numbers(self, codes: Tensor, scale: Tensor) -> Tensor:
        """What int8 keys stand for, exactly, (n, D)."""
        out = torch.empty(codes.shape, dtype=self.layout.exact_keys, device=codes.device)
        return dequantised(codes, scale, out)

    def _kept(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Columns as blocks have them: keys in codes and scales, where they are int8."""
        kept = dict(columns)
        if self.layout.quantised and "key" in kept and kept["key"].is_floating_point():
            kept["key"], kept[KEY_SCALE] = quantised(kept["key"])
        return kept

    def _noted(self, notes: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
        """Notes in their columns' dtypes."""
        columns = dict(self.layout.notes)
        for name, tensor in notes.items():
            expected = columns[name].shape(count) if name in columns else None
            if tensor.shape != expected:
                raise ShapeError(
                    f"note {name!r} has shape {tuple(tensor.shape)} where {count} rows of this "
                    f"memory need {expected}; it has {', '.join(columns) or 'no notes'}"
                )
        return {
            name: tensor.detach().to(self.device, self.layout.dtype_of(name))
            for name, tensor in notes.items()
        }

    def _storable(self, weight: Tensor, value: Tensor) -> bool:
        """Whether all of these numbers are finite, once rounded to the memory's dtype."""
        if weight.is_cpu:  # numpy takes a third of the time for so few numbers
            parts = weight.numpy(), value.numpy().reshape(-1)
            # Their squares overflow first, in the square root of what the dtype can hold.
            with np.errstate(over="ignore", invalid="ignore"):
                if math.isfinite(sum(float(np.dot(part, part)) for part in parts)):
                    return True
        # A sum is NaN or infinite as soon as one term is: one small reduction instead of a mask.
        sums = (part.to(self.dtype).sum(dtype=self.layout.wide) for part in (weight, value))
        return math.isfinite(float(sum(sums)))

    def _finite(self, columns: Mapping[str, Tensor]) -> bool:
        """Whether all numbers are, once rounded to the memory's dtype, and the squares of keys."""
        # A sum is NaN or infinite as soon as one term is: one small reduction instead of a mask.
        total = torch.zeros((), dtype=self.layout.wide, device=self.device)
        for name, column in columns.items():
            rounded = column.detach().to(self.device, self.dtype).to(self.layout.wide)
            total = total + (rounded.square().sum() if name == "key" else rounded.sum())
        return bool(torch.isfinite(total))

    def _append(
        self, columns: Mapping[str, Tensor], born: int | Tensor, largest: float | None = None
    ) -> None:
        count, start = columns["key"].shape[0], 0
        columns = self._kept(columns)
        while start < count:
            slot = self._tail()
            block = self._filling(slot)
            stop = min(start + self.block_rows - block.count, count)
            rows = slice(block.count, block.count + stop - start)
            part: dict[str, Tensor | int] = dict(columns)
            part["born"] = born
            if stop - start < count:
                part = {
                    name: column if isinstance(column, int) else column[start:stop]
                    for name, column in part.items()
                }
            block.write(self.layout, rows, part)
            self._journal.grew(len(self.slots) - 1, rows.start)
            slot.count = block.count = self._account.tail = rows.stop
            self.live += stop - start
            found = float(block.key_square[rows].max()) if largest is None else largest
            self.max_key_square = max(self.max_key_square, found)
            start = stop
            if slot.count == self.block_rows:
                self._account.tail = 0
                self.tiers.admit(self._account, len(self.slots) - 1, present=True)
                # A store that refuses takes nothing back: `check` raises it before the next rows.
                with contextlib.suppress(StreamlearnError):
                    self.tiers.settle()

    def load_columns(self, columns: Columns) -> None:
        """Append rows exactly as `host_columns` gave them.

        A bfloat16 column may also come as the float32 that it equals, and int8 keys as numbers.

        Raises:
            FormatError: a column is missing or has another width, or keys are of another kind.
        """
        described = self.columns()
        count = len(columns["key"]) if "key" in columns else 0
        whole = "key" in columns and columns["key"].dtype == np.int8
        if whole and not self.layout.quantised:
            raise FormatError(
                "the stored keys are int8 and this memory's are not; build it with memory.keys=int8"
            )
        if self.layout.quantised and not whole:
            del described[KEY_SCALE]
        for name, column in described.items():
            shape = (count,) if column.width is None else (count, column.width)
            found = columns[name].shape if name in columns else None
            if found != shape:
                raise FormatError(
                    f"column {name!r} has shape {found} where this memory needs {shape}; "
                    "the stored memory belongs to another layer or is damaged"
                )
        tensors = {
            name: from_bits(columns[name], self.layout.dtype_of(name)).to(self.device)
            for name in described
            if name != "key"
        }
        kept = self.layout.key_dtype if whole else self.layout.exact_keys
        tensors["key"] = from_bits(columns["key"], kept).to(self.device)
        born = tensors.pop("born")
        self._append(tensors, born)
        self.live -= int((columns["born"] == DEAD).sum())

    # -- changing rows in their place --------------------------------------------------------------

    def rewrite(
        self,
        rows: Tensor,
        *,
        key: Tensor | None = None,
        weight: Tensor | None = None,
        value: Tensor | None = None,
        born: int | Tensor | None = None,
        notes: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Change columns of rows in their place; a block that is not in memory is not read.

        Args:
            rows: (n,) int64 row numbers, each once.
            key: (n, D), rounded to the memory's dtype as the others.
            weight: (n,).
            value: (n, C).
            born: (n,) int64, or one step for all; at least `PRIOR`. Brings dropped rows back.
            notes: by column, (n, …).

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
        columns |= self._noted(notes or {}, count)
        dead = self._dead(chosen)
        if born is None and dead.any():
            raise ShapeError(
                f"row {chosen[dead][0]} was dropped; give born=… to bring it back, or leave it out"
            )
        self._put(chosen, columns)
        self.live += int(dead.sum())

    def overwrite(self, start: int, checked: Checked, born: int, *, dropped: int = 0) -> None:
        """Put what `check` gave in the place of rows, all born at the same step.

        Nothing can refuse any more what `check` and `dropped` have looked at.

        Args:
            start: the first of the rows, all of which are there.
            checked: the tuples; notes that are left out become zeros.
            born: the step that wrote them.
            dropped: how many of the rows were dropped, as the method says.

        Raises:
            ShapeError: a row that is not there; nothing was changed.
        """
        count = len(checked.key)
        if start < 0 or start + count > len(self):
            raise ShapeError(
                f"rows {start} to {start + count} are not all among the {len(self)} rows of this "
                "memory; append what is new"
            )
        columns = {
            "key": checked.key,
            "weight": checked.weight,
            "value": checked.value,
            "key_square": checked.key_square,
            "born": torch.full((count,), born, dtype=torch.int64, device=self.device),
        }
        for name, column in self.layout.notes:
            zeros = torch.zeros(column.shape(count), dtype=self.layout.dtype_of(name))
            columns[name] = checked.notes.get(name, zeros)
        columns = self._kept(columns)
        self.tiers.quiet()
        done = 0
        while done < count:
            index, first = divmod(start + done, self.block_rows)
            slot = self.slots[index]
            stop = min(first + count - done, slot.count)
            part = {n: column[done : done + stop - first] for n, column in columns.items()}
            self._overwrite(index, slice(first, stop), part)
            self._journal.rewrote(index, self.names, first, slot.count)
            done += stop - first
        self.rewrites += 1
        self.live += dropped
        self.max_key_square = max(self.max_key_square, checked.largest)
        with contextlib.suppress(StreamlearnError):  # as in `_append`
            self.tiers.settle()

    def _overwrite(self, index: int, rows: slice, columns: Mapping[str, Tensor]) -> None:
        """All columns of some rows of one block."""
        slot = self.slots[index]
        if slot.block is None:
            bits = {
                name: to_bits(column.to("cpu", self.layout.dtype_of(name)))
                for name, column in columns.items()
                if name in self.names
            }
            local = np.arange(rows.start, rows.stop, dtype=np.int64)
            self._set_patch(index, Patch.over(slot.patch, local, bits))
            return
        self._unshare(index, slot.block, self.names)
        where = slot.block.key.device
        slot.block.write(self.layout, rows, {n: column.to(where) for n, column in columns.items()})

    def dropped(self, start: int, stop: int) -> int:
        """How many of the rows from `start` to before `stop` were dropped.

        Raises:
            ShapeError: a row that is not there.
            FormatError, StorageError: the store cannot say.
        """
        if self.live == len(self) or start >= stop:
            return 0
        return int(self._dead(np.arange(start, stop, dtype=np.int64)).sum())

    def drop(self, rows: Tensor) -> None:
        """Let rows contribute exactly nothing from now on: all but notes zero, born `DEAD`.

        A thumbnail is zero then too.

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
        pictures = {
            name: torch.zeros(column.shape(shape), dtype=torch.uint8, device=self.device)
            for name, column in self.layout.notes
            if name == THUMBNAIL
        }
        self._put(
            chosen,
            {
                "key": zeros[:, None].expand(shape, self.key_width),
                "weight": zeros,
                "value": zeros[:, None].expand(shape, self.value_width),
                "born": torch.full((shape,), DEAD, dtype=torch.int64, device=self.device),
                **pictures,
            },
        )
        self.live -= shape

    def _put(self, rows: NDArray[np.int64], columns: Mapping[str, Tensor]) -> None:
        """Write columns, (n, …) on the device, into rows that are all there."""
        self._fold()
        rounded = {
            name: column if name == "born" else column.to(self.layout.dtype_of(name))
            for name, column in self._kept(columns).items()
        }
        if "key" in rounded:  # the same number wherever the rows are
            key = rounded["key"]
            if self.layout.quantised:
                key = self._numbers(key, rounded[KEY_SCALE]).to(self.dtype)
            largest = square_norms(key.to(self.layout.wide)).max()
            self.max_key_square = max(self.max_key_square, float(largest))
        names = frozenset(rounded)
        self.tiers.quiet()
        for index, local, places in self._by_block(rows):
            slot = self.slots[index]
            part = {name: column[torch.from_numpy(places)] for name, column in rounded.items()}
            if slot.block is None:
                bits = {name: to_bits(column) for name, column in part.items()}
                self._set_patch(index, Patch.over(slot.patch, local, bits))
            else:
                self._unshare(index, slot.block, names)
                where = slot.block.key.device
                there = torch.from_numpy(local).to(where)
                slot.block.write(
                    self.layout, there, {name: column.to(where) for name, column in part.items()}
                )
            self._journal.rewrote(index, names, int(local[0]), slot.count)
        self.rewrites += 1
        with contextlib.suppress(StreamlearnError):  # as in `_append`
            self.tiers.settle()

    def _unshare(self, index: int, block: Block, names: Collection[str]) -> None:
        """Give a block tensors of its own where snapshots hold those that are to change."""
        for snapshot in self._journal.snapshots(index):
            for name in {tensor for column in names for tensor in _TENSORS.get(column, (column,))}:
                if snapshot.holds(name, block):
                    block.replace(name, block.tensors()[name].clone())

    def gather(self, rows: Tensor, columns: Collection[str] | None = None) -> dict[str, Tensor]:
        """Columns of some rows, wherever they live, on the memory's device.

        int8 keys come as the numbers that they stand for, exactly, in `Layout.exact_keys`.

        Args:
            rows: (n,) int64 row numbers, in any order, also repeated.
            columns: names among key, weight, value, born and notes; None for all.

        Raises:
            ShapeError: a row or column that is not there.
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        known = self.layout.columns()
        given = [name for name in known if name != KEY_SCALE]
        columns = tuple(given) if columns is None else columns
        unknown = next((name for name in columns if name not in given), None)
        if unknown is not None:
            raise ShapeError(f"{unknown!r} is no column; choose of {', '.join(given)}")
        if self.layout.quantised and "key" in columns:
            columns = (*columns, KEY_SCALE)
        chosen = self._rows(rows, unique=False)
        result = {
            name: torch.empty(
                column.shape(len(chosen)),
                dtype=self.layout.dtype_of(name),
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
                tensor = from_bits(array[local], self.layout.dtype_of(name))
                result[name][there] = tensor.to(self.device)
        if KEY_SCALE in result:
            result["key"] = self._numbers(result["key"], result.pop(KEY_SCALE))
        return result

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
        if not len(rows):
            return
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

    def coefficients(self, block: Block, step: int, momentum: float, decay: float) -> Tensor:
        """How much each row of a block counts `step − born` steps after its birth, c(n), (rows,).

        See `decay_coefficients`. The rows that a memory starts with (`PRIOR`) count 1 for ever.
        """
        born = block.born[: block.padded]
        age = (step - born).clamp_min(0).to(torch.float64)
        coefficient = decay_coefficients(age, momentum, decay)
        coefficient = torch.where(born == PRIOR, torch.ones_like(coefficient), coefficient)
        return coefficient.to(block.weight.dtype)

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
                "notes": dict(layout.notes),
                "keys": self.keys,
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
