"""The memory of a growing layer: fixed-size blocks of (weight, key, weighted value) tuples.

A block is the unit of everything: of computing (one pair of GEMMs), of storing (one shard) and of
caching. Blocks are filled in order and never change their place, so retrieval, a sum over blocks in
block order, gives the same bits wherever a block lives.

Inside a block the weighted value and the weight stand side by side in one matrix, `[ṽ | w | 0]`,
padded to a multiple of 16 columns: numerator and denominator of a retrieval come from one GEMM.
Rows that are not filled yet are zero, and a zero row contributes exactly nothing.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import FormatError, NotFiniteError, ShapeError

__all__ = ["PRIOR", "Block", "Columns", "Memory", "Tuples"]

PRIOR = -1
"""The birth step of the rows a memory starts with; they belong to no step and never decay."""

_COLUMN_MULTIPLE = 16
_ROW_MULTIPLE = 512

Columns = Mapping[str, NDArray[np.generic]]
"""Rows on the host, by column name: key (n, D), weight (n,), value (n, C), born (n,)."""


class Tuples(NamedTuple):
    """Tuples to be stored: key (n, D), weight (n,), weighted value ṽ = w·v (n, C)."""

    key: Tensor
    weight: Tensor
    value: Tensor


class Block:
    """Room for `rows` tuples, of which the first `count` are filled.

    key: (rows, D) in the memory's dtype. side: (rows, W) in the same dtype, `[ṽ | w | 0]`.
    weight: (rows,) in the accumulation dtype, what the rounded column of `side` was made from.
    born: (rows,) int64. key_square: (rows,) `‖k‖²` of the stored key, in the accumulation dtype.
    """

    __slots__ = ("born", "count", "key", "key_square", "revision", "side", "weight")

    def __init__(
        self, rows: int, key_width: int, side_width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        wide = accumulation_dtype(dtype)
        self.key = torch.zeros(rows, key_width, dtype=dtype, device=device)
        self.side = torch.zeros(rows, side_width, dtype=dtype, device=device)
        self.weight = torch.zeros(rows, dtype=wide, device=device)
        self.key_square = torch.zeros(rows, dtype=wide, device=device)
        self.born = torch.full((rows,), PRIOR, dtype=torch.int64, device=device)
        self.count = 0
        self.revision = 0

    def to(self, device: torch.device) -> None:
        """Move every column to a device."""
        for name in ("born", "key", "key_square", "side", "weight"):
            setattr(self, name, getattr(self, name).to(device))

    @property
    def padded(self) -> int:
        """The rows to compute over: `count` rounded up, so that GEMMs meet only a few shapes."""
        return min(-(-self.count // _ROW_MULTIPLE) * _ROW_MULTIPLE, len(self.key))


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums over tuples are kept: float32, or float64 for a float64 memory."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class Memory:
    """A list of blocks of tuples that only ever grows at its end.

    Args:
        key_width: D.
        value_width: C.
        dtype: of keys and values; weights are kept in float32 (float64 for a float64 memory).
        device: where blocks live.
        block_rows: tuples in a block, a multiple of 512.
    """

    def __init__(
        self,
        key_width: int,
        value_width: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        block_rows: int = 4096,
    ) -> None:
        if block_rows < _ROW_MULTIPLE or block_rows % _ROW_MULTIPLE:
            raise ShapeError(
                f"memory.block_rows={block_rows} must be a positive multiple of {_ROW_MULTIPLE}"
            )
        self.key_width = key_width
        self.value_width = value_width
        self.side_width = -(-(value_width + 1) // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE
        self.dtype = dtype
        self.device = torch.device(device)
        self.block_rows = block_rows
        self.blocks: list[Block] = []
        self.max_key_square = 0.0

    def __len__(self) -> int:
        if not self.blocks:
            return 0
        return (len(self.blocks) - 1) * self.block_rows + self.blocks[-1].count

    @property
    def row_bytes(self) -> int:
        """What one tuple takes: key and weighted value in `dtype`, weight and birth step."""
        wide = accumulation_dtype(self.dtype).itemsize
        return (self.key_width + self.value_width) * self.dtype.itemsize + wide + 8

    @property
    def nbytes(self) -> int:
        """What the stored tuples take, `len(self) * row_bytes`."""
        return len(self) * self.row_bytes

    def append(self, tuples: Tuples, born: int) -> None:
        """Store tuples at the end, all born at the same step.

        Args:
            tuples: key (n, D), weight (n,), value (n, C); rounded to the memory's dtype.
            born: the step that wrote them, or `PRIOR`.

        Raises:
            ShapeError, NotFiniteError: as `check` does; nothing was stored.
        """
        self.check(tuples, born)
        key, weight, value = (column.detach() for column in tuples)
        count = len(key)
        start = 0
        while start < count:
            block = self._tail()
            stop = min(start + self.block_rows - block.count, count)
            self._fill(block, Tuples(key[start:stop], weight[start:stop], value[start:stop]), born)
            start = stop

    def check(self, tuples: Tuples, born: int) -> None:
        """Whether tuples may be stored, so that several memories can be written all or none.

        Raises:
            ShapeError: a width that differs from the memory's.
            NotFiniteError: a NaN or infinity, once rounded to the memory's dtype, or a key whose
                square is none: it would spoil every later retrieval.
        """
        key, weight, value = tuples
        count = len(key)
        expected = ((count, self.key_width), (count,), (count, self.value_width))
        if (key.shape, weight.shape, value.shape) != expected:
            raise ShapeError(
                f"tuples have shapes {tuple(key.shape)}, {tuple(weight.shape)} and "
                f"{tuple(value.shape)} but this memory stores {expected}; "
                "give the layer the widths that it was built with"
            )
        # A sum is NaN or infinite as soon as one term is: one small reduction instead of a mask.
        wide = accumulation_dtype(self.dtype)
        square = key.detach().to(self.dtype).to(wide).square().sum()
        rest = value.detach().to(self.dtype).to(wide).sum() + weight.detach().to(self.dtype).sum()
        if not bool(torch.isfinite(square + rest)):
            raise NotFiniteError(
                f"step {born} would store a NaN or infinity in the memory; lower the learning "
                "rates (layer.lr_value, layer.lr_weight) or look for such numbers in the data"
            )

    def to(self, device: torch.device) -> None:
        """Move every block to a device."""
        if device == self.device:
            return
        self.device = device
        for block in self.blocks:
            block.to(device)

    def clear(self) -> None:
        """Drop every tuple, the starting rows too."""
        self.blocks.clear()
        self.max_key_square = 0.0

    def _tail(self) -> Block:
        if not self.blocks or self.blocks[-1].count == self.block_rows:
            self.blocks.append(
                Block(self.block_rows, self.key_width, self.side_width, self.dtype, self.device)
            )
        return self.blocks[-1]

    def _fill(self, block: Block, tuples: Tuples, born: int | Tensor) -> None:
        rows = slice(block.count, block.count + len(tuples.key))
        block.key[rows] = tuples.key.to(self.dtype)
        block.side[rows, : self.value_width] = tuples.value.to(self.dtype)
        block.side[rows, self.value_width] = tuples.weight.to(self.dtype)
        block.weight[rows] = tuples.weight.to(block.weight.dtype)
        block.born[rows] = born
        square = _square_norms(block.key[rows].to(block.key_square.dtype))  # (n,)
        block.key_square[rows] = square
        block.count = rows.stop
        block.revision += 1
        self.max_key_square = max(self.max_key_square, float(square.max()))

    def coefficients(self, block: Block, step: int, momentum: float, decay: float) -> Tensor:
        """How much each row of a block counts `step − born` steps after its birth, c(n), (rows,).

        See `decay_coefficients`. The rows that a memory starts with (`PRIOR`) count 1 for ever.
        """
        born = block.born[: block.padded]
        age = (step - born).clamp_min(0).to(torch.float64)
        coefficient = decay_coefficients(age, momentum, decay)
        coefficient = torch.where(born == PRIOR, torch.ones_like(coefficient), coefficient)
        return coefficient.to(block.weight.dtype)

    # -- what storage asks for -------------------------------------------------------------------

    def column_widths(self) -> dict[str, int | None]:
        """The columns in their canonical order, with the width of each (None: one number a row)."""
        return {"key": self.key_width, "weight": None, "value": self.value_width, "born": None}

    def host_columns(self, index: int) -> Columns:
        """The filled rows of a block on the host; bfloat16 comes as the float32 that it equals."""
        block = self.blocks[index]
        rows = slice(0, block.count)
        return {
            "key": _to_numpy(block.key[rows]),
            "weight": _to_numpy(block.weight[rows]),
            "value": _to_numpy(block.side[rows, : self.value_width]),
            "born": _to_numpy(block.born[rows]),
        }

    def host_blocks(self) -> Iterator[Columns]:
        """The filled rows of every block on the host, in block order."""
        for index in range(len(self.blocks)):
            yield self.host_columns(index)

    def load_columns(self, columns: Columns) -> None:
        """Append rows exactly as `host_columns` gave them.

        Raises:
            FormatError: a column is missing or has another width.
        """
        widths = self.column_widths()
        count = len(columns["key"]) if "key" in columns else 0
        for name, width in widths.items():
            shape = (count,) if width is None else (count, width)
            found = columns[name].shape if name in columns else None
            if found != shape:
                raise FormatError(
                    f"column {name!r} has shape {found} where this memory needs {shape}; "
                    "the stored memory belongs to another layer or is damaged"
                )
        key, weight, value, born = (
            torch.from_numpy(np.require(columns[name], requirements=["C", "W"])).to(self.device)
            for name in widths
        )
        start = 0
        while start < count:
            block = self._tail()
            stop = min(start + self.block_rows - block.count, count)
            rows = slice(start, stop)
            self._fill(block, Tuples(key[rows], weight[rows], value[rows]), born[rows])
            start = stop


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


def _square_norms(rows: Tensor) -> Tensor:
    """‖k‖² of each row, the same bits however many rows come together.

    PyTorch splits a sum over threads when it has a single result, so a lone row gets company.
    """
    squares = rows.square()
    return squares.sum(-1) if len(rows) > 1 else squares.repeat(2, 1).sum(-1)[:1]


def _to_numpy(tensor: Tensor) -> NDArray[np.generic]:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.to(torch.float32)
    return np.ascontiguousarray(tensor.detach().cpu().numpy())
