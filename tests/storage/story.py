"""What the tests of crashes let happen to a run: commits, going back, and others after that."""

from collections.abc import Iterator
from pathlib import Path

from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore

from .support import assert_same_bits, commit, grow, load, make_memory, make_store

KEEP = 2
STEPS = (0, 1, 2, 1, 9)
"""The step of the newest commit after each part of the story; before the fourth it goes back."""

_GROWTH = {0: 300, 1: 400, 2: 5, 9: 350}
_ROWS_OF = {0: (0,), 1: (0, 1), 2: (0, 1, 2), 9: (0, 1, 9)}


def memory_at(step: int) -> Memory:
    """The memory of the commit of a step."""
    memory = make_memory()
    for grown in _ROWS_OF[step]:
        grow(memory, _GROWTH[grown], grown)
    return memory


def begin(runs: Path) -> Path:
    """A run with the first commit."""
    with make_store(runs) as store:
        _commit(store, memory_at(0), 0)
    return store.path


def go_on(store: RunStore, part: int) -> Iterator[int]:
    """Let the rest of the story happen after a part of it; gives each part when it is durable."""
    memory = load(store.read())
    for following in range(part + 1, len(STEPS)):
        step = STEPS[following]
        if following == 3:
            assert store.manifest is not None
            number = store.read().find_commit(step).commit
            memory = load(store.read(at=number))
            store.rewind(number)
        else:
            grow(memory, _GROWTH[step], step)
            _commit(store, memory, step)
        yield following


def part_of(path: Path, acknowledged: int) -> int:
    """Which part of the story a run is at; nothing that was acknowledged is lost.

    The newest commit and all that are kept are whole.
    """
    reader = RunReader(path)
    manifest = reader.manifest()
    assert manifest is not None
    possible = range(acknowledged, min(acknowledged + 2, len(STEPS)))
    part = next(part for part in possible if STEPS[part] == manifest.step)
    for number in (*(kept.commit for kept in manifest.kept), manifest.commit):
        reader = RunReader(path, at=number)
        step = reader.state()["step"]
        assert_same_bits(load(reader), memory_at(step))
    return part


def _commit(store: RunStore, memory: Memory, step: int) -> None:
    store.log({"event": "progress", "step": step})
    commit(store, memory, step, keep=KEEP)
