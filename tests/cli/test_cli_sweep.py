"""`sweep` on the command line, with real runs in real processes."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlearn.cli.main import main
from streamlearn.events import Progress
from streamlearn.scenarios.grid import grid_of
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.sweep import Sweep
from streamlearn.scenarios.words import resolve

Capture = pytest.CaptureFixture[str]
Commands = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Commands:
    """Calls the command line in an empty folder, for 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_sweep_resumes_begins_and_fails_in_processes_of_its_own(
    command: Commands, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # One finished before, one stopped half way, one to begin, which fails, one that failed before.
    words = ["learner=kernel", "learner.limit=100", "data.limit=80,200", "evaluation.test=false"]
    words += ["encoder.fit=32", "seed=0,1"]
    with Sweep.begin(grid_of(words), "mine") as sweep:
        cells = {(cell.choices["data.limit"], cell.choices["seed"]): cell for cell in sweep.cells}
        for seed in ("0", "1"):
            cell = cells["80", seed]
            place = [f"run.dir={sweep.runs}", f"run.name={cell.name}"]
            with Session.start(resolve([*cell.words, *place])) as session:
                for event in session.events():
                    if seed == "1" and isinstance(event, Progress) and event.samples >= 48:
                        session.request_stop("SIGINT")
        sweep.fail(cells["200", "1"], "it failed before")
    code, out, err = command("sweep", *words, "--dir", "mine", "--jobs", "2", "--csv", "t.csv")
    assert code == 0
    assert f"{cells['80', '1'].name} resumed" in err
    assert f"{cells['200', '0'].name} started" in err
    assert "done: 2 finished, 2 failed" in err
    lines = out.splitlines()
    assert max(map(len, lines[: lines.index("")])) <= 80
    assert lines[0] == "digits-onepass, by prequential accuracy"
    assert lines[1].split() == ["limit", "seed", "preq.", "window", "time", "bytes", "state"]
    assert [line.split()[-1] for line in lines[2:6]] == ["finished"] * 2 + ["failed"] * 2
    assert "2 of 2" in out
    assert f"{cells['200', '0'].name} failed: learner=kernel keeps a matrix of all pairs" in out
    assert f"{cells['200', '1'].name} failed: it failed before" in out
    with open("t.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [row["state"] for row in table] == ["finished"] * 2 + ["failed"] * 2
    assert 0 < float(table[0]["prequential_accuracy"]) < 1
    assert "matrix of all pairs" in table[2]["reason"] + table[3]["reason"]

    code, out, err = command("sweep", "mine", "--json")
    assert (code, err) == (0, "")
    found = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert [record["event"] for record in found] == ["row"] * 4 + ["group"] * 2
    assert found[0]["choices"].keys() == {"data.limit", "seed"}
    assert (found[4]["choices"], found[4]["runs"]) == ({"data.limit": "80"}, 2)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "nothing to sweep"),
        (["seed=0"], "nothing to sweep"),
        (["nosuch"], "no sweep 'nosuch'"),
        (["seed=0,1", "--jobs", "0"], "--jobs"),
        (["seed=0,1", "--metric", "speed"], "choose test_accuracy"),
        (["seed=0,1", "--csv", "no/t.csv"], "--csv"),
        (["sede=0,1"], "did you mean seed"),
    ],
)
def test_a_wrong_word_is_one_line_and_nothing_is_made(
    command: Commands, tmp_path: Path, words: list[str], hint: str
) -> None:
    code, out, err = command("sweep", *words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("error: ")
    assert hint in err
    assert not list(tmp_path.iterdir())
