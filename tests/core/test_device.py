"""Three tiers: a device with memory of its own, host memory, and disk.

Where there is no CUDA device the CPU plays one, with streams that do everything at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from streamlearn.blocks import Block, Layout, pinned_size
from streamlearn.buffers import page_bytes
from streamlearn.errors import ConfigError
from streamlearn.layers import GrowingLayer
from streamlearn.memory import Memory, Tuples
from streamlearn.paging import HOST_BUFFERS, Pager
from streamlearn.retrieval import Forgetting
from streamlearn.slots import Tier
from streamlearn.tiers import Tiers
from streamlearn.uploads import DEVICE_BUFFERS, Uploads

from .making import KINDS, Kind, backward, fill, make_layer, randn
from .stores import CPU, Shelf, rows_of
from .test_changes import same

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
WIDTH, OUTPUTS = 6, 5
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


class Nothing:
    """A stream or an event of a device that is never behind."""

    def __init__(self, *arguments: Any) -> None:
        del arguments

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    if CUDA:
        return

    @contextmanager
    def stream(*arguments: Any) -> Iterator[None]:
        del arguments
        yield

    for name in ("Stream", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Nothing)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *arguments: None)

    def take(pager: Pager) -> Uploads:
        return pager._uploads.pop() if pager._uploads else Uploads(CPU)

    monkeypatch.setattr(Pager, "_take_uploads", take)
    empty = Block.empty.__func__  # type: ignore[attr-defined]

    def unpinned(
        cls: type[Block], layout: Layout, device: torch.device, *, pinned: bool = False
    ) -> Any:
        del pinned
        return empty(cls, layout, device)

    monkeypatch.setattr(Block, "empty", classmethod(unpinned))


def three_tiers(dtype: torch.dtype, device_blocks: int, host_blocks: int) -> Tiers:
    layout = Layout(512, WIDTH, OUTPUTS, dtype)
    passing = DEVICE_BUFFERS * page_bytes(layout, staging=False)
    reading = HOST_BUFFERS * pinned_size(page_bytes(layout, staging=True))
    tiers = Tiers(
        torch.device("cuda"),
        device_budget=passing + (1 + device_blocks) * layout.block_bytes,
        host_budget=reading + host_blocks * layout.pinned_bytes,
    )
    tiers._pager.device = DEVICE
    return tiers


def where(memory: Memory) -> dict[Tier, list[int]]:
    return {
        tier: [index for index, slot in enumerate(memory.slots) if slot.tier is tier]
        for tier in Tier
    }


def priority(index: int) -> float:
    return (index + 1) * 0.6180339887498949 % 1.0


def learning(
    kind: Kind, dtype: torch.dtype, tiers: Tiers | None, prepare: Callable[[GrowingLayer], None]
) -> tuple[GrowingLayer, list[Tensor]]:
    layer = make_layer(kind, WIDTH, OUTPUTS, dtype=dtype, device=DEVICE, tiers=tiers)
    fill(layer, 512 * 7 - 16 * (kind in ("softmax", "gauge")))
    prepare(layer)
    seen = []
    for step in range(3):
        layer.forgetting = Forgetting(8 + step, 0.5, 0.1 * (step % 2))
        query = randn(5, WIDTH, seed=step, dtype=torch.float32).to(DEVICE).requires_grad_()
        output = layer(query)
        backward(output.square().sum())
        assert query.grad is not None
        seen += [output.detach(), query.grad]
        fill(layer, 700, steps=1, seed=90 + step)
        rows = torch.arange(100, 3000, 11)
        layer.memory.rewrite(rows, value=randn(len(rows), OUTPUTS, seed=step))
        layer.memory.drop(torch.arange(30 * step + 2, 30 * step + 20))
    return layer, seen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_three_tiers_give_the_same_bits(kind: Kind, dtype: torch.dtype) -> None:
    plain, expected = learning(kind, dtype, None, lambda layer: None)
    for device_blocks, host_blocks in ((0, 0), (2, 0), (0, 2), (2, 2)):
        for prepare in (lambda layer: None, reopen):
            budgets = three_tiers(dtype, device_blocks, host_blocks)
            layer, found = learning(kind, dtype, budgets, prepare)
            tiers = layer.memory.tiers
            for one, other in zip(found, expected, strict=True):
                assert torch.equal(one, other)
            assert same(rows_of(layer.memory), rows_of(plain.memory))
            in_host = len(where(layer.memory)[Tier.HOST])
            assert (host_blocks > 0) <= in_host <= host_blocks  # what was rewritten takes room too
            assert tiers.device_bytes + tiers.host_bytes + tiers.disk_bytes == layer.memory.nbytes
            assert tiers.host_bytes == in_host * 512 * layer.memory.row_bytes


def reopen(layer: GrowingLayer) -> None:
    """Let the rows lie in a store, as after a run was opened."""
    old, shelf = layer.memory, Shelf()
    shelf.commit(old.snapshot())
    tiers = Tiers(
        old.tiers.device,
        device_budget=old.tiers.device_budget,
        host_budget=old.tiers.host_budget,
    )
    tiers._pager.device = DEVICE
    layer.memory = Memory(
        WIDTH, OUTPUTS, dtype=old.dtype, device=DEVICE, block_rows=512, tiers=tiers
    )
    layer.memory.open(len(old), max_key_square=old.max_key_square, live=old.live, store=shelf)


def test_the_first_in_line_are_on_the_device_and_the_next_in_host_memory() -> None:
    tiers = three_tiers(torch.float32, 3, 4)
    memory = Memory(WIDTH, OUTPUTS, device=DEVICE, block_rows=512, tiers=tiers)
    for step in range(30):
        key = randn(512, WIDTH, seed=step)
        memory.append(Tuples(key, torch.ones(512), randn(512, OUTPUTS)), born=step)
        places = where(memory)
        line = [priority(index) for tier in Tier for index in sorted(places[tier], key=priority)]
        assert line == sorted(line)
        assert len(places[Tier.DEVICE]) == min(step + 1, 3)
        assert len(places[Tier.HOST]) == min(max(step - 2, 0), 4)
    stored = [slot for slot in memory.slots if slot.block is None]
    assert len(stored) == len(where(memory)[Tier.DISK]) == 23


def test_each_tiers_least_budget_is_named() -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512)
    for budget, message in (
        ({"device_budget": 1}, "device_budget=1 .* the last blocks of 1 layer and 2 buffers need"),
        ({"host_budget": 1}, "host_budget=1 is less than the [0-9]+ bytes that 3 buffers need"),
    ):
        tiers = Tiers(torch.device("cuda"), **budget)
        tiers.add(memory)
        with pytest.raises(ConfigError, match=f"memory.{message}"):
            tiers.check()
