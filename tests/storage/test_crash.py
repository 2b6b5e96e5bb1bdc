"""A crash, or a refusal of the system, at any step: the last commit is whole.

Steps of every kind are tried, of each kind every so-many-th; `STREAMLEARN_EVERY=1 pytest
tests/storage/test_crash.py` tries every single one.
"""

import contextlib
import errno
import itertools
import shutil
from functools import lru_cache
from pathlib import Path

import pytest

from streamlearn.errors import StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore, files, list_runs
from streamlearn.storage.objects import as_file

from . import story
from .support import (
    LAYER,
    REFUSALS,
    Crash,
    Faults,
    assert_same_bits,
    assert_zarr_shows,
    commit,
    committed_columns,
    grow,
    load,
    make_memory,
    make_store,
)

# A first block, one that fills while the next begins, a tail that grows.
GROWTH = [300, 400, 5]


@lru_cache
def memory_after(commits: int) -> Memory:
    memory = make_memory()
    for step in range(commits):
        grow(memory, GROWTH[step], step)
    return memory


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.fixture(params=range(2))
def commits(request: pytest.FixtureRequest) -> int:
    """How many commits went well before the one that does not."""
    number: int = request.param
    return number


@pytest.fixture
def original(tmp_path: Path, commits: int) -> Path:
    """A run with that many commits."""
    memory = make_memory()
    with make_store(tmp_path / "original") as store:
        for step in range(commits):
            grow(memory, GROWTH[step], step)
            store.log({"event": "progress", "step": step})
            commit(store, memory, step)
    return as_file(store.path)


def committed(path: Path) -> int:
    manifest = RunReader(path).manifest()
    return manifest.commit if manifest else 0


def check_whole(path: Path, most: int, *, ended: bool = False) -> int:
    """The newest commit is whole for every kind of reader; returns which it is.

    At the end zarr shows its rows and no others.
    """
    reader = RunReader(path)
    manifest = reader.manifest()
    done = manifest.commit if manifest else 0
    rows = sum(GROWTH[:done])
    before = rows if ended else sum(GROWTH[: max(done - 1, 0)])
    assert_zarr_shows(path, committed_columns(memory_after(most)), rows, before)
    if manifest is None:
        return 0
    assert manifest.layers[LAYER].rows == rows
    assert_same_bits(load(reader), memory_after(done))
    assert reader.state()["step"] == done - 1
    assert reader.state()["rows"] == rows
    return done


def go_on(store: RunStore, done: int, more: int = 1) -> None:
    """Load the newest commit, check it, and make some more."""
    memory = make_memory()
    if done:
        store.read().load_memory(LAYER, memory)
        assert_same_bits(memory, memory_after(done))
        rows = committed_columns(memory)
        assert_zarr_shows(as_file(store.path), rows, len(memory), len(memory))
    for step in range(done, done + more):
        grow(memory, GROWTH[step], step)
        store.log({"event": "progress", "step": step})
        commit(store, memory, step)
    check_finished(store, done + more)


def check_finished(store: RunStore, commits: int) -> None:
    """The run is as if nothing had ever happened to it, and nothing is left of what did."""
    assert check_whole(as_file(store.path), commits, ended=True) == commits
    assert [event["step"] for event in store.read().events()[0]] == list(range(commits))
    assert not any((store.path / "tmp").iterdir())
    assert len(list((store.path / "state").iterdir())) == 1
    assert store.manifest is not None
    assert store.manifest.disk_bytes == files.tree_bytes(store.path)


def copy_of(original: Path, number: int) -> Path:
    return Path(shutil.copytree(original, original.parent / f"copy-{number}"))


def test_a_crash_at_any_step_of_a_commit_leaves_the_last_one_whole(
    original: Path, commits: int, faults: Faults
) -> None:
    outcomes = set()
    for call in faults.steps():
        path = copy_of(original, call)
        store = RunStore.open(path)
        memory = make_memory()
        if commits:
            store.read().load_memory(LAYER, memory)
        grow(memory, GROWTH[commits], commits)
        store.log({"event": "progress", "step": commits})
        faults.crash_at(call)
        with contextlib.suppress(Crash):
            commit(store, memory, commits)
        faults.none()
        store.close()  # the lock goes with the process
        done = check_whole(path, commits + 1)
        outcomes.add(done)
        with RunStore.open(path) as again:
            go_on(again, done)
        shutil.rmtree(path)
    assert outcomes == {commits, commits + 1}
    assert faults.tried > 12


@pytest.mark.parametrize(("commits", "number"), [(0, errno.EIO), (1, errno.ENOSPC)])
def test_a_refusal_at_any_step_names_the_path_and_a_later_commit_succeeds(
    original: Path, commits: int, faults: Faults, number: int
) -> None:
    refusals = []
    for call in faults.steps():
        path = copy_of(original, call)
        with RunStore.open(path) as store:
            memory = make_memory()
            if commits:
                store.read().load_memory(LAYER, memory)
            grow(memory, GROWTH[commits], commits)
            store.log({"event": "progress", "step": commits})
            faults.fail_at(call, number)
            try:
                commit(store, memory, commits)
            except StorageError as error:
                refusals.append((str(path), error))
            faults.none()
            done = check_whole(path, commits + 1)
            assert done in (commits, commits + 1)
            # The same process goes on: a commit that did not happen may be made again.
            if done == commits:
                commit(store, memory, commits)
            grow(memory, GROWTH[commits + 1], commits + 1)
            store.log({"event": "progress", "step": commits + 1})
            commit(store, memory, commits + 1)
            check_finished(store, commits + 2)
        shutil.rmtree(path)
    assert len(refusals) == faults.tried > 12
    for where, refusal in refusals:
        assert where in str(refusal)
        assert refusal.errno == number
        assert ("free space" if number == errno.ENOSPC else "check the disk") in str(refusal)


def test_a_crash_at_any_step_of_opening_loses_nothing(
    original: Path, commits: int, faults: Faults
) -> None:
    # A run that crashed right after its manifest moved has the most to be put right.
    call = Faults.NEVER
    for name in (1000, 1001):
        crashed_run = copy_of(original, name)
        with RunStore.open(crashed_run) as store:
            memory = make_memory()
            if commits:
                store.read().load_memory(LAYER, memory)
            grow(memory, GROWTH[commits], commits)
            store.log({"event": "progress", "step": commits})
            faults.crash_at(call)
            with contextlib.suppress(Crash):
                commit(store, memory, commits)
            faults.none()
        call = 1 + faults.kinds.index("rename of copy-#/manifest.json")
    assert len(faults.kinds) == call + 1
    assert committed(crashed_run) == commits + 1
    for call in faults.steps():
        path = copy_of(crashed_run, call)
        faults.crash_at(call)
        with contextlib.suppress(Crash):
            RunStore.open(path).close()
        faults.none()
        assert check_whole(path, commits + 1) == commits + 1
        with RunStore.open(path) as store:
            go_on(store, commits + 1)
        shutil.rmtree(path)
    assert faults.tried > 2


@pytest.mark.parametrize("number", REFUSALS)
def test_a_refusal_at_any_step_of_creation_leaves_no_run(
    tmp_path: Path, faults: Faults, number: int
) -> None:
    runs = tmp_path / "deep" / "runs"
    refusals: list[StorageError] = []
    left: list[Path] = []
    for call in itertools.count():
        faults.fail_at(call, number)
        try:
            make_store(runs).close()
        except StorageError as error:
            refusals.append(error)
            left += list(runs.iterdir()) if runs.exists() else []
        if faults.calls <= call:
            break
        shutil.rmtree(tmp_path / "deep", ignore_errors=True)
    assert left == []
    assert [path.name for path in list_runs(runs)] == ["run"]
    assert len(refusals) == call > 20
    assert all(str(tmp_path) in str(refusal) for refusal in refusals)


def test_a_crash_at_any_step_of_creation_leaves_a_run_or_none(
    tmp_path: Path, faults: Faults
) -> None:
    for call in itertools.count():
        runs = tmp_path / str(call)
        faults.crash_at(call)
        try:
            make_store(runs).close()
            crashed = False
        except Crash:
            crashed = True
        faults.none()
        for path in list_runs(runs):
            with RunStore.open(path) as store:
                go_on(store, 0)
        if not crashed:
            break
    assert list_runs(runs)


def test_an_event_that_could_not_be_written_leaves_the_log_as_it_was(
    tmp_path: Path, faults: Faults
) -> None:
    with make_store(tmp_path) as store:
        store.log({"event": "first"})
        faults.fail_at(0, errno.ENOSPC)
        with pytest.raises(StorageError, match=r"cannot write .*events\.jsonl.*no space"):
            store.log({"event": "lost", "text": "x" * 300})
        events, offset = store.read().events()
        assert [event["event"] for event in events] == ["first"]
        store.log({"event": "second"})
        assert [event["event"] for event in store.read().events(offset)[0]] == ["second"]
        commit(store, make_memory(), 0)
    lines = (store.path / "events.jsonl").read_bytes().split(b"\n")
    assert len(lines) == 3
    assert lines[-1] == b""


def test_one_crash_may_follow_another(original: Path, commits: int, faults: Faults) -> None:
    for call in range(0, 60, 7):
        with RunStore.open(original) as store:
            done = committed(original)
            if done > commits:
                break
            memory = make_memory()
            if done:
                store.read().load_memory(LAYER, memory)
            grow(memory, GROWTH[done], done)
            store.log({"event": "progress", "step": done})
            faults.crash_at(call)
            with pytest.raises(Crash):
                commit(store, memory, done)
            faults.none()
        check_whole(original, commits + 1)
    with RunStore.open(original) as store:
        go_on(store, committed(original))


def test_a_refusal_at_any_step_of_a_commit_of_changed_rows_spoils_no_older_commit(
    tmp_path: Path, faults: Faults
) -> None:
    run = as_file(story.begin(tmp_path / "runs"))
    for call in faults.steps():
        path = copy_of(run, call)
        with RunStore.open(path) as store:
            memory = make_memory()
            store.open_memory(LAYER, memory)
            story._learn(memory, 1)
            story._commit(store, memory, 1)
            story._learn(memory, 2)
            faults.fail_at(call, errno.EIO)
            try:
                story._commit(store, memory, 2)
            except StorageError:
                faults.none()
                if store.manifest is not None and store.manifest.step < 2:
                    commit(store, memory, 2, keep=story.KEEP)
            faults.none()
            assert story.part_of(path, 2) == 2
        shutil.rmtree(path)
    assert faults.tried > 12


def test_a_refusal_at_any_step_of_compacting_lets_the_same_process_go_on(
    tmp_path: Path, faults: Faults
) -> None:
    run = as_file(story.begin(tmp_path / "runs"))
    with RunStore.open(run) as store:
        for part in story.go_on(store, 0):
            if part == 4:
                break
    parts = set()
    for call in faults.steps():
        path = copy_of(run, call)
        with RunStore.open(path) as store:
            faults.fail_at(call, errno.EIO)
            with contextlib.suppress(StorageError):
                store.compact()
            faults.none()
            parts.add(story.part_of(path, 4))
            store.compact()
            assert story.part_of(path, 5) == 5
            memory, expected = make_memory(), story.memory_at(5)
            store.open_memory(LAYER, memory)
            for grown in (memory, expected):
                grow(grown, 300, 11)
            commit(store, memory, 11, keep=story.KEEP)
            assert_same_bits(load(store.read()), expected)
        shutil.rmtree(path)
    assert parts == {4, 5}
    assert faults.tried > 12
