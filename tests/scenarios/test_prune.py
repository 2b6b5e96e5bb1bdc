"""`prune` of a run: told, done as a commit, and gone on from."""

import json
from pathlib import Path

import pytest

from streamlearn.cli.main import main
from streamlearn.events import Progress
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify
from tests.scenarios import running
from tests.scenarios.running import assert_same_end, columns, finish

DIGITS = ["network.hidden=0", "encoder.fit=200", "learner.batch=16", "learner.dtype=float32",
          "data.limit=800", "seed=3", "evaluation.matrix=false"]  # fmt: skip


def stopped(runs: Path, name: str) -> Path:
    session = Session.start(resolve(running.words(runs, name, *DIGITS)))
    with session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == 30:
                session.request_stop("test")
    return runs / name


def test_a_run_that_was_pruned_at_once_or_in_two_goes_on_with_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = stopped(tmp_path, "one"), stopped(tmp_path, "two")
    before = columns(one)
    assert main(["prune", str(one), "--below", "0.05", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tuples"] > 0
    assert told["commit"] is None
    assert {0 <= told[when]["accuracy"] <= 1 for when in ("before", "after")} == {True}
    assert all((columns(one)[name] == rows).all() for name, rows in before.items())
    assert main(["prune", str(one), "--below", "0.05"]) == 0
    assert "streamlearn compact" in capsys.readouterr().out
    for below in ("0.02", "0.05"):
        assert main(["prune", str(two), "--below", below]) == 0
    manifest = RunReader(one).manifest()
    assert manifest is not None
    assert sum(entry.rows - entry.live for entry in manifest.layers.values()) == told["tuples"]
    assert manifest.summary["pruned_tuples"] == told["tuples"]
    noted = [event["pruned"] for event in RunReader(one).events()[0] if "pruned" in event]
    assert noted == [{name: {"faded": told["tuples"], "merged": 0} for name in manifest.layers}]
    for run in (one, two):
        finish(Session.resume(run))
        assert verify(run).damage == ()
    assert_same_end(one, two)
    capsys.readouterr()


def test_what_cannot_be_pruned_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped(tmp_path, "run")
    for words, said in (
        ([], "nothing is to go; give --below EPS"),
        (["--below", "-1"], "below=-1 must be"),
        (["--merge", "nan"], "distance=nan must be"),
    ):
        assert main(["prune", str(run), *words]) == 2
        assert said in capsys.readouterr().err
