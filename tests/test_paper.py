"""The measurements of the paper's family: rows are words, trials equal, reports made of records."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.paper import records
from bench.paper import sweep as sweeping
from bench.paper.claims import Claim, judge
from bench.paper.report import write
from bench.paper.rows import TRIALS, Row, options_of, rows, with_words
from bench.paper.trial import learn_and_score
from streamlearn.events import Finished
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve

ROWS = rows()


@pytest.mark.parametrize("key", ROWS)
def test_a_row_and_its_options_are_words_that_a_run_takes(key: str) -> None:
    words = ROWS[key].words
    resolve(words)
    for axis in ROWS[key].axes:
        assert len({re.sub(r"=\S+", "", option) for option in axis}) <= 2  # alike, so one will do
        words = with_words(words, axis[-1])
        resolve(words)


def test_all_rows_of_a_group_that_are_swept_have_the_same_number_of_trials() -> None:
    swept = [row for row in ROWS.values() if row.axes]
    assert {row.group for row in swept} == set(TRIALS)
    assert all(row.trials == TRIALS[row.group] for row in swept)


def test_a_row_without_a_sweep_takes_its_settings_from_one_that_has_one() -> None:
    others = [row.settings_of for row in ROWS.values() if row.settings_of is not None]
    assert len(others) >= 4
    assert all(ROWS[other].axes for other in others)


def test_an_option_changes_a_word_in_its_place_or_multiplies_it() -> None:
    words = ("a.b=2", "c=x")
    assert with_words(words, "c=y d=1") == ("a.b=2", "c=y", "d=1")
    assert with_words(words, "a.b*=0.5") == ("a.b=1", "c=x")


SMALL = Row("small", "made up", ("seed=0",), (options_of("a", 1, 2, 3), options_of("b", 1, 2)), 100)


def counted(calls: list[Any]) -> Callable[..., records.Record]:
    def measure(words: tuple[str, ...], *_: Any, **__: Any) -> records.Record:
        calls.append(words)
        values = dict(word.split("=") for word in words)
        figure = {"1": 0.1, "2": 0.3, "3": 0.2}[values["a"]] + 0.01 * float(values.get("b", 0))
        return {"words": list(words), "seed": 0, "accuracy": figure}

    return measure


def test_a_sweep_takes_axis_after_axis_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(sweeping, "measure", counted(calls))
    path = tmp_path / "trials.jsonl"
    sweeping.sweep("small", SMALL, path, [], 1, tmp_path)
    assert len(calls) == SMALL.trials == 5
    assert sweeping.chosen_words("small", SMALL, records.read(path)) == ("seed=0", "a=2", "b=2")
    sweeping.sweep("small", SMALL, path, [], 1, tmp_path)
    assert len(calls) == 5
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join(lines[:3]) + "\n" + lines[3][:20], "utf-8")  # killed while it wrote
    assert sweeping.chosen_words("small", SMALL, records.read(path)) is None
    sweeping.sweep("small", SMALL, path, [], 1, tmp_path)
    assert len(calls) == 7
    assert sweeping.chosen_words("small", SMALL, records.read(path)) == ("seed=0", "a=2", "b=2")


def test_an_encoded_stream_teaches_what_a_run_learns(tmp_path: Path) -> None:
    words = ("scenario=digits-onepass", "network.hidden=1", "data.validation=0.2", "data.limit=700")
    record = learn_and_score(words, tmp_path / "codes")
    run = resolve([*words, f"run.dir={tmp_path}", "run.name=run"])
    with Session.start(run) as session:
        finished = [event for event in session.events() if isinstance(event, Finished)][-1]
    assert record["accuracy"] == finished.test_accuracy
    assert record["samples"] == finished.samples
    assert record["tuples"] == finished.tuples
    assert record["accuracy"] > record["linearised"]
    again = learn_and_score(words, tmp_path / "codes")  # from the folder
    assert again["loss"] == record["loss"]


def run_of(key: str, seed: int, accuracy: float) -> records.Record:
    return {
        "row": key, "words": [f"seed={seed}"], "seed": seed,
        "samples": 50_000, "accuracy": accuracy, "loss": 1.5, "train_accuracy": accuracy + 0.05,
        "linearised": accuracy - 0.2, "prequential": accuracy - 0.05, "seconds": 12.5,
        "cpu_seconds": 12.0, "curve": [[2000, 0.2], [50_000, accuracy]], "tuples": 100_000,
        "learner_bytes": 1 << 28, "peak_rss_bytes": 1 << 30, "threads": 1,
        "hardware": "2 cores, a processor", "torch": "2.9", "day": "2026-01-02",
    }  # fmt: skip


def test_a_report_is_made_of_the_records_alone(tmp_path: Path) -> None:
    runs = tmp_path / "paper" / "runs.jsonl"
    for seed, accuracy in ((0, 0.58), (1, 0.6)):
        records.append(runs, run_of("weighted softmax / raw", seed, accuracy))
    records.append(runs, run_of("Muon MLP / raw", 0, 0.55))
    records.append(runs, run_of("Adam MLP / raw", 0, 0.56))
    (tmp_path / "teacher.json").write_text('{"growing": 0.04}', "utf-8")
    write(tmp_path)
    text = (tmp_path / "paper.md").read_text("utf-8")
    assert "| weighted softmax | **59.0 ± 1.4** | 59.4 |" in text
    assert "in one pass, on raw pixels | **open** | 59.0 weighted softmax | 56.0 Adam MLP" in text
    assert "| Muon beats Adam, on raw pixels | **no** |" in text
    assert "Muon beats Adam, on raw pixels: -1.0 points. Tried:" in text
    assert "growing: 0.04" in text
    assert "open" in text
    for name in ("raw.png", "raw-curves.png"):
        assert (tmp_path / "paper" / name).read_bytes().startswith(b"\x89PNG")


def test_a_claim_is_judged_by_the_best_of_either_side_and_its_margin() -> None:
    claim = Claim("a", ("a", "b"), ("c",), 4.0)
    runs = {"a": [{"accuracy": 0.5}], "b": [{"accuracy": 0.55}], "c": [{"accuracy": 0.52}]}
    verdict = judge(claim, runs)
    assert verdict.answer == "no"
    assert verdict.left is not None
    assert verdict.left[0] == "b"
    assert verdict.left[1] == pytest.approx(55)
    assert verdict.margin == pytest.approx(3)
    assert judge(claim, {**runs, "c": [{"accuracy": 0.5}]}).answer == "yes"
    assert judge(claim, {"a": runs["a"]}).answer == "open"
    every = Claim("every", ("a",), ("c", "d"))
    assert judge(every, {"a": [{"accuracy": 0.6}], "c": runs["c"]}).answer == "open"
    assert judge(every, {"a": runs["a"], "c": runs["c"]}).answer == "no"
