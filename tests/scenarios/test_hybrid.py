"""Runs with a gate and trained tuples: stopped and resumed, the same bits, moments and all."""

from pathlib import Path

from streamlearn.events import Progress, Stopped
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage.verify import verify
from tests.scenarios.running import assert_same_end, columns, finish, words

WORDS = [
    "encoder.fit=200",
    "network.hidden=1",
    "learner.batch=32",
    "learner.dtype=bfloat16",
    "data.limit=700",
    "layer.gate=7",
    "layer.refused=nearest",
    "optimizer.train=all",
    "memory.block_rows=512",
    "checkpoint.every_steps=5",
]


def test_a_run_that_is_stopped_ends_with_the_same_bits(tmp_path: Path) -> None:
    finish(Session.start(resolve(words(tmp_path, "whole", *WORDS))))
    session = Session.start(resolve(words(tmp_path, "run", *WORDS)))
    event = None
    with session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == 13:
                session.request_stop("test")
    assert isinstance(event, Stopped)
    finish(Session.resume(tmp_path / "run"))
    assert_same_end(tmp_path / "run", tmp_path / "whole")
    assert verify(tmp_path / "run").damage == ()
    rows = {name: len(layer) for name, layer in columns(tmp_path / "run").items()}
    assert 16 < min(rows.values()) <= max(rows.values()) < 700
