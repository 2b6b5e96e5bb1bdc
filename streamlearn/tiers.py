"""Which blocks stay where: budgets in bytes for the memories of one learner.

Exact retrieval looks at every block at every step, so whatever was used last says nothing about
what will be used next. A fixed subset stays, the rest passes through a few buffers. Each block has
a priority, frac((index + 1)·φ) with the golden ratio's φ = 0.618…, and those with the smallest
stay: they lie evenly over the memory, so that the next blocks are read while these are computed
with. As the memory grows the subset only thins out; nothing ever comes back.
"""

import heapq
import weakref
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from streamlearn.blocks import Block, Layout, pinned_size
from streamlearn.errors import ConfigError
from streamlearn.paging import HOST_BUFFERS, Pager
from streamlearn.slots import Source, Tier
from streamlearn.uploads import DEVICE_BUFFERS

__all__ = ["Account", "InTiers", "Tiers", "Usage"]

_GOLDEN = 0.6180339887498949


class InTiers(Protocol):
    """Where the bytes of tuples are."""

    @property
    def device_bytes(self) -> int:
        """On the device; 0 on a CPU, where they are in host memory."""
        ...

    @property
    def host_bytes(self) -> int:
        """In host memory, buffers apart."""
        ...

    @property
    def disk_bytes(self) -> int:
        """Not in memory."""
        ...


class Usage(NamedTuple):
    """The same at one moment, of several `Tiers` together."""

    device_bytes: int
    host_bytes: int
    disk_bytes: int

    @classmethod
    def of(cls, tiers: Iterable[InTiers]) -> "Usage":
        """The sums."""
        parts = [(one.device_bytes, one.host_bytes, one.disk_bytes) for one in tiers]
        return cls(*(sum(part) for part in zip(*parts, strict=True)))


class Account:
    """What one memory has in each tier; only full blocks are counted.

    belong: blocks that belong to each tier. present: those of them that are in memory. tail: the
    rows of the last block, which fills and belongs to the device; tail_present: whether it is
    there. patches: bytes of what was rewritten in blocks that are not in memory.
    """

    __slots__ = (
        "belong",
        "layout",
        "number",
        "patches",
        "present",
        "source",
        "tail",
        "tail_present",
    )

    def __init__(self, number: int, source: Source) -> None:
        self.number = number
        self.source = weakref.ref(source)
        self.layout: Layout = source.layout
        self.belong = {tier: 0 for tier in Tier}
        self.present = {Tier.DEVICE: 0, Tier.HOST: 0}
        self.patches = 0
        self.tail = 0
        self.tail_present = True


class Tiers:
    """Device, host memory and disk, and what belongs to each.

    Args:
        device: where blocks are computed with. On a CPU it is the host, and the smaller budget
            counts.
        device_budget: bytes for blocks on the device, buffers included; None is no limit.
        host_budget: the same for host memory.

    A budget counts blocks that stay, the last blocks, which fill, and the buffers through which all
    others pass. It does not count what a step computes with: batches, and scores, which are kept
    between forward and backward pass up to an eighth of it.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        device_budget: int | None = None,
        host_budget: int | None = None,
    ) -> None:
        self.device = device
        self.device_budget = device_budget
        self.host_budget = host_budget
        self._two = device.type == "cpu"
        given = {"memory.device_budget": device_budget, "memory.host_budget": host_budget}
        limits = [(limit, key) for key, limit in given.items() if limit is not None]
        self._limits: dict[Tier, tuple[int, str]] = {}
        if self._two and limits:
            self._limits[Tier.DEVICE] = min(limits)
        elif not self._two:
            tiers = {"memory.device_budget": Tier.DEVICE, "memory.host_budget": Tier.HOST}
            self._limits = {tiers[key]: (limit, key) for limit, key in limits}
        self._accounts: dict[int, Account] = {}
        self._numbers = 0
        self._heaps: dict[Tier, list[tuple[float, int, int]]] = {Tier.DEVICE: [], Tier.HOST: []}
        self._pager = Pager(device)

    def __getstate__(self) -> dict[str, Any]:
        """The budgets; a copy has no memories and nothing in any tier."""
        return {"device": self.device, "budgets": (self.device_budget, self.host_budget)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin with the budgets of another."""
        device_budget, host_budget = state["budgets"]
        Tiers.__init__(self, state["device"], device_budget=device_budget, host_budget=host_budget)

    @property
    def limited(self) -> bool:
        """Whether there is any budget."""
        return bool(self._limits)

    @property
    def least(self) -> int:
        """The smallest budget for the tier that is computed with: last blocks and buffers."""
        return self._fixed(Tier.DEVICE)

    def score_bytes(self, most: int) -> int:
        """How many bytes of scores a layer may keep for its backward pass: at most `most`."""
        if Tier.DEVICE not in self._limits:
            return most
        return min(most, self._limits[Tier.DEVICE][0] // 8)

    # -- memories --------------------------------------------------------------------------------

    def add(self, source: Source) -> Account:
        """Take in a memory without rows."""
        account = Account(self._numbers, source)
        self._accounts[self._numbers] = account
        self._numbers += 1
        self._pager.make_room(account.layout)
        return account

    def remove(self, account: Account) -> None:
        """Forget a memory and all of its blocks."""
        self._accounts.pop(account.number, None)

    def check(self) -> None:
        """Whether the budgets leave room for what must be in memory.

        Raises:
            ConfigError: names the budget and what is needed at least.
        """
        for tier, (limit, key) in self._limits.items():
            least = self._fixed(tier)
            if limit < least:
                many = len(self._accounts)
                what = f"the last blocks of {many} {'layer' if many == 1 else 'layers'} and "
                what = "" if tier is Tier.HOST else what
                buffers = DEVICE_BUFFERS if tier is Tier.DEVICE and not self._two else HOST_BUFFERS
                raise ConfigError(
                    f"{key}={limit} is less than the {least} bytes that {what}{buffers} buffers "
                    "need; raise it or lower memory.block_rows"
                )

    def admit(self, account: Account, index: int, *, present: bool) -> None:
        """Take in a full block; it belongs to the device until `settle` finds that it has no room.

        Args:
            account: of its memory.
            index: of the block.
            present: whether it is in memory.
        """
        priority = (index + 1) * _GOLDEN % 1.0
        heapq.heappush(self._heaps[Tier.DEVICE], (-priority, account.number, index))
        account.belong[Tier.DEVICE] += 1
        account.present[Tier.DEVICE] += present

    def settle(self) -> None:
        """Let blocks go to farther tiers until every budget is kept.

        Raises:
            StorageError: a block cannot be stored; it stays where it is.
            ConfigError: a budget is too small for what must be in memory.
        """
        for tier in self._limits:
            while self._excess(tier) > 0:
                entry = self._largest(tier)
                if entry is None:
                    if any(sum(account.belong.values()) for account in self._accounts.values()):
                        self.check()
                    break
                self._demote(tier, entry)

    def _excess(self, tier: Tier) -> int:
        """By how much a tier is over its budget."""
        if tier not in self._limits:
            return 0
        used = sum(account.belong[tier] * _size(tier, account.layout) for account in self._living())
        if self._two or tier is Tier.HOST:
            used += sum(account.patches for account in self._living())
        return used + self._fixed(tier) - self._limits[tier][0]

    def _fixed(self, tier: Tier) -> int:
        """The bytes of last blocks and buffers, whether they are there yet or not."""
        tails = sum(account.layout.block_bytes for account in self._living())
        if self._two:
            return tails + HOST_BUFFERS * self._pager.host_size
        if tier is Tier.DEVICE:
            return tails + DEVICE_BUFFERS * self._pager.device_size
        return HOST_BUFFERS * pinned_size(self._pager.host_size)

    def _living(self) -> Iterator[Account]:
        for number in [n for n, account in self._accounts.items() if account.source() is None]:
            del self._accounts[number]
        return iter(self._accounts.values())

    def _largest(self, tier: Tier) -> tuple[float, int, int] | None:
        """The entry of the block that stays last in line, None if there is none."""
        heap = self._heaps[tier]
        while heap:
            _, number, index = heap[0]
            account = self._accounts.get(number)
            source = None if account is None else account.source()
            if source is not None and source.slots[index].tier is tier:
                return heap[0]
            heapq.heappop(heap)  # of a memory that is gone
        return None

    def _demote(self, tier: Tier, entry: tuple[float, int, int]) -> None:
        """Move the block of the first entry of a tier's heap to the next tier that has room."""
        _, number, index = entry
        account = self._accounts[number]
        source = account.source()
        if source is None:  # it was there a moment ago, in `_largest`
            return
        target = Tier.DISK
        if tier is Tier.DEVICE and not self._two and self._host_has_room(account, entry):
            target = Tier.HOST
        present = source.slots[index].block is not None
        source.move(index, target)
        heapq.heappop(self._heaps[tier])
        account.belong[tier] -= 1
        account.belong[target] += 1
        account.present[tier] -= present
        if target is Tier.HOST:
            account.present[target] += present
            heapq.heappush(self._heaps[target], entry)

    def _host_has_room(self, account: Account, entry: tuple[float, int, int]) -> bool:
        """Whether a block may come into host memory; blocks that are behind it make room."""
        if Tier.HOST not in self._limits:
            return True
        while self._excess(Tier.HOST) + _size(Tier.HOST, account.layout) > 0:
            largest = self._largest(Tier.HOST)
            if largest is None or largest > entry:
                return False
            self._demote(Tier.HOST, largest)
        return True

    # -- scans -----------------------------------------------------------------------------------

    def scan(self, source: Source, *, born: bool, norms: bool) -> Generator[Block, None, None]:
        """Every block of a memory, in order, on the device; see `Pager.scan`."""
        return self._pager.scan(source, born=born, norms=norms)

    def quiet(self) -> None:
        """Wait until nothing is copied from host memory any more, before it changes."""
        self._pager.quiet()

    # -- what is where ---------------------------------------------------------------------------

    @property
    def device_bytes(self) -> int:
        """Bytes of tuples on the device; 0 on a CPU, where they are in host memory."""
        return 0 if self._two else self._near()

    @property
    def host_bytes(self) -> int:
        """Bytes of tuples in host memory, buffers apart."""
        return self._near() if self._two else self._full(Tier.HOST)

    @property
    def disk_bytes(self) -> int:
        """Bytes of tuples that are not in memory."""
        total = 0
        for account in self._living():
            blocks = sum(account.belong.values()) - sum(account.present.values())
            rows = blocks * account.layout.rows + account.tail * (not account.tail_present)
            total += rows * account.layout.row_bytes
        return total

    @property
    def buffer_bytes(self) -> int:
        """What the buffers take that were needed so far."""
        return self._pager.host_bytes + self._pager.device_bytes

    def _near(self) -> int:
        tails = sum(
            account.tail * account.tail_present * account.layout.row_bytes
            for account in self._living()
        )
        return tails + self._full(Tier.DEVICE)

    def _full(self, tier: Tier) -> int:
        return sum(
            account.present[tier] * account.layout.rows * account.layout.row_bytes
            for account in self._living()
        )


def _size(tier: Tier, layout: Layout) -> int:
    return layout.pinned_bytes if tier is Tier.HOST else layout.block_bytes
