"""A crash, or a refusal of the system, at every single step: the last commit is whole."""

import errno
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlearn.errors import StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore, files, list_runs

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

# A tail that grows, a block that fills, several new blocks at once.
GROWTH = [300, 100, 900, 50]


def memory_after(commits: int) -> Memory:
    memory = make_memory()
    for step in range(commits):
        grow(memory, GROWTH[step], step)
    return memory


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


@pytest.fixture(params=range(3))
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
    return store.path


def committed(path: Path) -> int:
    manifest = RunReader(path).manifest()
    return manifest.commit if manifest else 0


def check_whole(path: Path, most: int) -> int:
    """The newest commit is whole for every kind of reader; returns which it is."""
    reader = RunReader(path)
    manifest = reader.manifest()
    done = manifest.commit if manifest else 0
    rows = sum(GROWTH[:done])
    before = sum(GROWTH[: max(done - 1, 0)])
    assert_zarr_shows(path, committed_columns(memory_after(most)), rows, before)
    if manifest is None:
        return 0
    assert manifest.layers[LAYER].rows == rows
    assert_same_bits(load(reader), memory_after(done))
    assert reader.state()["step"] == done - 1
    assert reader.state()["rows"] == rows
    return done


def go_on(store: RunStore, done: int) -> None:
    """Make the commits that are left and check the last."""
    memory = make_memory()
    if done:
        store.read().load_memory(LAYER, memory)
    for step in range(done, len(GROWTH)):
        grow(memory, GROWTH[step], step)
        store.log({"event": "progress", "step": step})
        commit(store, memory, step)
    check_finished(store)


def check_finished(store: RunStore) -> None:
    final = memory_after(len(GROWTH))
    rows = len(final)
    assert_same_bits(load(RunReader(store.path)), final)
    assert_zarr_shows(store.path, committed_columns(final), rows, rows)
    assert [event["step"] for event in store.read().events()[0]] == list(range(len(GROWTH)))
    assert not any((store.path / "tmp").iterdir())
    assert len(list((store.path / "state").iterdir())) == 1
    assert store.manifest is not None
    assert store.manifest.disk_bytes == files.tree_bytes(store.path)


def copies(original: Path) -> Callable[[int], Path]:
    def copy(number: int) -> Path:
        path = original.parent / f"copy-{number}"
        shutil.copytree(original, path)
        return path

    return copy


def test_a_crash_at_any_step_of_a_commit_leaves_the_last_one_whole(
    original: Path, commits: int, faults: Faults
) -> None:
    outcomes = set()
    for call in itertools.count():
        path = copies(original)(call)
        store = RunStore.open(path)
        memory = make_memory()
        if commits:
            store.read().load_memory(LAYER, memory)
        grow(memory, GROWTH[commits], commits)
        store.log({"event": "progress", "step": commits})
        faults.crash_at(call)
        try:
            commit(store, memory, commits)
            crashed = False
        except Crash:
            crashed = True
        faults.none()
        store.close()  # the lock goes with the process
        done = check_whole(path, commits + 1)
        outcomes.add(done)
        with RunStore.open(path) as again:
            assert check_whole(path, commits + 1) == done
            rows = sum(GROWTH[:done])
            if done:
                all_rows = committed_columns(memory_after(done))
                assert_zarr_shows(path, all_rows, rows, rows)
            go_on(again, done)
        shutil.rmtree(path)
        if not crashed:
            break
    assert outcomes == {commits, commits + 1}
    assert call > 20


@pytest.mark.parametrize("number", REFUSALS)
def test_a_refusal_at_any_step_names_the_path_and_a_later_commit_succeeds(
    original: Path, commits: int, faults: Faults, number: int
) -> None:
    refused = 0
    for call in itertools.count():
        path = copies(original)(call)
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
                refused += 1
                assert str(path) in str(error)
                assert error.errno == number
                assert ("free space" if number == errno.ENOSPC else "check the disk") in str(error)
            over = faults.calls <= call
            faults.none()
            done = check_whole(path, commits + 1)
            assert done in (commits, commits + 1)
            # The same process goes on: it commits what it has, then the rest.
            for step in range(commits + 1, len(GROWTH)):
                grow(memory, GROWTH[step], step)
                store.log({"event": "progress", "step": step})
                commit(store, memory, step)
            check_finished(store)
        shutil.rmtree(path)
        if over:
            break
    assert refused == call


def test_a_crash_at_any_step_of_opening_loses_nothing(
    original: Path, commits: int, faults: Faults
) -> None:
    # A run that crashed right after its manifest moved has the most to be put right.
    with RunStore.open(original) as store:
        memory = make_memory()
        if commits:
            store.read().load_memory(LAYER, memory)
        grow(memory, GROWTH[commits], commits)
        store.log({"event": "progress", "step": commits})
        for call in itertools.count(5):
            faults.crash_at(call)
            with pytest.raises(Crash):
                commit(store, memory, commits)
            faults.none()
            if committed(original) == commits + 1:
                break
    for call in itertools.count():
        path = copies(original)(call)
        faults.crash_at(call)
        try:
            RunStore.open(path).close()
            crashed = False
        except Crash:
            crashed = True
        faults.none()
        assert check_whole(path, commits + 1) == commits + 1
        with RunStore.open(path) as store:
            go_on(store, commits + 1)
        shutil.rmtree(path)
        if not crashed:
            break
    assert call > 2


@pytest.mark.parametrize("number", REFUSALS)
def test_a_refusal_at_any_step_of_creation_leaves_no_run(
    tmp_path: Path, faults: Faults, number: int
) -> None:
    runs = tmp_path / "deep" / "runs"
    for call in itertools.count():
        faults.fail_at(call, number)
        try:
            make_store(runs).close()
        except StorageError as error:
            assert str(tmp_path) in str(error)
            assert list_runs(runs) == []
            assert not runs.exists() or not any(runs.iterdir())
        if faults.calls <= call:
            break
        shutil.rmtree(tmp_path / "deep", ignore_errors=True)
    assert [path.name for path in list_runs(runs)] == ["run"]
    assert call > 20


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
