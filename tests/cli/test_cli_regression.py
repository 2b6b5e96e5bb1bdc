"""Errors of numbers in every display, where accuracies stand for classes."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from streamlearn.cli.dashboard import render
from streamlearn.cli.describe import describe, summary
from streamlearn.cli.format import figure
from streamlearn.cli.main import main
from streamlearn.cli.model import Model
from streamlearn.cli.records import to_event
from streamlearn.events import Finished, LayerStatus, Progress, Started, Tested, as_json

ERRORS = {"mae": 12.345678, "rmse": 15.5, "r2": 0.75}
WINDOWED = {"windowed_mae": 9.87654, "windowed_rmse": 11.0, "windowed_r2": None}
STARTED = Started("runs/one", "teacher-student", 0, 0, None, 0, "cpu", "float32", 3, 1)
TESTED = Tested(2000, None, 120.0, 0.5, ERRORS)
FINISHED = Finished(
    None, None, 8000, 0, 12.0, 2**30, 8016, 10**6, "runs/one",
    metrics={f"{part}_{name}": value for part in ("test", "prequential")
             for name, value in ERRORS.items()},
)  # fmt: skip


def progress(samples: int, **changes: Any) -> Progress:
    layers = (LayerStatus("output", samples, 420 * samples),)
    metrics = {**ERRORS, **WINDOWED, **changes}
    return Progress(samples // 16, samples, samples, None, 0, samples / 1000, 900.0, 80.0, None,
                    None, layers, metrics=metrics)  # fmt: skip


def test_lines_tell_errors() -> None:
    assert describe(STARTED).startswith("started: an open-ended stream, 1 output, cpu float32")
    assert describe(progress(1600)).startswith(
        "1,600, mae 12.35 (windowed 9.877), rmse 15.5 (windowed 11), loss 80.000"
    )
    assert describe(TESTED).startswith("test mae 12.35, rmse 15.5, r2 0.75, loss 120.000 on 2,000")
    assert describe(FINISHED).endswith("test mae 12.35, rmse 15.5, r2 0.75")
    lines = summary(FINISHED, "runs/one")
    for line in ("  test mae              12.35", "  prequential rmse      15.5"):
        assert line in lines
    assert not any("accuracy" in line for line in lines)


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (float("nan"), "-"), (0.0, "0"), (0.062137, "0.06214"), (1.24e7, "1.24e+07"),
    (9999.4, "9999"), (61_914.2, "61,914"), (-3.25, "-3.25"),
])  # fmt: skip
def test_four_figures_say_any_number(value: float | None, text: str) -> None:
    assert figure(value) == text


@pytest.mark.parametrize("event", [STARTED, progress(16), TESTED, FINISHED])
def test_a_record_of_the_log_is_the_event_again(event: Any) -> None:
    assert to_event(json.loads(json.dumps(as_json(event)))) == event


def picture(scale: float, width: int, height: int, unicode: bool = True) -> list[str]:
    model = Model()
    model.update(STARTED, 0.0)
    for samples in range(16, 3200, 16):
        error = scale * (1 + 1000 / samples)
        model.update(progress(samples, mae=error, windowed_mae=0.9 * error), samples / 1000)
    model.update(TESTED, 4.0)
    console = Console(file=io.StringIO(), width=width, height=height, no_color=True)
    with console.capture() as capture:
        console.print(render(model, width, height, 5.0, unicode), end="")
    return capture.get().splitlines()


@pytest.mark.parametrize("scale", [0.0, 1e-9, 0.03, 1.0, 4711.0, 1e12])
@pytest.mark.parametrize(("width", "height"), [(60, 20), (80, 24), (120, 40), (200, 60), (20, 9)])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_dashboard_plots_errors_of_any_size(
    scale: float, width: int, height: int, unicode: bool
) -> None:
    lines = picture(scale, width, height, unicode)
    assert len(lines) == height
    assert {cell_len(line) for line in lines} == {width}
    text = "\n".join(lines)
    if width >= 60:
        for fact in ("prequential absolute error", f"mae {figure(scale * (1 + 1000 / 3184))}",
                     "windowed ", "3,184 samples"):  # fmt: skip
            assert fact in text, fact
    assert width < 80 or "test mae 12.35" in text
    assert unicode or text.isascii()


def test_the_axis_has_round_numbers_in_the_unit_of_the_targets() -> None:
    text = "\n".join(picture(4711.0, 100, 30))
    for tick in (" 40,000┤", " 20,000┤", " 0┤"):
        assert tick in text
    assert "%" not in text


def run(*words: str) -> int:
    return main(list(words))


def test_a_whole_run_by_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("scenario=teacher-student", "run.name=one", "data.limit=500", "data.test=50")
    assert run("run", *words, "--json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records[0]["outputs"] == 1
    (tested,) = (record for record in records if record["event"] == "tested")
    assert tested["accuracy"] is None
    finished = records[-1]
    assert finished["metrics"]["test_mae"] == tested["metrics"]["mae"]
    assert run("evaluate", "one", "--quiet") == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"test {name:<8}  {figure(tested['metrics'][name])}" for name in ("mae", "rmse", "r2")
    ]
    assert run("inspect", "one") == 0
    text = capsys.readouterr().out
    assert f"test rmse         {figure(tested['metrics']['rmse'])}\n" in text
    assert "outputs           1\n" in text
    assert run("info", "one", "--json") == 0
    assert json.loads(capsys.readouterr().out)["summary"]["test_mae"] == tested["metrics"]["mae"]
    assert run("watch", "one", "--plain") == 0
    text = capsys.readouterr().out
    assert f"test mae {figure(tested['metrics']['mae'])}" in text
    assert "prequential mae" in text
    assert run("run", *words[:1], "learner=discriminant", "--quiet") == 2
    assert capsys.readouterr().err.startswith("error: learner=discriminant only knows classes")
