"""Runs with int8 keys: the same bits after a stop and in every tier, on disk as in memory."""

import json
from pathlib import Path

import pytest
import safetensors

from streamlearn.cli.main import main
from streamlearn.events import Progress
from streamlearn.memory import DEAD
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify
from tests.scenarios.running import assert_same_end, columns, finish, words

WORDS = [
    "encoder.fit=200",
    "network.hidden=1",
    "learner.batch=32",
    "learner.dtype=bfloat16",
    "learner.rehearsal=8",
    "data.limit=1300",
    "memory.keys=int8",
    "memory.block_rows=512",
    "checkpoint.every_steps=7",
]


def test_int8_keys_are_kept_to_the_bit_wherever_they_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    finish(Session.start(resolve(words(tmp_path, "whole", *WORDS))))
    session = Session.start(resolve(words(tmp_path, "run", *WORDS, "memory.host_budget=520KiB")))
    with session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == 24:
                session.request_stop("test")
    memories = session._loop.learner.memories().values()
    assert any(slot.block is None for memory in memories for slot in memory.slots)
    finish(Session.resume(run))
    assert_same_end(run, whole)
    rows = columns(whole)
    assert rows["output/key"].dtype == "int8"
    entry = RunReader(whole).entry("output")
    width = entry.columns["key"].width
    assert entry.row_bytes == (width or 0) + 4 + 10 * 2 + 4 + 8 + 8
    capsys.readouterr()

    assert main(["prune", str(whole), "--below", "0.03"]) == 0
    pruned = columns(whole)
    dead = pruned["output/born"] == DEAD
    assert dead.any()
    assert not pruned["output/key"][dead].any()
    assert not pruned["output/key_scale"][dead].any()
    assert main(["compact", str(whole)]) == 0
    assert verify(whole).damage == ()
    kept = columns(whole)
    for name in ("key", "key_scale", "value"):
        assert (kept[f"output/{name}"] == pruned[f"output/{name}"][~dead]).all()
    capsys.readouterr()
    assert main(["inspect", str(whole), "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert {(layer["dtype"], layer["keys"]) for layer in layers} == {("bfloat16", "int8")}
    assert main(["export", str(whole), "--to", str(tmp_path / "rows.safetensors")]) == 0
    with safetensors.safe_open(tmp_path / "rows.safetensors", "np") as file:
        assert (file.get_tensor("layers/output/key") == kept["output/key"]).all()
