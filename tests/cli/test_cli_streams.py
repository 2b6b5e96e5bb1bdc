"""What a user of record streams reads: mistakes in one sentence; what waits, grows or is bad."""

import io
import json
import os
import pty
import stat
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamlearn.cli.dashboard import render
from streamlearn.cli.describe import describe
from streamlearn.cli.format import layer_title
from streamlearn.cli.main import main
from streamlearn.cli.model import Model
from streamlearn.events import LayerStatus, Skipped, Started

ROWS = "x,z,label\n" + "".join(f"{n % 5},{n % 3},{'ab'[n % 2]}\n" for n in range(90))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(ROWS)
    rows = [{"x": n, "label": None} for n in range(9)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("error: ") == 1
    assert "Traceback" not in error
    return error.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("run data=csv data.path=rows.csv data.target=label data.task=numbers",
         "error: data.task=numbers does not fit rows.csv, whose column 'label' has 'a' and no "
         "number in the first 90 rows; set data.task=classes, or another data.target"),
        ("run data=csv data.path=rows.jsonl data.target=label",
         "error: rows.jsonl has no header that can be read: it is JSON; set data=jsonl"),
        ("run data=csv data.path=rows.csv data.target=label encoder=pca",
         "error: encoder=pca means nothing for data=csv, whose records are standardised as they "
         "come; leave it out"),
        ("sweep data=csv data.path=- data.target=label seed=1,2",
         "error: data.path=- means nothing in a sweep, each of whose runs reads all data; give a "
         "file"),
        ("compare data=csv data.path=rows.csv data.target=label -l knn -l ridge",
         "error: data=csv is a stream of records, which can be run, resumed and swept over but "
         "not compared or evaluated; its prequential figures are all there is"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    folder: Path, words: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(folder.iterdir())
    assert refused(words, capsys) == wanted
    assert sorted(folder.iterdir()) == before


def test_rows_without_labels_are_named_as_such(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused("run data=jsonl data.path=rows.jsonl data.target=label", capsys)
    assert "held no usable sample (0 skipped, 9 without a label)" in error


def test_a_terminal_is_no_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, encoding="utf-8") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        error = refused("run data=jsonl data.path=- data.target=label", capsys)
    os.close(ours)
    assert "data.path=- reads standard input, which is this terminal; pipe rows" in error


@pytest.mark.parametrize("word", ["data.path=closed/a.csv", "stream.predictions=closed/a.jsonl",
                                  "run.dir=closed", f"data.path={'x' * 300}"])  # fmt: skip
def test_a_place_that_the_system_refuses_is_named(
    folder: Path, word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = os.stat

    def looked_at(path: Any, *args: Any, **named: Any) -> os.stat_result:
        if "closed/" in str(path):  # a folder that may not be looked into, also by root
            raise PermissionError(13, "Permission denied", str(path))
        return found(path, *args, **named)

    monkeypatch.setattr("os.stat", looked_at)
    words = "run data=csv data.path=rows.csv data.target=label"
    if word.startswith("data.path"):
        words = "run data=csv data.target=label"
    error = refused(f"{words} {word}", capsys)
    assert "cannot be used: " in error
    assert "; give yourself the permission, or name another place" in error


def test_files_that_may_not_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    (folder / "part.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("pathlib.Path.iterdir", closed)
    error = refused(f"run data=parquet data.path={folder} data.target=label", capsys)
    assert error.endswith("cannot be read (Permission denied); allow reading it")
    assert stat.S_ISREG((folder / "part.parquet").stat().st_mode)
    error = refused("run data=parquet data.path=rows.csv data.target=label", capsys)
    assert "or set data=csv or data=jsonl if it is text" in error


def test_the_schema_is_a_line_an_event(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "data=csv", "data.path=rows.csv", "data.target=label", "--plain"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].endswith(", classes as they come, cpu float32, seed 0")
    assert lines[2].startswith("rows.csv: learns 'label' (classes such as 'a', 'b')")
    assert lines[3] == "  numbers: x, z"


@pytest.mark.parametrize(
    ("name", "title"),
    [("output", "output"), ("output.2", "output"), ("hidden.0", "hidden.0"),
     ("hidden.0.3", "hidden.0"), ("blocks.1.mlp", "blocks.1.mlp")],
)  # fmt: skip
def test_a_layer_of_a_network_made_wider_keeps_its_name(name: str, title: str) -> None:
    assert layer_title(name) == title


def picture(model: Model, width: int, height: int) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(render(model, width, height, 100.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_dashboard_shows_what_waits_and_does_not_drown_in_bad_rows(
    started: Started, progress: Any, width: int, height: int
) -> None:
    model = Model()
    model.update(started, 1.0)
    model.update(progress(samples=100, layers=(LayerStatus("output", 90, 900),)), 2.0)
    more = (LayerStatus("output.2", 95, 9500),)
    last = progress(samples=110, layers=more, waiting=500, metrics={"kappa": 0.5})
    assert "500 wait for labels" in describe(last)
    model.note("class zebra came with sample 99", 2.0)
    for number in range(1, 60):
        model.update(Skipped(f"line {number}", "it is no JSON", number), 3.0)
    model.update(last, 4.0)
    shown = picture(model, width, height)
    assert "waiting 500" in shown
    assert list(model.layers) == ["output"]
    assert "output.2" not in shown
    assert "zebra" in shown
    assert shown.count("it is no JSON") == 1
    assert "(59 so far)" in shown
