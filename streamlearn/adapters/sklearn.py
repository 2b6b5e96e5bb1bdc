"""A growing network as an estimator of scikit-learn: one pass over the rows, in their order."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from streamlearn.openworld import OpenLearner
from streamlearn.records import plain

from .recipe import Section, others, recipe

__all__ = ["GrowingClassifier", "GrowingRegressor"]


class _Growing(BaseEstimator):  # type: ignore[misc]
    """What both estimators are made of; see there for the parameters."""

    _regression = False

    def __init__(
        self,
        *,
        seed: int = 0,
        warmup: int = 64,
        network: Section = None,
        layer: Section = None,
        optimizer: Section = None,
        learner: Section = None,
        memory: Section = None,
    ) -> None:
        self.seed = seed
        self.warmup = warmup
        self.network = network
        self.layer = layer
        self.optimizer = optimizer
        self.learner = learner
        self.memory = memory

    def _begin(self) -> None:
        settings = recipe(
            self.seed,
            network=self.network,
            layer=self.layer,
            optimizer=self.optimizer,
            learner=self.learner,
            memory=self.memory,
            regression=self._regression,
            dtype="float64",  # as scikit-learn computes: answers must not depend on the batch
        )
        # One network unless more are asked for: whole tables in batches need no quick starters.
        several = getattr(settings.learner, "members", 1) > 1
        beside = others(settings, self.layer, regression=self._regression) if several else []
        self.model_ = OpenLearner(
            settings, regression=self._regression, warmup=self.warmup, others=beside
        )

    def _samples(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, NDArray[Any]]:
        rows, targets = validate_data(
            self, X, y, reset=reset, ensure_all_finite="allow-nan", multi_output=False
        )
        return rows, targets

    def _learn(self, rows: Any, targets: NDArray[Any]) -> Self:
        self.model_.learn(_records(rows), targets.tolist())
        self.n_samples_seen_ = self.model_.samples
        return self

    def _answers(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, ensure_all_finite="allow-nan")
        return self.model_.answer(_records(rows))

    def __sklearn_tags__(self) -> Any:
        """NaN means a missing feature, which is filled by its running mean."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class GrowingClassifier(ClassifierMixin, _Growing):  # type: ignore[misc]
    """A growing network that classifies: no parameters, but a tuple for each sample it has learnt.

    `fit` learns each row once, in order, from nothing; `partial_fit` goes on. NaN is a missing
    feature. Features are numbers; put scikit-learn's encoders before it for others.

    Args:
        seed: of starting rows, where the layer has some.
        warmup: samples that are kept at first; each time that their number has doubled, the network
            is learnt anew from them.
        network: a section of a learner's settings as a dictionary, such as `{"hidden": 1}`, or a
            bare kind; None is the adapters' own recipe.
        layer: likewise, such as `"softmax"` or `{"gamma": 3}`.
        optimizer: likewise, such as `{"decay": 0.001}`.
        learner: likewise, such as `{"batch": 16}`, so many samples a step.
        memory: likewise.

    Attributes:
        classes_: the labels, sorted.
        n_samples_seen_: how many samples were learnt.
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the rows of X (n, features) with labels y (n,) from nothing."""
        rows, labels = self._labelled(X, y, reset=True)
        self._begin()
        self._expect(np.unique(labels))
        return self._learn(rows, labels)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Go on learning; labels that did not come before are new classes.

        Args:
            X: (n, features).
            y: labels (n,).
            classes: labels that are to be classes from now on, also before they come.
        """
        first = not hasattr(self, "model_")
        rows, labels = self._labelled(X, y, reset=first)
        if first:
            self._begin()
        known = [np.unique(labels)]
        known += [] if classes is None else [np.asarray(classes)]
        known += [] if first else [self.classes_]
        self._expect(np.unique(np.concatenate(known)))
        return self._learn(rows, labels)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (n, classes), in the order of `classes_`."""
        answers = self._answers(X)
        places = {label: place for place, label in enumerate(self.model_.labels)}
        return answers[:, [places[plain(label)] for label in self.classes_]]

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row, (n,)."""
        best = self.predict_proba(X).argmax(-1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def _labelled(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, NDArray[Any]]:
        rows, labels = self._samples(X, y, reset=reset)
        check_classification_targets(labels)
        return rows, column_or_1d(labels, warn=True)

    def _expect(self, classes: NDArray[Any]) -> None:
        self.classes_ = classes
        self.model_.expect(classes.tolist())


class GrowingRegressor(RegressorMixin, _Growing):  # type: ignore[misc]
    """A growing network that answers with a number: a tuple for each sample it has learnt.

    `fit` learns each row once, in order, from nothing; `partial_fit` goes on. NaN is a missing
    feature; targets are standardised by the first `warmup` samples.

    Args:
        seed: of starting rows, where the layer has some.
        warmup: samples that are kept at first; each time that their number has doubled, the network
            is learnt anew from them.
        network: a section of a learner's settings as a dictionary, such as `{"hidden": 1}`, or a
            bare kind; None is the adapters' own recipe.
        layer: likewise, such as `"softmax"` or `{"gamma": 3}`.
        optimizer: likewise, such as `{"decay": 0.001}`.
        learner: likewise, such as `{"batch": 16}`, so many samples a step.
        memory: likewise.

    Attributes:
        n_samples_seen_: how many samples were learnt.
    """

    _regression = True

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the rows of X (n, features) with numbers y (n,) from nothing."""
        rows, values = self._valued(X, y, reset=True)
        self._begin()
        return self._learn(rows, values)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Go on learning."""
        first = not hasattr(self, "model_")
        rows, values = self._valued(X, y, reset=first)
        if first:
            self._begin()
        return self._learn(rows, values)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The value of each row, (n,)."""
        return self._answers(X)

    def _valued(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, NDArray[np.float64]]:
        rows, values = self._samples(X, y, reset=reset)
        return rows, column_or_1d(values, dtype=np.float64, warn=True)


def _records(rows: NDArray[Any]) -> list[dict[Any, Any]]:
    """Rows as dictionaries by the number of the column."""
    return [dict(enumerate(row)) for row in rows.tolist()]
