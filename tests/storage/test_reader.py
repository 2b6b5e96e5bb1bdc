"""Readers: they change nothing, see commits only, and name what is damaged."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from streamlearn.errors import (
    ConfigError,
    FormatError,
    RunNotFoundError,
    RunStateError,
    ShapeError,
    StreamlearnError,
)
from streamlearn.storage import RunReader, RunStore
from streamlearn.storage.codec import array_metadata, codec_for
from streamlearn.storage.documents import seal
from streamlearn.storage.lock import current_writer
from streamlearn.storage.objects import as_file

from .support import (
    LAYER,
    assert_same_bits,
    commit,
    grow,
    load,
    make_memory,
    make_store,
    snapshot,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    memory = make_memory()
    grow(memory, 600, 0)
    with make_store(tmp_path_factory.mktemp("runs")) as store:
        store.log({"event": "started"})
        commit(store, memory, 4)
    return as_file(store.path)


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


READ_ONLY = """
import os, sys, warnings
warnings.simplefilter("error")
from pathlib import Path
from streamlearn.errors import StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore, find_run, list_runs

def read(path):
    reader = RunReader(path)
    memory = Memory(6, 3, block_rows=512)
    reader.load_memory("hidden.0", memory)
    assert len(memory) == reader.state()["rows"] == reader.manifest().layers["hidden.0"].rows
    assert reader.events()[0] and reader.writer() is None
    assert list_runs(path.parent) == [find_run(path.name, path.parent)] == [path]

path = Path(sys.argv[1])
read(path)  # imports all that it needs, as long as this user may
for folder in (path.parent, *(Path(found[0]) for found in os.walk(path))):
    folder.chmod(0o555)
if os.geteuid() == 0:  # nothing is read-only to root
    os.setuid(65534)
read(path)
for write in (RunStore.open, lambda path: RunStore.create(
        path.parent, "new", scenario={}, scenario_name="x")):
    try:
        write(path)
    except StorageError as error:
        print(error)
"""


def test_readers_work_on_a_read_only_directory_and_writers_say_why_not(original: Path) -> None:
    # Not below pytest's own folder, which no other user may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(shutil.copytree(original, Path(folder) / "runs" / "run"))
        (path / "lock").chmod(0o444)
        before = snapshot(path)
        command = [sys.executable, "-c", READ_ONLY, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert snapshot(path) == before
        for below, _, _ in os.walk(folder):
            os.chmod(below, 0o755)
    opening, creating = done.stdout.splitlines()
    assert "cannot write" in opening
    assert "run/lock': permission denied; give yourself the permission, or copy" in opening
    assert "cannot write" in creating
    assert "permission denied" in creating


def test_readers_change_nothing(run: Path) -> None:
    before = snapshot(run)
    reader = RunReader(run)
    reader.manifest()
    reader.state()
    load(reader)
    reader.columns(LAYER, 3, 700)
    reader.events()
    reader.writer()
    assert snapshot(run) == before


def test_a_reader_knows_the_header_and_the_scenario(run: Path) -> None:
    reader = RunReader(run)
    assert reader.path == run
    assert reader.scenario == {"seed": 1}
    assert reader.header.name == "run"
    assert reader.header.scenario == "test"
    assert reader.header.version == 1
    assert len(reader.header.id) == 32


def test_a_run_that_never_committed_has_no_commit(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.log({"event": "started"})
        reader = RunReader(store.path)
        assert reader.manifest() is None
        with pytest.raises(RunStateError, match="has never committed"):
            reader.state()
        with pytest.raises(RunStateError, match="has never committed"):
            reader.columns(LAYER, 0, 1)
        assert len(reader.events()[0]) == 1
    with RunStore.open(store.path) as store:
        assert store.manifest is None
        assert store.read().events() == ([], 0)


def test_a_layer_that_is_not_there_and_a_memory_that_does_not_fit_are_refused(run: Path) -> None:
    reader = RunReader(run)
    with pytest.raises(ConfigError, match=r"has no layer 'x'; it has 'hidden\.0'"):
        reader.load_memory("x", make_memory())
    full = load(reader)
    with pytest.raises(ShapeError, match="has 600 tuples already"):
        reader.load_memory(LAYER, full)
    with pytest.raises(ShapeError, match="start=-1"):
        reader.columns(LAYER, -1, 5)


@pytest.mark.parametrize("text", [None, b"", b"\0" * 50, b'{"format": "other"}', b"[1]"])
def test_a_foreign_directory_is_no_run(tmp_path: Path, text: bytes | None) -> None:
    (tmp_path / "photo.png").write_bytes(b"x")
    if text is not None:
        (tmp_path / "run.json").write_bytes(text)
    for begin in (RunReader, RunStore.open):
        with pytest.raises((RunNotFoundError, FormatError)) as caught:
            begin(tmp_path)
        assert str(tmp_path) in str(caught.value)
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("path", ["nothing", "nothing/below", "file", "file/below", "nul\0"])
def test_a_path_that_is_no_directory_is_no_run(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    for begin in (RunReader, RunStore.open):
        with pytest.raises(RunNotFoundError, match="is not there; give the path of a run"):
            begin(tmp_path / path)


@pytest.mark.parametrize("name", ["run.json", "manifest.json"])
def test_a_newer_version_says_which_and_to_upgrade(run: Path, name: str) -> None:
    document = json.loads((run / name).read_text())
    document["version"] = 7
    (run / name).write_text(json.dumps(document))
    with pytest.raises(FormatError, match=rf"{name}.* version 7 .* up to 1; upgrade"):
        RunReader(run).manifest()
    with pytest.raises(FormatError, match=rf"{name}.* version 7 .* up to 1; upgrade"):
        RunStore.open(run)
    assert current_writer(run / "lock") is None


@pytest.mark.parametrize("name", ["run.json", "scenario.json", "manifest.json"])
def test_every_flipped_byte_and_every_cut_of_a_document_is_noticed(run: Path, name: str) -> None:
    path = run / name
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        for data in (bytes(damaged), whole[:position]):
            path.write_bytes(data)
            with pytest.raises((FormatError, RunNotFoundError)) as caught:
                RunReader(run).manifest()
            assert str(run) in str(caught.value)


@pytest.mark.parametrize("name", ["run.json", "scenario.json", "manifest.json"])
def test_a_damaged_document_is_named(run: Path, name: str) -> None:
    path = run / name
    path.write_bytes(path.read_bytes()[:-9])
    for begin in (lambda: RunReader(run).manifest(), lambda: RunStore.open(run)):
        with pytest.raises(FormatError, match=rf"{name}' is damaged .*; put back a copy"):
            begin()
    if name == "scenario.json":
        path.unlink()
        with pytest.raises(FormatError, match=rf"{name}' is missing; put back a copy"):
            RunReader(run)


def test_a_manifest_that_points_outside_is_refused(run: Path) -> None:
    document = json.loads((run / "manifest.json").read_text())
    for changes in (
        {"state_file": "../../secret"},
        {"status": "odd"},
        {"layers": {"../x": document["layers"][LAYER]}},
        {"layers": 3},
        {"step": None},
    ):
        fields = {**document, **changes}
        for key in ("format", "version", "checksum"):
            del fields[key]
        (run / "manifest.json").write_bytes(seal("streamlearn-manifest", fields))
        with pytest.raises(FormatError, match=r"manifest\.json' is damaged \(its fields"):
            RunReader(run).manifest()


def test_every_flipped_byte_of_a_state_is_noticed(run: Path) -> None:
    path = run / "state" / "000000000004.safetensors"
    whole = path.read_bytes()
    reader = RunReader(run)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"000000000004\.safetensors' is damaged"):
            reader.state()
    for length in (0, 7, 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"000000000004\.safetensors' is damaged"):
            reader.state()
    path.unlink()
    with pytest.raises(FormatError, match="it is missing"):
        reader.state()


def test_a_damaged_or_missing_shard_is_named(run: Path) -> None:
    for name, shard in (("key", "c.0.0"), ("born", "c.1"), ("value", "c.1.0")):
        path = run / "memory.zarr" / "layers" / LAYER / name / shard
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[50] ^= 4
        for data, problem in (
            (bytes(damaged), "its rows are not those that were committed"),
            (whole[:70], "it ends after 70 bytes"),
            (b"", "it ends after 0 bytes"),
        ):
            path.write_bytes(data)
            with pytest.raises(FormatError, match=rf"{shard}' is damaged \({problem}"):
                load(RunReader(run))
        path.unlink()
        with pytest.raises(FormatError, match=rf"{shard}' is missing"):
            load(RunReader(run))
        path.write_bytes(whole)
    assert len(load(RunReader(run))) == 600


def test_a_whole_shard_of_other_rows_is_noticed(run: Path) -> None:
    column = run / "memory.zarr" / "layers" / LAYER / "key"
    codec = codec_for(array_metadata("float32", 512, 6, {}))
    whole = codec.decode((column / "c.0.0").read_bytes(), 512)
    (column / "c.0.0").write_bytes(b"".join(codec.encode(whole[::-1])))
    with pytest.raises(FormatError, match="its rows are not those that were committed"):
        load(RunReader(run))


@pytest.mark.parametrize("text", [b"", b"{}", b'{"shape": [1]}', None])
def test_damaged_metadata_of_an_array_is_named(run: Path, text: bytes | None) -> None:
    path = run / "memory.zarr" / "layers" / LAYER / "value" / "zarr.json"
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text)
    for begin in (lambda: load(RunReader(run)), lambda: RunStore.open(run)):
        with pytest.raises(FormatError, match=r"value/zarr\.json' is (damaged|missing)"):
            begin()


WRITER = """
import sys, time
from pathlib import Path
from tests.storage.support import commit, grow, make_memory
from streamlearn.storage import RunStore
with RunStore.open(Path(sys.argv[1])) as store:
    memory = make_memory()
    print("begun", flush=True)
    for step in range(60):
        grow(memory, 70, step)
        store.log({"event": "progress", "step": step})
        commit(store, memory, step % 2)
"""


def test_readers_see_whole_commits_while_another_process_writes(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        path = store.path
    expected = make_memory()
    for step in range(60):
        grow(expected, 70, step)
    command = [sys.executable, "-c", WRITER, str(path)]
    root = Path(__file__).parents[2]
    seen = set()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        while True:
            over = child.poll() is not None
            reader = RunReader(path)
            if reader.manifest() is not None:
                rows = reader.state()["rows"]
                seen.add(rows)
                assert rows == len(load(reader))
            if over:
                break
    assert child.returncode == 0
    assert max(seen) == 60 * 70
    assert len(seen) > 3
    assert_same_bits(load(RunReader(path)), expected)


def test_a_run_lives_on_wherever_it_is_moved(tmp_path: Path) -> None:
    runs = tmp_path / "mis datos" / "ñ 日本 \udcff"
    memory = make_memory()
    grow(memory, 700, 0)
    with make_store(runs, "año [3] 007") as store:
        commit(store, memory, 0)
    moved = tmp_path / "else where" / "new name"
    moved.parent.mkdir()
    shutil.move(as_file(store.path), moved)
    shutil.rmtree(tmp_path / "mis datos")
    link = tmp_path / "link"
    link.symlink_to(moved)
    with RunStore.open(link) as store:
        again = load(store.read())
        assert_same_bits(again, memory)
        grow(again, 50, 1)
        commit(store, again, 1)
        assert store.read().header.name == "año [3] 007"
    assert_same_bits(load(RunReader(moved)), again)
    assert not (tmp_path / "mis datos").exists()


def test_every_error_is_one_sentence(tmp_path: Path, run: Path) -> None:
    (run / "manifest.json").write_bytes(b"{")
    for begin in (
        lambda: RunReader(tmp_path),
        lambda: RunReader(run).manifest(),
        lambda: make_store(tmp_path),
        lambda: make_store(tmp_path, "a/b"),
    ):
        with pytest.raises(StreamlearnError) as caught:
            begin()
        assert "\n" not in str(caught.value)
        assert "; " in str(caught.value)
