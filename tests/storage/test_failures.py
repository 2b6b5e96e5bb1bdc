"""What goes wrong in the middle, and learning that goes on in the same process afterwards."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from streamlearn.errors import FormatError, RunStateError, StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore, files
from streamlearn.storage.commits import Commits
from streamlearn.storage.export import export_run
from streamlearn.storage.objects import as_file
from streamlearn.storage.repair import repair
from streamlearn.storage.verify import verify

from .support import (
    LAYER,
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
from .test_pending import small_memory


def test_blocks_that_leave_after_a_commit_that_failed_late_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, plain = small_memory(), make_memory()
    with make_store(tmp_path) as store:
        for both in (memory, plain):
            grow(both, 300, 0)
        commit(store, memory, 0)
        for both in (memory, plain):
            grow(both, 1000, 1)
        with monkeypatch.context() as patch:
            moved = threading.Event()
            rename, sync_directory = files.rename, files.sync_directory

            def note(source: Path, target: Path) -> None:
                rename(source, target)
                if target.name == "manifest.json":
                    moved.set()

            def refuse(path: Path) -> None:
                if moved.is_set():
                    raise StorageError("cannot write: input/output error")
                sync_directory(path)

            patch.setattr(files, "rename", note)
            patch.setattr(files, "sync_directory", refuse)
            with pytest.raises(StorageError):
                commit(store, memory, 1)
        for step in range(2, 30):
            for both in (memory, plain):
                grow(both, 128, step)
        assert memory.tiers.disk_bytes > 0
        commit(store, memory, 30)
        commit(store, memory, 31)
    assert verify(store.path).damage == ()
    assert_same_bits(load(RunReader(store.path)), plain)


def test_rows_of_a_commit_that_was_refused_may_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        grow(memory, 300, 0)
        commit(store, memory, 0)
        grow(memory, 100, 1)
        with monkeypatch.context() as patch:

            def refuse(*_: Any, **__: Any) -> None:
                raise StorageError("cannot write: no space left on device")

            patch.setattr(Commits, "_manifest", refuse)
            with pytest.raises(StorageError):
                commit(store, memory, 1)
        change(memory, [350, 360], 2)
        commit(store, memory, 2)
        assert_same_bits(load(RunReader(store.path)), memory)
    assert verify(store.path).damage == ()


@pytest.mark.parametrize("how", ["compact", "rewind"])
def test_a_memory_from_before_rows_were_numbered_anew_is_refused(tmp_path: Path, how: str) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        grow(memory, 700, 0)
        commit(store, memory, 0, keep=3)
        memory.drop(torch.arange(100))
        grow(memory, 900, 1)
        commit(store, memory, 1, keep=3)
        store.compact() if how == "compact" else store.rewind(1)
        expected = load(store.read())
        grow(memory, 10, 2)
        with pytest.raises(RunStateError, match="load the run before you go on with it"):
            commit(store, memory, 2, keep=3)
        assert_same_bits(load(store.read()), expected)
        again = make_memory()
        store.open_memory(LAYER, again)
        grow(again, 10, 2)
        commit(store, again, 2, keep=3)
    assert verify(store.path).damage == ()


def test_blocks_of_a_memory_from_before_a_compaction_are_not_read(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        memory = make_memory()
        grow(memory, 700, 0)
        memory.drop(torch.arange(100))
        commit(store, memory, 0)
        opened = make_memory()
        store.open_memory(LAYER, opened)
        store.compact()
        with pytest.raises(RunStateError, match="was compacted since this memory"):
            opened.host_columns(0)
        facts = json.loads((as_file(store.path) / "manifest.json").read_text())
        assert facts["disk_bytes"] == files.tree_bytes(as_file(store.path))


def test_what_one_memory_could_not_snapshot_loses_nothing_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_memory(), make_memory()
    memories = {"a": first, "b": second}
    with make_store(tmp_path) as store:
        commit(store, first, 0, memories=memories)
        for memory in (first, second):
            grow(memory, 300, 1)
        with monkeypatch.context() as patch:
            snapshot = Memory.snapshot

            def fail(self: Memory) -> Any:
                if self is second:
                    raise MemoryError
                return snapshot(self)

            patch.setattr(Memory, "snapshot", fail)
            with pytest.raises(MemoryError):
                commit(store, first, 1, memories=memories)
        commit(store, first, 2, memories=memories)
        for name, memory in memories.items():
            assert_same_bits(load(RunReader(store.path), name=name), memory)


def test_a_byte_of_the_newest_rows_alone_costs_the_newest_commit_alone(tmp_path: Path) -> None:
    memory = make_memory()
    kept = []
    with make_store(tmp_path) as store:
        for step in range(3):
            grow(memory, 40, step)
            commit(store, memory, step, keep=3)
            kept.append(committed_columns(memory))
    shard = tmp_path / "run" / "memory.zarr" / "layers" / LAYER / "weight" / "c.0"
    data = bytearray(shard.read_bytes())
    data[100 * 4] ^= 1
    shard.write_bytes(data)
    found = verify(tmp_path / "run")
    assert [commit.whole for commit in found.commits] == [True, True, False]
    mended = repair(tmp_path / "run")
    assert mended.after.damage == ()
    assert [commit.step for commit in mended.after.commits] == [0, 1]
    assert_zarr_shows(tmp_path / "run", kept[1], 80, 80)


def test_a_row_that_the_table_has_no_record_of_is_damage(tmp_path: Path) -> None:
    from streamlearn.storage.documents import seal

    memory = make_memory()
    grow(memory, 5 * 512, 0)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
    path = tmp_path / "run" / "manifest.json"
    facts = json.loads(path.read_text())
    for key in ("format", "version", "checksum"):
        del facts[key]
    table = facts["layers"][LAYER]["table"]
    table["records"] -= 4
    text = (tmp_path / "run" / table["file"]).read_bytes()[: 16 * table["records"]]
    table["checksum"] = f"{files.checksum(text):08x}"
    path.write_bytes(seal("streamlearn-manifest", facts))
    (damage,) = verify(tmp_path / "run").damage
    assert damage.file == table["file"]
    with pytest.raises(FormatError, match="does not cover the committed rows"):
        load(RunReader(tmp_path / "run"))


def test_a_run_that_grows_while_it_is_verified_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        grow(memory, 1300, 0)
        commit(store, memory, 0)
        read = files.read_bytes
        step = 0

        def read_slowly(path: Path) -> bytes:
            nonlocal step
            if path.name.startswith("c."):
                step += 1
                grow(memory, 3, step)
                change(memory, [step % 900], step)
                monkeypatch.setattr(files, "read_bytes", read)
                commit(store, memory, step)
                monkeypatch.setattr(files, "read_bytes", read_slowly)
            return read(path)

        monkeypatch.setattr(files, "read_bytes", read_slowly)
        assert verify(store.path).damage == ()
        assert step > 3


def test_a_reader_whose_commit_went_while_it_read_is_told_so(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        grow(memory, 700, 0)
        commit(store, memory, 0)
        reader = RunReader(store.path)
        opened = make_memory()
        reader.open_memory(LAYER, opened)
        for step in (1, 2):
            change(memory, [3, 600], step)
            commit(store, memory, step)
        with pytest.raises(RunStateError, match=r"commit 1 of the run .* was dropped while it was"):
            committed_columns(opened)
        with pytest.raises(RunStateError, match="for the run went on; read it again"):
            reader.columns(LAYER, 0, 10)
        assert len(export_run(store.path, tmp_path / "a.npz").path.name) > 0


def test_resume_of_a_damaged_run_keeps_what_is_whole(tmp_path: Path) -> None:
    from streamlearn.events import Progress
    from streamlearn.scenarios.session import Session
    from streamlearn.scenarios.words import resolve

    words = ["checkpoint.keep=3", "checkpoint.every_steps=12", f"run.dir={tmp_path}", "run.name=a"]
    with Session.start(resolve(words)) as session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == 45:
                session.request_stop("test")
    run = tmp_path / "a"
    manifest = RunReader(run).manifest()
    assert manifest is not None
    shard = run / "memory.zarr" / "layers" / "output" / "weight" / "c.0"
    data = bytearray(shard.read_bytes())
    data[4 * (manifest.layers["output"].rows - 2)] ^= 1
    shard.write_bytes(data)
    before = (run / "manifest.json").read_bytes()
    for _ in range(3):
        with Session.resume(run) as session, pytest.raises(FormatError, match="verify --repair"):
            list(session.events())
        assert (run / "manifest.json").read_bytes() == before
    assert repair(run).after.whole
    with Session.resume(run) as session:
        list(session.events())
    assert verify(run).damage == ()


def test_a_store_that_is_opened_again_after_all_this_is_whole(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        grow(memory, 700, 0)
        commit(store, memory, 0)
    with RunStore.open(store.path) as store:
        again = make_memory()
        store.open_memory(LAYER, again)
        grow(again, 400, 1)
        change(again, [2], 1)
        commit(store, again, 1)
    assert verify(store.path).damage == ()
