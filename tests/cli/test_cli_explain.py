"""`explain`: over pictures, records and numbers, after resume and compaction, and bad input."""

import json
import random
import re
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
from streamlearn.scenarios.explain import restored
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader, RunStore

GOLDEN = Path(__file__).parent.parent / "golden" / "v1"
SMALL = ["encoder.fit=8", "learner.batch=4", "network.hidden=1", "evaluation.test=false",
         "learner.dtype=float32", "learner.device=cpu", "seed=3"]  # fmt: skip

Explained = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Explained:
    def explained(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return explained


@pytest.fixture
def facts(call: Explained) -> Callable[..., dict[str, Any]]:
    def of(*words: object) -> dict[str, Any]:
        code, out, err = call("explain", *words, "--json")
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    return of


def learn(*words: str, stop: int | None = None) -> None:
    with Session.start(resolve([*words])) as session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == stop:
                session.request_stop("SIGINT")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three classes, each of another colour."""
    folder = tmp_path_factory.mktemp("pictures")
    source = np.random.default_rng(0)
    for colour, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir()
        for number in range(14):
            pixels = source.integers(0, 120, (6, 6, 3))
            pixels[:, :, 2 - colour] += 100
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def pictures(folder: Path) -> Path:
    """A run over them, of several epochs in which samples come again."""
    words = ["data=folder", f"data.root={folder}", "data.epochs=2", f"run.dir={folder}.runs"]
    learn(*words, *SMALL, "learner.rehearsal=2", "run.name=whole")
    learn(*words, *SMALL, "learner.rehearsal=2", "run.name=halves", stop=9)
    with Session.resume(Path(f"{folder}.runs/halves")) as session:
        list(session.events())
    return Path(f"{folder}.runs")


def witnesses(found: dict[str, Any]) -> list[Any]:
    cases = [(w["sample"], w["label"]) for case in found["cases"]
             for w in case["helpers"] + case["hurters"]]  # fmt: skip
    return cases + [(w["sample"], w["row"]) for layer in found["layers"] for w in layer["attended"]]


def test_helpers_and_hurters_are_the_same_samples_after_resume(
    pictures: Path, folder: Path, facts: Callable[..., dict[str, Any]]
) -> None:
    whole = facts(pictures / "whole", "--sample", 2, "--test")
    halves = facts(pictures / "halves", "--sample", 2, "--test")
    assert whole["cases"] == halves["cases"]
    assert witnesses(whole) == witnesses(halves)
    assert whole["sums"] is True
    assert whole["off"] < 1e-4
    assert whole["labels"] == "kept beside the tuples"
    assert {layer["name"] for layer in whole["layers"]} == {"hidden.0", "output"}
    layer = whole["layers"][-1]
    assert sum(layer["by_class"].values()) == pytest.approx(sum(layer["by_time"]))
    assert sum(layer["written"]) == pytest.approx(1)
    top = max(layer["by_class"], key=lambda name: layer["by_class"][name])
    assert top == whole["prediction"] == whole["truth"]


def test_samples_lead_to_their_labels_and_pictures(
    pictures: Path, folder: Path, call: Explained, facts: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    found = facts(pictures / "whole", "--sample", 5, "--top", 40)
    first = found["layers"][0]["attended"][0]
    assert (first["sample"], first["itself"], first["label"]) == (5, True, found["truth"])
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    page = tmp_path / "it.html"
    code, out, _ = call("explain", pictures / "whole", "--sample", 5, "-o", page)
    assert code == 0
    assert "▀" in out
    assert "sum to its outputs" in out
    text = page.read_text("utf-8")
    assert text.count("data:image/png;base64,") > 10
    assert not re.search(r"https?:|<script|src=\"(?!data:)", text)
    monkeypatch.setenv("NO_COLOR", "1")
    picture = tmp_path / "it.png"
    file = folder / "red" / "3.png"
    code, out, _ = call("explain", pictures / "whole", "--file", file, "-o", picture)
    assert code == 0
    assert "▀" not in out
    assert "prediction   red" in out
    with Image.open(picture) as drawn:
        assert drawn.width > 900


def test_helpers_and_hurters_are_the_same_samples_after_compaction(
    pictures: Path, tmp_path: Path, call: Explained, facts: Callable[..., dict[str, Any]]
) -> None:
    run = Path(shutil.copytree(pictures / "whole", tmp_path / "run"))
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    memories = restored(run)[2].memories()
    with RunStore.open(run) as store:
        store.read()
        for name, memory in memories.items():
            memory.clear()
            store.open_memory(name, memory)
            memory.drop(torch.arange(16, len(memory), 3))
        store.commit(step=manifest.step, samples=manifest.samples, status="stopped",
                     state=reader.state(), memories=memories, summary=manifest.summary)  # fmt: skip
    before = facts(run, "--sample", 1, "--test")
    code, out, _ = call("compact", run)
    assert code == 0, out
    after = facts(run, "--sample", 1, "--test")
    assert before["layers"][0]["tuples"] > after["layers"][0]["tuples"]

    def samples(found: dict[str, Any]) -> list[Any]:
        return [sample for sample, _ in witnesses(found)]

    assert samples(before) == samples(after)
    assert before["outputs"] == pytest.approx(after["outputs"], abs=1e-5)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over JSON lines, the third of which is broken."""
    folder = tmp_path_factory.mktemp("records")
    source = random.Random(0)
    lines = []
    for number in range(120):
        label = source.choice(["low", "high"])
        x = source.gauss(0 if label == "low" else 4, 0.5)
        lines.append(json.dumps({"x": x, "site": "a", "y": label}) if number != 2 else "{")
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    learn("data=jsonl", f"data.path={folder}/rows.jsonl", "data.target=y", f"run.dir={folder}",
          "run.name=run", "learner.batch=8", "learner.dtype=float32")  # fmt: skip
    return folder / "run"


def test_records_are_explained_by_the_rows_of_their_file(
    records: Path, call: Explained, facts: Callable[..., dict[str, Any]]
) -> None:
    found = facts(records, "--row", '{"x": 4.1, "site": "a", "y": "high"}')
    assert (found["prediction"], found["truth"], found["sums"]) == ("high", "high", True)
    lines = (records.parent / "rows.jsonl").read_text().splitlines()
    for witness in found["cases"][0]["helpers"]:
        assert json.loads(lines[witness["sample"]])["y"] == witness["label"]
    assert facts(records, "--sample", 7)["truth"] == json.loads(lines[7])["y"]
    code, out, _ = call("explain", records, "--sample", 7)
    assert code == 0
    assert "label purity" in out
    (records.parent / "rows.jsonl").rename(records.parent / "away.jsonl")
    found = facts(records, "--row", '{"x": 4.1}')
    (records.parent / "away.jsonl").rename(records.parent / "rows.jsonl")
    assert found["labels"] is None
    assert any("labels of stored samples are not known" in note for note in found["notes"])
    assert found["layers"][-1]["purity"] is None


def test_a_run_of_before_is_explained_as_far_as_it_can_be(
    facts: Callable[..., dict[str, Any]],
) -> None:
    found = facts(GOLDEN, "--sample", 3)
    assert found["sums"] is True
    assert {w["sample"] for case in found["cases"] for w in case["helpers"]} == {None}
    assert "before tuples said which sample they are of" in found["notes"][0]


def test_a_dense_output_has_no_attribution_and_its_hidden_layers_attend(
    folder: Path, tmp_path: Path, call: Explained
) -> None:
    learn("data=folder", f"data.root={folder}", *SMALL, "learner=parametric",
          "network.layers=growing", "network.output=dense", f"run.dir={tmp_path}",
          "run.name=run", "data.limit=24")  # fmt: skip
    code, out, _ = call("explain", tmp_path / "run", "--sample", 3)
    assert code == 0
    assert "attribution  none: the output layer is dense" in out
    assert "layer hidden.0: 40 tuples" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what is to be explained by one of --sample N, --file PATH and --row JSON"),
        (("--sample", "1", "--row", "[1]"), "by one of --sample N"),
        (("--row", "[1]", "--test"), "--test says where --sample N is from"),
        (("--sample", "99"), "--sample 99 is not among the 34 samples of"),
        (("--sample", "8", "--test"), "choose one from 0 to 7"),
        (("--file", "no.png"), "there is no file 'no.png'"),
        (("--file", __file__), "is no sample of this run; give --file an image or a .json file"),
        (("--row", "[1, 2"), "--row is no list of numbers"),
        (("--row", "[1, 2]"), "has shape [2] but samples of this run have [3, 6, 6]"),
        (("--sample", "1", "-o", "it.pdf"), "ends in .html or .png"),
        (("--sample", "1", "-o", "no/it.html"), "lies in a folder that is not there"),
    ],
)
def test_bad_input_is_one_sentence(
    pictures: Path, call: Explained, words: tuple[str, ...], said: str
) -> None:
    code, out, err = call("explain", pictures / "whole", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sample", "120"), "--sample 120 is not among the 120 rows of"),
        (("--sample", "2"), "--sample 2 is a row that could not be used"),
        (("--sample", "2", "--test"), "--test means nothing for a stream of records"),
        (("--row", "{"), "--row cannot be explained: it is no JSON"),
        (("--row", "[1]"), "it is a list, not an object"),
        (("--file", "a.png"), "which learns records"),
    ],
)
def test_bad_records_are_one_sentence(
    records: Path, call: Explained, words: tuple[str, ...], said: str
) -> None:
    code, out, err = call("explain", records, *words)
    assert (code, out) == (2, "")
    assert said in err


def test_a_run_without_tuples_says_so(folder: Path, tmp_path: Path, call: Explained) -> None:
    words = ["data=folder", f"data.root={folder}", f"run.dir={tmp_path}", "evaluation.test=false"]
    learn(*words, "encoder.fit=8", "learner=ridge", "run.name=ridge")
    learn(*words, "encoder.fit=30", "learner.batch=4", "run.name=begun", stop=2)
    code, _, err = call("explain", tmp_path / "ridge", "--sample", 1)
    assert code == 2
    assert "has learner=ridge, none of whose layers keeps tuples" in err
    code, _, err = call("explain", tmp_path / "begun", "--sample", 1)
    assert code == 2
    assert "holds back 8 samples until its encoder is fitted" in err
