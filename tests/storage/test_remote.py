"""Runs in an object store: the same commits as on a disk, whatever happens to their writer."""

import errno
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from zarr.storage import ObjectStore

from streamlearn.errors import RunLockedError, RunStateError, StorageError
from streamlearn.storage import ObjectPath, RunReader, RunStore, list_runs
from streamlearn.storage import lease as leases
from streamlearn.storage.endpoints import connect
from streamlearn.storage.export import export_run
from streamlearn.storage.objects import as_object
from streamlearn.storage.repair import repair
from streamlearn.storage.verify import verify

from . import story
from .remote import Requests, State, put_state, state_of
from .story import PARTS, STEPS, begin, go_on, part_of
from .support import (
    LAYER,
    assert_same_bits,
    commit,
    committed_columns,
    grow,
    load,
    make_memory,
    make_store,
)

memory_at = lru_cache(story.memory_at)


@pytest.fixture(autouse=True)
def memories(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memories of the story, made once."""
    monkeypatch.setattr(story, "memory_at", memory_at)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectPath]:
    """An empty store in this process, quicker than a server; it has no ETags that tell contents."""
    folder = ObjectPath("memory", "trial")
    yield folder
    folder.remove_tree()


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever held a lock is known to have ended, as after a kill on this machine."""
    monkeypatch.setattr(leases, "_has_ended", lambda owner: True)


def zarr_columns(path: ObjectPath) -> dict[str, NDArray[Any]]:
    """What a plain reader of zarr finds in a run."""
    store = ObjectStore(connect(path.scheme, path.bucket), read_only=True)
    group = zarr.open_group(store, path=f"{path.key}/memory.zarr/layers/{LAYER}", mode="r")
    return {name: np.asarray(array[...]) for name, array in group.arrays()}


def check(path: ObjectPath, part: int, *, size: bool = False) -> None:
    """A run that nobody writes to is whole, for plain readers too, and as large as it says.

    After a crash its newest commit does not know yet how large it is.
    """
    assert verify(path).damage == ()
    expected = committed_columns(memory_at(part))
    found = zarr_columns(path)
    assert sorted(found) == sorted(expected)
    for name, rows in found.items():
        assert rows.tobytes() == expected[name].tobytes(), name
    manifest = RunReader(path).manifest()
    assert manifest is not None
    if size:
        assert manifest.disk_bytes == sum(stat.st_size for _, stat in path.walk())


def test_a_run_in_a_bucket_is_committed_changed_compacted_and_gone_back_in(
    bucket: ObjectPath,
) -> None:
    path = as_object(begin(bucket / "my runs"))
    with RunStore.open(path) as store:
        for part in go_on(store, 0):
            assert part_of(path, part) == part
            if part in (2, 5):
                check(path, part, size=True)
    assert list_runs(bucket / "my runs") == [path]
    assert [event.get("step") for event in RunReader(path).events()[0]] == [0, 1, 9, None]
    kinds = {found.relative_to(path).parts[0] for found, _ in path.walk()}
    assert kinds == {
        "commits",
        "events",
        "lock",
        "manifest.json",
        "memory.zarr",
        "run.json",
        "scenario.json",
        "shards",
        "state",
        "versions",
    }


def test_the_manifest_comes_after_all_that_it_names_and_before_zarr_shows_it(
    trial: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = as_object(begin(trial))
    order: list[str] = []
    put, copy = ObjectPath._put, ObjectPath.copy_to

    def note(place: ObjectPath, data: bytes, mode: object) -> object:
        order.append(str(place.relative_to(path)))
        return put(place, data, mode)

    def note_copy(place: ObjectPath, target: ObjectPath) -> None:
        order.append(str(target.relative_to(path)))
        copy(place, target)

    with RunStore.open(path) as store:
        parts = go_on(store, 0)
        next(parts)
        monkeypatch.setattr(ObjectPath, "_put", note)
        monkeypatch.setattr(ObjectPath, "copy_to", note_copy)
        next(parts)
    end = order.index("manifest.json")
    kinds = {"commits", "events", "shards", "state", "versions"}
    assert {name.split("/")[0] for name in order[:end]} == kinds
    shown = {"/".join(name.split("/")[-2:]) for name in order[end + 1 :] if name != "lock"}
    assert {"weight/c.0", "value/c.1.0", "key/zarr.json", "born/zarr.json"} <= shown
    assert all(name.startswith("memory.zarr") for name in order[end + 1 :] if name != "lock")


def test_after_a_crash_at_any_request_the_run_is_whole_and_goes_on_to_the_same_bits(
    trial: ObjectPath, monkeypatch: pytest.MonkeyPatch, ended: None
) -> None:
    run = as_object(begin(trial / "runs"))
    left: dict[tuple[int, frozenset[tuple[str, bytes]]], State] = {}
    acknowledged = 0

    def look(number: int = 0) -> None:
        state = state_of(run)
        rest = frozenset((name, data) for name, data in state.items() if name != "lock")
        left.setdefault((acknowledged, rest), state)

    with monkeypatch.context() as patch:
        requests = Requests(patch)
        requests.before = look
        with RunStore.open(run) as store:
            for part in go_on(store, 0):
                acknowledged = part
                look()
    assert len(left) > 100
    reached = set()
    for number, ((acknowledged, _), state) in enumerate(left.items()):
        path = put_state(trial / "left" / str(number), state)
        assert verify(path).damage == ()
        part = part_of(path, acknowledged)
        reached.add(part)
        with RunStore.open(path) as store:
            if number % 16 == 0:
                (*_, part) = go_on(store, part) if part < PARTS - 1 else (part,)
                assert_same_bits(load(RunReader(path)), memory_at(PARTS - 1))
        if number % 8 == 0:
            check(path, part)
        path.remove_tree()
    assert reached == set(range(PARTS))


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.ENOSPC])
def test_a_request_that_is_refused_leaves_the_last_commit_and_may_be_tried_again(
    trial: ObjectPath, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    state = state_of(as_object(begin(trial / "runs")))
    refused = 0
    for at in range(0, 70, 6):
        path = put_state(trial / str(at), state)
        with RunStore.open(path) as store, monkeypatch.context() as patch:
            requests = Requests(patch)

            def refuse(now: int, at: int = at) -> None:
                if now == at:
                    error = StorageError("cannot write: it is refused")
                    error.errno = number
                    raise error

            requests.before = refuse
            memory = make_memory()
            store.open_memory(LAYER, memory)
            for step in (1, 2):
                story._learn(memory, step)
                try:
                    story._commit(store, memory, step)
                except StorageError:
                    refused += 1
                    assert RunReader(path).state()["step"] in (step - 1, step)
                    if store.manifest is not None and store.manifest.step < step:
                        commit(store, memory, step, keep=story.KEEP)
            requests.before = lambda now: None
            for _ in go_on(store, 2):
                pass
        check(path, PARTS - 1, size=True)
        path.remove_tree()
    assert refused > 5


# -- one writer, many readers --------------------------------------------------------------------


def test_readers_keep_to_their_commit_while_the_run_goes_on(trial: ObjectPath) -> None:
    path = as_object(begin(trial))
    reader = RunReader(path)
    first = reader.manifest()
    assert first is not None
    with RunStore.open(path) as store:
        assert reader.writer() is not None
        parts = go_on(store, 0)
        for part in (1, 2):
            assert next(parts) == part
            if part == 1:
                assert_same_bits(load(reader), memory_at(0))
        assert reader.manifest() != first
        assert_same_bits(load(reader), memory_at(2))
        older = RunReader(path, at=store.read().find_commit(1).commit)
        assert_same_bits(load(older), memory_at(1))
        for _ in parts:
            pass
        with pytest.raises(RunStateError, match=r"keeps no commit of step 1; it keeps steps? 9"):
            RunReader(path).find_commit(1)
    assert reader.writer() is None
    reader.manifest()
    assert_same_bits(load(reader), memory_at(PARTS - 1))


def test_a_second_writer_is_refused(trial: ObjectPath) -> None:
    path = begin(trial)
    with RunStore.open(path):
        with pytest.raises(RunLockedError, match=rf"written by process {os.getpid()} on"):
            RunStore.open(path)
        with pytest.raises(RunLockedError, match="being written by"):
            repair(path)
    RunStore.open(path).close()


@pytest.mark.parametrize("commits", [0, 2])
def test_a_writer_that_lost_its_lock_commits_nothing_and_spoils_nothing(
    trial: ObjectPath, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    lost, memory = make_store(trial), make_memory()
    path = as_object(lost.path)
    for step in range(commits):
        grow(memory, 300, step)
        commit(lost, memory, step)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "_has_ended", lambda owner: True)
        store = RunStore.open(path)
    assert store.manifest is None or store.manifest.step == commits - 1
    # The other has put everything but its manifest when it finds out.
    grow(memory, 300, 7)
    with pytest.raises(RunLockedError, match="taken over by another process"):
        commit(lost, memory, 7)
    mine, expected = make_memory(), make_memory()
    if commits:
        store.open_memory(LAYER, mine)
    for step, rows in [*((step, 300) for step in range(commits)), (8, 400), (9, 400)]:
        grow(expected, rows, step)
        if step > 7:
            grow(mine, rows, step)
            commit(store, mine, step)
    with pytest.raises(RunLockedError, match="taken over by another process"):
        commit(lost, memory, 7)
    lost.close()
    store.close()
    assert verify(path).damage == ()
    assert_same_bits(load(RunReader(path)), expected)
    with RunStore.open(path) as again:
        assert again.manifest is not None
        assert again.manifest.step == 9


def test_a_run_that_was_taken_over_before_its_first_commit_has_none(
    trial: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = make_store(trial)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "_has_ended", lambda owner: True)
        for _ in range(2):
            RunStore.open(lost.path).close()
    reader = RunReader(lost.path)
    assert reader.manifest() is None
    found = verify(lost.path)
    assert found.whole
    assert found.commits == ()
    manifest = as_object(lost.path) / "manifest.json"
    text = manifest.read_bytes()
    manifest.put(text.replace(b"writer", b"wriTer"))
    assert [damage.file for damage in verify(lost.path).damage] == ["manifest.json"]
    lost.close()


# -- integrity -----------------------------------------------------------------------------------


@pytest.fixture
def whole(trial: ObjectPath) -> ObjectPath:
    """A run at part 4, with changed rows and an older commit."""
    path = as_object(begin(trial / "runs"))
    with RunStore.open(path) as store:
        for part in go_on(store, 0):
            if part == 4:
                break
    RunStore.open(path).close()  # puts away what was written ahead and then once more
    return path


def flip(path: ObjectPath, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << position % 8
    path.put(bytes(data))


def test_a_flipped_byte_in_any_object_is_found(whole: ObjectPath) -> None:
    tried = 0
    for path, stat in sorted(whole.walk(), key=lambda item: item[0]):
        name = str(path.relative_to(whole))
        data = path.read_bytes()
        for position in {0, stat.st_size // 2, stat.st_size - 1}:
            flip(path, position)
            found = [damage.file for damage in verify(whole).damage]
            assert found == ["events.jsonl" if name.startswith("events/") else name]
            path.put(data)
            tried += 1
    assert tried > 100
    found_whole = verify(whole)
    assert found_whole.whole
    assert found_whole.files == len(list(whole.walk()))
    assert found_whole.bytes == sum(stat.st_size for _, stat in whole.walk())


@pytest.mark.parametrize(
    ("name", "step", "done"),
    [
        ("memory.zarr/zarr.json", 9, "memory.zarr/zarr.json was made anew"),
        (f"memory.zarr/layers/{LAYER}/key/zarr.json", 9, "key/zarr.json was made anew"),
        ("events/0000000000000000.jsonl", 9, "events.jsonl was repaired"),
        ("state/000000000009.safetensors", 1, "went back to commit 2 (step 1"),
        (f"versions/{LAYER}/born/1.2", 1, "went back to commit 2 (step 1"),
        ("manifest.json", 1, "went back to commit 2 (step 1"),
        (f"memory.zarr/layers/{LAYER}/born/c.1", 9, ""),  # a copy, for zarr alone
    ],
)
def test_what_is_damaged_is_made_anew_or_gone_back_from(
    whole: ObjectPath, name: str, step: int, done: str
) -> None:
    flip(whole / name, 60)
    assert not verify(whole).whole
    found = repair(whole)
    assert found.after.damage == ()
    assert done in "; ".join(found.done)
    part = part_of(whole, STEPS.index(step, 1))
    assert RunReader(whole).state()["step"] == step
    check(whole, part)
    with RunStore.open(whole) as store:
        for _ in go_on(store, {1: 3, 9: 4}[step]):
            pass
    check(whole, PARTS - 1, size=True)


def test_an_export_is_that_of_the_same_run_on_a_disk(whole: ObjectPath, tmp_path: Path) -> None:
    local = begin(tmp_path)
    with RunStore.open(local) as store:
        for part in go_on(store, 0):
            if part == 4:
                break
    arrays: list[dict[str, NDArray[Any]]] = []
    for path in (local, whole):
        target = tmp_path / f"{len(arrays)}.npz"
        made = export_run(path, target)
        assert made.step == 9
        with np.load(target) as found:
            arrays.append({key: found[key] for key in found if key != "streamlearn"})
    assert arrays[0].keys() == arrays[1].keys()
    for key, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][key], key)


def test_a_table_and_a_log_grow_by_being_put_whole(
    trial: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlearn.storage.segments.SEGMENT_BYTES", 200)
    memory = make_memory()
    with make_store(trial) as store:
        for step in range(6):
            grow(memory, 512, step)
            for line in range(3):
                store.log({"event": "progress", "step": step, "line": line})
            commit(store, memory, step)
    path = as_object(store.path)
    assert len(list((path / "events").iterdir())) > 2
    (table,) = (path / "shards").iterdir()
    assert table.stat().st_size == 6 * 4 * 16
    assert verify(path).damage == ()
    assert_same_bits(load(RunReader(path)), memory)
    said = [(event["step"], event["line"]) for event in RunReader(path).events()[0]]
    assert said == [(step, line) for step in range(6) for line in range(3)]


def test_rows_that_wait_for_their_commit_are_read_from_objects(trial: ObjectPath) -> None:
    memory = make_memory()
    with make_store(trial) as store:
        grow(memory, 700, 0)
        commit(store, memory, 0)
        columns = {name: rows.copy() for name, rows in memory.host_columns(0).items()}
        columns["weight"][:] = 7
        store.write_block(LAYER, 0, columns, frozenset({"weight"}))
        out = {name: np.empty_like(rows) for name, rows in columns.items()}
        store.read_block(LAYER, 0, out)
        np.testing.assert_array_equal(out["weight"], columns["weight"])
        # It is not committed.
        assert_same_bits(load(RunReader(store.path)), memory)
    with RunStore.open(store.path) as store:
        assert_same_bits(load(store.read()), memory)
    assert not (as_object(store.path) / "versions").is_dir()
