"""Comparisons: the figures are those of runs alone, on a stream that is read once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.errors import ConfigError, DataError, NotFiniteError, StreamlearnError
from streamlearn.events import Finished, Tested
from streamlearn.scenarios.build import open_splits
from streamlearn.scenarios.compare import (
    Compared,
    Comparison,
    ComparisonEvent,
    ComparisonProgress,
    ComparisonStarted,
    LearnerFailed,
    LearnerResult,
    comparison_json,
)
from streamlearn.scenarios.curves import Curve, Point
from streamlearn.scenarios.entrants import entrants
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve

SHORT = ("data.limit=300", "encoder.fit=64")
LEARNERS = ("growing", "my ridge: ridge", "knn")


def results(events: list[ComparisonEvent]) -> dict[str, LearnerResult]:
    return {event.learner: event for event in events if isinstance(event, LearnerResult)}


def test_every_learner_has_the_figures_of_a_run_alone(tmp_path: Path) -> None:
    found = results(list(Comparison.start(SHORT, LEARNERS).events()))
    assert list(found) == ["growing", "my ridge", "knn"]
    for entrant in entrants(SHORT, LEARNERS):
        words = [*SHORT, *entrant.words, f"run.dir={tmp_path}", f"run.name={entrant.name}"]
        with Session.start(resolve(words)) as session:
            events = list(session.events())
        finished, result = events[-1], found[entrant.name]
        tested = next(event for event in events if isinstance(event, Tested))
        assert isinstance(finished, Finished)
        assert result.state == "finished"
        assert result.values["prequential_accuracy"] == finished.prequential_accuracy
        assert result.values["test_accuracy"] == finished.test_accuracy
        assert result.values["test_loss"] == tested.loss
        assert (result.samples, result.tuples) == (finished.samples, finished.tuples)
        assert result.learner_bytes == finished.learner_bytes


def test_each_item_of_the_stream_is_read_once_whatever_the_number_of_learners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = entrants([*SHORT, "evaluation.test=false"], LEARNERS)
    splits = open_splits(found[0].scenario)
    items: list[int] = []
    read = splits.train.read

    def counted(index: Any) -> Any:
        items.extend(index.tolist())
        return read(index)

    monkeypatch.setattr(splits.train, "read", counted, raising=False)
    events = list(Comparison(found, splits).events())
    assert len(items) == len(set(items)) == 300
    assert {result.samples for result in results(events).values()} == {300}
    assert all("test_accuracy" not in result.values for result in results(events).values())


def test_a_learner_that_fails_is_left_out_and_the_others_go_on() -> None:
    comparison = Comparison.start(SHORT, ["growing", "knn"])
    loop = comparison._seats[0].loop
    assert loop is not None
    learn, calls = loop.learner.learn, []

    def diverging(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == 10:
            raise NotFiniteError("the rate is too high; lower it")
        return learn(*given, **named)

    loop.learner.learn = diverging
    events = list(comparison.events())
    failed = next(event for event in events if isinstance(event, LearnerFailed))
    assert (failed.learner, failed.position) == ("growing", 160)
    found = results(events)
    assert (found["growing"].state, found["growing"].samples) == ("failed", 144)
    assert found["growing"].reason == "the rate is too high; lower it"
    assert (found["knn"].state, found["knn"].samples) == ("finished", 300)
    # The size to compare at is that of a learner which came to the end.
    assert found["knn"].equal_bytes == found["knn"].learner_bytes
    last = events[-1]
    assert isinstance(last, Compared)
    assert (last.finished, last.failed) == (1, 1)


def test_a_stop_ends_all_learners_at_the_same_batch() -> None:
    comparison = Comparison.start(SHORT, ["growing", "knn"])
    events = []
    for event in comparison.events():
        events.append(event)
        if isinstance(event, ComparisonProgress) and event.position == 160:
            comparison.request_stop("SIGINT")
    assert {result.samples for result in results(events).values()} == {160}
    assert {result.state for result in results(events).values()} == {"stopped"}
    assert isinstance(events[-1], Compared)
    assert events[-1].stopped == "SIGINT"


def test_a_stop_during_the_fit_of_an_encoder_ends_it() -> None:
    comparison = Comparison.start(SHORT, ["growing", "knn"])

    def stopping() -> bool:
        comparison.request_stop("SIGINT")
        return True

    for event in comparison.events():
        if isinstance(event, ComparisonProgress) and event.position == 64:
            for seat in comparison._seats:
                assert seat.loop is not None
                seat.loop.should_stop = stopping
    assert isinstance(event, Compared)
    assert event.stopped == "SIGINT"


def test_data_that_cannot_be_read_on_ends_all_after_their_results(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(400, 5)).astype(np.float32)
    x[200, 3] = np.nan
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(400) % 2)
    words = ("data=npz", f"data.path={tmp_path / 't.npz'}", "data.order=given", "encoder.fit=32")
    events: list[ComparisonEvent] = []
    comparison = Comparison.start([*words, "data.holdout=0"], ["growing", "knn"])
    with pytest.raises(DataError, match="row 200"):
        events.extend(iter(comparison.events()))
    assert {result.state for result in results(events).values()} == {"stopped"}
    assert {result.samples for result in results(events).values()} == {192}


def test_the_size_to_compare_at_is_one_that_every_learner_once_had() -> None:
    found = results(
        list(Comparison.start([*SHORT, "learner.dtype=float32"], ["growing", "ridge"]).events())
    )
    growing, ridge = found["growing"], found["ridge"]
    (size,) = {growing.equal_bytes, ridge.equal_bytes}
    assert size is not None
    # Ridge regression has a fixed size: smaller than any that the growing network has.
    assert ridge.learner_bytes < size
    assert size == min(held for _, _, held in growing.curve if held)
    assert ridge.equal_samples == 300
    assert ridge.equal_value == ridge.curve[-1][1]
    assert growing.equal_samples == 64
    assert comparison_json(growing)["event"] == "result"


def test_a_curve_is_bounded_and_knows_when_the_learner_had_a_size() -> None:
    curve = Curve(limit=16)
    for samples in range(1, 5001):
        curve.add(Point(samples, 1000 * samples, {"windowed_accuracy": samples / 5000}))
    points = curve.points
    assert len(points) <= 17
    assert points[0].samples == 1
    assert points[-1].samples == 5000
    for size in (5_000, 123_456, 4_000_000):
        then = curve.at_size(size)
        assert then is not None
        assert 0.98 * size <= then.learner_bytes <= size
    assert curve.at_size(999) is None
    assert curve.smallest == 1000
    assert Curve().points == []


@pytest.mark.parametrize(
    ("common", "learners", "says"),
    [
        ([], [], "nothing to compare"),
        ([], [" "], "is empty"),
        ([], [":knn"], "no name before the colon"),
        ([], ["'knn"], "close its quotes"),
        ([], ["growing", "growing"], "two learners are called 'growing'"),
        ([], ["growin"], "did you mean growing"),
        ([], ["a: learner.lr=x growing"], "learner 'a': learner.lr"),
        (["sede=1"], ["growing"], "did you mean seed"),
        (["run.name=x"], ["growing"], "keeps no run"),
        ([], ["checkpoint.keep=2 growing"], "keeps no run"),
        ([], ["growing", "knn data.limit=5"], "data.limit is None for learner 'growing' and 5"),
        ([], ["growing", "b: seed=3"], "seed is 0 for learner 'growing' and 3 for 'b'"),
        ([], ["growing", "b: learner.batch=3"], "learner.batch is 16"),
        ([], ["growing", "b: evaluation.window=3"], "evaluation.window is 1000"),
    ],
)
def test_wrong_words_are_refused_in_a_sentence(
    common: list[str], learners: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        entrants(common, learners)


def test_learners_are_called_by_their_words_or_by_a_name() -> None:
    found = entrants(
        ["scenario=digits-onepass", "encoder=pca"],
        ["knn", "knn learner.k=3", "my own: learner=knn encoder.width=8"],
    )
    assert [entrant.name for entrant in found] == ["knn", "knn k=3", "my own"]
    assert [entrant.scenario.learner.kind for entrant in found] == ["knn"] * 3
    assert getattr(found[2].scenario.encoder, "width", None) == 8


def test_a_learner_that_cannot_take_the_data_is_named_before_anything_is_learnt() -> None:
    with pytest.raises(StreamlearnError, match="learner 'svm': learner=kernel keeps a matrix"):
        Comparison.start(SHORT, ["growing", "svm: kernel learner.limit=100"])


def test_the_beginning_says_what_all_learners_share() -> None:
    started = next(iter(Comparison.start([*SHORT, "seed=3"], ["growing"]).events()))
    assert isinstance(started, ComparisonStarted)
    assert (started.total_samples, started.batch, started.seed) == (300, 16, 3)
