"""Drift, classes that come late and the figures beside accuracy, in every display."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from streamlearn.cli.dashboard import render
from streamlearn.cli.describe import describe, summary
from streamlearn.cli.main import main
from streamlearn.cli.model import Model
from streamlearn.cli.records import to_event
from streamlearn.events import (
    ClassArrived,
    DriftDetected,
    Finished,
    Progress,
    Started,
    as_json,
)

MakeProgress = Callable[..., Progress]

DRIFT = DriftDetected(189, 1536, "adwin", 0.0262, 0.344, 96, "forget")
ARRIVED = ClassArrived(375, 2996, "zebra")
METRICS = {
    "kappa": 0.4211,
    "kappa_t": 0.3111,
    "kappa_m": 0.2049,
    "balanced_accuracy": 0.66,
    "macro_f1": 0.65,
    "log_loss": 0.9,
    "calibration_error": 0.04,
    "no_change_accuracy": 0.512,
    "majority_accuracy": 0.3333,
}
BESIDE = "no-change 51.2%   majority 33.3%   kappa 0.42   kappa_t 0.31"


def test_lines_tell_of_both() -> None:
    assert describe(DRIFT) == (
        "drift at sample 1,536, by adwin: mean error 0.0262 to 0.344; forget"
    )
    assert describe(ARRIVED) == "class zebra came with sample 2,996"
    assert "\x1b" not in describe(ClassArrived(1, 2, "\x1b[2J"))


@pytest.mark.parametrize("event", [DRIFT, ARRIVED])
def test_a_record_of_the_log_is_the_event_again(event: Any) -> None:
    assert to_event(json.loads(json.dumps(as_json(event)))) == event


def test_progress_and_the_end_name_the_baselines(
    progress: MakeProgress, finished: Finished
) -> None:
    line = describe(progress(metrics=METRICS))
    assert "accuracy 68.21%, windowed 73.14%, no-change 51.20%, kappa 0.421, loss" in line
    metrics = {f"prequential_{name}": value for name, value in METRICS.items()}
    ended = Finished(
        finished.test_accuracy, finished.prequential_accuracy, 9, 0, 1.0, 1, 1, 1, "runs/mine",
        metrics=metrics,
    )  # fmt: skip
    lines = summary(ended, "runs/mine")
    for wanted in ("  test accuracy         74.12%", "  no-change accuracy    51.20%",
                   "  majority accuracy     33.33%", "  kappa                 0.421",
                   "  kappa_t, no-change    0.311", "  kappa_m, majority     0.205"):  # fmt: skip
        assert wanted in lines


def picture(
    started: Started, progress: MakeProgress, width: int, height: int, unicode: bool = True,
    drifts: tuple[int, ...] = (),
) -> list[str]:  # fmt: skip
    model = Model()
    model.update(started, 0.0)
    for samples in range(128, 20_000, 128):
        model.update(progress(samples, metrics=METRICS), samples / 1000)
    for sample in drifts:
        model.update(DriftDetected(1, sample, "adwin", 0.1, 0.5, 64, "none"), 20.0)
    console = Console(file=io.StringIO(), width=width, height=height, no_color=True)
    with console.capture() as capture:
        console.print(render(model, width, height, 21.0, unicode), end="")
    return capture.get().splitlines()


@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (120, 40), (200, 60), (20, 9),
                                               (133, 30), (80, 10)])  # fmt: skip
@pytest.mark.parametrize("unicode", [True, False])
def test_the_dashboard_has_a_line_of_baselines_where_there_is_room(
    started: Started, progress: MakeProgress, width: int, height: int, unicode: bool
) -> None:
    lines = picture(started, progress, width, height, unicode, (9_000, 12_000))
    assert len(lines) == height
    assert {cell_len(line) for line in lines} == {width}
    text = "\n".join(lines)
    assert unicode or text.isascii()
    assert width < 60 or height < 20 or "no-change 51.2%   majority 33.3%   kappa 0.42" in text
    assert width != 80 or height < 24 or f"{BESIDE}   kappa_m 0.20" in text
    assert height < 24 or "drift at sample 12,000, by adwin" in text


def test_a_drift_is_a_dotted_line_under_the_curve(started: Started, progress: MakeProgress) -> None:
    plain = picture(started, progress, 100, 30, unicode=False)
    marked = picture(started, progress, 100, 30, unicode=False, drifts=(10_000,))
    rows = [index for index, line in enumerate(plain) if "|" in line]
    columns = {
        place
        for row in rows
        for place, (one, other) in enumerate(zip(plain[row], marked[row], strict=True))
        if one != other
    }
    assert len(columns) == 1
    (column,) = columns
    assert 35 < column < 60
    assert sum(marked[row][column] == "." for row in rows) >= len(rows) // 2


def test_going_on_from_before_a_drift_takes_its_mark_away(
    started: Started, progress: MakeProgress
) -> None:
    model = Model()
    for sample in (500, 900):
        model.update(DriftDetected(1, sample, "adwin", 0.1, 0.5, 64, "none"), 1.0)
    model.update(Started("runs/mine", "x", 5, 640, None, 2, "cpu", "float32", 3), 2.0)
    assert list(model.drifts) == [500]


# -- a whole run -----------------------------------------------------------------------------------


def turning(path: Path, count: int = 2600) -> Path:
    """Two classes at two places that change places at sample 1,200; a third comes near the end."""
    random = np.random.default_rng(3)
    side = random.integers(0, 2, count)
    x = random.normal(0, 0.4, (count, 4)).astype(np.float32)
    x[:, 0] += 2 * side
    y = np.where(np.arange(count) < 1200, side, 1 - side)
    y[-20:] = 2
    np.savez(path, x=x, y=y)
    return path


def run(*words: str) -> int:
    return main(list(words))


def test_a_whole_run_by_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("data=npz", f"data.path={turning(tmp_path / 'turning.npz')}", "data.order=given",
             "data.holdout=0", "encoder=standardise", "encoder.fit=64", "layer=softmax",
             "layer.lr_value=0.01", "network.hidden=0", "learner.batch=8", "drift.action=forget",
             "run.name=one")  # fmt: skip
    assert run("run", *words, "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (drift, *_) = (record for record in records if record["event"] == "drift")
    assert 1200 < drift["samples"] < 2200
    assert drift["action"] == "forget"
    assert drift["after"] > drift["before"]
    (arrived,) = (record for record in records if record["event"] == "class_arrived")
    assert (arrived["samples"], arrived["label"]) == (2581, "2")
    last = [record for record in records if record["event"] == "progress"][-1]
    assert last["metrics"]["no_change_accuracy"] < last["accuracy"]
    finished = records[-1]
    assert finished["metrics"]["prequential_kappa"] == last["metrics"]["kappa"]
    log = [json.loads(line) for line in Path("runs/one/events.jsonl").read_text().splitlines()]
    assert {"drift", "class_arrived"} <= {record["event"] for record in log}

    monkeypatch.setenv("COLUMNS", "80")
    assert run("inspect", "one") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the path is as long as it is
    text = "\n".join(lines)
    for wanted in ("figure", "kappa_t", "macro F1", "no-change accuracy", "first at sample",
                   "drift at sample", f"{drift['samples']:,}", "2,581"):  # fmt: skip
        assert wanted in text, wanted
    assert run("inspect", "one", "--json") == 0
    noted = json.loads(capsys.readouterr().out)["summary"]
    assert noted["by_class"]["class"] == ["0", "1", "2"]
    assert noted["by_class"]["samples"][2] == 20
    assert noted["by_class"]["first_seen"][2] == 2581
    assert noted["recent_drifts"][0]["sample"] == drift["samples"]
    assert noted["prequential_kappa"] == last["metrics"]["kappa"]

    assert run("watch", "one", "--plain") == 0
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert "drift at sample" in text
    assert "class 2 came with sample 2,581" in text
    assert run("run", *words[:4], "learner=ridge", "encoder=standardise", "drift.action=boost",
               "run.name=two") == 2  # fmt: skip
    assert "set drift.action=none" in capsys.readouterr().err


def test_many_classes_with_long_names_fit_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamlearn.cli.inspect import _class_lines

    names = [f"{'very ' * 12}\x1b long {index}" for index in range(50)]
    lines = _class_lines({"class": names, "samples": [3] * 50, "recall": [None] * 50,
                          "first_seen": [0] * 50})  # fmt: skip
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "20 more classes; --json has them all"
    assert all("\x1b" not in line for line in lines)
