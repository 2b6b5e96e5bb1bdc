"""Older commits: kept, gone back to, and never lost to what is written after that."""

import contextlib
import errno
import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch

from streamlearn.errors import ConfigError, FormatError, RunStateError, StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore, files
from streamlearn.storage.objects import as_file
from streamlearn.storage.verify import verify

from .support import (
    LAYER,
    Crash,
    Faults,
    assert_same_bits,
    assert_zarr_shows,
    change,
    commit,
    committed_columns,
    grow,
    load,
    make_memory,
    make_store,
)

GROWTH = [300, 400, 5, 900, 60]


def memory_after(commits: int) -> Memory:
    memory = make_memory()
    for step in range(commits):
        grow(memory, GROWTH[step], step)
    return memory


def make_run(runs: Path, commits: int, keep: int) -> Path:
    """A run whose commit n is of step n - 1."""
    memory = make_memory()
    with make_store(runs) as store:
        for step in range(commits):
            grow(memory, GROWTH[step], step)
            store.log({"event": "progress", "step": step})
            commit(store, memory, step, keep=keep)
    return as_file(store.path)


def check_commit(path: Path, number: int) -> None:
    """A commit that is kept is whole, its state and its rows."""
    reader = RunReader(path, at=number)
    assert reader.state()["step"] == number - 1
    assert_same_bits(load(reader), memory_after(number))


def kept(path: Path) -> list[int]:
    manifest = RunReader(path).manifest()
    assert manifest is not None
    return [*(entry.commit for entry in manifest.kept), manifest.commit]


def go_back(store: RunStore, number: int) -> Memory:
    memory = load(store.read(at=number))
    store.rewind(number)
    return memory


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_the_newest_commits_are_kept_and_each_is_whole(tmp_path: Path, keep: int) -> None:
    path = make_run(tmp_path, 5, keep)
    numbers = list(range(1, 6))[-keep:]
    assert kept(path) == numbers
    for number in numbers:
        check_commit(path, number)
    assert len(list((path / "state").iterdir())) == len(numbers)
    assert len(list((path / "commits").iterdir())) == len(numbers) - 1
    manifest = RunReader(path).manifest()
    assert manifest is not None
    assert manifest.disk_bytes == files.tree_bytes(path)
    assert manifest.steps == tuple(number - 1 for number in numbers)


def test_keeping_fewer_lets_the_others_go(tmp_path: Path) -> None:
    path = make_run(tmp_path, 4, 4)
    with RunStore.open(path) as store:
        memory = load(store.read())
        grow(memory, GROWTH[4], 4)
        commit(store, memory, 4, keep=2)
        assert kept(path) == [4, 5]
        result = commit(store, memory, 4, keep=1)
        assert kept(path) == [6]
        assert result.disk_bytes == files.tree_bytes(path)
        with pytest.raises(ConfigError, match=r"checkpoint\.keep=0 must be at least 1"):
            commit(store, memory, 5, keep=0)


def test_what_came_after_an_older_commit_is_cut_when_a_run_goes_back(tmp_path: Path) -> None:
    path = make_run(tmp_path, 4, 3)
    with RunStore.open(path) as store:
        memory = go_back(store, 2)
        assert kept(path) == [2]
        assert [event["step"] for event in store.read().events()[0]] == [0, 1]
        rows = committed_columns(memory)
        assert_zarr_shows(path, rows, len(memory), len(memory))
        assert [entry.name for entry in (path / "state").iterdir()] == ["000000000001.safetensors"]
        assert not any((path / "commits").iterdir())
        assert store.manifest is not None
        assert store.manifest.disk_bytes == files.tree_bytes(path)
    check_commit(path, 2)


def test_other_rows_may_be_written_after_going_back_and_older_commits_stay(tmp_path: Path) -> None:
    path = make_run(tmp_path, 4, 3)
    with RunStore.open(path) as store:
        memory = go_back(store, 3)
        grow(memory, 77, 1234)
        commit(store, memory, 3, keep=3)
        assert kept(path) == [2, 3, 4]
        grow(memory, 600, 99)
        commit(store, memory, 9, keep=4)
    assert kept(path) == [2, 3, 4, 5]
    for number in (2, 3):
        check_commit(path, number)
    assert_same_bits(load(RunReader(path)), memory)
    rows = committed_columns(memory)
    assert_zarr_shows(path, rows, len(memory), len(memory))


def test_a_layer_that_is_younger_than_the_commit_goes_with_it(tmp_path: Path) -> None:
    first, second = make_memory(), make_memory()
    grow(first, 20, 0)
    grow(second, 30, 0)
    with make_store(tmp_path) as store:
        commit(store, first, 0, keep=2)
        commit(store, first, 1, keep=2, memories={LAYER: first, "later": second})
        store.rewind(1)
        assert not (store.path / "memory.zarr" / "layers" / "later").exists()
        commit(store, first, 2, keep=2, memories={LAYER: first, "later": first})
        assert len(load(RunReader(store.path), name="later")) == 20


def test_a_step_that_is_not_kept_is_refused_with_those_that_are(tmp_path: Path) -> None:
    path = make_run(tmp_path, 4, 3)
    reader = RunReader(path)
    assert reader.find_commit(2).commit == 3
    with pytest.raises(RunStateError, match=r"no commit of step 0; it keeps steps 1, 2, 3 "):
        reader.find_commit(0)
    with pytest.raises(RunStateError, match=r"does not keep commit 1; it keeps 2, 3, 4"):
        RunReader(path, at=1).manifest()
    with RunStore.open(path) as store:
        with pytest.raises(RunStateError, match=r"does not keep commit 1; it keeps 2, 3, 4"):
            store.rewind(1)
        store.rewind(4)
    assert kept(path) == [2, 3, 4]


def test_of_two_commits_of_a_step_the_one_that_is_not_finished_is_gone_back_to(
    tmp_path: Path,
) -> None:
    memory = memory_after(1)
    with make_store(tmp_path) as store:
        commit(store, memory, 5, keep=9)
        commit(store, memory, 7, keep=9)
        commit(store, memory, 7, keep=9, status="finished")
        assert RunReader(store.path).find_commit(7).commit == 2
        commit(store, memory, 8, keep=9, status="finished")
        with pytest.raises(RunStateError, match=r"finished at step 8; the other steps .* 5, 7 "):
            RunReader(store.path).find_commit(8)


def test_a_damaged_or_missing_older_manifest_is_named_and_nothing_is_cut(tmp_path: Path) -> None:
    path = make_run(tmp_path, 3, 3)
    file = path / "commits" / "00000002.json"
    whole = file.read_bytes()
    with RunStore.open(path) as store:
        for data in (whole.replace(b'"samples": 10', b'"samples": 11'), whole[:-5], None):
            file.write_bytes(data) if data is not None else file.unlink()
            with pytest.raises(FormatError, match=r"00000002\.json' is (damaged|missing)"):
                store.rewind(2)
            assert kept(path) == [1, 2, 3]
        file.write_bytes(whole)
        store.rewind(2)
    assert kept(path) == [1, 2]


def test_a_commit_that_the_manifest_does_not_name_is_none(tmp_path: Path) -> None:
    path = make_run(tmp_path, 3, 2)
    stray = path / "commits" / "00000001.json"
    shutil.copy(path / "commits" / "00000002.json", stray)
    with pytest.raises(RunStateError, match="does not keep commit 1"):
        RunReader(path, at=1).manifest()
    with RunStore.open(path):
        assert not stray.exists()


def test_a_reader_of_a_commit_that_is_dropped_meanwhile_is_told_so(tmp_path: Path) -> None:
    path = make_run(tmp_path, 3, 3)
    reader = RunReader(path)
    reader.state()
    with RunStore.open(path) as store:
        memory = go_back(store, 1)
        grow(memory, 350, 55)
        with pytest.raises(RunStateError, match="was dropped while it was read"):
            load(reader)
        commit(store, memory, 1)
    with pytest.raises(RunStateError, match="was dropped while it was read"):
        load(reader)
    assert_same_bits(load(RunReader(path)), memory)


def test_a_crash_at_any_step_of_going_back_leaves_one_commit_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_run(tmp_path / "original", 4, 3)
    faults = Faults(monkeypatch)
    outcomes = set()
    for call in itertools.count():
        path = Path(shutil.copytree(original, tmp_path / f"copy-{call}"))
        store = RunStore.open(path)
        load(store.read(at=2))
        faults.crash_at(call)
        try:
            store.rewind(2)
            crashed = False
        except Crash:
            crashed = True
        faults.none()
        store.close()
        with RunStore.open(path) as store:
            numbers = kept(path)
            outcomes.add(tuple(numbers))
            for number in numbers:
                check_commit(path, number)
            memory = load(store.read())
            grow(memory, 123, 77)
            commit(store, memory, 50, keep=9)
        check_commit(path, 2)
        assert_same_bits(load(RunReader(path)), memory)
        shutil.rmtree(path)
        if not crashed:
            break
    assert outcomes == {(2,), (2, 3, 4)}
    assert call > 15


def test_a_refusal_at_any_step_of_going_back_lets_it_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_run(tmp_path / "original", 3, 3)
    faults = Faults(monkeypatch)
    for call in itertools.count():
        path = Path(shutil.copytree(original, tmp_path / f"copy-{call}"))
        with RunStore.open(path) as store:
            memory = load(store.read(at=2))
            faults.fail_at(call, errno.ENOSPC)
            with contextlib.suppress(StorageError):
                store.rewind(2)
            over = faults.calls <= call
            faults.none()
            store.rewind(2)
            assert [event["step"] for event in store.read().events()[0]] == [0, 1]
            grow(memory, 10, 9)
            commit(store, memory, 9, keep=2)
            assert_same_bits(load(RunReader(path)), memory)
        shutil.rmtree(path)
        if over:
            break


def test_the_text_of_an_array_says_whether_it_is_whole(tmp_path: Path) -> None:
    path = make_run(tmp_path, 1, 1) / "memory.zarr" / "layers" / LAYER / "key" / "zarr.json"
    whole = path.read_bytes()
    assert json.loads(whole)["attributes"]["dtype"] == "float32"
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"key/zarr\.json' is damaged"):
            load(RunReader(path.parents[4]), torch.float32)


def test_rows_are_added_after_going_back_over_a_commit_that_changed_some(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        grow(memory, 700, 0)
        commit(store, memory, 0, keep=3)
        change(memory, [3, 600], 1)
        commit(store, memory, 1, keep=3)
        store.rewind(1)
        again = make_memory()
        store.open_memory(LAYER, again)
        grow(again, 100, 2)
        commit(store, again, 2, keep=3)
        assert verify(store.path).damage == ()
        change(again, [4], 3)
        grow(again, 300, 3)
        commit(store, again, 3, keep=3)
    expected = make_memory()
    for rows, step in ((700, 0), (100, 2)):
        grow(expected, rows, step)
    assert_same_bits(load(RunReader(store.path, at=2)), expected)
    change(expected, [4], 3)
    grow(expected, 300, 3)
    with RunStore.open(store.path) as store:
        assert_same_bits(load(store.read()), expected)
    assert verify(store.path).damage == ()
    assert_zarr_shows(tmp_path / "run", committed_columns(expected), len(expected), len(expected))
