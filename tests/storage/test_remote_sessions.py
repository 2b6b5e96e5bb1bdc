"""Sessions and commands on runs in a bucket: as on a disk, and one sentence if they fail."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.cli.main import main
from streamlearn.events import CheckpointSaved, Finished, Progress, Stopped, Tested
from streamlearn.scenarios.session import Session, evaluate
from streamlearn.scenarios.words import resolve
from streamlearn.storage import ObjectPath, RunPath, RunReader, RunStore, endpoints
from streamlearn.storage.verify import verify

from . import story
from .remote import KILLED_IN, KILLED_LEARNING, WORDS, place
from .support import assert_same_bits, load

Capture = pytest.CaptureFixture[str]
SMALL = "memory.host_budget=760KB"


def start(runs: RunPath, *words: str, name: str = "run") -> Session:
    return Session.start(resolve([*WORDS, f"run.dir={runs}", f"run.name={name}", *words]))


def finish(session: Session) -> Finished:
    with session:
        event = list(session.events())[-1]
    assert isinstance(event, Finished)
    return event


def columns(run: RunPath) -> dict[str, Any]:
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    return {
        f"{name}/{column}": rows
        for name, entry in manifest.layers.items()
        for column, rows in reader.columns(name, 0, entry.rows).items()
    }


def assert_same_end(run: RunPath, whole: RunPath) -> None:
    found, expected = columns(run), columns(whole)
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        np.testing.assert_array_equal(found[name], rows, name)
    one, other = RunReader(run).manifest(), RunReader(whole).manifest()
    assert one is not None
    assert other is not None
    assert (one.step, one.samples, one.status) == (other.step, other.samples, other.status)
    times = ("seconds",)
    assert {key: value for key, value in one.summary.items() if key not in times} == {
        key: value for key, value in other.summary.items() if key not in times
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on a disk, to its end, which nothing happened to."""
    runs = tmp_path_factory.mktemp("runs")
    finish(start(runs, name="whole"))
    return runs / "whole"


def test_a_run_in_a_bucket_under_a_budget_stops_goes_back_and_ends_with_the_same_bits(
    bucket: ObjectPath, whole: Path
) -> None:
    session = start(bucket / "runs", SMALL)
    away, saved = 0, []
    with session:
        for event in session.events():
            if isinstance(event, CheckpointSaved):
                saved.append(event.step)
            if isinstance(event, Progress):
                away = max(away, session._loop.learner.tiers.disk_bytes)
                if event.step == 70:
                    session.request_stop("test")
    assert isinstance(event, Stopped)
    assert event.resume == f"streamlearn resume {bucket}/runs/run"
    assert away > 50_000  # blocks that were only in the bucket
    assert verify(session.path).damage == ()
    steps = RunReader(session.path).manifest().steps  # type: ignore[union-attr]
    assert len(steps) == 3
    finished = finish(Session.resume(session.path, [SMALL], at=steps[0]))
    assert finished.run == f"{bucket}/runs/run"
    assert_same_end(session.path, whole)
    tested = list(evaluate(session.path))[-1]
    assert isinstance(tested, Tested)
    assert tested.accuracy == finished.test_accuracy
    assert verify(session.path).damage == ()


def test_processes_killed_in_a_request_or_at_any_moment_lose_no_commit(
    bucket: ObjectPath, whole: Path
) -> None:
    original = story.begin(bucket / "story")
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.remote", str(original), str(bucket / "runs")],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert [kill["signal"] for kill in kills] == [signal.SIGKILL] * len(kills)
    assert len(kills) == len(KILLED_IN) + KILLED_LEARNING
    for kill in kills[: len(KILLED_IN)]:
        path = place(kill["path"])
        assert verify(path).damage == ()
        part = story.part_of(path, kill["part"])
        with RunStore.open(path) as store:
            for _ in story.go_on(store, part):
                pass
        assert_same_bits(load(RunReader(path)), story.memory_at(story.PARTS - 1))
    path = bucket / "runs" / "run"
    assert verify(path).damage == ()
    manifest = RunReader(path).manifest()
    assert manifest is not None
    assert manifest.step >= kills[-1]["acknowledged"] > 0
    finish(Session.resume(path))
    assert_same_end(path, whole)
    assert verify(path).damage == ()


def test_every_command_works_on_a_bucket(
    bucket: ObjectPath, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = f"{bucket}/my runs/run"
    words = [*WORDS, f"run.dir={bucket}/my runs", "run.name=run"]
    done = subprocess.run(
        [sys.executable, "-m", "streamlearn.cli", "run", *words, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    finished = json.loads(done.stdout.splitlines()[-1])
    assert (finished["event"], finished["run"]) == ("finished", run)
    assert_same_end(bucket / "my runs" / "run", whole)

    def said(*command: str) -> str:
        assert main(list(command)) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    facts = json.loads(said("info", run, "--json"))
    assert (facts["run"], facts["status"]) == (run, "finished")
    assert "finished" in said("inspect", run)
    assert "whole" in said("verify", run)
    assert "accuracy" in said("watch", run, "--plain")
    last = json.loads(said("watch", run, "--json").splitlines()[-1])
    assert last["event"] == "finished"
    tested = json.loads(said("evaluate", run, "--json").splitlines()[-1])
    assert tested["accuracy"] == finished["test_accuracy"]
    said("export", run, "--to", str(tmp_path / "tuples.npz"))
    with np.load(tmp_path / "tuples.npz") as arrays:
        expected = columns(whole)
        for name, rows in expected.items():
            np.testing.assert_array_equal(arrays[f"layers/{name}"], rows)
    assert "none of the" in said("compact", run)
    said("verify", run, "--repair")
    assert main(["export", run, "--to", f"{bucket}/tuples.npz"]) == 2
    assert "is no file; export to one" in capsys.readouterr().err
    # Its name alone is looked for on the disk; beside it in the bucket are runs to suggest.
    assert main(["inspect", f"{bucket}/my runs/rum"]) == 2
    assert f"did you mean {'run'!r}?" in capsys.readouterr().err


def _no_bucket(bucket: ObjectPath, patch: pytest.MonkeyPatch) -> str:
    return "s3://there-is-none/runs"


def _no_credentials(bucket: ObjectPath, patch: pytest.MonkeyPatch) -> str:
    patch.delenv("AWS_ACCESS_KEY_ID")
    patch.delenv("AWS_SECRET_ACCESS_KEY")
    return f"{bucket}/runs"


def _unreachable(bucket: ObjectPath, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    return f"{bucket}/runs"


def _no_extra(bucket: ObjectPath, patch: pytest.MonkeyPatch) -> str:
    patch.setitem(sys.modules, "obstore.store", None)
    endpoints._connect.cache_clear()
    return f"{bucket}/runs"


def _unknown_scheme(bucket: ObjectPath, patch: pytest.MonkeyPatch) -> str:
    return "ftp://server/runs"


def _no_name(bucket: ObjectPath, patch: pytest.MonkeyPatch) -> str:
    return "s3:///runs"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (_no_bucket, "there is no bucket 'there-is-none'; make it, or name another"),
        (_no_credentials, "there are no credentials for it; set AWS_ACCESS_KEY_ID and"),
        (_unreachable, "the server 'http://127.0.0.1:9' "),
        (_no_extra, "needs the package obstore, which is not installed; install it by `pip"),
        (_unknown_scheme, "is a kind of address that is not known; use a folder, or s3://"),
        (_no_name, "names no place in a bucket; write it as s3://BUCKET/FOLDER"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_sentence_and_exit_code_2(
    bucket: ObjectPath,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    wrong: Callable[[ObjectPath, pytest.MonkeyPatch], str],
    reason: str,
) -> None:
    place = wrong(bucket, monkeypatch)
    for command in (
        ["run", f"run.dir={place}", "run.name=run"],
        ["run", f"run.dir={place}"],
        ["resume", f"{place}/run"],
        ["inspect", f"{place}/run"],
        ["verify", f"{place}/run", "--repair"],
    ):
        assert main(command) == 2, command
        out, err = capsys.readouterr()
        assert out == ""
        assert reason in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1


def test_a_run_that_is_there_or_held_is_refused(bucket: ObjectPath, capsys: Capture) -> None:
    words = [*WORDS, f"run.dir={bucket}/runs", "run.name=run"]
    with Session.start(resolve(words)) as session:
        assert isinstance(session.path, ObjectPath)
        for command, reason in (
            (["run", *words], f"a run called 'run' is already in '{bucket}/runs'"),
            (["resume", str(session.path)], f"is being written by process {os.getpid()} on"),
            (["compact", str(session.path)], f"is being written by process {os.getpid()} on"),
            (["verify", str(session.path), "--repair"], "is being written by"),
            (["resume", str(session.path), "--at", "99"], "keeps no commit of step 99"),
            (["inspect", f"{bucket}/runs"], "there is no run"),
        ):
            assert main(command) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert reason in err
            assert err.count("\n") == 1


def test_a_run_that_cannot_begin_leaves_nothing(
    bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RunStore, "begin", fail)
    with pytest.raises(KeyboardInterrupt):
        start(bucket / "runs")
    assert not (bucket / "runs").exists()
