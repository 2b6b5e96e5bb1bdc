"""The commands end to end, on the scenario that needs nothing but the packages."""

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


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Iterator[Commands]:
    """Calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # Tiny batches gain nothing from threads, and lose much where others use the processors.
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


def test_a_run_can_be_made_inspected_watched_and_evaluated(command: Commands) -> None:
    code, out, err = command("run", "data.limit=400", "run.name=007", "--json")
    assert (code, err) == (0, "")
    finished = records(out)[-1]
    assert finished["event"] == "finished"
    assert finished["samples"] == 400
    assert 0 <= finished["prequential_accuracy"] <= 1
    assert Path(finished["run"]) == Path("runs/007").absolute()

    code, out, _ = command("inspect", "007", "--json")
    facts = records(out)[0]
    assert (code, facts["status"], facts["samples"]) == (0, "finished", 400)
    assert sum(layer["tuples"] for layer in facts["layers"]) == finished["tuples"]

    code, out, err = command("watch", "007")
    assert (code, err) == (0, "")
    assert "finished" in out.splitlines()

    code, out, _ = command("evaluate", "007", "--json")
    tested = records(out)[-1]
    assert (code, tested["event"]) == (0, "tested")
    assert tested["accuracy"] == finished["test_accuracy"]
    code, out, _ = command("evaluate", "007", "--quiet")
    assert out.startswith("test accuracy  ")

    code, out, err = command("resume", "007")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_plain_output_keeps_progress_off_stdout(command: Commands) -> None:
    code, out, err = command("run", "data.limit=300", "--plain")
    assert code == 0
    assert out.startswith("finished\n")
    assert "accuracy" in err
    assert "started: 300 samples" in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["scenario=digits-onepas"], "digits-onepass"),
        (["sede=3"], "seed"),
        (["data.limit=0"], "data.limit"),
        (["seed=three"], "seed"),
        (["run.name=../out"], "run.name"),
        (["run.name="], "run.name"),
        (["digits-onepass"], "scenario=digits-onepass"),
    ],
)
def test_a_wrong_word_is_one_line_that_names_it_and_nothing_is_left(
    command: Commands, tmp_path: Path, words: list[str], hint: str
) -> None:
    code, out, err = command("run", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert hint in err
    assert not [path for path in tmp_path.rglob("*") if path.name == "run.json"]


def test_a_name_that_is_taken_is_refused(command: Commands) -> None:
    assert command("run", "data.limit=50", "run.name=null")[0] == 0
    assert Path("runs/null/run.json").exists()
    code, _, err = command("run", "data.limit=50", "run.name=null")
    assert code == 2
    assert "null" in err


def test_an_interrupted_run_is_resumed_through_another_path(
    command: Commands, tmp_path: Path, environment: dict[str, str]
) -> None:
    program = "import sys; from streamlearn.cli.main import main; sys.exit(main())"
    words = [
        "run",
        "run.dir=mis datos/ñ",
        "run.name=mine",
        "learner.batch=2",
        "--json",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    ) as child:
        assert child.stdout is not None
        while b'"progress"' not in child.stdout.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (130, b"")
    stopped = records(out.decode())[-1]
    assert stopped["event"] == "stopped"
    assert stopped["reason"] == "SIGINT"

    Path("mis datos").rename("moved")
    Path("link").symlink_to("moved/ñ/mine")
    code, text, _ = command("inspect", "link", "--json")
    facts = records(text)[0]
    assert (code, facts["status"], facts["samples"]) == (0, "stopped", stopped["samples"])
    code, text, err_text = command("resume", "link", "--json")
    assert (code, err_text) == (0, "")
    events = records(text)
    assert (events[0]["event"], events[0]["samples"]) == ("started", stopped["samples"])
    assert events[-1]["event"] == "finished"
    assert not Path("mis datos").exists()
