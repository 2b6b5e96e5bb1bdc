"""What the tests of crashes let happen to a run: rows come, change and go; it goes back."""

from collections.abc import Iterator
from functools import lru_cache

import torch

from streamlearn.memory import Memory
from streamlearn.storage import RunPath, RunReader, RunStore

from .support import (
    LAYER,
    assert_same_bits,
    change,
    commit,
    grow,
    load,
    make_memory,
    make_store,
    write_ahead,
)

KEEP = 2
PARTS = 6
"""0 and 1: commits with new rows, 1 with a block that a thread wrote ahead. 2: one with changed and
dropped rows as well. 3: going back to 1. 4: a commit with new, changed and dropped rows, a full
block of which was written ahead. 5: the dead rows are left out."""

STEPS = (0, 1, 2, 1, 9, 9)
"""The step of the newest commit after each part."""

_GROWTH = {0: 300, 1: 400, 2: 5, 9: 350}


def memory_at(part: int) -> Memory:
    """The memory of the newest commit after a part."""
    memory = make_memory()
    _learn(memory, 0)
    for step in {0: (), 1: (1,), 2: (1, 2), 3: (1,), 4: (1, 9), 5: (1, 9)}[part]:
        _learn(memory, step)
    if part < 5:
        return memory
    alive = make_memory()
    for index in range(memory.block_count):
        columns = memory.host_columns(index)
        kept = columns["born"] != -2
        alive.load_columns({name: column[kept] for name, column in columns.items()})
    alive.max_key_square = memory.max_key_square
    return alive


def begin(runs: RunPath) -> RunPath:
    """A run with the first commit."""
    with make_store(runs) as store:
        _commit(store, memory_at(0), 0)
    return store.path


def go_on(store: RunStore, part: int) -> Iterator[int]:
    """Let the rest of the story happen after a part of it; gives each part when it is durable."""
    memory = _open(store)
    for following in range(part + 1, PARTS):
        step = STEPS[following]
        if following == 3:
            assert store.manifest is not None
            store.rewind(store.read().find_commit(step).commit)
            memory = _open(store)
        elif following == 5:
            store.compact()
        else:
            _learn(memory, step)
            if following == 1:
                write_ahead(store, memory)
            if following == 4:
                columns = memory.host_columns(1)
                store.write_block(LAYER, 1, columns, frozenset(columns))
            _commit(store, memory, step)
        yield following


def part_of(path: RunPath, acknowledged: int) -> int:
    """Which part of the story a run is at; nothing that was acknowledged is lost.

    The newest commit and all that are kept are whole.
    """
    reader = RunReader(path)
    manifest = reader.manifest()
    assert manifest is not None
    for part in range(acknowledged, min(acknowledged + 2, PARTS)):
        expected = _known_at(part)
        if (STEPS[part], len(expected)) == (manifest.step, manifest.layers[LAYER].rows):
            break
    else:
        raise AssertionError(f"step {manifest.step} after part {acknowledged}")
    assert_same_bits(load(reader), expected)
    for number in (kept.commit for kept in manifest.kept):
        older = RunReader(path, at=number)
        step = older.state()["step"]
        assert_same_bits(load(older), _known_at({0: 0, 1: 1, 2: 2, 9: 4}[step]))
    return part


# Compared with again and again; whoever wants to change it makes one.
_known_at = lru_cache(memory_at)


def _open(store: RunStore) -> Memory:
    memory = make_memory()
    store.open_memory(LAYER, memory)
    return memory


def _learn(memory: Memory, step: int) -> None:
    grow(memory, _GROWTH[step], step)
    if step in (2, 9):
        change(memory, [5, 511, len(memory) - 1, 520], step)
        memory.drop(torch.tensor([17, step, 513]))


def _commit(store: RunStore, memory: Memory, step: int) -> None:
    store.log({"event": "progress", "step": step})
    commit(store, memory, step, keep=KEEP)
