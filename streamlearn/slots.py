"""The places of blocks: which tier each belongs to, and what of it is in memory."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamlearn.blocks import Block, Layout
from streamlearn.journal import Patch

__all__ = ["Slot", "Source", "Tier"]


class Tier(IntEnum):
    """Where a block belongs; on a CPU the device is the host, and there are only two tiers."""

    DEVICE = 0
    HOST = 1
    DISK = 2


class Slot:
    """The place of one block.

    count: its filled rows.
    block: its tensors, on the device or the host as `tier` says; None where it lies in a store.
    patch: what was rewritten since the store has it.
    spilled: whether it lies in the memory's own spill store, and not in the one it was given.
    tier: where it belongs; it may not have been read in yet.
    """

    __slots__ = ("block", "count", "patch", "spilled", "tier")

    def __init__(self, count: int, block: Block | None) -> None:
        self.count = count
        self.block = block
        self.patch: Patch | None = None
        self.spilled = False
        self.tier = Tier.DEVICE

    @property
    def at_hand(self) -> Block | None:
        """The block, if it can be computed with where it is."""
        return self.block if self.tier is Tier.DEVICE else None


class Source(Protocol):
    """A memory, as far as budgets and paging know it."""

    layout: Layout
    slots: list[Slot]

    def read(self, index: int, out: Mapping[str, NDArray[np.generic]]) -> None:
        """Fill arrays with columns of a block as its store has it; from any thread."""

    def came_in(self, index: int, block: Block) -> None:
        """A block was read, patch and all, and stays in memory where it belongs."""

    def move(self, index: int, tier: Tier) -> None:
        """Let a block belong to a farther tier, and move or store what is in memory of it."""
