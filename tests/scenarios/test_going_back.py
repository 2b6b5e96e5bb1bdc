"""A run that went back to an older commit ends with the same bits as one that never did."""

import shutil
from pathlib import Path

import pytest

from streamlearn.cli.main import main
from streamlearn.errors import RunStateError
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.storage.objects import as_file

WORDS = ["data.limit=240", "encoder.fit=64", "learner.batch=16", "evaluation.test=false"]
KEPT = ["checkpoint.keep=3", "checkpoint.every_steps=3"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    words = [f"run.dir={runs}", "run.name=run", *WORDS, *KEPT]
    with Session.start(resolve(words)) as session:
        list(session.events())
    return as_file(session.path)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def columns(run: Path) -> dict[str, bytes]:
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    return {
        f"{name}/{key}": rows.tobytes()
        for name, entry in manifest.layers.items()
        for key, rows in reader.columns(name, 0, entry.rows).items()
    }


def test_a_finished_run_goes_on_from_a_kept_step_to_the_same_bits(
    run: Path, finished: Path
) -> None:
    manifest = RunReader(run).manifest()
    assert manifest is not None
    first = manifest.steps[0]
    assert first < manifest.step
    with Session.resume(run, at=first) as session:
        reader = RunReader(run)
        cut = reader.manifest()
        assert cut is not None
        assert (cut.step, cut.status) == (first, "running")
        steps = [event["step"] for event in reader.events()[0] if event["event"] == "progress"]
        assert max(steps) == first
        list(session.events())
    assert columns(run) == columns(finished)
    ends = [RunReader(path).state() for path in (run, finished)]
    assert ends[0]["loop"]["step"] == ends[1]["loop"]["step"]


def test_a_step_that_is_not_kept_is_refused_and_the_run_is_as_it_was(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "manifest.json").read_bytes()
    with pytest.raises(RunStateError, match=r"keeps no commit of step 1; it keeps steps"):
        Session.resume(run, at=1)
    assert main(["resume", str(run), "--at", "1"]) == 2
    assert "keeps no commit of step 1; it keeps steps" in capsys.readouterr().err
    assert main(["resume", str(run), "--at", "-1"]) == 2
    assert "--at" in capsys.readouterr().err
    assert (run / "manifest.json").read_bytes() == before
    assert main(["inspect", str(run)]) == 0
    assert "kept steps" in capsys.readouterr().out


def test_how_many_commits_are_kept_may_change_when_a_run_is_resumed(run: Path) -> None:
    manifest = RunReader(run).manifest()
    assert manifest is not None
    with Session.resume(run, ["checkpoint.keep=1"], at=manifest.steps[0]) as session:
        list(session.events())
    last = RunReader(run).manifest()
    assert last is not None
    assert last.kept == ()
