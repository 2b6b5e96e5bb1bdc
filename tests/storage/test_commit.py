"""Commits: what is written, what is left alone, and what every reader sees in between."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from streamlearn.errors import ConfigError, FormatError, RunStateError, ShapeError
from streamlearn.memory import Memory
from streamlearn.storage import Manifest, RunReader, RunStore, files
from streamlearn.storage.objects import as_file

from .support import (
    BLOCK_ROWS,
    LAYER,
    assert_same_bits,
    assert_zarr_shows,
    commit,
    committed_columns,
    grow,
    load,
    make_memory,
    make_store,
    snapshot,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_zarr_reads_the_same_bits_at_every_commit(tmp_path: Path, dtype: torch.dtype) -> None:
    memory = make_memory(dtype)
    with make_store(tmp_path) as store:
        for step, rows in enumerate([1, 200, 311, 0, 1000, 7]):
            grow(memory, rows, step)
            commit(store, memory, step)
            count = len(memory)
            assert_zarr_shows(as_file(store.path), committed_columns(memory), count, count)
            assert_same_bits(load(RunReader(store.path), dtype), memory)


def test_zarr_can_list_the_whole_group_and_says_what_was_bfloat16(tmp_path: Path) -> None:
    memory = make_memory(torch.bfloat16)
    grow(memory, 3, 0)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        group = zarr.open_group(store.path / "memory.zarr", mode="r")
        members = dict(group.members(max_depth=None))
    assert set(members) == {
        "layers",
        f"layers/{LAYER}",
        *(f"layers/{LAYER}/{name}" for name in ("key", "weight", "value", "born")),
    }
    assert members[f"layers/{LAYER}"].attrs["dtype"] == "bfloat16"
    assert members[f"layers/{LAYER}/key"].attrs["dtype"] == "bfloat16"
    assert members[f"layers/{LAYER}/weight"].attrs["dtype"] == "float32"


def test_zarr_shows_no_more_than_the_manifest_at_every_step_of_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, later = make_memory(), make_memory()
    for step, rows in enumerate([300, 100, 400, 600]):
        grow(later, rows, step)
    rows_of = committed_columns(later)
    looks = 0

    with make_store(tmp_path) as store:
        path = as_file(store.path)

        def look(*arguments: Any) -> None:
            nonlocal looks
            looks += 1
            original(*arguments)
            manifest = RunReader(path).manifest()
            most = manifest.layers[LAYER].rows if manifest else 0
            assert_zarr_shows(path, rows_of, most, 0)

        original = files.rename
        monkeypatch.setattr(files, "rename", look)
        for step, rows in enumerate([300, 100, 400, 600]):
            grow(memory, rows, step)
            commit(store, memory, step)
    assert looks > 40


def test_full_shards_are_written_once_and_unchanged_ones_never_again(tmp_path: Path) -> None:
    memory = make_memory()
    grow(memory, 2 * BLOCK_ROWS + 10, 0)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        shards = as_file(store.path) / "memory.zarr" / "layers" / LAYER
        before = {name: snapshot(shards / name) for name in ("key", "weight")}
        grow(memory, 5, 1)
        commit(store, memory, 1)
        after = {name: snapshot(shards / name) for name in ("key", "weight")}
    for shard in ("c.0.0", "c.1.0"):
        assert after["key"][shard] == before["key"][shard]
    for shard in ("c.0", "c.1"):
        assert after["weight"][shard] == before["weight"][shard]
    assert after["key"]["c.2.0"] != before["key"]["c.2.0"]
    assert after["weight"]["c.2"] != before["weight"]["c.2"]


def test_a_commit_without_news_writes_state_and_manifest_alone(tmp_path: Path) -> None:
    memory = make_memory()
    grow(memory, 700, 0)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        before = snapshot(as_file(store.path) / "memory.zarr")
        result = commit(store, memory, 1)
        assert snapshot(as_file(store.path) / "memory.zarr") == before
        manifest = (store.path / "manifest.json").stat().st_size
        state = (store.path / "state" / "000000000001.safetensors").stat().st_size
        assert result.bytes_written == manifest + state


@pytest.mark.parametrize("own", [True, False])
def test_resuming_writes_no_shard_again_whoever_loaded_it(tmp_path: Path, own: bool) -> None:
    memory = make_memory()
    grow(memory, 700, 0)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
    before = snapshot(as_file(store.path) / "memory.zarr")
    with RunStore.open(store.path) as store:
        again = load(store.read() if own else RunReader(store.path))
        commit(store, again, 1)
        assert snapshot(as_file(store.path) / "memory.zarr") == before
        grow(again, 600, 2)
        commit(store, again, 2)
        assert_same_bits(load(RunReader(store.path)), again)


def test_opening_reads_no_rows_and_a_commit_only_the_block_that_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = make_memory()
    grow(memory, 3 * BLOCK_ROWS + 5, 0)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
    read: list[str] = []
    original = files.read_into

    def look(path: Path, places: Any) -> None:
        read.append(str(path.relative_to(as_file(store.path) / "memory.zarr" / "layers" / LAYER)))
        original(path, places)

    monkeypatch.setattr(files, "read_into", look)
    with RunStore.open(store.path) as store:
        again = make_memory()
        store.open_memory(LAYER, again)
        assert (len(again), again.max_key_square) == (len(memory), memory.max_key_square)
        assert read == []
        grow(again, 5, 1)
        commit(store, again, 1)
        commit(store, again, 2)
    assert sorted(read) == ["born/c.3", "key/c.3.0", "value/c.3.0", "weight/c.3"]
    grow(memory, 5, 1)
    assert_same_bits(load(RunReader(store.path)), memory)


def test_disk_bytes_are_what_lies_on_the_disk(tmp_path: Path) -> None:
    memory = make_memory()
    with make_store(tmp_path) as store:
        for step in range(5):
            grow(memory, 300, step)
            store.log({"event": "progress", "step": step})
            result = commit(store, memory, step)
            assert result.disk_bytes == files.tree_bytes(store.path)
            assert store.manifest is not None
            assert store.manifest.disk_bytes == result.disk_bytes
            assert result.bytes_written > 0
            assert result.seconds > 0
    with RunStore.open(store.path) as store:
        store.log({"event": "progress"})
        result = commit(store, load(store.read()), 9)
        assert result.disk_bytes == files.tree_bytes(store.path)


def test_one_state_file_remains_and_one_that_is_committed_is_never_written_over(
    tmp_path: Path,
) -> None:
    memory = make_memory()
    grow(memory, 1, 0)
    with make_store(tmp_path) as store:
        names = []
        for _ in range(3):
            commit(store, memory, 7)
            (state,) = (store.path / "state").iterdir()
            names.append(state.name)
    assert names[0] == "000000000007.safetensors"
    assert len({names[0], names[1]}) == len({names[1], names[2]}) == 2


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    memory = make_memory()
    state: dict[str, Any] = {
        "half": torch.randn(3, 2).to(torch.bfloat16),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "view": torch.arange(12).reshape(3, 4).T,
        "flags": torch.tensor([True, False]),
        "best": float("-inf"),
        "nested": [{"a": [None, True, 1, 2**70, -0.0, 0.1, "ñ\u2028\ud800"]}, {}],
    }
    with make_store(tmp_path) as store:
        commit(store, memory, 0, state=state)
        found = RunReader(store.path).state()
    for name in ("half", "empty", "scalar", "view", "flags"):
        assert found[name].dtype == state[name].dtype
        assert torch.equal(found[name], state[name])
    assert found["best"] == state["best"]
    assert found["nested"] == state["nested"]
    assert str(found["nested"][0]["a"][4]) == "-0.0"


def test_several_layers_and_an_empty_one(tmp_path: Path) -> None:
    memories = {"a": make_memory(), "b.weight": make_memory(), "ñ": make_memory()}
    grow(memories["a"], 600, 0)
    grow(memories["b.weight"], 30, 0)
    with make_store(tmp_path) as store:
        commit(store, memories["a"], 0, memories=memories)
        reader = RunReader(store.path)
        for name, memory in memories.items():
            assert_same_bits(load(reader, name=name), memory)
        grow(memories["ñ"], 3, 1)
        commit(store, memories["a"], 1, memories=memories)
        reader = RunReader(store.path)
        for name, memory in memories.items():
            assert_same_bits(load(reader, name=name), memory)
        manifest = reader.manifest()
    assert manifest is not None
    entry = manifest.layers["a"]
    assert entry.widths == {"key": 6, "weight": None, "value": 3, "born": None}
    assert (entry.rows, entry.shards, entry.nbytes) == (600, 2, memories["a"].nbytes)
    assert entry.row_bytes == memories["a"].row_bytes


def test_the_manifest_says_what_was_committed(tmp_path: Path) -> None:
    memory = make_memory()
    grow(memory, 5, 0)
    with make_store(tmp_path) as store:
        store.log({"event": "started"})
        summary = {"accuracy": np.float64(0.5), "loss": float("nan"), "count": np.int64(3)}
        result = commit(store, memory, 3, status="finished", summary=summary)
        assert store.manifest == RunReader(store.path).manifest()
        manifest = store.manifest
        text = (as_file(store.path) / "manifest.json").read_text()
    assert manifest is not None
    assert (manifest.commit, manifest.step, manifest.samples) == (1, 3, 30)
    assert manifest.status == "finished"
    assert manifest.time == result.time
    assert manifest.event_bytes == (store.path / "events.jsonl").stat().st_size
    assert manifest.summary == {"accuracy": 0.5, "loss": None, "count": 3}
    assert json.loads(text)["format"] == "streamlearn-manifest"
    assert "NaN" not in text
    assert Manifest.from_bytes(store.path, manifest.to_bytes()) == manifest


def test_what_cannot_be_committed_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    memory = make_memory()
    grow(memory, 600, 0)
    with make_store(tmp_path) as store:
        commit(store, memory, 0)
        before = snapshot(as_file(store.path), folders=False)
        other = make_memory()
        grow(other, 600, 5)
        short = make_memory()
        grow(short, 5, 0)
        wide = Memory(7, 3, block_rows=BLOCK_ROWS)
        large = Memory(6, 3, block_rows=2 * BLOCK_ROWS)
        cases: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"status": "paused"}, ConfigError, "status='paused'"),
            ({"step": -1}, ConfigError, "step=-1"),
            ({"memories": {LAYER: memory, "a/b": memory}}, ConfigError, "layer='a/b'"),
            ({"memories": {LAYER: memory, "..": memory}}, ConfigError, "layer='..'"),
            ({"memories": {}}, RunStateError, "'hidden.0' is committed but not among"),
            ({"memories": {LAYER: short}}, RunStateError, "has 5 tuples but 600"),
            ({"memories": {LAYER: other}}, RunStateError, "other tuples in block 0"),
            ({"memories": {LAYER: wide}}, ShapeError, "columns"),
            ({"memories": {LAYER: large}}, ShapeError, "block_rows 512 .* 1024"),
            ({"memories": {LAYER: make_memory(torch.bfloat16)}}, ShapeError, "float32 .*bfloat16"),
            ({"state": {"a": object()}}, FormatError, "'a' is a object"),
            ({"state": {"a": {"$float": 1}}}, FormatError, "must not use"),
            ({"summary": {"a": object()}}, FormatError, "cannot be written as JSON"),
        ]
        for changes, kind, message in cases:
            with pytest.raises(kind, match=message):
                commit(store, memory, **{"step": 1, **changes})
            assert snapshot(as_file(store.path), folders=False) == before
        grow(memory, 100, 1)
        commit(store, memory, 1)
        assert_same_bits(load(RunReader(store.path)), memory)


def test_a_closed_run_takes_neither_events_nor_commits(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.close()
    store.close()
    before = snapshot(as_file(store.path))
    with pytest.raises(RunStateError, match="is closed; open it again"):
        store.log({"event": "late"})
    with pytest.raises(RunStateError, match="is closed; open it again"):
        commit(store, make_memory(), 0)
    assert snapshot(as_file(store.path)) == before
