"""Scans over blocks that are not all in memory: a few fixed buffers, filled ahead of the consumer.

Reader threads fill host buffers in the order in which they will be asked for; on CUDA a stream of
its own copies each into a device buffer while the block before it is computed with.
"""

import threading
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from streamlearn.blocks import Block, Layout, square_norms
from streamlearn.buffers import Buffer, copy_rows, page_bytes
from streamlearn.slots import Source, Tier
from streamlearn.uploads import Uploads

__all__ = ["HOST_BUFFERS", "Pager"]

HOST_BUFFERS = 3
_READERS = 2
_NORM_ROWS = 512


class Pager:
    """The buffers and reader threads that the memories of a learner share.

    Args:
        device: where blocks are wanted.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.host_size = 0
        self.device_size = 0
        self._lock = threading.Lock()
        self._free: list[Buffer] = []
        self._out = 0
        self._readers: ThreadPoolExecutor | None = None
        self._uploads: list[Uploads] = []

    def make_room(self, layout: Layout) -> None:
        """Let buffers be large enough for this layout too."""
        self.host_size = max(self.host_size, page_bytes(layout, staging=True))
        self.device_size = max(self.device_size, page_bytes(layout, staging=False))

    @property
    def host_bytes(self) -> int:
        """What the host buffers take now."""
        with self._lock:
            return sum(len(buffer.arena) for buffer in self._free) + self._out * self.host_size

    @property
    def device_bytes(self) -> int:
        """What the device buffers of scans that ended take, 0 on a CPU."""
        return sum(uploads.nbytes for uploads in self._uploads)

    def scan(self, source: Source, *, born: bool, norms: bool) -> Generator[Block, None, None]:
        """Every block of a memory, in order, on the device.

        Args:
            source: whose blocks are full wherever they are not at hand.
            born: whether birth steps are needed.
            norms: whether `key_square` is needed.
        """
        reading = _Reading(self, source, born=born)
        uploads = self._take_uploads()
        held: Buffer | None = None
        try:
            reading.ahead()
            for index, slot in enumerate(source.slots):
                if (block := slot.at_hand) is not None:
                    yield block
                    continue
                block = slot.block
                keep = block is None and slot.tier is not Tier.DISK
                if block is None:
                    held = reading.take(index)
                    block = held.block(source.layout)
                if keep and slot.tier is Tier.HOST:
                    source.came_in(index, block.pinned(source.layout))
                if uploads is not None:
                    copied, block = uploads.bring(
                        block, source.layout, self.device_size, born=born or keep
                    )
                    if held is not None:
                        held.in_use = copied
                stays = keep and slot.tier is Tier.DEVICE
                if norms or stays:
                    _make_norms(block, source.layout)
                if stays:
                    block = _kept(block, source.layout, self.device)
                    source.came_in(index, block)
                if held is not None and (stays or uploads is not None):
                    self.give(held)  # the block is elsewhere already
                    held = None
                    reading.ahead()
                yield block
                if uploads is not None:
                    uploads.used()
                if held is not None:
                    self.give(held)
                    held = None
                    reading.ahead()
        finally:
            if uploads is not None:
                uploads.used()
                self._uploads = [uploads]
            if held is not None:
                self.give(held)
            reading.close()

    def quiet(self) -> None:
        """Wait for copies from host memory to the device, before that memory changes."""
        for uploads in self._uploads:
            uploads.stream.synchronize()

    def _take_uploads(self) -> Uploads | None:
        """The way to the device: one that is idle, or another, as scans within scans need."""
        if self.device.type == "cpu":
            return None
        return self._uploads.pop() if self._uploads else Uploads(self.device)

    # -- buffers ---------------------------------------------------------------------------------

    def buffer(self, *, extra: bool = False) -> Buffer | None:
        """A buffer, if fewer than the fixed number are out, or one more than that."""
        with self._lock:
            if self._out >= HOST_BUFFERS and not extra:
                return None
            self._free = [buffer for buffer in self._free if len(buffer.arena) == self.host_size]
            buffer = self._free.pop() if self._free else None
            self._out += 1
        try:
            pinned = self.device.type == "cuda"
            return buffer or Buffer(
                self.host_size, torch.device("cpu"), staging=True, pinned=pinned
            )
        except BaseException:
            self.give(None)
            raise

    def give(self, buffer: Buffer | None) -> None:
        """Hand a buffer back."""
        with self._lock:
            self._out -= 1
            if buffer is not None and self._out + len(self._free) < HOST_BUFFERS:
                self._free.append(buffer)

    def submit(self, buffer: Buffer, source: Source, index: int, *, born: bool) -> Future[None]:
        """Start to fill a buffer with a block."""
        with self._lock:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(_READERS, "streamlearn-read")
        slot = source.slots[index]
        stays = slot.tier is not Tier.DISK
        return self._readers.submit(buffer.fill, source, index, slot.patch, born=born or stays)


def _make_norms(block: Block, layout: Layout) -> None:
    """Fill `key_square` of a block that was read; a part at a time, to need little room."""
    for start in range(0, layout.rows, _NORM_ROWS):
        rows = slice(start, start + _NORM_ROWS)
        block.key_square[rows] = square_norms(block.numbers(layout, rows).to(layout.wide))


def _kept(block: Block, layout: Layout, device: torch.device) -> Block:
    """A block of its own with what is in a buffer."""
    kept = Block.empty(layout, device)
    copy_rows(block, kept, born=True)
    kept.key_square.copy_(block.key_square)
    return kept


class _Reading:
    """What one scan has begun to read."""

    def __init__(self, pager: Pager, source: Source, *, born: bool) -> None:
        self._pager = pager
        self._source = source
        self._born = born
        self._next = 0
        self._reads: dict[int, tuple[Buffer, Future[None]]] = {}

    def ahead(self) -> None:
        """Start to read the next blocks, as far as there are buffers."""
        slots = self._source.slots
        while True:
            while self._next < len(slots) and slots[self._next].block is not None:
                self._next += 1
            if self._next == len(slots) or (buffer := self._pager.buffer()) is None:
                return
            self._start(self._next, buffer)

    def take(self, index: int) -> Buffer:
        """The buffer with a block, once it is read."""
        if index not in self._reads:  # other scans hold all buffers
            buffer = self._pager.buffer(extra=True)
            if buffer is not None:
                self._start(index, buffer)
        buffer, future = self._reads[index]
        future.result()
        del self._reads[index]
        return buffer

    def _start(self, index: int, buffer: Buffer) -> None:
        self._next = max(self._next, index + 1)
        future = self._pager.submit(buffer, self._source, index, born=self._born)
        self._reads[index] = buffer, future

    def close(self) -> None:
        """Hand back the buffers of what was never taken."""
        for buffer, future in self._reads.values():
            if not future.cancel():
                wait([future])
            self._pager.give(buffer)
        self._reads.clear()
