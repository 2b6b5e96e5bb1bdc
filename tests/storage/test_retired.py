"""Layers that are no more: another takes their place in one commit, whatever happens to it.

`STREAMLEARN_EVERY=1 pytest tests/storage/test_retired.py` lets it happen at every single step.
"""

import errno
import shutil
from pathlib import Path

import pytest

from streamlearn.errors import RunStateError, StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader, RunStore
from streamlearn.storage.verify import verify

from .support import LAYER, Crash, Faults, assert_same_bits, commit, grow, load, make_store

WIDER = "hidden.0.2"


def grown(step: int) -> Memory:
    memory = Memory(6, 3, block_rows=512)
    grow(memory, 700, step)
    return memory


def make_run(runs: Path) -> Path:
    with make_store(runs) as store:
        commit(store, grown(1), 1)
        return Path(str(store.path))


def replace(store: RunStore) -> None:
    commit(store, grown(2), 2, memories={WIDER: grown(2)}, retired=[LAYER])


def layers(path: Path) -> set[str]:
    return {place.name for place in (path / "memory.zarr" / "layers").iterdir() if place.is_dir()}


def test_a_retired_layer_goes_with_its_files_and_older_commits(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with RunStore.open(path) as store:
        replace(store)
    assert layers(path) == {WIDER}
    assert verify(path).damage == ()
    manifest = RunReader(path).manifest()
    assert manifest is not None
    assert (set(manifest.layers), manifest.kept) == ({WIDER}, ())
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert manifest.disk_bytes == size
    assert_same_bits(load(RunReader(path), name=WIDER), grown(2))


def test_a_layer_that_is_missing_unsaid_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with RunStore.open(path) as store, pytest.raises(RunStateError, match="give all of them"):
        commit(store, grown(2), 2, memories={WIDER: grown(2)})


def test_a_crash_at_any_step_leaves_one_layer_or_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_run(tmp_path / "original")
    faults = Faults(monkeypatch)
    found = set()
    for call in faults.steps():
        path = tmp_path / f"run{call}"
        shutil.copytree(original, path)
        crashed = False
        store = RunStore.open(path)
        faults.crash_at(call)
        try:
            replace(store)
        except Crash:
            crashed = True
        faults.none()
        store._lock.release()
        reader = RunReader(path)
        manifest = reader.manifest()
        assert manifest is not None
        (name,) = manifest.layers
        assert_same_bits(load(reader, name=name), grown(1 if name == LAYER else 2))
        with RunStore.open(path):
            assert layers(path) == {name}
            assert verify(path).damage == ()
        found.add((name, crashed))
        shutil.rmtree(path)
    assert found == {(LAYER, True), (WIDER, True), (WIDER, False)}


def test_a_refusal_at_any_step_lets_it_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = make_run(tmp_path / "original")
    faults = Faults(monkeypatch)
    for call in faults.steps():
        path = tmp_path / f"run{call}"
        shutil.copytree(original, path)
        refused = False
        with RunStore.open(path) as store:
            faults.fail_at(call, errno.ENOSPC)
            try:
                replace(store)
            except StorageError:
                refused = True
            faults.none()
            assert refused == (call < Faults.NEVER)
            if refused:
                replace(store)
        assert layers(path) == {WIDER}
        assert verify(path).damage == ()
        assert_same_bits(load(RunReader(path), name=WIDER), grown(2))
        shutil.rmtree(path)
