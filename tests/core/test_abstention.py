"""Answers that are withheld: what coverage and selective accuracy can be, and who refuses them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from river import datasets, evaluate, metrics

from streamlearn.adapters.river import GrowingClassifier
from streamlearn.cli.main import main
from streamlearn.errors import ConfigError
from streamlearn.evaluation import Prequential, evaluation_of
from streamlearn.events import Finished
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.state import flatten, unflatten
from streamlearn.storage import RunReader
from streamlearn.tasks import Outputs

THRESHOLDS = st.floats(0.01, 1.0)


def stream(size: int, classes: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = (4 * torch.randn(size, classes, generator=generator)).softmax(-1)
    targets = torch.randint(classes, (size,), generator=generator)
    return probabilities, targets, torch.zeros(size)


def fed(evaluation: Prequential, parts: tuple[torch.Tensor, ...], *cuts: int) -> Prequential:
    for start, stop in zip((0, *cuts), (*cuts, len(parts[0])), strict=True):
        evaluation.update(*(part[start:stop] for part in parts))
    return evaluation


@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 9999), THRESHOLDS, THRESHOLDS)
@settings(max_examples=80, deadline=None)
def test_what_is_answered_rightly_is_part_of_all_that_is_right(
    size: int, classes: int, seed: int, one: float, other: float
) -> None:
    parts = stream(size, classes, seed)
    low, high = sorted((one, other))
    shares = []
    for threshold in (low, high):
        evaluation = fed(Prequential(classes, 9, threshold), parts)
        found = evaluation.metrics
        coverage, selective = found["coverage"], found["selective_accuracy"]
        assert coverage is not None
        assert 0 <= coverage <= 1
        assert (selective is None) == (coverage == 0)
        answered = (parts[0].amax(-1) >= threshold).double().mean().item()
        assert coverage == pytest.approx(answered)
        both = coverage * (selective or 0.0)
        # Of those that are right, some were withheld; of those that are wrong, no more than all.
        assert both <= evaluation.accuracy + 1e-12
        assert coverage - both <= 1 - evaluation.accuracy + 1e-12
        if coverage == 1:
            assert selective == pytest.approx(evaluation.accuracy)
        shares.append(coverage)
        # Nothing else changes.
        plain = fed(Prequential(classes, 9), parts).metrics
        assert {name: found[name] for name in plain} == plain
    assert shares[1] <= shares[0]


@given(st.integers(2, 40), st.integers(0, 999), st.data())
@settings(max_examples=40, deadline=None)
def test_counts_go_on_after_a_restore(size: int, seed: int, data: Any) -> None:
    cut = data.draw(st.integers(1, size - 1))
    parts = stream(size, 3, seed)
    first = fed(Prequential(3, 9, 0.7), tuple(part[:cut] for part in parts))
    tensors, plain = flatten(first.state_dict())
    rest = Prequential(3, 9, 0.7)
    rest.load_state_dict(unflatten(tensors, json.loads(json.dumps(plain))))
    fed(rest, tuple(part[cut:] for part in parts))
    assert rest.metrics == fed(Prequential(3, 9, 0.7), parts, cut).metrics


def test_a_state_without_these_counts_begins_them() -> None:
    parts = stream(30, 3, 1)
    old = fed(Prequential(3), parts).state_dict()
    assert "abstention" not in old
    evaluation = Prequential(3, 9, 0.5)
    evaluation.load_state_dict(old)
    assert evaluation.metrics["coverage"] is None
    fed(evaluation, stream(20, 3, 2))
    assert evaluation.metrics["coverage"] == fed(Prequential(3, 9, 0.5), stream(20, 3, 2)).metrics[
        "coverage"
    ]  # fmt: skip
    assert evaluation.samples == 50


@pytest.mark.parametrize("threshold", [0.0, -0.1, 1.5, float("nan")])
def test_other_thresholds_are_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="must be above 0 and at most 1"):
        Prequential(2, 9, threshold)
    with pytest.raises(ConfigError, match="abstain="):
        GrowingClassifier(abstain=threshold)


def test_numbers_have_no_probability() -> None:
    with pytest.raises(ConfigError, match="means nothing where targets are numbers"):
        evaluation_of(Outputs(1), abstain=0.5)
    assert evaluation_of(Outputs(1)).samples == 0


def test_the_estimator_of_river_says_none_where_it_is_not_sure() -> None:
    rows = list(datasets.Phishing().take(120))
    plain, shy = GrowingClassifier(warmup=16), GrowingClassifier(warmup=16, abstain=0.6)
    for x, y in rows[:80]:
        plain.learn_one(x, y)
        shy.learn_one(x, y)
    withheld = 0
    for x, _ in rows[80:]:
        found = shy.predict_proba_one(x)
        assert found == plain.predict_proba_one(x)
        sure = max(found.values()) >= 0.6
        assert shy.predict_one(x) == (plain.predict_one(x) if sure else None)
        withheld += not sure
    assert 0 < withheld < 40
    assert shy.clone().abstain == 0.6


def test_rivers_metrics_leave_out_what_was_withheld() -> None:
    accuracy: Any = metrics  # not typed throughout
    model = GrowingClassifier(warmup=16, abstain=0.6)
    found: Any = evaluate.progressive_val_score(
        datasets.Phishing().take(200), model, accuracy.Accuracy()
    )
    assert 0 < found.cm.n_samples < 199
    assert found.get() > 0.85


def test_it_is_saved_with_the_estimator(tmp_path: Path) -> None:
    model = GrowingClassifier(abstain=0.8)
    model.learn_one({"a": 1.0}, "yes")
    model.save(tmp_path / "model.safetensors")
    assert GrowingClassifier.load(tmp_path / "model.safetensors").abstain == 0.8


def test_a_run_shows_both_figures_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data=digits", "data.limit=300", "encoder.fit=100", "evaluation.abstain=0.6",
             f"run.dir={tmp_path}", "run.name=shy"]  # fmt: skip
    assert main(["run", *words, "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ended = events[-1]["metrics"]
    assert 0 < ended["prequential_coverage"] < 1
    assert ended["prequential_selective_accuracy"] > events[-1]["prequential_accuracy"]
    assert 0 < ended["test_coverage"] < 1
    summary = RunReader(tmp_path / "shy").manifest()
    assert summary is not None
    assert summary.summary["prequential_coverage"] == ended["prequential_coverage"]
    assert main(["inspect", str(tmp_path / "shy")]) == 0
    shown = capsys.readouterr().out
    assert "\ncoverage " in shown
    assert "\nselective accuracy " in shown
    assert main(["evaluate", str(tmp_path / "shy"), "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out.splitlines()[-1])["metrics"]["coverage"]
        == (ended["test_coverage"])
    )


def test_a_run_of_numbers_refuses_it_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("x,y\n" + "".join(f"{n},{n / 3}\n" for n in range(40)))
    words = ["data=csv", f"data.path={path}", "data.target=y", "evaluation.abstain=0.6",
             f"run.dir={tmp_path / 'runs'}"]  # fmt: skip
    with pytest.raises(ConfigError, match=r"evaluation.abstain=0\.6 means nothing"):
        Session.start(resolve(words))
    assert not list((tmp_path / "runs").glob("*"))


def test_a_stopped_run_counts_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows = "".join(f"{n % 7},{n % 5},{'ab'[n * n % 7 > 2]}\n" for n in range(300))
    path.write_text("x,z,y\n" + rows)
    ends = []
    for stops in (False, True):
        words = ["data=csv", f"data.path={path}", "data.target=y", "evaluation.abstain=0.8",
                 f"run.dir={tmp_path / str(stops)}", "run.name=run"]  # fmt: skip
        with Session.start(resolve(words)) as session:
            for event in session.events():
                if stops and getattr(event, "samples", 0) > 120:
                    session.request_stop("SIGINT")
        if stops:
            with Session.resume(session.path) as session:
                *_, event = session.events()
        assert isinstance(event, Finished)
        ends.append(event.metrics)
    assert ends[0] == ends[1]
    assert ends[0]["prequential_coverage"] is not None
