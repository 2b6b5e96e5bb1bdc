"""Columns beside tuples are kept as these are: committed, paged, compacted, exported, read."""

from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from streamlearn.errors import ShapeError
from streamlearn.memory import Column, Memory, Tuples
from streamlearn.storage import RunReader, RunStore
from streamlearn.storage.export import export_run
from streamlearn.storage.verify import verify
from streamlearn.tiers import Tiers

from .support import LAYER, change, commit, grow, make_memory, make_store

NOTES = {"target": Column(None, "int64"), "scale": Column(2, "float64")}


def noted(budget: int | None = None) -> Memory:
    tiers = Tiers(torch.device("cpu"), host_budget=budget)
    return Memory(6, 3, block_rows=512, notes=NOTES, tiers=tiers)


def add(memory: Memory, rows: int, step: int) -> None:
    first = len(memory)
    target = torch.arange(first, first + rows)
    random = torch.Generator().manual_seed(step)
    tuples = Tuples(*(torch.randn(rows, *s, generator=random) for s in ((6,), (), (3,))))
    memory.append(tuples, step, {"target": target, "scale": torch.stack([target, -target], 1)})


def read(run: Path, name: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    return np.asarray(reader.columns(LAYER, 0, manifest.layers[LAYER].rows)[name])


@pytest.mark.parametrize("budget", [None, 400_000])
def test_notes_go_with_their_rows_through_everything(tmp_path: Path, budget: int | None) -> None:
    memory = noted(budget)
    with make_store(tmp_path) as store:
        for step in range(1, 8):
            add(memory, 300, step)
            commit(store, memory, step)
            change(memory, [*range(0, len(memory), 7)], step)
    run = tmp_path / "run"
    assert (memory.tiers.disk_bytes > 0) == (budget is not None)
    assert read(run, "target").tolist() == list(range(2100))
    np.testing.assert_array_equal(read(run, "scale")[:, 1], -np.arange(2100.0))
    with RunStore.open(run) as store:
        again = noted(budget)
        store.open_memory(LAYER, again)
        dropped = torch.arange(0, 2100, 3)
        again.drop(dropped)
        found = again.gather(torch.arange(2100), ("target", "born"))
        assert found["target"].tolist() == list(range(2100))  # dropped rows keep them
        commit(store, again, 8)
        store.compact()
    kept = [row for row in range(2100) if row % 3]
    assert read(run, "target").tolist() == kept
    assert verify(run).damage == ()
    with RunStore.open(run) as store:
        last = noted(budget)
        store.open_memory(LAYER, last)
        assert last.gather(torch.arange(1400), ("target",))["target"].tolist() == kept
        for _ in last.scan():
            pass
        add(last, 40, 9)
        commit(store, last, 9)
    export_run(run, tmp_path / "rows.npz")
    with np.load(tmp_path / "rows.npz") as arrays:
        assert any(name.endswith("target") for name in arrays.files)
    shown = zarr.open_array(run / "memory.zarr" / "layers" / LAYER / "target", mode="r")
    assert np.asarray(shown[:1400]).tolist() == kept


def test_notes_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    memory = noted()
    with make_store(tmp_path) as store:
        add(memory, 1024, 1)
        commit(store, memory, 1)
        change(memory, [*range(0, 1024, 5)], 1)
        commit(store, memory, 2)
    versions = tmp_path / "run" / "versions" / LAYER
    assert sorted(path.name for path in versions.iterdir()) == ["value", "weight"]


def test_a_memory_with_other_notes_is_refused(tmp_path: Path) -> None:
    memory = noted()
    with make_store(tmp_path) as store:
        add(memory, 10, 1)
        commit(store, memory, 1)
    with RunStore.open(tmp_path / "run") as store:
        plain = make_memory()
        with pytest.raises(ShapeError, match="was stored with columns"):
            store.open_memory(LAYER, plain)
        grow(plain, 3, 1)
