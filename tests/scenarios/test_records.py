"""Runs over records: standard input, rows that cannot be used, late labels, new classes, resume."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import StreamlearnError
from streamlearn.events import Finished, Progress, Skipped, Stopped
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify
from tests.scenarios import running
from tests.warm import Warm

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
ROWS = 900
BROKEN = {17, 18, 300, 555, 901}
"""Physical line numbers of bad lines."""


def lines(rows: int = ROWS, features: int = 4) -> Iterator[str]:
    """Good rows with broken ones between; a class comes half-way, another feature near the end."""
    source = random.Random(5)
    number = 0
    for row in range(rows):
        number += 1
        while number in BROKEN:
            yield "" if number == 300 else '{"x0": 1, "label"'
            number += 1
        classes = ["a", 1] if row < rows // 2 else ["a", 1, "new"]
        label = source.choice(classes)
        place = classes.index(label)
        record: dict[str, Any] = {
            f"x{index}": round(source.gauss(place * (1 + index % 2), 0.4), 3)
            for index in range(features)
        }
        record["site"] = source.choice(["north", "south"])
        if row > rows * 0.8:
            record["late"] = place
        if row % 50 != 49:
            record["label"] = label
        yield json.dumps(record)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("año=2024, lote [3]") / "m.jsonl"
    path.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    return path


def words(path: Path, runs: Path, name: str = "run", *more: str) -> list[str]:
    fixed = ["data=jsonl", f"data.path={path}", "data.target=label", "checkpoint.every_steps=7",
             "learner.dtype=float32", "seed=3"]  # fmt: skip
    return running.words(runs, name, *fixed, *more)


def end(session: Session) -> tuple[Finished, list[Skipped]]:
    *events, last = running.all_events(session)
    assert isinstance(last, Finished)
    return last, [event for event in events if isinstance(event, Skipped)]


def assert_same_end(one: Path, other: Path) -> None:
    running.assert_same_end(one, other)
    assert quarantined(one) == quarantined(other)


def quarantined(run: Path) -> list[int]:
    """The line numbers in a run's quarantine."""
    path = run / "quarantine.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [int(json.loads(line)["item"].split()[1]) for line in text.splitlines()]


@pytest.fixture(scope="module")
def whole(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    runs = tmp_path_factory.mktemp("runs")
    end(Session.start(resolve(words(path, runs, "whole"))))
    return runs / "whole"


def test_every_good_row_is_learnt_once_and_every_bad_one_put_aside(
    path: Path, tmp_path: Path
) -> None:
    finished, skipped = end(Session.start(resolve(words(path, tmp_path))))
    unlabelled = ROWS // 50
    assert finished.samples == ROWS - unlabelled
    assert finished.skipped == len(BROKEN) == len(skipped)
    assert quarantined(tmp_path / "run") == sorted(BROKEN)
    assert not any(event.raw for event in skipped)
    assert finished.prequential_accuracy is not None
    assert finished.prequential_accuracy > 0.85
    assert verify(tmp_path / "run").damage == ()


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_stopped_anywhere_ends_with_the_same_bits(
    path: Path, whole: Path, tmp_path: Path, seed: int
) -> None:
    source = random.Random(seed)
    session = Session.start(resolve(words(path, tmp_path)))
    for _ in range(4):
        stop = session._loop.step + source.randrange(1, 16)
        with session:
            for event in session.events():
                if isinstance(event, Progress) and event.step == stop:
                    session.request_stop("test")
        if not isinstance(event, Stopped):
            break
        session = Session.resume(tmp_path / "run")
    else:
        end(session)
    assert_same_end(tmp_path / "run", whole)


def test_three_networks_that_rehearse_are_resumed_to_the_same_bits_also_in_the_warm_up(
    path: Path, tmp_path: Path
) -> None:
    both = ("data.limit=400", "learner.members=3", "learner.rehearsal=4", "learner.batch=16")
    finished, _ = end(Session.start(resolve(words(path, tmp_path, "one", *both))))
    assert {layer.name for layer in finished.layers} >= {"output", "2-output", "3-output"}
    for step in (2, 11):
        session = Session.start(resolve(words(path, tmp_path, f"two{step}", *both)))
        with session:
            for event in session.events():
                if isinstance(event, Progress) and event.step == step:
                    session.request_stop("SIGTERM")
        end(Session.resume(tmp_path / f"two{step}"))
        assert_same_end(tmp_path / "one", tmp_path / f"two{step}")


def test_a_killed_run_on_a_file_loses_nothing_and_learns_nothing_twice(
    path: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    given = ["run", "--plain", *words(path, tmp_path)]
    warm, killed = Warm(ENVIRONMENT), 0
    for _ in range(3):
        steps = _steps(run)
        process = warm.start(given, tmp_path / "errors")
        for _ in range(3000):
            time.sleep(0.02)
            if _steps(run) > steps or process.poll() is not None:
                break
        os.kill(process.pid, signal.SIGKILL)
        found = process.wait()
        assert found in (-signal.SIGKILL, 0), process.errors()
        killed += found != 0
        given = ["resume", "--plain", str(run)]
        assert verify(run).damage == ()
    warm.close()
    assert killed
    manifest = RunReader(run).manifest()
    if manifest is None or manifest.status != "finished":
        end(Session.resume(run))
    assert_same_end(run, whole)


def _steps(run: Path) -> int:
    try:
        manifest = RunReader(run).manifest()
    except Exception:
        return -1
    return -1 if manifest is None else manifest.step


def test_rows_that_are_piped_in_are_learnt_as_they_come(path: Path, tmp_path: Path) -> None:
    given = words(Path("-"), tmp_path)
    with subprocess.Popen(
        [sys.executable, "-m", "streamlearn.cli", "run", "--json", *given],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(path.read_text(encoding="utf-8"))
        process.stdin.close()
        events = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0
    assert events[-1]["event"] == "finished"
    assert events[-1]["samples"] == ROWS - ROWS // 50
    assert quarantined(tmp_path / "run") == sorted(BROKEN)
    notices = [event["text"] for event in events if event["event"] == "notice"]
    assert sum("label" in text for text in notices) == 1  # the schema, once


def test_late_labels_are_learnt_late_and_wait_across_stops(path: Path, tmp_path: Path) -> None:
    late = "stream.delay=100"
    finished, _ = end(Session.start(resolve(words(path, tmp_path, "late", late))))
    assert finished.samples == ROWS - ROWS // 50
    session = Session.start(resolve(words(path, tmp_path, "stopped", late)))
    waiting = []
    with session:
        for event in session.events():
            if isinstance(event, Progress):
                waiting.append(event.waiting)
                if event.step == 20:
                    session.request_stop("test")
    assert max(waiting) >= 90
    end(Session.resume(tmp_path / "stopped"))
    assert_same_end(tmp_path / "stopped", tmp_path / "late")


@pytest.mark.parametrize(
    "further",
    [
        (),
        ("learner.rehearsal=16", "stream.delay=60", "drift.action=boost", "drift.detector=adwin"),
        (
            "learner.rehearsal=8",
            "learner.rehearse=loss",
            "learner.members=1",
            "memory.host_budget=3MiB",
            "memory.block_rows=512",
        ),
    ],
)
def test_a_network_grows_wider_with_features_and_classes_across_stops(
    tmp_path: Path, further: tuple[str, ...]
) -> None:
    source = random.Random(1)
    rows = [
        {**{f"f{index}": source.random() for index in range(5 if row < 200 else 90)},
         "y": f"class {source.randrange(3 if row < 300 else 20)}"}
        for row in range(500)
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    more = "data.target=y", "checkpoint.keep=2", *further
    end(Session.start(resolve(words(path, tmp_path, "whole", *more))))
    session = Session.start(resolve(words(path, tmp_path, "stopped", *more)))
    for stop in (3, 5, 11, 14, 20, 27):
        with session:
            for event in session.events():
                if isinstance(event, Progress) and event.step == stop:
                    session.request_stop("test")
        assert verify(tmp_path / "stopped").damage == ()
        session = Session.resume(tmp_path / "stopped")
    end(session)
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")


def test_numbers_are_learnt_as_numbers(tmp_path: Path) -> None:
    source = random.Random(2)
    path = tmp_path / "rows.csv"
    rows = [(x := source.random(), round(3 * x + 0.01 * source.random(), 4)) for _ in range(400)]
    path.write_text("x,y\r\n" + "".join(f"{x},{y}\r\n" for x, y in rows), encoding="utf-8-sig")
    given = [word for word in words(path, tmp_path) if word != "data=jsonl"]
    finished, _ = end(Session.start(resolve(["data=csv", *given, "data.target=y"])))
    assert finished.metrics["prequential_mae"] is not None
    assert finished.metrics["prequential_mae"] < 0.2


@pytest.mark.parametrize(
    ("more", "words_in_it"),
    [
        (["data.target=lable"], ["lable", "label"]),
        (["data.path=nothing.jsonl"], ["nothing.jsonl"]),
        (["layer=softmax", "layer.temperature=3"], ["layer.kappa"]),
        (["stream.delay=-1"], ["stream.delay"]),
        (["data.order=shuffled", "data.epochs=2"], ["data.epochs"]),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_sentence(
    path: Path, tmp_path: Path, more: list[str], words_in_it: list[str]
) -> None:
    with pytest.raises(StreamlearnError) as caught:
        Session.start(resolve(words(path, tmp_path, "run", *more)))
    for word in words_in_it:
        assert word in str(caught.value)
    assert not (tmp_path / "run").exists()
