"""Full blocks that are written before the commit that names them."""

import errno
from pathlib import Path

import pytest
import torch

from streamlearn.errors import StorageError
from streamlearn.memory import Memory, Tuples
from streamlearn.storage import RunReader, RunStore, ahead, files
from streamlearn.storage.objects import as_file
from streamlearn.storage.verify import verify

from .support import (
    BLOCK_ROWS,
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


def shard(store: RunStore, index: int) -> Path:
    return as_file(store.path) / "memory.zarr" / "layers" / LAYER / "key" / f"c.{index}.0"


def test_full_blocks_are_there_before_the_commit_that_names_them(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        grow(memory, 2 * BLOCK_ROWS + 9, 1)
        write_ahead(store, memory)
        assert [shard(store, index).is_file() for index in range(3)] == [True, True, False]
        assert len(load(RunReader(store.path))) == 0
        assert verify(store.path).damage == ()
        written = {index: shard(store, index).stat().st_mtime_ns for index in range(2)}
        commit(store, memory, 2)
        assert {index: shard(store, index).stat().st_mtime_ns for index in range(2)} == written
    assert_same_bits(load(RunReader(tmp_path / "run")), memory)
    assert verify(tmp_path / "run").damage == ()


def test_what_was_written_ahead_of_no_commit_is_put_away(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        grow(memory, BLOCK_ROWS, 1)
        write_ahead(store, memory)
        assert shard(store, 0).is_file()
    with RunStore.open(tmp_path / "run") as store:
        assert not shard(store, 0).exists()
        again = make_memory()
        store.open_memory(LAYER, again)
        grow(again, 7, 2)
        commit(store, again, 2)
    assert len(load(RunReader(tmp_path / "run"))) == 7


def test_rows_that_change_after_a_block_was_written_are_in_the_next_commit(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        grow(memory, BLOCK_ROWS + 5, 1)
        write_ahead(store, memory, wait=False)
        change(memory, [3, 500], 2)
        write_ahead(store, memory)  # nothing: while rows are rewritten no block is done with
        commit(store, memory, 2)
    assert_same_bits(load(RunReader(tmp_path / "run")), memory)


def test_little_is_not_written_ahead_nor_what_no_commit_knows(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        grow(memory, 3 * BLOCK_ROWS, 1)
        write_ahead(store, memory)  # its layer was never committed
        assert not shard(store, 0).parent.exists()
        commit(store, memory, 1)
        grow(memory, BLOCK_ROWS, 2)
        store.write_ahead({LAYER: memory})  # a few kilobytes
        assert not shard(store, 3).exists()


def test_no_more_is_written_at_a_time_than_a_commit_may_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make_memory()
    monkeypatch.setattr(ahead, "_MOST_BYTES", 2 * BLOCK_ROWS * memory.row_bytes)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        grow(memory, 5 * BLOCK_ROWS, 1)
        for there in (2, 4, 5):
            write_ahead(store, memory)
            assert [shard(store, index).exists() for index in range(5)].count(True) == there


def test_a_disk_that_refuses_costs_nothing_and_is_told_by_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make_memory()
    tries = 0

    def full(descriptor: int, data: bytes, offset: int = 0) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        grow(memory, BLOCK_ROWS, 1)
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_all", full)
            write_ahead(store, memory)
            write_ahead(store, memory)
            assert tries == 1
            with pytest.raises(StorageError, match="free space on this disk"):
                commit(store, memory, 1)
        commit(store, memory, 2)
        assert_same_bits(load(RunReader(store.path)), memory)


def test_blocks_of_a_session_are_large_enough_to_be_written_ahead() -> None:
    wide = Memory(3072, 10)
    narrow = Memory(16, 10, dtype=torch.bfloat16)
    assert (wide.block_rows, narrow.block_rows) == (4096, 65536)
    for memory in (wide, narrow):
        rows = torch.zeros(1, memory.key_width)
        memory.append(Tuples(rows, torch.ones(1), torch.zeros(1, 10)), 1)
        assert memory.blocks[0].key.shape == (memory.block_rows, memory.key_width)
