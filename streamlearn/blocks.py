"""A block: room for a fixed number of tuples, the unit of computing, of storing and of caching.

The weighted value and the weight stand side by side in one matrix, `[ṽ | w | 0]`, padded to a
multiple of 16 columns: numerator and denominator of a retrieval come from one GEMM. Rows that are
not filled yet are zero, and a zero row contributes exactly nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn import pages
from streamlearn.bits import dtype_named, name_of, to_bits
from streamlearn.quantise import dequantised

__all__ = [
    "COLUMNS",
    "DEAD",
    "KEY_SCALE",
    "LABEL",
    "PRIOR",
    "SAMPLE",
    "SAMPLE_NOTE",
    "THUMBNAIL",
    "UNKNOWN",
    "Block",
    "BlockStore",
    "Column",
    "Columns",
    "Layout",
    "accumulation_dtype",
    "block_rows_for",
    "pinned_size",
    "square_norms",
]

PRIOR = -1
"""The birth step of the rows a memory starts with; they belong to no step and never decay."""

DEAD = -2
"""The birth step of rows that were dropped: all else in them is zero."""

SAMPLE = "sample"
"""The note that says which sample of the stream a tuple was written for."""

LABEL = "label"
"""The note of that sample's label, where thumbnails are kept, see `thumbnails`."""

THUMBNAIL = "thumbnail"
"""The note of its thumbnail; rows that are dropped lose it, and no scan reads it."""

UNKNOWN = -1
"""What stands there for rows of no sample, and for samples that nobody has named."""

KEY_SCALE = "key_scale"
"""The column that goes with int8 keys: what a row's codes are multiplied by, see `quantise`."""

ROW_MULTIPLE = 512
TILE_ROWS = 4096
"""Rows that are computed with at a time: scores of a batch that fit a cache."""

SINGLE_ROWS = 32768
"""The same for a single query, whose scores are few: calls would cost more than what they do."""

_BLOCK_BYTES = 8 << 20
_MOST_ROWS = 1 << 16
_COLUMN_MULTIPLE = 16
_OWN = ("key", "side", "weight", "key_square", "born")

COLUMNS = ("key", "weight", "value", "born")
"""What a tuple consists of, in the order in which columns are always given; notes follow."""

Columns = Mapping[str, NDArray[np.generic]]
"""Rows on the host, by column name: key (n, D), weight (n,), value (n, C), born (n,), and notes.

bfloat16 numbers are given as their bits in uint16, see `bits`.
"""


class Column(NamedTuple):
    """What a column holds.

    width: numbers in a row; None is one number a row, without a second dimension.
    dtype: "float32", "float64", "int8", "uint8", "int64", or "bfloat16" for its bits in uint16.
    """

    width: int | None
    dtype: str

    @property
    def array_dtype(self) -> np.dtype[np.generic]:
        """The dtype of arrays that hold this column."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    def empty(self, rows: int) -> NDArray[np.generic]:
        """An array of that many rows with whatever it holds."""
        return np.empty(self.shape(rows), self.array_dtype)

    def shape(self, rows: int) -> tuple[int, ...]:
        """Of that many rows."""
        return (rows,) if self.width is None else (rows, self.width)

    @property
    def row_bytes(self) -> int:
        """What a row of it takes."""
        return (1 if self.width is None else self.width) * self.array_dtype.itemsize


SAMPLE_NOTE: Mapping[str, Column] = {SAMPLE: Column(None, "int64")}
"""That note as a column, 8 bytes a tuple."""


class BlockStore(Protocol):
    """Who keeps the blocks that have no room in memory."""

    def read(self, index: int, out: Mapping[str, NDArray[np.generic]]) -> None:
        """Fill arrays with the first rows of a block as it was last written or committed.

        Called from any thread, several at once.

        Args:
            index: of the block.
            out: by column name, C-contiguous, in the columns' dtypes; as many rows as are wanted.

        Raises:
            FormatError: the block is damaged or missing; names the file.
            StorageError: the system refused.
        """

    def write(
        self, index: int, columns: Columns, names: frozenset[str], *, rewritten: frozenset[str]
    ) -> None:
        """Keep a full block; after this returned, `read` gives it back.

        Args:
            index: of the block.
            columns: all of its rows, at least the columns of `names`.
            names: the columns that changed since it was last written; all for a block that grew.
            rewritten: those in which rows that were there before changed.

        Raises:
            StorageError: the system refused; what was written before is as it was.
        """


class Layout(NamedTuple):
    """The shape of a memory's blocks: rows of a block, D, C, and the dtype of keys and values.

    notes: columns that are kept beside each tuple and that no retrieval looks at, by name.
    quantised: whether keys are int8 with a scale a row; they are computed with in `dtype`.
    """

    rows: int
    key_width: int
    value_width: int
    dtype: torch.dtype
    notes: tuple[tuple[str, Column], ...] = ()
    quantised: bool = False

    @property
    def key_dtype(self) -> torch.dtype:
        """The dtype that keys are kept in."""
        return torch.int8 if self.quantised else self.dtype

    @property
    def exact_keys(self) -> torch.dtype:
        """A dtype in which keys are exactly what is kept."""
        return self.wide if self.quantised else self.dtype

    @property
    def beside(self) -> tuple[tuple[str, Column], ...]:
        """What a block has a tensor of that name for: the scales of int8 keys, and notes."""
        scale = ((KEY_SCALE, Column(None, "float32")),) if self.quantised else ()
        return (*scale, *self.notes)

    @property
    def side_width(self) -> int:
        """W, the columns of `[ṽ | w | 0]`."""
        return -(-(self.value_width + 1) // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE

    @property
    def wide(self) -> torch.dtype:
        """The dtype of weights and of everything that is summed."""
        return accumulation_dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        """What one tuple takes: key, weighted value in `dtype`, weight, birth step, notes."""
        value = self.value_width * self.dtype.itemsize
        notes = sum(column.row_bytes for _, column in self.notes)
        return self.key_bytes + value + self.wide.itemsize + 8 + notes

    @property
    def key_bytes(self) -> int:
        """What the key of one tuple takes, with its scale if it has one."""
        return self.key_width * self.key_dtype.itemsize + 4 * self.quantised

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        """What each tensor of a block takes."""
        key = self.key_width * self.key_dtype.itemsize
        narrow, wide = self.dtype.itemsize, self.wide.itemsize
        notes = (column.row_bytes for _, column in self.beside)
        row = (key, self.side_width * narrow, wide, wide, 8, *notes)
        return tuple(self.rows * size for size in row)

    @property
    def block_bytes(self) -> int:
        """What the tensors of one block take."""
        return sum(self.tensor_bytes)

    @property
    def pinned_bytes(self) -> int:
        """The same in pinned host memory, see `pinned_size`."""
        return sum(pinned_size(size) for size in self.tensor_bytes)

    def columns(self) -> dict[str, Column]:
        """The columns in their canonical order."""
        narrow, wide = name_of(self.dtype), name_of(self.wide)
        return {
            "key": Column(self.key_width, name_of(self.key_dtype)),
            "weight": Column(None, wide),
            "value": Column(self.value_width, narrow),
            "born": Column(None, "int64"),
            **dict(self.beside),
        }

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype of a column in memory."""
        if name in ("key", "value"):
            return self.key_dtype if name == "key" else self.dtype
        return dtype_named(self.columns()[name].dtype)


class Block:
    """Room for `layout.rows` tuples, of which the first `count` are filled.

    key: (rows, D) in the memory's dtype, or int8. side: (rows, W) in the same dtype, `[ṽ | w | 0]`.
    weight: (rows,) in the accumulation dtype, what the rounded column of `side` was made from.
    born: (rows,) int64. key_square: (rows,) `‖k‖²` of the stored key, in the accumulation dtype.
    notes: the layout's, by name, (rows,) or (rows, width); with int8 keys, `KEY_SCALE` too.
    """

    __slots__ = ("born", "count", "key", "key_square", "notes", "side", "weight")

    def __init__(
        self,
        *,
        key: Tensor,
        side: Tensor,
        weight: Tensor,
        key_square: Tensor,
        born: Tensor,
        notes: Mapping[str, Tensor] | None = None,
        count: int = 0,
    ) -> None:
        self.key = key
        self.side = side
        self.weight = weight
        self.key_square = key_square
        self.born = born
        self.count = count
        self.notes = dict(notes or {})

    @classmethod
    @torch.inference_mode(False)  # or rows could not be written outside inference mode later
    def empty(cls, layout: Layout, device: torch.device, *, pinned: bool = False) -> Self:
        """A block without rows: zeros.

        Args:
            layout: of the memory.
            device: where it is to live.
            pinned: in host memory that a device can copy from while the host goes on.
        """

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            if device.type == "cpu" and not pinned:
                return pages.zeros(shape, dtype)
            return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned)

        rows = layout.rows
        notes = {
            name: zeros(*column.shape(rows), dtype=layout.dtype_of(name))
            for name, column in layout.beside
        }
        return cls(
            key=zeros(rows, layout.key_width, dtype=layout.key_dtype),
            side=zeros(rows, layout.side_width, dtype=layout.dtype),
            weight=zeros(rows, dtype=layout.wide),
            key_square=zeros(rows, dtype=layout.wide),
            born=zeros(rows, dtype=torch.int64).fill_(PRIOR),
            notes=notes,
        )

    def shared(self) -> "Block":
        """Another block of the same tensors: what is replaced in this one stays in that one."""
        return Block.of(self.tensors(), self.count)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], count: int) -> Self:
        """A block of all its tensors by their names, see `tensors`."""
        notes = {name: tensor for name, tensor in tensors.items() if name not in _OWN}
        return cls(
            key=tensors["key"],
            side=tensors["side"],
            weight=tensors["weight"],
            key_square=tensors["key_square"],
            born=tensors["born"],
            notes=notes,
            count=count,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its name."""
        return {
            "key": self.key,
            "side": self.side,
            "weight": self.weight,
            "key_square": self.key_square,
            "born": self.born,
            **self.notes,
        }

    def pinned(self, layout: Layout) -> "Block":
        """A copy in host memory that a device can copy from while the host goes on."""
        copy = Block.empty(layout, torch.device("cpu"), pinned=True)
        own = self.tensors()
        for name, tensor in copy.tensors().items():
            tensor.copy_(own[name])
        copy.count = self.count
        return copy

    def to(self, device: torch.device) -> None:
        """Move every tensor to a device."""
        for name, tensor in self.tensors().items():
            self.replace(name, tensor.to(device))

    def replace(self, name: str, tensor: Tensor) -> None:
        """Put another tensor in the place of one."""
        if name in self.notes:
            self.notes[name] = tensor
        else:
            setattr(self, name, tensor)

    @property
    def padded(self) -> int:
        """The rows to compute over: `count` rounded up, so that GEMMs meet only a few shapes."""
        return min(-(-self.count // ROW_MULTIPLE) * ROW_MULTIPLE, len(self.key))

    def tiles(self, size: int = TILE_ROWS) -> Iterator["Block"]:
        """The block in parts of so many rows, the last one with what is left."""
        if self.padded <= size:
            yield self
            return
        for start in range(0, self.count, size):
            rows = slice(start, start + size)
            parts = {name: tensor[rows] for name, tensor in self.tensors().items()}
            yield Block.of(parts, min(self.count - start, size))

    def numbers(self, layout: Layout, rows: slice | Tensor, out: Tensor | None = None) -> Tensor:
        """Keys of some rows as they are computed with, (n, D) in the layout's dtype.

        Args:
            layout: of the memory.
            rows: a slice, or indices on the block's device.
            out: where those of int8 keys are put.
        """
        key = self.key[rows]
        if not layout.quantised:
            return key
        if out is None:
            out = torch.empty(key.shape, dtype=layout.dtype, device=key.device)
        return dequantised(key, self.notes[KEY_SCALE][rows], out)

    def filled(self, layout: Layout, names: Collection[str] | None = None) -> dict[str, Tensor]:
        """The filled rows of columns, as views, in canonical order; of all if None."""
        tensors = {
            "key": self.key[: self.count],
            "weight": self.weight[: self.count],
            "value": self.side[: self.count, : layout.value_width],
            "born": self.born[: self.count],
            **{name: tensor[: self.count] for name, tensor in self.notes.items()},
        }
        return {name: tensor for name, tensor in tensors.items() if names is None or name in names}

    def host_columns(self, layout: Layout, names: Collection[str] | None = None) -> Columns:
        """The filled rows of columns as arrays of their bits; views where that can be."""
        return {name: to_bits(tensor) for name, tensor in self.filled(layout, names).items()}

    def write(
        self, layout: Layout, rows: slice | Tensor, columns: Mapping[str, Tensor | int]
    ) -> None:
        """Write columns of some rows, rounded to the block's dtypes; `key_square` goes with keys.

        int8 keys come as codes, and their scales in the column `KEY_SCALE`.

        Args:
            layout: of the memory.
            rows: a slice, or indices (n,) on the block's device.
            columns: key (n, D), weight (n,), value (n, C), born (n,) or one step for all, notes,
                and key_square (n,) if it is known.
        """
        if KEY_SCALE in columns:  # first, for what follows is made from both
            self.notes[KEY_SCALE][rows] = columns[KEY_SCALE]
        put = _put_in_numpy if isinstance(rows, slice) and self.key.is_cpu else _put
        for name, column in columns.items():
            if name == "key":
                self.key[rows] = column  # rounded on the way, in one pass
                if "key_square" not in columns:
                    self.key_square[rows] = square_norms(self.numbers(layout, rows).to(layout.wide))
            elif name == "value":
                self.side[rows, : layout.value_width] = column
            elif name == "weight" and isinstance(column, Tensor):
                wide = column.to(layout.wide)
                put(self.weight, rows, wide)
                # From what is kept, so that rows that are read back round to the same.
                rounded = wide if isinstance(rows, slice) else wide.to(layout.dtype)
                self.side[rows, layout.value_width] = rounded
            elif name != KEY_SCALE:
                put(self.notes[name] if name in self.notes else getattr(self, name), rows, column)


def _put(tensor: Tensor, rows: slice | Tensor, column: Tensor | int) -> None:
    tensor[rows] = column


def _put_in_numpy(tensor: Tensor, rows: slice | Tensor, column: Tensor | int) -> None:
    """The same for one number a row in host memory, where numpy takes a tenth of the time."""
    tensor.numpy()[rows] = column if isinstance(column, int) else column.numpy()


def block_rows_for(
    key_width: int, value_width: int, dtype: torch.dtype, *, quantised: bool = False
) -> int:
    """How many rows a block should have: so many that it is worth a file of its own.

    4096, where these take 8 MiB, and for narrower rows as many as do, by powers of two.
    """
    rows = TILE_ROWS
    layout = Layout(rows, key_width, value_width, dtype, quantised=quantised)
    while rows < _MOST_ROWS and layout._replace(rows=rows).block_bytes < _BLOCK_BYTES:
        rows *= 2
    return rows


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums over tuples are kept: float32, or float64 for a float64 memory."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def pinned_size(size: int) -> int:
    """What PyTorch takes of the host for a pinned tensor: it rounds up to a power of two."""
    return 1 << max(size - 1, 0).bit_length()


def square_norms(rows: Tensor) -> Tensor:
    """‖k‖² of each row, the same bits however many rows come together.

    PyTorch splits a sum over threads when it has a single result, so a lone row gets company.
    """
    squares = rows.square()
    return squares.sum(-1) if len(rows) > 1 else squares.repeat(2, 1).sum(-1)[:1]
