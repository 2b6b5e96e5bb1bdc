"""Blocks on their way from host memory to a device, while the one before is computed with."""

import torch

from streamlearn.blocks import Block, Layout
from streamlearn.buffers import Buffer, copy_rows

__all__ = ["DEVICE_BUFFERS", "Uploads"]

DEVICE_BUFFERS = 2


class Uploads:
    """Copies from pinned host memory to a ring of device buffers, in a stream of their own.

    The host never waits: the copy stream waits for what was computed with a buffer before, and the
    computing stream for the copy.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ring: list[Buffer] = []
        self._turn = 0
        self._current: Buffer | None = None

    @property
    def nbytes(self) -> int:
        """What the device buffers take now."""
        return sum(len(buffer.arena) for buffer in self._ring)

    def bring(
        self, block: Block, layout: Layout, size: int, *, born: bool
    ) -> tuple[torch.cuda.Event, Block]:
        """A host block on the device, and the event after which the host's may change."""
        computing = torch.cuda.current_stream(self.device)
        buffer = self._next(size, computing)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        there = buffer.block(layout)
        if buffer.in_use is not None:
            self.stream.wait_event(buffer.in_use)
        with torch.cuda.stream(self.stream):
            copy_rows(block, there, born=born, non_blocking=True)
            arrived.record(self.stream)
        computing.wait_event(arrived)
        return arrived, there

    def used(self) -> None:
        """Everything that reads the buffer that was brought last is in the computing stream."""
        if self._current is not None:
            self._current.in_use = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._current.in_use.record(torch.cuda.current_stream(self.device))
            self._current = None

    def _next(self, size: int, computing: torch.cuda.Stream) -> Buffer:
        if self._ring and len(self._ring[0].arena) != size:
            torch.cuda.synchronize(self.device)
            self._ring.clear()
        if len(self._ring) < DEVICE_BUFFERS:
            self._ring.append(Buffer(size, self.device, staging=False))
            self._turn = len(self._ring) - 1
        else:
            self._turn = (self._turn + 1) % len(self._ring)
        buffer = self._ring[self._turn]
        if buffer.in_use is None:  # its memory may have been in use until now
            buffer.in_use = torch.cuda.Event()  # type: ignore[no-untyped-call]
            buffer.in_use.record(computing)
        self._current = buffer
        return buffer
