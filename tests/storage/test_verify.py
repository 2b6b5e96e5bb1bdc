"""Damage in any file is found and named, and a repair goes back to the newest whole commit."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from streamlearn.errors import (
    FormatError,
    RunLockedError,
    RunNotFoundError,
    StreamlearnError,
)
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore, files
from streamlearn.storage.documents import seal
from streamlearn.storage.objects import as_file
from streamlearn.storage.repair import repair
from streamlearn.storage.verify import Verification, verify

from .support import (
    LAYER,
    Crash,
    Faults,
    assert_same_bits,
    commit,
    grow,
    load,
    make_memory,
    make_store,
    snapshot,
)

GROWTH = [300, 400, 5]
ARRAYS = Path("memory.zarr") / "layers" / LAYER


def memory_after(commits: int) -> Memory:
    memory = make_memory()
    for step in range(commits):
        grow(memory, GROWTH[step], step)
    return memory


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps its commits 2 and 3, of the steps 1 and 2."""
    memory = make_memory()
    with make_store(tmp_path_factory.mktemp("runs")) as store:
        for step, rows in enumerate(GROWTH):
            grow(memory, rows, step)
            store.log({"event": "progress", "step": step})
            commit(store, memory, step, keep=2)
    return as_file(store.path)


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def flip(path: Path, position: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def named(found: Verification) -> list[str]:
    return [damage.file for damage in found.damage]


def resumed(path: Path) -> tuple[int, Memory]:
    """What a resumed run begins with: the step and the rows."""
    with RunStore.open(path) as store:
        reader = store.read()
        state = reader.state()
        return state["step"], load(reader)


def test_a_whole_run_is_called_whole_and_nothing_is_changed(run: Path) -> None:
    before = snapshot(run)
    found = verify(run)
    assert found.whole
    assert [(c.commit, c.step, c.whole) for c in found.commits] == [(2, 1, True), (3, 2, True)]
    assert found.bytes == files.tree_bytes(run)
    assert found.files == sum(path.is_file() for path in run.rglob("*"))
    assert snapshot(run) == before


def test_a_flipped_byte_in_any_file_is_found_and_never_used(run: Path) -> None:
    tried = 0
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = str(path.relative_to(run))
        whole = path.read_bytes()
        size = len(whole)
        # The ends, and places in between; the bit differs from place to place.
        places = {0, 1, size // 7, size // 3, size // 2, 2 * size // 3, size - 2, size - 1}
        for position in sorted(places):
            flip(path, position, position % 8)
            found = verify(run)
            assert named(found) == [name], position
            path.write_bytes(whole)
            tried += 1
    assert tried > 150
    assert verify(run).whole


def test_what_a_resumed_run_reads_is_never_damaged(run: Path, tmp_path: Path) -> None:
    expected = memory_after(3)
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        size = path.stat().st_size
        for position in (1, size // 2, size - 1):
            copy = Path(shutil.copytree(run, tmp_path / "copy"))
            flip(copy / path.relative_to(run), position, 2)
            with contextlib.suppress(StreamlearnError):
                step, memory = resumed(copy)
                # It was not needed: a group, the log, the lock, an older commit.
                assert path.name not in ("manifest.json", "scenario.json", "run.json")
                assert step == 2
                assert_same_bits(memory, expected)
            shutil.rmtree(copy)


def test_a_file_that_is_cut_or_missing_is_named(run: Path) -> None:
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = str(path.relative_to(run))
        whole = path.read_bytes()
        path.write_bytes(whole[:-3])
        assert named(verify(run)) == [name]
        path.unlink()
        if name == "run.json":
            with pytest.raises(RunNotFoundError, match="is not a run of streamlearn"):
                verify(run)
        elif name != "lock":
            assert named(verify(run)) == [name]
        path.write_bytes(whole)
    assert verify(run).whole


def test_what_is_wrong_and_whom_it_concerns_is_said(run: Path) -> None:
    state = run / "state" / "000000000002.safetensors"
    flip(state, 20, 0)
    (run / ARRAYS / "key" / "c.1.0").unlink()
    flip(run / "events.jsonl", 5, 0)
    damage = {entry.file: entry for entry in verify(run).damage}
    entry = damage["state/000000000002.safetensors"]
    assert (entry.problem, entry.commits) == ("is damaged (its checksum does not fit)", (3,))
    entry = damage[str(ARRAYS / "key" / "c.1.0")]
    assert (entry.problem, entry.commits) == ("is missing", (2, 3))
    assert damage["events.jsonl"].commits == ()


def test_a_shard_that_lacks_the_newest_rows_spoils_the_newest_commit_alone(run: Path) -> None:
    before = memory_after(2)
    with make_store(run.parent, "older") as store:
        commit(store, before, 1)
    shard = ARRAYS / "value" / "c.1.0"
    shutil.copy(run.parent / "older" / shard, run / shard)
    (damage,) = verify(run).damage
    assert damage.problem == "is damaged (its rows are not those that were committed)"
    assert damage.commits == (3,)


def test_a_run_that_never_committed_is_whole(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        found = verify(store.path)
    assert found.whole
    assert found.commits == ()
    assert found.newest_whole is None


def test_a_run_may_be_verified_while_it_is_written(run: Path) -> None:
    with RunStore.open(run) as store:
        memory = load(store.read())
        grow(memory, 700, 9)
        store.log({"event": "progress"})
        assert verify(run).whole
        commit(store, memory, 9, keep=2)
        assert verify(run).whole


def test_a_whole_run_is_not_repaired(run: Path) -> None:
    result = repair(run)
    assert result.done == ()
    assert result.after.whole
    assert resumed(run)[0] == 2


def test_a_repair_goes_back_to_the_newest_whole_commit_and_says_what_is_lost(run: Path) -> None:
    flip(run / "state" / "000000000002.safetensors", 30, 1)
    result = repair(run)
    assert named(result.before) == ["state/000000000002.safetensors"]
    assert result.done == (
        "went back to commit 2 (step 1, 10 samples); 1 step that came after it is lost",
    )
    assert result.after.whole
    step, memory = resumed(run)
    assert step == 1
    assert_same_bits(memory, memory_after(2))
    assert [event["step"] for event in RunReader(run).events()[0]] == [0, 1]


@pytest.mark.parametrize("lost", [True, False])
def test_a_damaged_or_lost_manifest_is_replaced_by_the_newest_kept_one(
    run: Path, lost: bool
) -> None:
    manifest = run / "manifest.json"
    manifest.unlink() if lost else flip(manifest, 100, 0)
    result = repair(run)
    assert "went back to commit 2 (step 1, 10 samples), the newest that was kept" in result.done[0]
    assert result.after.whole
    assert resumed(run)[0] == 1


@pytest.mark.parametrize("file", ["commits/00000002.json", "state/000000000001.safetensors"])
def test_an_older_commit_that_is_damaged_is_kept_no_more(run: Path, file: str) -> None:
    flip(run / file, 50, 3)
    result = repair(run)
    assert result.done == ("commit 2 (step 1) is kept no more, for it was damaged",)
    assert result.after.whole
    assert [entry.commit for entry in result.after.commits] == [3]
    assert resumed(run)[0] == 2


@pytest.mark.parametrize(
    "file",
    [
        "memory.zarr/zarr.json",
        "memory.zarr/layers/zarr.json",
        f"memory.zarr/layers/{LAYER}/zarr.json",
        f"memory.zarr/layers/{LAYER}/key/zarr.json",
        f"memory.zarr/layers/{LAYER}/born/zarr.json",
        "lock",
    ],
)
@pytest.mark.parametrize("lost", [True, False])
def test_what_follows_from_the_rest_is_made_anew(run: Path, file: str, lost: bool) -> None:
    whole = (run / file).read_bytes()
    if lost:
        (run / file).unlink()
    else:
        flip(run / file, 60, 2)
    result = repair(run)
    assert result.after.whole
    assert file == "lock" or (run / file).read_bytes() == whole
    assert resumed(run)[0] == 2


def test_a_damaged_event_log_keeps_the_lines_that_can_be_read(run: Path) -> None:
    first = (run / "events.jsonl").read_bytes().index(b"\n")
    flip(run / "events.jsonl", first - 1, 0)  # the first line's closing brace
    result = repair(run)
    assert result.done == ("events.jsonl was repaired; some of its lines may be missing or wrong",)
    assert result.after.whole
    assert [entry.commit for entry in result.after.commits] == [2, 3]
    events = RunReader(run).events()[0]
    assert [event.get("step") for event in events] == [1, 2, None]
    assert events[-1]["event"] == "notice"
    with RunStore.open(run) as store:
        store.rewind(2)
        assert [event.get("step") for event in store.read().events()[0]] == [1]


def test_damage_in_the_log_is_said_when_a_run_goes_on(run: Path) -> None:
    flip(run / "events.jsonl", 20, 0)
    with RunStore.open(run) as store:
        assert "damaged" in store.read().events()[0][-1]["text"]


def test_what_no_commit_survives_cannot_be_repaired_and_is_left_alone(run: Path) -> None:
    flip(run / ARRAYS / "key" / "c.0.0", 100, 1)
    before = snapshot(run, folders=False)
    result = repair(run)
    assert result.done == ()
    assert result.after.newest_whole is None
    assert named(result.after) == [str(ARRAYS / "key" / "c.0.0")]
    after = snapshot(run, folders=False)
    del before["lock"], after["lock"]
    assert after == before
    flip(run / ARRAYS / "key" / "c.0.0", 100, 1)
    flip(run / "scenario.json", 3, 1)
    assert repair(run).after.newest_whole is None


def test_a_run_that_is_written_or_newer_is_not_repaired(run: Path, tmp_path: Path) -> None:
    with RunStore.open(run), pytest.raises(RunLockedError):
        repair(run)
    document = json.loads((run / "manifest.json").read_text())
    document["version"] = 2
    (run / "manifest.json").write_text(json.dumps(document))
    assert named(verify(run)) == ["manifest.json"]
    with pytest.raises(FormatError, match="format version 2 but this streamlearn repairs up to 1"):
        repair(run)
    with pytest.raises(RunNotFoundError):
        repair(tmp_path)


def test_a_manifest_of_other_rows_is_found_by_its_shards(run: Path) -> None:
    document = json.loads((run / "manifest.json").read_text())
    for key in ("format", "version", "checksum"):
        del document[key]
    document["layers"][LAYER]["tail"]["key"]["checksum"] = "00000000"
    (run / "manifest.json").write_bytes(seal("streamlearn-manifest", document))
    assert {damage.commits for damage in verify(run).damage} == {(3,)}


def test_a_crash_at_any_step_of_a_repair_lets_it_be_done_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(run / "state" / "000000000002.safetensors", 30, 1)
    flip(run / ARRAYS / "born" / "zarr.json", 30, 1)
    faults = Faults(monkeypatch)
    crashed, call = True, 0
    while crashed:
        path = Path(shutil.copytree(run, tmp_path / f"copy-{call}"))
        faults.crash_at(call)
        crashed = False
        try:
            repair(path)
        except Crash:
            crashed = True
        faults.none()
        assert repair(path).after.whole
        assert resumed(path)[0] == 1
        shutil.rmtree(path)
        call += 3
    assert call > 15
