"""Commits in a thread: what is committed is what there was when they were begun."""

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from streamlearn.errors import StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore, files
from streamlearn.storage.commits import Commits
from streamlearn.storage.verify import verify
from streamlearn.tiers import Tiers

from .support import (
    BLOCK_ROWS,
    KEY_WIDTH,
    LAYER,
    VALUE_WIDTH,
    assert_same_bits,
    change,
    commit,
    grow,
    load,
    make_memory,
    make_store,
    write_ahead,
)


def small_memory() -> Memory:
    """A memory of which at most a block or two stay in RAM."""
    tiers = Tiers(torch.device("cpu"), host_budget=400_000)
    return Memory(KEY_WIDTH, VALUE_WIDTH, block_rows=BLOCK_ROWS, tiers=tiers)


def begin(store: RunStore, memory: Memory, step: int) -> Any:
    return store.begin(
        step=step,
        samples=step,
        status="running",
        state={"step": step},
        memories={LAYER: memory},
        summary={},
        keep=3,
    )


@pytest.mark.parametrize("seed", range(4))
def test_growth_changes_and_commits_in_a_thread_keep_every_bit(tmp_path: Path, seed: int) -> None:
    moves = random.Random(seed)
    plain, memory = make_memory(), small_memory()
    committed: dict[int, Memory] = {}
    dead: set[int] = set()
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        pending = None
        for step in range(1, 60):
            alive = sorted(set(range(len(plain))) - dead)
            rows = random.Random(step + 100 * seed).sample(alive, min(9, len(alive)))
            dead |= set(rows[:2]) if step % 7 == 0 else set()
            for both in (plain, memory):
                if rows and step % 3 == 0:
                    change(both, rows, step)
                if rows and step % 7 == 0:
                    both.drop(torch.tensor(rows[:2]))
                grow(both, 40 + 13 * (step % 5), step)
            if pending is not None and moves.random() < 0.4:
                pending.result()
                pending = None
            if pending is None and moves.random() < 0.5:
                write_ahead(store, memory, wait=moves.random() < 0.5)
            if pending is None and moves.random() < 0.5:
                pending = begin(store, memory, step)
                committed[step] = copy_of(plain)
        if pending is not None:
            pending.result()
        assert memory.tiers.disk_bytes > 0
        assert store.manifest is not None
        kept = [entry.commit for entry in store.manifest.kept]
        for number in (*kept, store.manifest.commit):
            reader = RunReader(store.path, at=number)
            step = reader.state()["step"]
            if step:
                assert_same_bits(load(reader), committed[step])
        commit(store, memory, 99)
        assert_same_bits(memory, plain)
    assert_same_bits(load(RunReader(store.path)), plain)
    assert verify(store.path).damage == ()
    with RunStore.open(store.path) as store:
        again = small_memory()
        store.open_memory(LAYER, again)
        assert_same_bits(again, plain)


def copy_of(memory: Memory) -> Memory:
    copy = make_memory()
    for index in range(memory.block_count):
        copy.load_columns(memory.host_columns(index))
    copy.live, copy.max_key_square = memory.live, memory.max_key_square
    return copy


def test_a_block_that_leaves_while_a_commit_is_made_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, plain = small_memory(), make_memory()
    gate = threading.Event()
    write = Commits.write

    def slowly(self: Commits, *arguments: Any, **more: Any) -> Any:
        gate.wait(30)
        return write(self, *arguments, **more)

    with make_store(tmp_path) as store:
        for both in (memory, plain):
            grow(both, 300, 0)
        commit(store, memory, 0)
        monkeypatch.setattr(Commits, "write", slowly)
        for both in (memory, plain):
            grow(both, 100, 1)
        pending = begin(store, memory, 1)
        opener = threading.Timer(0.3, gate.set)
        opener.start()
        for step in range(2, 30):  # the blocks have no room, and go to the run
            for both in (memory, plain):
                grow(both, 128, step)
        assert pending.result().bytes_written > 0
        opener.join()
        reader = RunReader(store.path)
        assert len(load(reader)) == 400
        commit(store, memory, 30)
    assert_same_bits(load(RunReader(store.path)), plain)


def test_learning_goes_on_while_a_commit_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        gate = threading.Event()
        sync = files.sync
        monkeypatch.setattr(files, "sync", lambda descriptor: (gate.wait(30), sync(descriptor)))
        grow(memory, 10, 1)
        pending = begin(store, memory, 1)
        grow(memory, 10, 2)
        store.log({"event": "progress"})
        assert not pending.done
        gate.set()
        pending.result()
        assert len(load(RunReader(store.path))) == 10


def test_what_a_thread_could_not_write_is_said_and_written_by_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        grow(memory, 600, 1)
        with monkeypatch.context() as patch:

            def refuse(*_: Any) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(files, "write_all", refuse)
            pending = begin(store, memory, 1)
            while not pending.done:
                time.sleep(0.001)
            with pytest.raises(StorageError, match="no space left"):
                pending.result()
        grow(memory, 5, 2)
        begin(store, memory, 2).result()
        assert_same_bits(load(RunReader(store.path)), memory)
