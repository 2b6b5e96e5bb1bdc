import copy
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river import (
    compose,
    datasets,
    ensemble,
    evaluate,
    metrics,
    multiclass,
    preprocessing,
    stream,
)
from river.checks import yield_checks

from streamlearn.adapters.river import GrowingClassifier, GrowingRegressor
from streamlearn.errors import ConfigError, FormatError


def checks(model: Any) -> list[Any]:
    """Each check with a name of its own: several come once for each data set."""
    found = []
    for number, check in enumerate(yield_checks(model)):
        found.append(pytest.param(check, id=f"{number}-{check.__name__}"))
    return found


def test_no_check_of_river_is_left_out() -> None:
    assert GrowingClassifier()._unit_test_skips() == set()
    assert GrowingRegressor()._unit_test_skips() == set()
    names = {check.values[0].__name__ for check in checks(GrowingClassifier())}
    # These come only where pandas is installed, and for several classes.
    assert {"check_learn_many_matches_learn_one", "check_classifier_tracks_seen_labels"} <= names


@pytest.mark.parametrize("check", checks(GrowingClassifier()))
def test_the_classifier_passes_every_check_of_river(check: Callable[[Any], None]) -> None:
    check(GrowingClassifier())


@pytest.mark.parametrize("check", checks(GrowingRegressor()))
def test_the_regressor_passes_every_check_of_river(check: Callable[[Any], None]) -> None:
    check(GrowingRegressor())


def some(count: int) -> list[tuple[dict[str, Any], bool]]:
    return list(itertools.islice(datasets.Phishing(), count))


def test_it_learns_in_rivers_own_evaluation() -> None:
    scores: Any = metrics  # not typed throughout
    numbers: Any = datasets.TrumpApproval
    accuracy = evaluate.progressive_val_score(
        datasets.Phishing().take(300), GrowingClassifier(), scores.Accuracy()
    )
    assert accuracy.get() > 0.83
    error = evaluate.progressive_val_score(numbers().take(300), GrowingRegressor(), scores.MAE())
    assert error.get() < 1.0


def test_it_is_a_step_of_a_pipeline_and_a_member_of_ensembles() -> None:
    models: list[Any] = [
        compose.Pipeline(preprocessing.MinMaxScaler(), GrowingClassifier(warmup=8)),
        multiclass.OneVsRestClassifier(GrowingClassifier(warmup=8)),
        ensemble.BaggingClassifier(GrowingClassifier(warmup=8), n_models=2, seed=1),
    ]
    for model in models:
        right = 0
        for x, y in some(80):
            right += model.predict_one(x) == y
            model.learn_one(x, y)
        assert right > 45
        assert model.clone().predict_one(some(1)[0][0]) in (None, False)


def test_labels_come_back_as_they_are_and_new_ones_at_any_time() -> None:
    model = GrowingClassifier()
    assert model.predict_one({"a": 1}) is None
    assert model.predict_proba_one({"a": 1}) == {}
    labels = ["red", 3, False, ("x", 1)]
    for _, (place, label) in itertools.product(range(5), enumerate(labels)):
        model.learn_one({"a": place, "kind": f"k{place}", "gone": None}, label)
    for place, label in enumerate(labels):
        assert model.predict_one({"a": place, "kind": f"k{place}"}) == label
    assert list(model.predict_proba_one({})) == labels


def test_tables_are_answered_row_by_row_with_their_own_index() -> None:
    model = GrowingClassifier()
    frame = pd.DataFrame({"n": [1.0, np.nan, -1.0], "c": ["x", None, "y"]}, index=[5, 7, 9])
    assert model.predict_many(frame).tolist() == [None] * 3
    assert model.predict_proba_many(frame).shape == (3, 0)
    model.learn_many(frame, pd.Series(["p", "q", "q"], index=frame.index))
    found = model.predict_many(frame)
    assert found.index.tolist() == [5, 7, 9]
    proba = model.predict_proba_many(frame)
    assert proba.columns.tolist() == ["p", "q"]
    assert proba.idxmax(axis="columns").tolist() == found.tolist()
    assert model.predict_many(frame[:0]).tolist() == []
    line = GrowingRegressor()
    line.learn_many(frame, pd.Series([1.0, 2.0, 3.0]))
    assert line.predict_many(frame).dtype == np.float64


@pytest.mark.parametrize("kind", [GrowingClassifier, GrowingRegressor])
def test_the_same_state_is_the_same_bytes_and_goes_on_alike(
    kind: type[Any], tmp_path: Path
) -> None:
    model, twin = kind(layer={"gamma": 3.0}, warmup=16), kind(layer={"gamma": 3.0}, warmup=16)
    given = some(50)
    for x, y in given[:40]:
        model.learn_one(x, y)
        twin.learn_one(copy.deepcopy(x), y)
    model.save(tmp_path / "model")
    others = [pickle.loads(pickle.dumps(model)), kind.load(tmp_path / "model"), twin]
    for other in [*others, copy.deepcopy(model)]:
        assert pickle.dumps(other) == pickle.dumps(model)
        assert repr(other) == repr(model)
    for x, y in given[40:]:
        for other in (model, *others):
            other.learn_one(x, y)
    for other in others:
        assert pickle.dumps(other) == pickle.dumps(model)


def test_a_subclass_keeps_what_is_its_own() -> None:
    model: Any = GrowingClassifier()
    model.note = {"mine": 1}
    assert pickle.loads(pickle.dumps(model)).note == {"mine": 1}


def test_a_file_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    GrowingClassifier().save(tmp_path / "model")
    with pytest.raises(FormatError, match="holds a GrowingClassifier; load it by that class"):
        GrowingRegressor.load(tmp_path / "model")


def test_sections_are_a_learners_own() -> None:
    model = GrowingClassifier(
        seed=3, layer="softmax", network={"hidden": 1}, learner={"batch": 2}, optimizer={}
    )
    chosen = model._learner.settings
    assert (chosen.seed, chosen.layer.kind, chosen.network.hidden) == (3, "softmax", 1)
    assert (chosen.learner.batch, chosen.learner.device) == (2, "cpu")
    assert GrowingClassifier(layer={"gamma": 2.0})._learner.settings.layer.kind == "rbf"
    with pytest.raises(ConfigError, match=r"layer\.gama is not a setting; did you mean"):
        GrowingClassifier(layer={"gama": 2.0})


def test_memory_that_river_counts_is_that_of_the_tuples() -> None:
    model = GrowingClassifier(warmup=1)
    sizes = []
    for x, y in some(30):
        model.learn_one(x, y)
        sizes.append(model._raw_memory_usage)
    rest = 15 * 4 + 4 + 8 + 8
    assert sizes[-1] - sizes[-2] == 2 * (16 * 4 + rest) + (64 * 4 + rest)  # three networks


def test_streams_of_river_feed_it() -> None:
    rows = stream.iter_array(np.eye(3), np.arange(3), feature_names=["a", "b", "c"])
    model = GrowingClassifier()
    for x, y in rows:
        model.learn_one(x, y)
    assert model.predict_one({"a": 1.0, "b": 0.0, "c": 0.0}) == 0
