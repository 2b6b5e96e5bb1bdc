"""Buffers for blocks that pass: flat memory that takes the shape of a block of any memory.

A buffer has the shapes, strides and alignment of a block, so that what is computed from it has the
same bits.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.bits import to_bits
from streamlearn.blocks import KEY_SCALE, THUMBNAIL, Block, Layout
from streamlearn.journal import Patch
from streamlearn.slots import Source

__all__ = ["Buffer", "copy_rows", "page_bytes"]

_ALIGNMENT = 64


def page_bytes(layout: Layout, *, staging: bool) -> int:
    """What a buffer for a block takes; `staging` is room to read values into on the host."""
    return sum(size for _, size in _parts(layout, staging=staging).values())


def _parts(layout: Layout, *, staging: bool) -> dict[str, tuple[int, int]]:
    """By tensor: its width (0 is one number a row) and its bytes, rounded up to the alignment."""
    narrow, wide = layout.dtype.itemsize, layout.wide.itemsize
    widths = {
        "key": (layout.key_width, layout.key_dtype.itemsize),
        "side": (layout.side_width, narrow),
        "weight": (0, wide),
        "key_square": (0, wide),
        "born": (0, 8),
        **{name: (note.width or 0, note.array_dtype.itemsize) for name, note in layout.beside},
    }
    if staging:
        widths["value"] = (layout.value_width, narrow)
    return {
        name: (width, -(-layout.rows * max(width, 1) * size // _ALIGNMENT) * _ALIGNMENT)
        for name, (width, size) in widths.items()
    }


class Buffer:
    """One piece of memory that takes the shape of a full block of any memory.

    Args:
        size: bytes.
        device: where.
        staging: whether stores read into it.
        pinned: in host memory that a device can copy from while the host goes on.
    """

    @torch.inference_mode(False)  # or it could not be written outside inference mode later
    def __init__(
        self, size: int, device: torch.device, *, staging: bool, pinned: bool = False
    ) -> None:
        self.arena = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
        self.in_use: torch.cuda.Event | None = None
        self._staging = staging
        self._layout: Layout | None = None
        self._views: tuple[Block, dict[str, NDArray[np.generic]]] | None = None

    def block(self, layout: Layout) -> Block:
        """The buffer as a full block."""
        return self._shaped(layout)[0]

    @torch.inference_mode(False)
    def _shaped(self, layout: Layout) -> tuple[Block, dict[str, NDArray[np.generic]]]:
        """The buffer as a full block, and, to be read into, as arrays of the same memory."""
        if self._views is not None and self._layout == layout:
            return self._views
        dtypes = {"weight": layout.wide, "key_square": layout.wide, "born": torch.int64}
        dtypes |= {name: layout.dtype_of(name) for name in ("key", *dict(layout.beside))}
        views, offset = {}, 0
        for name, (width, size) in _parts(layout, staging=self._staging).items():
            flat = self.arena[offset : offset + size].view(dtypes.get(name, layout.dtype))
            count = layout.rows * max(width, 1)
            views[name] = flat[:count].view(layout.rows, width) if width else flat[:count]
            offset += size
        arrays = {name: to_bits(view) for name, view in views.items()} if self._staging else {}
        if self._staging:
            arrays["side"][:, layout.value_width :] = 0  # nothing else writes behind the weight
            del views["value"]
        self._layout, self._views = layout, (Block.of(views, layout.rows), arrays)
        return self._views

    def fill(self, source: Source, index: int, patch: Patch | None, *, born: bool) -> None:
        """Read a block from its store, with what was rewritten since; runs in a reader thread."""
        if self.in_use is not None:
            self.in_use.synchronize()  # a copy from here to the device may not have ended
        layout = source.layout
        block, arrays = self._shaped(layout)
        aside = (THUMBNAIL,) if born else ("born", *dict(layout.notes))
        out = {name: arrays[name] for name in layout.columns() if name not in aside}
        source.read(index, out)
        if patch is not None:
            patch.lay(out)
        # numpy, which copies in this thread: PyTorch would start threads of its own for it.
        arrays["side"][:, : layout.value_width] = arrays["value"]
        block.side[:, layout.value_width] = block.weight.to(layout.dtype)


def copy_rows(block: Block, to: Block, *, born: bool, non_blocking: bool = False) -> None:
    """Copy the rows of a full block, notes with birth steps but for thumbnails.

    Not `key_square`, which is made where it is needed.
    """
    there = to.tensors()
    names = ("key", KEY_SCALE, "side", "weight", *(("born", *block.notes) if born else ()))
    for name, tensor in block.tensors().items():
        if name in names and name != THUMBNAIL:
            there[name].copy_(tensor, non_blocking=non_blocking)
    to.count = block.count
