"""Any sequence of appends, commits and restarts gives back the same bits."""

import tempfile
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.storage import RunReader, RunStore

from .support import assert_same_bits, commit, grow, load, make_memory, make_store

ACTIONS = st.lists(
    st.one_of(st.integers(1, 1100), st.sampled_from(["commit", "reopen", "crash"])),
    min_size=1,
    max_size=9,
)


@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS, dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
def test_appends_commits_and_restarts_keep_every_bit(
    actions: list[int | str], dtype: torch.dtype
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = make_memory(dtype)
        store = make_store(Path(folder))
        committed = make_memory(dtype)
        done: list[tuple[int, int]] = []  # (rows, step) of every append, and of the committed ones
        kept = 0
        for step, action in enumerate([*actions, "commit"]):
            if isinstance(action, int):
                grow(memory, action, step)
                done.append((action, step))
                continue
            if action != "crash":
                commit(store, memory, step)
                kept = len(done)
            if action == "commit":
                continue
            store.close()
            store = RunStore.open(store.path)
            del done[kept:]
            memory = make_memory(dtype)
            if kept or store.manifest:
                store.read().load_memory("hidden.0", memory)
        store.close()
        for rows, step in done:
            grow(committed, rows, step)
        assert_same_bits(memory, committed)
        reader = RunReader(store.path)
        assert_same_bits(load(reader, dtype), committed)
        assert reader.state()["rows"] == len(committed)


@settings(max_examples=25, deadline=None)
@given(start=st.integers(0, 1300), stop=st.integers(0, 1300))
def test_any_range_of_rows_is_the_slice_of_all(start: int, stop: int) -> None:
    reader = RunReader(_stored())
    everything = reader.columns("hidden.0", 0, 10**9)
    part = reader.columns("hidden.0", start, stop)
    for name, rows in everything.items():
        assert len(rows) == 1200
        assert part[name].dtype == rows.dtype
        assert part[name].tobytes() == rows[start:stop].tobytes()


_folder: list[tempfile.TemporaryDirectory[str]] = []


def _stored() -> Path:
    if not _folder:
        _folder.append(tempfile.TemporaryDirectory())
        memory = make_memory()
        grow(memory, 1200, 0)
        with make_store(Path(_folder[0].name)) as store:
            commit(store, memory, 0)
    return Path(_folder[0].name) / "run"
