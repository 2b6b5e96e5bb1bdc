"""A growing network as an estimator of river: one dictionary after the other, any label."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from river import base

from streamlearn.abstention import check_threshold
from streamlearn.errors import FormatError
from streamlearn.openworld import OpenLearner

from .recipe import others, recipe

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["GrowingClassifier", "GrowingRegressor"]


class _Growing:
    """What both estimators are made of.

    Args:
        seed: of starting rows, where the layer has some.
        warmup: samples that are kept at first; each time that their number has doubled, the network
            is learnt anew from them.
        network: a section of a learner's settings as a dictionary, such as `{"hidden": 1}`, or a
            bare kind; None is the adapters' own recipe.
        layer: likewise, such as `"softmax"` or `{"gamma": 3}`.
        optimizer: likewise, such as `{"decay": 0.001}`.
        learner: likewise, such as `{"batch": 16}`, so many samples a step in `learn_many`.
        memory: likewise.
    """

    _regression = False

    def __init__(
        self,
        *,
        seed: int = 0,
        warmup: int = 64,
        network: Mapping[str, Any] | str | None = None,
        layer: Mapping[str, Any] | str | None = None,
        optimizer: Mapping[str, Any] | None = None,
        learner: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self.seed = seed
        self.warmup = warmup
        self.network = network
        self.layer = layer
        self.optimizer = optimizer
        self.learner = learner
        self.memory = memory
        settings = recipe(
            seed,
            network=network,
            layer=layer,
            optimizer=optimizer,
            learner=learner,
            memory=memory,
            regression=self._regression,
        )
        self._learner = OpenLearner(
            settings,
            regression=self._regression,
            warmup=warmup,
            others=others(settings, layer, regression=self._regression),
        )

    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Learn one sample.

        Args:
            x: features by any names: numbers, or categories; absent, None and NaN are missing.
            y: its label, or a number.
        """
        self._learner.learn([x], [y])

    def learn_many(self, X: "pd.DataFrame", y: "pd.Series") -> None:
        """Learn the rows of a table in their order."""
        self._learner.learn(_records(X), y.tolist())

    def predict_many(self, X: "pd.DataFrame") -> "pd.Series":
        """What `predict_one` says of each row."""
        import pandas as pd

        found = self._predicted(_records(X))
        unknown = not found or any(label is None for label in found)
        return pd.Series(found, index=X.index, dtype=object if unknown else None)

    def _predicted(self, records: list[Any]) -> list[Any]:
        return self._learner.predict(records)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole model to one safetensors file, replaced only once complete.

        Raises:
            FormatError: a label, name or category of a type that no file can hold.
            StorageError: the system refused; a file that was there before is as it was.
        """
        self._learner.save(path, type=type(self).__name__, params=self._params())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The model that `save` wrote; it goes on with the same bits.

        Raises:
            DataNotFoundError: no such file.
            FormatError: another file, damaged, or written by a newer version.
        """
        learner, extra = OpenLearner.load(path)
        if learner.regression != cls._regression:
            raise FormatError(f"{str(path)!r} holds a {extra['type']}; load it by that class")
        model = cls(**extra["params"])
        model._learner = learner
        return model

    def _params(self) -> dict[str, Any]:
        names = ("seed", "warmup", "network", "layer", "optimizer", "learner", "memory")
        return {name: getattr(self, name) for name in names}

    def __getstate__(self) -> dict[str, Any]:
        """Everything as bytes, the same for the same state, and what a subclass keeps."""
        params = self._params()
        saved, objects = self._learner.to_bytes(params=params)
        own = {*params, "_learner"}
        more = {name: value for name, value in self.__dict__.items() if name not in own}
        return {"saved": saved, "objects": objects, "more": more}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become what was saved."""
        self._learner, extra = OpenLearner.from_bytes(state["saved"], state["objects"])
        self.__dict__ |= {**extra["params"], **state["more"]}

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {}

    def _unit_test_skips(self) -> set[str]:
        """No check is left out."""
        return set()

    @property
    def _raw_memory_usage(self) -> int:
        """Bytes of tuples and statistics; river's own count does not see tensors."""
        return self._learner.nbytes


class GrowingClassifier(_Growing, base.MiniBatchClassifier):
    """A growing network that classifies: no parameters, but a tuple for each sample it has learnt.

    Features are standardised as they come and may appear, vanish and be missing; classes may
    appear at any time and have probability 0 before.

    Args:
        seed: of starting rows, where the layer has some.
        warmup: samples that are kept at first; each time that their number has doubled, the network
            is learnt anew from them.
        network: a section of a learner's settings as a dictionary, such as `{"hidden": 1}`, or a
            bare kind; None is the adapters' own recipe.
        layer: likewise, such as `"softmax"` or `{"gamma": 3}`.
        optimizer: likewise, such as `{"decay": 0.001}`.
        learner: likewise, such as `{"batch": 16}`, so many samples a step in `learn_many`.
        memory: likewise.
        abstain: the probability below which `predict_one` and `predict_many` say None, which
            river's evaluation leaves out of its metrics; None: they always answer.

    Raises:
        ConfigError: settings that cannot be used, or such a probability.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        warmup: int = 64,
        network: Mapping[str, Any] | str | None = None,
        layer: Mapping[str, Any] | str | None = None,
        optimizer: Mapping[str, Any] | None = None,
        learner: Mapping[str, Any] | None = None,
        memory: Mapping[str, Any] | None = None,
        abstain: float | None = None,
    ) -> None:
        check_threshold(abstain, "abstain")
        super().__init__(
            seed=seed,
            warmup=warmup,
            network=network,
            layer=layer,
            optimizer=optimizer,
            learner=learner,
            memory=memory,
        )
        self.abstain = abstain

    def _params(self) -> dict[str, Any]:
        return {**super()._params(), "abstain": self.abstain}

    @property
    def _multiclass(self) -> bool:
        return True

    def predict_proba_one(self, x: Mapping[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability of each label that came so far; {} before the first."""
        answers = self._learner.answer([x])[0]
        return dict(zip(self._learner.labels, answers.tolist(), strict=True))

    def predict_one(self, x: Mapping[Any, Any], **kwargs: Any) -> Any:
        """The most probable label; None before the first came, or where none is sure enough."""
        return self._predicted([x])[0]

    def _predicted(self, records: list[Any]) -> list[Any]:
        answers = self._learner.answer(records)
        if not self._learner.labels:
            return [None] * len(records)
        found = [self._learner.labels[place] for place in answers.argmax(-1).tolist()]
        if self.abstain is None:
            return found
        sure = answers.max(-1) >= self.abstain
        return [label if known else None for label, known in zip(found, sure, strict=True)]

    def predict_proba_many(self, X: "pd.DataFrame") -> "pd.DataFrame":
        """What `predict_proba_one` says of each row, a column a label."""
        import pandas as pd

        answers = self._learner.answer(_records(X))
        labels = pd.Index(self._learner.labels, dtype=object, tupleize_cols=False)
        return pd.DataFrame(answers, index=X.index, columns=labels)


class GrowingRegressor(_Growing, base.MiniBatchRegressor):
    """A growing network that answers with a number: a tuple for each sample it has learnt.

    Features are standardised as they come and may appear, vanish and be missing; targets are
    standardised by the first `warmup` samples.

    Args:
        seed: of starting rows, where the layer has some.
        warmup: samples that are kept at first; each time that their number has doubled, the network
            is learnt anew from them.
        network: a section of a learner's settings as a dictionary, such as `{"hidden": 1}`, or a
            bare kind; None is the adapters' own recipe.
        layer: likewise, such as `"softmax"` or `{"gamma": 3}`.
        optimizer: likewise, such as `{"decay": 0.001}`.
        learner: likewise, such as `{"batch": 16}`, so many samples a step in `learn_many`.
        memory: likewise.
    """

    _regression = True

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The value; 0 before anything was learnt."""
        return float(self._learner.answer([x])[0])


def _records(frame: "pd.DataFrame") -> list[dict[Any, Any]]:
    """The rows as dictionaries, None where a value is missing."""
    wide = frame.astype(object)
    found: list[dict[Any, Any]] = wide.where(frame.notna(), None).to_dict("records")
    return found
