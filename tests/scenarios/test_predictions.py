"""Answers written to a file: each once, in the order of the stream, across stops and kills."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streamlearn.cli.main import main
from streamlearn.errors import ConfigError, FormatError
from streamlearn.events import Finished, Progress
from streamlearn.scenarios.entrants import entrants
from streamlearn.scenarios.grid import grid_of
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from tests.scenarios import running
from tests.scenarios.running import finish

ROWS = 420


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of which some are broken, some have no label, and some bring a new class."""
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = []
    for row in range(ROWS):
        label = [1, "1", "late"][row % (3 if row > 250 else 2)]
        record = {"x": row % 3 + 0.1, "z": (row * 7 % 11) / 11, "y": label}
        if row % 9 == 4:
            del record["y"]
        lines.append("{" if row in (7, 200) else json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    return path


def words(path: Path, folder: Path, name: str = "run", *more: str) -> list[str]:
    fixed = ["data=jsonl", f"data.path={path}", "data.target=y", "checkpoint.every_steps=5",
             "learner.batch=16", f"stream.predictions={folder / name}.jsonl"]  # fmt: skip
    return running.words(folder / "runs", name, *fixed, *more)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("delay", [0, 50])
def test_every_answer_is_there_once_in_order_and_to_the_bit(
    path: Path, tmp_path: Path, delay: int
) -> None:
    late = f"stream.delay={delay}"
    ended = finish(Session.start(resolve(words(path, tmp_path, "whole", late))))
    found = read(tmp_path / "whole.jsonl")
    assert [one["index"] for one in found] == [n for n in range(ROWS) if n not in (7, 200)]
    # Those without a label are answered to as well.
    assert [one["index"] for one in found if "target" not in one] == [
        n for n in range(ROWS) if n % 9 == 4 and n not in (7, 200)
    ]
    known = [one for one in found if "target" in one]
    assert ended.samples == len(known)
    # A 1 that is a number and a "1" that is text are two classes, as in the data.
    kinds = {(type(one["target"]), one["target"]) for one in known}
    assert kinds == {(int, 1), (str, "1"), (str, "late")}
    assert found[0]["label"] is None
    assert all(0 < one["probability"] <= 1 for one in found if one["label"] is not None)
    # Before any class is known an answer is null, and wrong.
    right = sum(one["label"] == one["target"] for one in known)
    assert right / len(known) == ended.prequential_accuracy

    stops = iter((40, 41, 130, 300))
    stop: float = next(stops)
    session = Session.start(resolve(words(path, tmp_path, "parts", late)))
    while True:
        with session:
            for event in session.events():
                if isinstance(event, Progress) and event.position >= stop:
                    session.request_stop("SIGINT")
        if isinstance(event, Finished):
            break
        stop = next(stops, float("inf"))
        # What was written after the commit, as by a process that was killed, is cut off.
        with open(tmp_path / "parts.jsonl", "a") as file:
            file.write('{"index": 5, "lab')
        session = Session.resume(tmp_path / "runs" / "parts")
    assert (tmp_path / "parts.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_answers_do_not_change_what_is_learnt(path: Path, tmp_path: Path) -> None:
    with_them = finish(Session.start(resolve(words(path, tmp_path))))
    without = finish(
        Session.start(resolve(words(path, tmp_path, "none", "stream.predictions=none")))
    )
    assert with_them.metrics == without.metrics
    assert not (tmp_path / "none.jsonl").exists()


def test_a_killed_process_leaves_a_file_that_a_resume_makes_whole(
    path: Path, tmp_path: Path
) -> None:
    finish(Session.start(resolve(words(path, tmp_path, "whole"))))
    command = [sys.executable, "-m", "streamlearn.cli", "run", "--quiet",
               *words(Path("-"), tmp_path, "killed")]  # fmt: skip
    answers = tmp_path / "killed.jsonl"
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ}) as process:
        assert process.stdin is not None
        lines = path.read_bytes().splitlines(keepends=True)
        process.stdin.write(b"".join(lines[:300]))
        process.stdin.flush()
        until = time.monotonic() + 60
        # Answers come while the input is still open.
        while not (answers.exists() and answers.read_bytes().count(b"\n") > 290):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finish(Session.resume(tmp_path / "runs" / "killed", [f"data.path={path}"]))
    assert [one["index"] for one in read(answers)] == [
        one["index"] for one in read(tmp_path / "whole.jsonl")
    ]


def test_data_sets_and_numbers(tmp_path: Path) -> None:
    finish(Session.start(resolve(
        ["data=digits", "data.limit=200", "encoder.fit=64", f"run.dir={tmp_path}", "run.name=a",
         f"stream.predictions={tmp_path / 'digits.jsonl'}", "evaluation.test=false"])))  # fmt: skip
    found = read(tmp_path / "digits.jsonl")
    assert [one["index"] for one in found] == list(range(200))
    assert {one["target"] for one in found} == set("0123456789")
    finish(Session.start(resolve(
        ["data=teacher", "data.limit=100", "encoder.fit=32", f"run.dir={tmp_path}", "run.name=b",
         "data.outputs=2", "evaluation.test=false", "data.features=5",
         f"stream.predictions={tmp_path / 'numbers.jsonl'}"])))  # fmt: skip
    found = read(tmp_path / "numbers.jsonl")
    assert len(found) == 100
    assert all(len(one["value"]) == len(one["target"]) == 2 for one in found)
    (tmp_path / "rows.csv").write_text("x,y\n" + "".join(f"{n},{n / 3}\n" for n in range(60)))
    finish(Session.start(resolve(
        ["data=csv", f"data.path={tmp_path / 'rows.csv'}", "data.target=y", f"run.dir={tmp_path}",
         "run.name=c", f"stream.predictions={tmp_path / 'one.jsonl'}"])))  # fmt: skip
    found = read(tmp_path / "one.jsonl")
    assert found[59].keys() == {"index", "value", "target"}
    assert isinstance(found[59]["value"], float)


@pytest.mark.parametrize("place", ["-", ".", "no/such/folder/file.jsonl"])
def test_a_place_that_cannot_be_a_file_is_refused(
    path: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*words(path, tmp_path)[:-1], f"stream.predictions={place}"]
    assert main(["run", *given]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "stream.predictions=" in error
    assert "name" in error
    assert not (tmp_path / "runs").exists()


def test_nothing_that_is_there_is_written_over(path: Path, tmp_path: Path) -> None:
    finish(Session.start(resolve(words(path, tmp_path))))
    before = (tmp_path / "run.jsonl").read_bytes()
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(b"x" * 100_000)
    given = [*words(path, tmp_path, "other"), f"stream.predictions={mine}"]
    with pytest.raises(ConfigError, match=r"mine\.jsonl is there already and is not written over"):
        Session.start(resolve(given))
    session = Session.start(resolve(words(path, tmp_path, "other")))
    with session:
        for event in session.events():
            if isinstance(event, Progress) and event.position > 100:
                session.request_stop("SIGINT")
    # Nor is a file that is not the run's cut back.
    with pytest.raises(FormatError, match="does not begin with the predictions"):
        Session.resume(session.path, [f"stream.predictions={mine}"])
    assert mine.stat().st_size == 100_000
    moved = tmp_path / "moved.jsonl"
    (tmp_path / "other.jsonl").rename(moved)
    with pytest.raises(FormatError, match="give the file back"):
        Session.resume(session.path)
    finish(Session.resume(session.path, [f"stream.predictions={moved}"]))
    assert moved.read_bytes() == before


def test_neither_comparisons_nor_sweeps_have_a_file(tmp_path: Path) -> None:
    given = f"stream.predictions={tmp_path / 'a.jsonl'}"
    with pytest.raises(ConfigError, match="means nothing in a comparison"):
        entrants([given], ["knn", "ridge"])
    with pytest.raises(ConfigError, match="means nothing in a sweep"):
        grid_of([given, "seed=1,2"])
