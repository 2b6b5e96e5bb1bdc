import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from streamlearn.adapters.sklearn import GrowingClassifier, GrowingRegressor

EXPECTED_FAILED_CHECKS: dict[str, str] = {}
"""None: every check of scikit-learn applies, and passes."""

SMALL: dict[str, Any] = {"warmup": 16}
QUICK: dict[str, Any] = {**SMALL, "learner": {"batch": 8}}
"""The defaults pass too, in twice the time."""


def checks(*models: Any) -> list[Any]:
    return [
        pytest.param(model, check, id=f"{type(model).__name__}-{number}-{_name(check)}")
        for model in models
        for number, (_, check) in enumerate(
            estimator_checks_generator(
                model, mark="skip", expected_failed_checks=EXPECTED_FAILED_CHECKS
            )
        )
    ]


def _name(check: Any) -> str:
    return str(getattr(check, "func", check).__name__)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "check"), checks(GrowingClassifier(**QUICK), GrowingRegressor(**QUICK))
)
def test_every_check_of_scikit_learn_passes(model: Any, check: Callable[[Any], None]) -> None:
    check(clone(model))


def iris() -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    data = load_iris()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.data[order], data.target_names[data.target][order]


def test_one_pass_over_the_rows_is_what_partial_fit_makes_of_them() -> None:
    rows, labels = iris()
    whole = GrowingClassifier().fit(rows[:100], labels[:100])
    parts = GrowingClassifier()
    for start in range(0, 100, 25):
        part = slice(start, start + 25)
        parts.partial_fit(rows[part], labels[part], classes=np.unique(labels))
    assert (whole.predict_proba(rows) == parts.predict_proba(rows)).all()
    assert whole.score(rows[100:], labels[100:]) > 0.85
    assert whole.n_samples_seen_ == 100


def test_classes_may_come_later() -> None:
    rows, labels = iris()
    model = GrowingClassifier(**SMALL)
    first = labels != "versicolor"
    model.partial_fit(rows[first][:40], labels[first][:40])
    assert model.classes_.tolist() == ["setosa", "virginica"]
    model.partial_fit(rows[:60], labels[:60])
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    proba = model.predict_proba(rows)
    np.testing.assert_allclose(proba.sum(1), 1, rtol=1e-12)
    assert (model.classes_[proba.argmax(1)] == labels).mean() > 0.85


def test_nan_is_a_missing_feature() -> None:
    rows, labels = iris()
    holes = np.where(np.random.default_rng(1).random(rows.shape) < 0.1, np.nan, rows)
    model = GrowingClassifier(**SMALL).fit(holes, labels)
    assert model.score(holes, labels) > 0.85


def test_it_stands_in_pipelines_and_regressions() -> None:
    data = load_diabetes()
    model = make_pipeline(StandardScaler(), GrowingRegressor(**SMALL))
    assert model.fit(data.data[:200], data.target[:200]).score(data.data, data.target) > 0.2
    words = np.array([["x"], ["y"]] * 10)
    sorter = make_pipeline(OneHotEncoder(sparse_output=False), GrowingClassifier())
    assert sorter.fit(words, ["p", "q"] * 10).predict([["y"]]).tolist() == ["q"]


def test_a_pickle_goes_on_with_the_same_bits() -> None:
    rows, labels = iris()
    model = GrowingClassifier(**SMALL).fit(rows[:50], labels[:50])
    other = pickle.loads(pickle.dumps(model))
    for one in (model, other):
        one.partial_fit(rows[50:80], labels[50:80])
    assert pickle.dumps(model.model_) == pickle.dumps(other.model_)
    assert (model.predict_proba(rows) == other.predict_proba(rows)).all()
