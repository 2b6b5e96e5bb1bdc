"""Runs whose targets are numbers: stopped and resumed to the same bits, evaluated, refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import ConfigError
from streamlearn.events import Finished, Progress, Started, Stopped, Tested, as_json
from streamlearn.scenarios.compare import Comparison, LearnerResult
from streamlearn.scenarios.session import Session, evaluate
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify

from .test_kinds import everything

COMMON = ("scenario=teacher-student", "data.limit=600", "data.features=12", "data.test=100",
          "data.outputs=2", "data.width=10", "encoder.fit=64", "learner.dtype=float32",
          "memory.block_rows=512", "evaluation.window=150")  # fmt: skip
SOFTMAX = ("learner=parametric", "layer=parametric-softmax", "layer.width=40")
KINDS: dict[str, tuple[str, ...]] = {
    "growing": (),
    "deep": ("network.hidden=1", "layer=rbf"),
    "softmax": (*SOFTMAX, "learner.optimizer=adam", "learner.schedule=cosine"),
    "dense": ("learner=parametric", "network.layers=dense", "network.hidden=1",
              "network.width=20", "learner.loss=absolute_error", "learner.optimizer=adam"),
    "ridge": ("learner=ridge", "learner.scale_targets=false"),
    "kernel": ("learner=kernel",),
    "knn": ("learner=knn", "data.noise=0.1", "data.teacher=softmax"),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def words(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return COMMON + KINDS[request.param]


def begin(runs: Path, name: str, words: tuple[str, ...]) -> Session:
    return Session.start(resolve([f"run.dir={runs}", f"run.name={name}", *words]))


def until(session: Session, step: int) -> Stopped:
    last: Any = None
    for last in session.events():
        if isinstance(last, Progress) and last.step == step:
            session.request_stop("SIGINT")
    assert isinstance(last, Stopped)
    return last


@pytest.mark.parametrize("step", [3, 9])  # before the encoder is fitted, and after
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    words: tuple[str, ...], step: int, tmp_path: Path
) -> None:
    with begin(tmp_path, "whole", words) as session:
        finished = list(session.events())[-1]
    with begin(tmp_path, "parts", words) as session:
        until(session, step)
    with Session.resume(tmp_path / "parts") as session:
        again = list(session.events())[-1]
    assert isinstance(finished, Finished)
    assert isinstance(again, Finished)
    assert again.metrics == finished.metrics
    assert dict(everything(tmp_path / "parts")) == dict(everything(tmp_path / "whole"))
    assert verify(tmp_path / "parts").damage == ()


def test_errors_are_told_where_accuracies_are_for_classes(tmp_path: Path) -> None:
    with begin(tmp_path, "one", COMMON) as session:
        events = list(session.events())
    finished = events[-1]
    assert isinstance(events[0], Started)
    assert (events[0].classes, events[0].outputs) == (0, 2)
    progress = [event for event in events if isinstance(event, Progress)][-1]
    assert (progress.accuracy, progress.windowed_accuracy) == (None, None)
    assert set(progress.metrics) == {"mae", "rmse", "r2", "windowed_mae", "windowed_rmse",
                                     "windowed_r2", "no_change_mae",
                                     "running_mean_mae"}  # fmt: skip
    (tested,) = (event for event in events if isinstance(event, Tested))
    assert isinstance(finished, Finished)
    assert finished.metrics == {
        **{f"test_{name}": value for name, value in tested.metrics.items()},
        **{
            f"prequential_{name}": value
            for name, value in progress.metrics.items()
            if not name.startswith("windowed")
        },
    }
    assert finished.test_accuracy is finished.prequential_accuracy is None
    assert set(tested.metrics) == {"mae", "rmse", "r2"}
    assert tested.metrics["r2"] is not None
    assert tested.metrics["r2"] > 0.1
    manifest = RunReader(tmp_path / "one").manifest()
    assert manifest is not None
    summary = manifest.summary
    assert summary["outputs"] == 2
    assert "classes" not in summary
    assert not any("accuracy" in name for name in summary)
    assert summary["test_rmse"] == tested.metrics["rmse"]
    assert summary["windowed_mae"] == progress.metrics["windowed_mae"]
    for event in events:
        json.dumps(as_json(event), allow_nan=False)
    again = list(evaluate(tmp_path / "one"))[-1]
    assert isinstance(again, Tested)
    assert (again.metrics, again.loss) == (tested.metrics, tested.loss)


def test_events_of_a_classifier_say_nothing_of_numbers(tmp_path: Path) -> None:
    with begin(tmp_path, "one", ("data.limit=100", "encoder.fit=64")) as session:
        records = [as_json(event) for event in session.events()]
    for record in records:
        assert "outputs" not in record
        assert not any("mae" in name or "r2" in name for name in record.get("metrics", {}))
    assert records[-1]["test_accuracy"] > 0.3


def test_a_stream_without_an_end_goes_on_for_as_long_as_it_is_let(tmp_path: Path) -> None:
    endless = (*COMMON, "data.limit=none")
    with begin(tmp_path, "whole", endless) as session:
        stopped = until(session, 40)
    assert stopped.samples == 640
    with begin(tmp_path, "parts", endless) as session:
        until(session, 13)
    with Session.resume(tmp_path / "parts") as session:
        until(session, 40)
    assert dict(everything(tmp_path / "parts")) == dict(everything(tmp_path / "whole"))
    reader = RunReader(tmp_path / "whole")
    manifest = reader.manifest()
    assert manifest is not None
    assert (manifest.summary["total_samples"], manifest.summary["position"]) == (None, 640)


@pytest.mark.parametrize(("words", "message"), [
    (("learner.loss=cross_entropy",), "learner.loss=cross_entropy does not fit targets that are"),
    (("learner=discriminant",), "learner=discriminant only knows classes"),
    (("learner=features",), "learner=features only knows classes"),
    (("learner=kernel", "data.limit=none"), "the stream has no end where learner.limit=10000"),
    (("learner=kernel", "data.limit=20000"), "has 20000 samples where learner.limit=10000"),
    ((*SOFTMAX, "learner.schedule=cosine", "data.limit=none"), "needs an end, and the stream has"),
    (("data=digits", "learner.loss=absolute_error"), "does not fit targets that are classes"),
    (("data.epochs=2",), "data.epochs means nothing for data=teacher"),
    (("data.order=given",), "data.order means nothing for data=teacher"),
    (("data.kappa=3",), "data.kappa means nothing for data.teacher=residual; leave it out, or"),
    (("data.teacher=linear", "data.hidden=1"), "data.hidden means nothing for data.teacher=linear"),
    (("data.teacher=relu",), "data.teacher=relu cannot be used"),
    (("data.features=0",), "data.features=0 cannot be used"),
    (("data=digits", "data.noise=1"), "data.noise means nothing for data=digits"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_before_there_is_a_run(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        begin(tmp_path, "one", ("scenario=teacher-student", *words))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_seed_of_the_run_is_that_of_the_teacher_unless_it_has_its_own(tmp_path: Path) -> None:
    found = {}
    for name, words in {
        "a": ("seed=1",),
        "b": ("seed=2",),
        "c": ("seed=1", "data.seed=9"),
        "d": ("seed=2", "data.seed=9"),
    }.items():
        with begin(tmp_path, name, (*COMMON, "learner=ridge", *words)) as session:
            finished = list(session.events())[-1]
        assert isinstance(finished, Finished)
        found[name] = finished.metrics["test_mae"]
    assert found["c"] == found["d"]  # ridge draws nothing
    assert len(set(found.values())) == 3


def test_a_comparison_has_errors_where_accuracies_are_for_classes() -> None:
    comparison = Comparison.start(COMMON, ["ridge", "knn"])
    results = [event for event in comparison.events() if isinstance(event, LearnerResult)]
    assert len(results) == 2
    for result in results:
        assert {"test_mae", "test_rmse", "windowed_mae"} <= set(result.values)
        assert "test_accuracy" not in result.values
