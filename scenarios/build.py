"""From a scenario to the objects of a run."""

from typing import NamedTuple

from streamlearn.evaluation import Prequential
from streamlearn.learner import Learner
from streamlearn.loop import Loop
from streamlearn.streams import Splits, Stream, open_data

from .schema import Scenario

__all__ = ["Parts", "build_loop", "open_splits"]


class Parts(NamedTuple):
    """The loop of a run and the data that it reads."""

    loop: Loop
    splits: Splits


def open_splits(scenario: Scenario) -> Splits:
    """Open the scenario's data."""
    data = scenario.data
    return open_data(
        data.kind,
        root=data.root,
        path=data.path,
        name=data.name,
        download=data.download,
        on_error=data.on_error,
        holdout=data.holdout,
        image_size=data.image_size,
    )


def build_loop(scenario: Scenario, splits: Splits) -> Parts:
    """A new learner over the scenario's stream, at its beginning."""
    stream = Stream(
        splits.train, order=scenario.data.order, seed=scenario.seed, limit=scenario.data.limit
    )
    learner = Learner(splits.train.classes, scenario.learner_settings())
    learner.encoder.check(splits.train.feature_shape)
    evaluation = Prequential(len(splits.train.classes), scenario.evaluation.window)
    return Parts(Loop(learner, stream, evaluation), splits)
