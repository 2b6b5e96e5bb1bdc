"""Sweeps: what is run, what is left alone, and what a folder keeps of it."""

import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import ConfigError, FormatError, RunLockedError, RunNotFoundError
from streamlearn.events import Progress
from streamlearn.scenarios.grid import grid_of
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.sweep import Row, Sweep, default_folder, find_sweep
from streamlearn.scenarios.words import resolve
from streamlearn.scenarios.workers import (
    CellEnded,
    CellProgress,
    CellStarted,
    SweepEnded,
    SweepEvent,
    Sweeping,
    SweepStarted,
    sweep_json,
)
from tests.scenarios.killing import forked

STANDIN = Path(__file__).with_name("standin.py")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and beside it one that was stopped."""
    folder = tmp_path_factory.mktemp("templates")
    for name in ("finished", "stopped"):
        words = ["data.limit=48", "encoder.fit=32", f"run.dir={folder}", f"run.name={name}"]
        with Session.start(resolve(words)) as session:
            for event in session.events():
                if name == "stopped" and isinstance(event, Progress):
                    session.request_stop("SIGINT")
    return folder / "finished"


Run = Callable[..., list[SweepEvent]]


@pytest.fixture
def run(tmp_path: Path, template: Path) -> Run:
    """Runs what is left of a grid with a program that stands in for the command line."""

    def start(
        words: Sequence[str],
        during: Callable[[SweepEvent, Sweeping], None] = lambda event, sweeping: None,
        **settings: Any,
    ) -> list[SweepEvent]:
        events = []
        with Sweep.begin(grid_of(words), str(tmp_path / "sweep")) as sweep:
            program = [sys.executable, "-S", str(STANDIN), str(template)]
            sweeping = Sweeping(sweep, program, **settings)
            for event in sweeping.events():
                events.append(event)
                during(event, sweeping)
        return events

    return start


def rows(tmp_path: Path) -> dict[str, Row]:
    found, _ = Sweep(tmp_path / "sweep").rows()
    return {row.cell: row for row in found}


def asked(tmp_path: Path) -> list[list[Any]]:
    """What the processes were asked: to run or resume, which cell, with how many threads, pid."""
    try:
        lines = (tmp_path / "asked.txt").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def kinds(events: Sequence[SweepEvent]) -> Iterator[str]:
    return (type(event).__name__ for event in events if not isinstance(event, CellProgress))


def test_every_cell_is_run_once_and_the_same_words_again_run_nothing(
    run: Run, tmp_path: Path
) -> None:
    events = run(["layer.kappa=1,2", "seed=0,1"])
    assert isinstance(events[0], SweepStarted)
    assert (events[0].cells, events[0].threads) == (4, None)
    assert [name for _, name, _, _ in asked(tmp_path)] == [
        "1-kappa=1-seed=0",
        "2-kappa=1-seed=1",
        "3-kappa=2-seed=0",
        "4-kappa=2-seed=1",
    ]
    ended = [event for event in events if isinstance(event, CellEnded)]
    assert [event.done for event in ended] == [1, 2, 3, 4]
    assert {event.state for event in ended} == {"finished"}
    assert all(0 < event.values["test_accuracy"] < 1 for event in ended)
    assert any(isinstance(event, CellProgress) for event in events)
    assert isinstance(events[-1], SweepEnded)
    assert (events[-1].finished, events[-1].open) == (4, 0)
    assert json.dumps([sweep_json(event) for event in events])

    again = run(["seed=1,0", "layer.kappa=1,2"])
    assert list(kinds(again)) == ["SweepStarted", "SweepEnded"]
    assert len(asked(tmp_path)) == 4


def test_a_cell_that_fails_is_a_row_and_is_run_again_only_when_asked(
    run: Run, tmp_path: Path
) -> None:
    words = ["seed=0,2,4,5"]
    events = run(words)
    assert isinstance(events[-1], SweepEnded)
    assert (events[-1].finished, events[-1].failed) == (1, 3)
    found = rows(tmp_path)
    assert found["2-seed=2"].reason == "row 3 has no label; give it one"
    assert "SIGKILL" in str(found["3-seed=4"].reason)
    assert list(kinds(run(words))) == ["SweepStarted", "SweepEnded"]

    (tmp_path / "mended").touch()
    again = run(words, retry=True)
    ended = {event.cell: event.state for event in again if isinstance(event, CellEnded)}
    assert ended == {"2-seed=2": "failed", "3-seed=4": "failed", "4-seed=5": "finished"}
    assert rows(tmp_path)["4-seed=5"].reason is None


def test_several_jobs_run_at_once_and_share_the_processors(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    going: set[str] = set()
    most = 0

    def watch(event: SweepEvent, sweeping: Sweeping) -> None:
        nonlocal most
        if isinstance(event, CellStarted):
            going.add(event.cell)
        if isinstance(event, CellEnded):
            going.discard(event.cell)
        most = max(most, len(going))

    run(["layer.kappa=1,2,3", "seed=0,1"], watch, jobs=2)
    assert most == 2
    assert {threads for _, _, threads, _ in asked(tmp_path)} == {"4"}


def test_a_stop_lets_every_run_save_and_the_same_words_go_on(run: Run, tmp_path: Path) -> None:
    words = ["seed=3,0,1"]

    def stop(event: SweepEvent, sweeping: Sweeping) -> None:
        if isinstance(event, CellProgress):
            sweeping.request_stop("SIGTERM")

    events = run(words, stop)
    assert isinstance(events[-1], SweepEnded)
    assert (events[-1].stopped, events[-1].failed) == ("SIGTERM", 0)
    found = rows(tmp_path)
    assert found["2-seed=0"].state == "waiting"
    again = run(words)
    assert {event.state for event in again if isinstance(event, CellEnded)} == {"finished"}
    first = next(event for event in again if isinstance(event, CellStarted))
    assert first.resumed
    assert found["1-seed=3"].state == "stopped"


def test_a_sweep_whose_process_is_killed_leaves_no_process_behind_and_goes_on(
    run: Run, tmp_path: Path
) -> None:
    words = ["seed=3,0"]
    run_of = tmp_path / "sweep" / "runs" / "1-seed=3" / "run.json"

    def start(writing: int) -> None:
        run(words)

    child, pipe = forked(start)
    os.close(pipe)
    deadline = time.monotonic() + 60
    while not run_of.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    with pytest.raises(RunLockedError, match=rf"is being run by process {child} "):
        run(words)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while not (tmp_path / "unheard").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "unheard").exists()
    events = run(words)
    assert [event.resumed for event in events if isinstance(event, CellStarted)] == [True, False]
    assert {row.state for row in rows(tmp_path).values()} == {"finished"}


def test_the_best_is_on_top_and_seeds_have_a_mean_and_a_deviation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(["layer.kappa=1,2", "seed=0,1,2"])
    sweep = Sweep(tmp_path / "sweep")
    accuracies = {"1": (0.5, 0.75), "2": (0.9, 0.8)}
    real = sweep.row

    def made_up(cell: Any) -> Row:
        row = real(cell)
        if row.state != "finished":
            return row
        value = accuracies[row.choices["layer.kappa"]][int(row.choices["seed"])]
        return Row(
            row.cell,
            row.choices,
            "finished",
            {"test_accuracy": value, "prequential_accuracy": 1 - value, "test_loss": value},
        )

    monkeypatch.setattr(sweep, "row", made_up)
    found, judge = sweep.rows()
    assert judge.name == "test_accuracy"
    assert [row.values.get("test_accuracy") for row in found] == [0.9, 0.8, 0.75, 0.5, None, None]
    groups = sweep.groups(found, judge)
    assert [group.choices for group in groups] == [{"layer.kappa": "2"}, {"layer.kappa": "1"}]
    assert groups[0].runs == 2
    assert groups[0].mean["test_accuracy"] == pytest.approx(statistics.fmean((0.9, 0.8)))
    assert groups[0].deviation["test_accuracy"] == pytest.approx(statistics.stdev((0.9, 0.8)))
    for metric in ("prequential_accuracy", "test_loss"):  # a loss is better when it is lower
        found, judge = sweep.rows(metric)
        assert found[0].values["test_accuracy"] == 0.5, metric
    with pytest.raises(ConfigError, match="choose test_accuracy"):
        sweep.rows("accuracy")


def test_a_folder_holds_one_grid_and_nothing_else(run: Run, tmp_path: Path) -> None:
    run(["seed=0,1"])
    with pytest.raises(ConfigError, match="holds a sweep of digits-onepass over seed=0,1"):
        run(["seed=0,2"])
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    grid = grid_of(["seed=0,1"])
    for folder, says in (
        (tmp_path / "other", r"something else in it \('thesis.txt'\)"),
        (tmp_path / "other" / "thesis.txt", "is a file"),
    ):
        with pytest.raises(ConfigError, match=says):
            Sweep.begin(grid, str(folder))
    with pytest.raises(ConfigError, match="lies on a disk"):
        Sweep.begin(grid, "s3://bucket/sweep")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]


def test_a_folder_of_which_only_the_beginning_was_made_is_taken(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "lock").touch()
    (tmp_path / "sweep" / ".sweep.json.123.part").write_bytes(b"{")
    events = run(["seed=0,1"])
    assert isinstance(events[-1], SweepEnded)
    assert events[-1].finished == 2


def test_a_damaged_file_is_named_and_a_damaged_run_is_a_row(run: Run, tmp_path: Path) -> None:
    run(["seed=0,1"])
    manifest = tmp_path / "sweep" / "runs" / "1-seed=0" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    found = rows(tmp_path)
    assert found["1-seed=0"].state == "failed"
    assert "manifest.json" in str(found["1-seed=0"].reason)
    assert found["2-seed=1"].state == "finished"
    file = tmp_path / "sweep" / "sweep.json"
    file.write_bytes(file.read_bytes().replace(b"digits", b"dogits"))
    with pytest.raises(FormatError, match=r"sweep\.json"):
        Sweep(tmp_path / "sweep")


def test_a_sweep_is_found_by_its_path_or_its_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(["seed=0,1"])
    monkeypatch.chdir(tmp_path)
    assert find_sweep("sweep") == Path("sweep")
    shutil.copytree("sweep", "sweeps/mine")
    assert find_sweep("mine") == Path("sweeps/mine")
    for word in ("nosuch", "", "."):
        with pytest.raises(RunNotFoundError, match="no sweep"):
            find_sweep(word)
    folder = default_folder(grid_of(["seed=0,1"]))
    assert folder == default_folder(grid_of(["seed=1,0"]))
    assert folder.parent == Path("sweeps")
