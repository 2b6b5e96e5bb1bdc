"""`explain` where the data of a run has gone: thumbnails stand in for it."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from streamlearn.cli.main import main
from streamlearn.events import Progress
from streamlearn.memory import DEAD, SAMPLE
from streamlearn.scenarios.explain import restored
from streamlearn.scenarios.kept import Thumbnails
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify

SMALL = ["encoder.fit=8", "learner.batch=4", "network.hidden=1", "evaluation.test=false",
         "learner.dtype=float32", "learner.device=cpu", "seed=3"]  # fmt: skip

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def called(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return called


def facts(call: Call, *words: object) -> dict[str, Any]:
    code, out, err = call("explain", *words, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


def learn(*words: str, stop: int | None = None) -> None:
    with Session.start(resolve([*words])) as session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == stop:
                session.request_stop("SIGINT")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of three classes, each of another colour."""
    source = np.random.default_rng(0)
    for colour, name in enumerate(("blue", "green", "red")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(14):
            pixels = source.integers(0, 120, (8, 8, 3))
            pixels[:, :, 2 - colour] += 100
            path = tmp_path / "pictures" / name / f"{number}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return tmp_path / "pictures"


def over(folder: Path, name: str, room: str) -> list[str]:
    return ["data=folder", f"data.root={folder}", f"run.dir={folder.parent}/runs", *SMALL,
            f"run.name={name}", f"memory.thumbnails={room}"]  # fmt: skip


def test_contributions_sum_to_an_answer_that_is_averaged_over_views(
    folder: Path, call: Call
) -> None:
    views = ["encoder=pca", "encoder.shifts=1", "encoder.mirror=true", "network.hidden=0",
             "network.output=least-squares"]  # fmt: skip
    learn(*over(folder, "views", "none"), *views)
    told = facts(call, folder.parent / "runs" / "views", "--sample", 3)
    assert told["sums"] is True
    assert told["off"] < told["tolerance"]


def cover(run: Path) -> None:
    """Each live tuple of a run has the thumbnail of its sample, and no other sample has one."""
    learner = restored(run)[2]
    live: set[int] = set()
    for memory in learner.memories().values():
        found = memory.gather(torch.arange(len(memory)), (SAMPLE, "born"))
        live |= set(found[SAMPLE][(found["born"] != DEAD) & (found[SAMPLE] >= 0)].tolist())
    assert Thumbnails(learner).samples() == live
    assert set(Thumbnails(learner).of(sorted(live))) == live


def test_pictures_that_have_gone_are_shown_by_thumbnails(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = folder.parent / "runs"
    learn(*over(folder, "whole", "192"))
    learn(*over(folder, "small", "64"))
    learn(*over(folder, "halves", "192"), stop=5)
    with Session.resume(runs / "halves") as session:
        list(session.events())
    for name in ("whole", "small", "halves"):
        cover(runs / name)
    before = facts(call, runs / "whole", "--sample", 5)
    shutil.rmtree(folder)
    after = facts(call, runs / "whole", "--sample", 5)
    (note,) = after["notes"]
    assert note.startswith("thumbnails stand in for the data, for ")
    assert after["labels"] == "kept with the thumbnails"
    for found in (before, after):
        del found["notes"], found["labels"]
    assert before == after  # the whole picture was kept, so the answer is the same to the bit
    resumed = facts(call, runs / "halves", "--sample", 5)
    assert resumed["cases"] == after["cases"]
    small = facts(call, runs / "small", "--sample", 5)
    assert small["prediction"] == "blue"
    assert any("is a thumbnail of 4 × 4 pixels, enlarged" in note for note in small["notes"])
    page, drawn = folder.parent / "it.html", folder.parent / "it.png"
    for words in (("-o", page), ("-o", drawn)):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLORTERM", "truecolor")
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        code, out, _ = call("explain", runs / "small", "--sample", 5, *words)
        assert code == 0
        assert "▀" in out
        assert "note: thumbnails stand in for the data" in out
    assert page.read_text("utf-8").count("data:image/png;base64,") > 10
    assert "thumbnails stand in" in page.read_text("utf-8")
    with Image.open(drawn) as picture:
        assert picture.width > 900
    code, _, err = call("explain", runs / "whole", "--sample", 5, "--test")
    assert code == 2
    assert err.count("\n") == 1
    code, _, err = call("explain", runs / "whole", "--sample", 999)
    assert code == 2
    report = folder.parent / "report.html"
    code, _, _ = call("report", runs / "whole", "-o", report)
    assert code == 0
    assert "thumbnails stand in" in report.read_text("utf-8")


def test_a_folder_that_lost_a_file_numbers_others_so_thumbnails_stand_in(
    folder: Path, call: Call
) -> None:
    learn(*over(folder, "run", "192"))
    before = facts(call, folder.parent / "runs" / "run", "--sample", 20)
    (folder / "blue" / "3.png").unlink()
    after = facts(call, folder.parent / "runs" / "run", "--sample", 20)
    assert before["cases"] == after["cases"]
    assert "items now where the run learns from" in after["notes"][0]


def test_a_thumbnail_goes_with_the_last_tuple_of_its_sample(folder: Path, call: Call) -> None:
    run = folder.parent / "runs" / "run"
    learn(*over(folder, "run", "192"), "optimizer.decay=0.3")
    code, out, _ = call("prune", run, "--below", "0.05")
    assert code == 0, out
    cover(run)
    samples = Thumbnails(restored(run)[2]).samples()
    pruned = facts(call, run, "--sample", min(samples))
    assert 0 < len(samples) < 34
    size = RunReader(run).manifest()
    assert call("compact", run)[0] == 0
    cover(run)
    after = RunReader(run).manifest()
    assert size is not None
    assert after is not None
    rows = [sum(e.rows for e in one.layers.values()) for one in (size, after)]
    assert rows[1] == sum(entry.live for entry in size.layers.values()) < rows[0]
    assert Thumbnails(restored(run)[2]).samples() == samples
    shutil.rmtree(folder)
    assert verify(run).damage == ()
    found = facts(call, run, "--sample", min(samples))
    gone = min(set(range(34)) - samples)
    code, _, err = call("explain", run, "--sample", gone)
    assert code == 2
    assert err.count("\n") == 1
    assert [c["name"] for c in found["cases"]] == [c["name"] for c in pruned["cases"]]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    source = random.Random(0)
    lines = []
    for _ in range(120):
        label = source.choice(["low", "high"])
        x = source.gauss(0 if label == "low" else 4, 0.5)
        lines.append(json.dumps({"x": x, "site": source.choice("ab"), "y": label}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    values = [json.loads(line) for line in lines]
    table = "\n".join(["x,site,y", *(f"{v['x']},{v['site']},{v['y']}" for v in values)])
    (tmp_path / "rows.csv").write_text(table + "\n")
    return tmp_path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "pipe"])
def test_records_that_have_gone_are_shown_as_they_were_learnt(
    rows: Path, call: Call, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.loads(line) for line in (rows / "rows.jsonl").read_text().splitlines()]
    path = "-" if kind == "pipe" else f"{rows}/rows.{kind}"
    words = [f"data={'jsonl' if kind == 'pipe' else kind}", f"data.path={path}", "data.target=y",
             f"run.dir={rows}", "run.name=run", "learner.batch=8", "learner.dtype=float32",
             "memory.thumbnails=128"]  # fmt: skip
    with (rows / "rows.jsonl").open() as piped:
        monkeypatch.setattr("sys.stdin", piped)
        learn(*words)
    run = rows / "run"
    cover(run)
    before = None if kind == "pipe" else facts(call, run, "--sample", 7)
    for name in ("rows.jsonl", "rows.csv"):
        (rows / name).unlink()
    found = facts(call, run, "--sample", 7)
    assert found["truth"] == lines[7]["y"]
    assert any(note.startswith("thumbnails stand in for the data, for the rows of data=")
               for note in found["notes"])  # fmt: skip
    if before is not None:
        assert before["cases"] == found["cases"]
        assert before["texts"] == found["texts"]
    for witness in found["cases"][0]["helpers"]:
        line = lines[witness["sample"]]
        assert json.loads(found["texts"][str(witness["sample"])]) == {
            "x": line["x"], "site": line["site"]}  # fmt: skip
        assert witness["label"] == line["y"]
    helper = found["cases"][0]["helpers"][0]["sample"]
    page = rows / "it.html"
    code, out, _ = call("explain", run, "--sample", 7, "-o", page)
    assert code == 0
    assert f'  {helper}  {{"x": ' in out
    assert "<code>{&quot;x&quot;: " in page.read_text("utf-8")
    assert call("explain", run, "--sample", 7, "-o", rows / "it.png")[0] == 0


def test_a_record_that_was_cut_is_shown_but_not_answered_to(tmp_path: Path, call: Call) -> None:
    lines = [json.dumps({"text": f"{'ab'[n % 2]}" * 90, "n": n % 7, "y": n % 2}) for n in range(99)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    learn("data=jsonl", f"data.path={tmp_path}/rows.jsonl", "data.target=y", "data.task=classes",
          f"run.dir={tmp_path}", "run.name=run", "memory.thumbnails=64")  # fmt: skip
    (tmp_path / "rows.jsonl").unlink()
    found = facts(call, tmp_path / "run", "--row", '{"n": 2}')
    assert all(text.endswith("…") for text in found["texts"].values())
    assert found["texts"]
    code, _, err = call("explain", tmp_path / "run", "--sample", 5)
    assert code == 2
    assert "had no room for all of it; give the row itself by --row" in err


def test_numbers_that_have_gone_are_answered_to_as_ever(tmp_path: Path, call: Call) -> None:
    source = np.random.default_rng(0)
    x = source.normal(size=(60, 5)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    learn("data=npz", f"data.path={tmp_path}/data.npz", f"run.dir={tmp_path}", "run.name=run",
          *SMALL, "memory.thumbnails=100")  # fmt: skip
    cover(tmp_path / "run")
    before = facts(call, tmp_path / "run", "--sample", 5)
    (tmp_path / "data.npz").unlink()
    after = facts(call, tmp_path / "run", "--sample", 5)
    assert after["notes"][0].startswith("thumbnails stand in")
    for name in ("answers", "cases", "layers", "texts", "truth"):
        assert before[name] == after[name]
    kept = np.array([json.loads(text) for text in after["texts"].values()], np.float32)
    assert len(kept) > 5
    assert {row.tobytes() for row in kept} <= {row.tobytes() for row in x}


def test_numbers_that_are_learnt_have_labels_too(tmp_path: Path, call: Call) -> None:
    lines = [json.dumps({"n": n % 7, "y": 1.5 * (n % 7)}) for n in range(99)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    learn("data=jsonl", f"data.path={tmp_path}/rows.jsonl", "data.target=y", "memory.thumbnails=64",
          f"run.dir={tmp_path}", "run.name=run")  # fmt: skip
    (tmp_path / "rows.jsonl").unlink()
    found = facts(call, tmp_path / "run", "--sample", 5)
    assert found["truth"] == "7.5"
    for witness in found["cases"][0]["helpers"]:
        assert float(witness["label"]) == 1.5 * (witness["sample"] % 7)


def test_thumbnails_change_no_bit_of_a_run_and_are_in_its_bytes(folder: Path) -> None:
    learn(*over(folder, "with", "192"))
    learn(*over(folder, "without", "none"))
    one, other = (RunReader(folder.parent / "runs" / name) for name in ("with", "without"))
    for name in restored(other.path)[2].memories():
        entry, kept = other.entry(name), one.entry(name)
        assert kept.row_bytes == entry.row_bytes + 192 + 8
        for column, values in other.columns(name, 0, entry.rows).items():
            assert one.columns(name, 0, kept.rows)[column].tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("memory.thumbnails=banana",), "memory.thumbnails=banana cannot be used: give bytes"),
        (("memory.thumbnails=3",), "should be greater than or equal to 64"),
        (("memory.thumbnails=1GiB",), "should be less than or equal to 65536"),
        (("memory.thumbnails=1KiB", "learner=knn"), "are beside the tuples of growing layers"),
    ],
)
def test_bad_values_are_one_sentence(
    tmp_path: Path, call: Call, words: tuple[str, ...], said: str
) -> None:
    code, out, err = call("run", *words, f"run.dir={tmp_path}")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
