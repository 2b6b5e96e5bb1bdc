"""Exports: the committed rows, to the bit, in formats that others read; whole or not at all."""

import errno
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
import zarr

from streamlearn.errors import ConfigError, FormatError, RunStateError, StorageError
from streamlearn.memory import Memory
from streamlearn.storage import RunReader
from streamlearn.storage.export import export_run
from streamlearn.storage.objects import as_file

from .support import (
    LAYER,
    Faults,
    commit,
    grow,
    make_memory,
    make_store,
    readable_columns,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def make_run(runs: Path, dtype: torch.dtype = torch.float32) -> tuple[Path, Memory]:
    memory, empty = make_memory(dtype), make_memory(dtype)
    grow(memory, 1300, 0)
    with make_store(runs) as store:
        commit(store, memory, 7, memories={LAYER: memory, "ñ": empty})
    return as_file(store.path), memory


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_holds_the_same_bits_and_keeps_bfloat16(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    path, memory = make_run(tmp_path, dtype)
    made = export_run(path, tmp_path / "rows.safetensors")
    assert (made.format, made.tuples, made.step) == ("safetensors", 1300, 7)
    assert made.bytes == made.path.stat().st_size
    expected = readable_columns(memory)
    with safetensors.safe_open(made.path, "pt") as file:
        facts = json.loads(file.metadata()["streamlearn"])
        assert (facts["run"], facts["step"], facts["samples"]) == ("run", 7, 70)
        for name, rows in expected.items():
            found = file.get_tensor(f"layers/{LAYER}/{name}")
            if name in ("key", "value"):
                assert found.dtype == dtype
            wide = found.float() if found.dtype == torch.bfloat16 else found
            assert wide.numpy().tobytes() == rows.tobytes()
            assert len(file.get_tensor(f"layers/ñ/{name}")) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_npz_holds_the_same_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    path, memory = make_run(tmp_path, dtype)
    made = export_run(path, tmp_path / "rows.NPZ")
    with np.load(made.path) as found:
        for name, rows in readable_columns(memory).items():
            array = found[f"layers/{LAYER}/{name}"]
            assert array.dtype == rows.dtype
            assert array.tobytes() == rows.tobytes()
            assert len(found[f"layers/ñ/{name}"]) == 0
        assert json.loads(str(found["streamlearn"]))["step"] == 7


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_folder_is_a_plain_zarr_group_with_the_same_bits(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    path, memory = make_run(tmp_path, dtype)
    made = export_run(path, tmp_path / "rows")
    assert made.format == "zarr"
    group = zarr.open_group(made.path, mode="r")
    facts: Any = group.attrs["streamlearn"]
    assert facts["step"] == 7
    assert group[f"layers/{LAYER}"].attrs["dtype"] == str(dtype).removeprefix("torch.")
    for name, rows in readable_columns(memory).items():
        array = group[f"layers/{LAYER}/{name}"]
        assert isinstance(array, zarr.Array)
        assert np.asarray(array[...]).tobytes() == rows.tobytes()


def test_rows_are_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = make_run(tmp_path)
    most = 0
    original = RunReader.shard

    def look(self: RunReader, name: str, column: str, shard: int) -> Any:
        nonlocal most
        rows = original(self, name, column, shard)
        most = max(most, len(rows))
        return rows

    monkeypatch.setattr(RunReader, "shard", look)
    export_run(path, tmp_path / "rows.npz")
    assert most == 512


@pytest.mark.parametrize("name", ["rows.npz", "rows.safetensors", "rows"])
def test_nothing_is_written_over_and_nothing_is_left_of_a_failure(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = make_run(tmp_path / "runs")
    target = tmp_path / name
    target.write_text("mine")
    with pytest.raises(ConfigError, match=r"--to=.* is already there and is not written over"):
        export_run(path, target)
    assert target.read_text() == "mine"
    target.unlink()
    with pytest.raises(ConfigError, match="lies in a folder that is not there; make"):
        export_run(path, tmp_path / "none" / name)
    faults = Faults(monkeypatch)
    for call in itertools.count():
        faults.fail_at(call, errno.ENOSPC)
        if call == 3:
            break
        with pytest.raises(StorageError, match="no space left"):
            export_run(path, target)
        faults.none()
        if target.exists():  # the name was given, and could not be made durable
            break
        assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]
    faults.none()
    shard = path / "memory.zarr" / "layers" / LAYER / "value" / "c.1.0"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(FormatError, match="is damaged"):
        export_run(path, tmp_path / f"other-{name}")
    assert not list(tmp_path.glob(".*"))


def test_a_run_that_never_committed_has_nothing_to_export(tmp_path: Path) -> None:
    with make_store(tmp_path) as store, pytest.raises(RunStateError, match="nothing to export"):
        export_run(store.path, tmp_path / "rows.npz")
