"""Runs with `memory.rows`: stopped anywhere, paged, verified, and of bounded size on the disk."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from streamlearn.cli.main import main
from streamlearn.errors import RunStateError
from streamlearn.events import CheckpointSaved, Progress, Stopped
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader, RunStore
from streamlearn.storage.verify import verify
from tests.scenarios import running
from tests.scenarios.running import columns, finish

ROWS = 600
GENERATOR = "RandomRBFDrift(n_classes=3, n_features=4, change_speed=0.01, n_drift_centroids=9)"
DIGITS = [
    "network.hidden=1",
    "encoder.fit=200",
    "learner.batch=16",
    "learner.rehearsal=8",
    "learner.rehearse=balanced",
    "memory.block_rows=512",
]
STREAM = [
    "data=generator",
    f"data.name={GENERATOR}",
    "data.limit=3000",
    "network.hidden=0",
    "layer=rbf",
    "learner.batch=16",
    "drift.action=forget",
]


def words(runs: Path, name: str, *more: str) -> list[str]:
    fixed = ["checkpoint.every_steps=9", "learner.dtype=float32", "seed=3", f"memory.rows={ROWS}"]
    return running.words(runs, name, *fixed, *more)


def assert_same_end(one: Path, other: Path) -> None:
    running.assert_same_end(one, other)
    assert {len(rows) for rows in columns(one).values()} == {ROWS}


@pytest.mark.parametrize("kind", [DIGITS, STREAM], ids=["digits", "stream"])
def test_a_run_that_is_stopped_anywhere_ends_with_the_same_bits(
    tmp_path: Path, kind: list[str]
) -> None:
    finish(Session.start(resolve(words(tmp_path, "whole", *kind))))
    source = random.Random(len(kind))
    session = Session.start(resolve(words(tmp_path, "run", *kind)))
    for _ in range(5):
        stop = session._loop.step + source.randrange(1, 25)
        event = None
        with session:
            for event in session.events():
                if isinstance(event, Progress) and event.step == stop:
                    session.request_stop("test")
        assert isinstance(event, Stopped)
        assert verify(tmp_path / "run").damage == ()
        session = Session.resume(tmp_path / "run")
    finish(session)
    assert_same_end(tmp_path / "run", tmp_path / "whole")
    assert verify(tmp_path / "run").damage == ()


def test_going_back_to_an_older_commit_ends_with_the_same_bits(tmp_path: Path) -> None:
    given = words(tmp_path, "run", *DIGITS, "checkpoint.keep=4", "evaluation.test=false")
    finish(Session.start(resolve(given)))
    before, manifest = columns(tmp_path / "run"), RunReader(tmp_path / "run").manifest()
    assert manifest is not None
    finish(Session.resume(tmp_path / "run", at=manifest.steps[0]))
    for name, rows in columns(tmp_path / "run").items():
        np.testing.assert_array_equal(rows, before[name], name)
    assert verify(tmp_path / "run").damage == ()


def test_a_budget_of_bytes_beside_it_changes_no_bit(tmp_path: Path) -> None:
    """Rows whose turn it is may lie on the disk."""
    given = [*DIGITS, "memory.rows=1400", "evaluation.test=false"]
    finish(Session.start(resolve(words(tmp_path, "whole", *given))))
    session = Session.start(resolve(words(tmp_path, "run", *given, "memory.host_budget=1200KB")))
    away = 0
    with session:
        for event in session.events():
            away = max(away, session._loop.learner.tiers.disk_bytes)
            if isinstance(event, Progress) and event.step == 83:
                session.request_stop("test")
    assert isinstance(event, Stopped)
    assert away > 0
    finish(Session.resume(tmp_path / "run"))
    expected = columns(tmp_path / "whole")
    for name, rows in columns(tmp_path / "run").items():
        assert len(rows) == 1400
        np.testing.assert_array_equal(rows, expected[name], name)
    assert verify(tmp_path / "run").damage == ()


def test_a_run_does_not_grow_on_the_disk_once_its_layers_are_full(tmp_path: Path) -> None:
    """But for its event log, a line for each half a second or so."""
    sizes = []
    session = Session.start(resolve(words(tmp_path, "run", *STREAM, "drift.detector=none",
                                          "drift.action=none")))  # fmt: skip
    with session:
        for event in session.events():
            if isinstance(event, CheckpointSaved):
                files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
                sizes.append(
                    sum(path.stat().st_size for path in files if path.name != "events.jsonl")
                )
    full = len(sizes) // 2
    assert len(sizes) > 8
    assert max(sizes[full:]) <= 1.01 * max(sizes[full // 2 : full])
    assert verify(tmp_path / "run").damage == ()


def test_there_is_nothing_to_compact_and_inspect_says_the_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(Session.start(resolve(words(tmp_path, "run", *STREAM, "data.limit=800"))))
    assert main(["compact", str(tmp_path / "run")]) == 2
    assert "memory.rows=600" in capsys.readouterr().err
    with RunStore.open(tmp_path / "run") as store, pytest.raises(RunStateError, match="dead ones"):
        store.compact()
    assert main(["inspect", str(tmp_path / "run")]) == 0
    assert "600 of 600" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"][0]["most"] == 600
