"""`compare` on the command line."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from streamlearn.cli.main import main

Capture = pytest.CaptureFixture[str]
Commands = Callable[..., tuple[int, str, str]]
SHORT = ("data.limit=200", "encoder.fit=64")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Iterator[Commands]:
    """Calls the command line in an empty folder, for 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield call
    torch.set_num_threads(threads)


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def test_a_comparison_prints_tables_that_fit_and_draws_a_picture(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    name = "a long name with [brackets] and $dollars$ that takes more room than there is"
    learners = ["-l", "growing", "-l", f"{name}: knn learner.k=3"]
    code, out, err = command("compare", *SHORT, *learners, "--png", "curves.png", "--quiet")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "digits-onepass, 200 samples, seed 0"
    assert lines[1].split()[:5] == ["learner", "test", "preq.", "window", "at"]
    assert max(map(len, lines)) <= 80
    assert "[brackets]" in " ".join(out.split())
    assert sum(line.startswith("growing ") for line in lines) == 2
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in Path().iterdir()] == ["curves.png"]

    monkeypatch.setenv("COLUMNS", "140")
    code, out, err = command("compare", *SHORT, "data.holdout=0", *learners)
    lines = out.splitlines()
    assert sum(line.startswith("growing ") for line in lines) == 1
    assert " test " not in lines[1].partition("preq.")[0]
    assert "200 of 200 (100.0%): growing" in err


def test_json_has_a_result_for_each_learner_and_all_of_its_curve(command: Commands) -> None:
    code, out, err = command("compare", *SHORT, "-l", "growing", "-l", "knn", "--json")
    assert (code, err) == (0, "")
    found = records(out)
    assert [record["event"] for record in found[:1]] == ["started"]
    assert found[-1]["event"] == "compared"
    results = {record["learner"]: record for record in found if record["event"] == "result"}
    assert list(results) == ["growing", "knn"]
    for result in results.values():
        assert result["values"].keys() >= {"test_accuracy", "prequential_accuracy"}
        assert result["curve"][-1][0] == result["samples"] == 200
        assert result["learner_bytes"] >= result["tuple_bytes"] > 0


def test_all_learners_failing_is_a_mistake_and_one_of_them_is_not(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlearn.errors import NotFiniteError
    from streamlearn.learner import Learner

    learn = Learner.learn

    def diverging(self: Learner, *given: Any, **named: Any) -> Any:
        if self.settings.learner.kind == "knn" and self.fitted:
            raise NotFiniteError("it diverged; lower the rate")
        return learn(self, *given, **named)

    monkeypatch.setattr(Learner, "learn", diverging)
    code, out, err = command("compare", *SHORT, "-l", "growing", "-l", "knn")
    assert code == 0
    assert "knn failed: it diverged; lower the rate" in out
    assert "1 of 2 learners failed" in out
    code, out, err = command("compare", *SHORT, "-l", "knn")
    assert code == 2
    assert "knn (failed)" in out
    assert err.splitlines()[-1].startswith("error: none of the 1 learners came to the end")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "nothing to compare"),
        (["-l", "growing", "-l", "growing"], "called 'growing'"),
        (["-l", "growing", "--png", "x.jpg"], "ends in .png"),
        (["-l", "growing", "--png", "no/x.png"], "folder that is not there"),
        (["-l", "growing", "sede=3"], "seed"),
    ],
)
def test_a_wrong_word_is_one_line_and_nothing_is_written(
    command: Commands, tmp_path: Path, words: list[str], hint: str
) -> None:
    code, out, err = command("compare", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: ")
    assert hint in err
    assert not list(tmp_path.iterdir())


def test_a_picture_without_matplotlib_is_refused_before_anything_is_read(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = command("compare", "-l", "growing", "--png", "x.png")
    assert code == 2
    assert "pip install 'streamlearn[plot]'" in err


def test_an_interrupt_ends_with_the_table_of_what_there_is(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    program = "import sys; from streamlearn.cli.main import main; sys.exit(main())"
    words = ["compare", "learner.batch=2", "data.epochs=500", "-l", "growing", "-l", "knn"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    ) as child:
        assert child.stderr is not None
        while b"%): growing" not in child.stderr.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
    assert child.returncode == 130
    assert b"SIGINT: stopping after this batch" in err
    assert b"Traceback" not in err
    assert b"stopped by SIGINT" in out.splitlines()[0]
    assert b"growing (stopped)" in out
    assert not list(tmp_path.iterdir())
