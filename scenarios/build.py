"""From a scenario to the objects of a run."""

import math
from typing import NamedTuple

from streamlearn.errors import ConfigError
from streamlearn.evaluation import Prequential
from streamlearn.kinds import KernelSettings, ParametricSettings
from streamlearn.learner import Learner
from streamlearn.loop import Loop
from streamlearn.settings import LearnerSettings, StandardiseSettings, ViTSettings
from streamlearn.streams import Splits, Stream, open_data
from streamlearn.streams.splits import hold_out
from streamlearn.vit import patches_of

from .schema import Scenario

__all__ = ["Parts", "build_loop", "open_splits", "settled"]


class Parts(NamedTuple):
    """The loop of a run and the data that it reads."""

    loop: Loop
    splits: Splits


def open_splits(scenario: Scenario) -> Splits:
    """Open the scenario's data; with `data.validation` a part of it stands in for the test set."""
    data = scenario.data
    splits = open_data(
        data.kind,
        root=data.root,
        path=data.path,
        name=data.name,
        download=data.download,
        on_error=data.on_error,
        holdout=data.holdout,
        image_size=data.image_size,
    )
    return hold_out(splits.train, data.validation) if data.validation else splits


def build_loop(scenario: Scenario, splits: Splits) -> Parts:
    """A new learner over the scenario's stream, at its beginning."""
    stream = Stream(
        splits.train,
        order=scenario.data.order,
        seed=scenario.seed,
        limit=scenario.data.limit,
        epochs=scenario.data.epochs,
        augment=scenario.data.augment,
    )
    settings = settled(scenario.learner_settings(), len(stream))
    _check_images(settings, splits.train.feature_shape)
    learner = Learner(splits.train.classes, settings)
    learner.encoder.check(splits.train.feature_shape)
    evaluation = Prequential(len(splits.train.classes), scenario.evaluation.window)
    return Parts(Loop(learner, stream, evaluation), splits)


def settled(settings: LearnerSettings, samples: int) -> LearnerSettings:
    """The settings with what only the stream's length can say, or refuse.

    Raises:
        ConfigError: more samples than this kind of learner can take.
    """
    chosen = settings.learner
    if isinstance(chosen, KernelSettings) and samples > chosen.limit:
        raise ConfigError(
            f"learner=kernel keeps a matrix of all pairs, and the stream has {samples} samples "
            f"where learner.limit={chosen.limit}; set data.limit={chosen.limit}, or raise "
            "learner.limit"
        )
    if not isinstance(chosen, ParametricSettings) or chosen.schedule == "none":
        return settings
    if chosen.schedule_samples is not None:
        return settings
    whole = chosen.model_copy(update={"schedule_samples": samples})
    return settings.model_copy(update={"learner": whole})


def _check_images(settings: LearnerSettings, shape: tuple[int, ...]) -> None:
    """Refuse samples that the network cannot take before any is read.

    Raises:
        ConfigError: a vision transformer without pixels.
    """
    network, encoder = settings.network, settings.encoder
    if settings.learner.kind == "parametric" and isinstance(network, ViTSettings):
        plain = isinstance(encoder, StandardiseSettings) and encoder.constant == 0
        patches_of(
            shape, math.prod(shape) if plain else getattr(encoder, "width", 0), network.patch
        )
