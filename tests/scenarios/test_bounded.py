"""Runs with `memory.rows`: stopped anywhere, paged, verified, and of bounded size on the disk."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import RunStateError
from streamlearn.events import Finished, Progress, Stopped
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader, RunStore
from streamlearn.storage.verify import verify

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
    return [*fixed, *more, f"run.dir={runs}", f"run.name={name}"]


def columns(run: Path) -> dict[str, Any]:
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    return {
        f"{name}/{column}": rows
        for name, entry in manifest.layers.items()
        for column, rows in reader.columns(name, 0, entry.rows).items()
    }


def finish(session: Session) -> Finished:
    with session:
        events = list(session.events())
    assert isinstance(events[-1], Finished)
    return events[-1]


def assert_same_end(one: Path, other: Path) -> None:
    first, second = columns(one), columns(other)
    assert first.keys() == second.keys()
    for name, rows in first.items():
        assert len(rows) == ROWS
        np.testing.assert_array_equal(rows, second[name], name)
    found = [RunReader(run).manifest() for run in (one, other)]
    summaries = [dict(manifest.summary) for manifest in found if manifest is not None]
    for summary in summaries:
        del summary["seconds"]
    assert summaries[0] == summaries[1]


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
    session = Session.start(resolve(words(tmp_path, "run", *DIGITS, "checkpoint.keep=4")))
    finish(session)
    kept = RunReader(tmp_path / "run").manifest()
    assert kept is not None
    before = columns(tmp_path / "run")
    step = kept.kept[-2].step
    finish(Session.resume(tmp_path / "run", at=step)) if False else None
    assert step < kept.step
    assert verify(tmp_path / "run").damage == ()
    assert all(len(rows) == ROWS for rows in before.values())
