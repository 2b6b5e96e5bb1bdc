"""From a scenario to the objects of a run."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from streamlearn.continual import AccuracyMatrix
from streamlearn.delay import StreamLearner
from streamlearn.drift import DriftMonitor
from streamlearn.errors import ConfigError
from streamlearn.evaluation import Evaluation, evaluation_of
from streamlearn.kinds import KernelSettings, ParametricSettings
from streamlearn.learner import Learner
from streamlearn.loop import Loop
from streamlearn.recordlearner import RecordLearner
from streamlearn.settings import LearnerSettings, StandardiseSettings, ViTSettings
from streamlearn.streams import (
    Domains,
    EndlessStream,
    InDomains,
    Splits,
    Stream,
    TeacherSpec,
    open_data,
)
from streamlearn.streams.base import Dataset
from streamlearn.streams.records import RecordStream, open_records
from streamlearn.streams.splits import hold_out
from streamlearn.tasks import Classes, Task
from streamlearn.vit import patches_of

from .schema import RECORD_KINDS, Scenario

__all__ = [
    "Parts",
    "build_loop",
    "build_stream",
    "late_encoder",
    "may_widen",
    "open_parts",
    "open_record_stream",
    "open_splits",
    "settle_task",
    "settled",
]


class Parts(NamedTuple):
    """The loop of a run and the data that it is tested on, None where nothing is held out.

    schema: what was found out about the columns of records, to be shown once.
    """

    loop: Loop[Any]
    test: Dataset | None
    schema: str = ""


def open_parts(scenario: Scenario) -> Parts:
    """The loop of a scenario over its data, at its beginning."""
    if scenario.data.kind in RECORD_KINDS:
        return _over_records(scenario)
    return build_loop(scenario, open_splits(scenario))


def settle_task(scenario: Scenario, parts: Parts) -> Scenario:
    """The scenario with what was found out about the target of records, for all who resume."""
    data = scenario.data
    if data.kind not in RECORD_KINDS or data.kind == "generator" or data.task != "auto":
        return scenario  # generators know their task themselves
    task = "classes" if isinstance(parts.loop.learner.task, Classes) else "numbers"
    return scenario.model_copy(update={"data": data.model_copy(update={"task": task})})


def may_widen(learner: StreamLearner) -> bool:
    """Whether it may have other layers than before."""
    return isinstance(learner, RecordLearner)


def open_record_stream(scenario: Scenario) -> RecordStream:
    """The scenario's records, at their beginning."""
    data = scenario.data
    return open_records(
        data.kind,  # type: ignore[arg-type]
        path=None if data.path is None else str(data.path),
        target=data.target,
        task=data.task,
        name=data.name,
        seed=scenario.seed if data.seed is None else data.seed,
        limit=data.limit,
        on_error=data.on_error,
        ignore=data.ignore,
        delimiter=data.delimiter,
        idle_seconds=data.idle_seconds,
    )


def _over_records(scenario: Scenario) -> Parts:
    stream = open_record_stream(scenario)
    try:
        while not stream.settle():
            pass  # a signal is heard between two waits
        learner = RecordLearner(
            settled(scenario.learner_settings(), stream.total), regression=stream.schema.regression
        )
        evaluation = _evaluation(scenario, learner.task)
        drift = _drift(scenario, learner.task)
    except BaseException:
        stream.close()
        raise
    loop = Loop(learner, stream, evaluation, drift=drift, delay=scenario.stream.delay)
    return Parts(loop, None, stream.schema.text())


def open_splits(scenario: Scenario) -> Splits:
    """Open the scenario's data; with `data.validation` a part of it stands in for the test set.

    Where domains come in turn, the held-out items are spread over all of them.

    Raises:
        ConfigError: the data are records, which are not read by position.
    """
    data = scenario.data
    if data.kind in RECORD_KINDS:
        raise ConfigError(
            f"data={data.kind} is a stream of records, which can be run, resumed and swept "
            "over but not compared or evaluated; its prequential figures are all there is"
        )
    splits = open_data(
        data.kind,
        root=data.root,
        path=data.path,
        name=data.name,
        download=data.download,
        on_error=data.on_error,
        holdout=data.holdout,
        image_size=data.image_size,
        teacher=_teacher(scenario) if data.kind == "teacher" else None,
    )
    if data.validation:
        splits = hold_out(splits.train, data.validation)
    if data.domain is not None and data.experiences is not None and splits.test is not None:
        shape = splits.train.feature_shape
        domains = Domains(data.domain, data.experiences, shape, scenario.seed)
        splits = replace(splits, test=InDomains(splits.test, domains))
    return splits


def _teacher(scenario: Scenario) -> TeacherSpec:
    data = scenario.data
    return TeacherSpec(
        teacher=data.teacher,
        features=data.features,
        outputs=data.outputs,
        hidden=data.hidden,
        width=data.width,
        kappa=data.kappa,
        inputs=data.inputs,
        noise=data.noise,
        test=data.test,
        seed=scenario.seed if data.seed is None else data.seed,
    )


def build_stream(scenario: Scenario, splits: Splits) -> Stream:
    """The scenario's stream, at its beginning."""
    data = scenario.data
    if splits.endless:
        return EndlessStream(splits.train, limit=data.limit)
    return Stream(
        splits.train,
        order=data.order,
        seed=scenario.seed,
        limit=data.limit,
        epochs=data.epochs,
        augment=data.augment,
        experiences=data.experiences,
        domain=data.domain,
        imbalance=data.imbalance,
    )


def build_loop(scenario: Scenario, splits: Splits, stream: Stream | None = None) -> Parts:
    """A new learner over a stream, the scenario's at its beginning if none is given."""
    alone = stream is None
    if stream is None:
        stream = build_stream(scenario, splits)
    settings = settled(scenario.learner_settings(), stream.total)
    _check_images(settings, splits.train.feature_shape)
    learner = Learner(splits.train.task, settings)
    learner.encoder.check(splits.train.feature_shape)
    evaluation = _evaluation(scenario, learner.task)
    matrix = _matrix(scenario, splits, stream) if alone else None
    drift = _drift(scenario, learner.task)
    loop = Loop(learner, stream, evaluation, matrix, drift, delay=scenario.stream.delay)
    return Parts(loop, splits.test)


def _evaluation(scenario: Scenario, task: Task) -> Evaluation:
    settings = scenario.evaluation
    return evaluation_of(task, settings.window, settings.abstain)


def _drift(scenario: Scenario, task: Task) -> DriftMonitor | None:
    """What hears the errors, if anything is to."""
    if scenario.drift.detector == "none":
        return None
    return DriftMonitor(scenario.drift, binary=isinstance(task, Classes))


def _matrix(scenario: Scenario, splits: Splits, stream: Stream) -> AccuracyMatrix | None:
    """What is measured after each group of classes, or domain, if they come in turn."""
    settings = scenario.evaluation
    classes = len(splits.train.classes)
    if not (settings.matrix and stream.experiences and classes and splits.test is not None):
        return None
    return AccuracyMatrix(splits.test, stream.experiences, classes, settings.matrix_samples)


def settled(settings: LearnerSettings, samples: int | None) -> LearnerSettings:
    """The settings with what only the stream's length can say, or refuse.

    Raises:
        ConfigError: more samples than this kind of learner can take, or no end where one is needed.
    """
    chosen = settings.learner
    if isinstance(chosen, KernelSettings) and (samples is None or samples > chosen.limit):
        raise ConfigError(
            "learner=kernel keeps a matrix of all pairs, and the stream has "
            f"{'no end' if samples is None else f'{samples} samples'} "
            f"where learner.limit={chosen.limit}; set data.limit={chosen.limit}, or raise "
            "learner.limit"
        )
    if not isinstance(chosen, ParametricSettings) or chosen.schedule == "none":
        return settings
    if chosen.schedule_samples is not None:
        return settings
    if samples is None:
        raise ConfigError(
            f"learner.schedule={chosen.schedule} needs an end, and the stream has none; set "
            "learner.schedule_samples, or data.limit"
        )
    whole = chosen.model_copy(update={"schedule_samples": samples})
    return settings.model_copy(update={"learner": whole})


def late_encoder(scenario: Scenario, samples: int | None) -> list[str]:
    """What to say where the encoder is fitted on all of the stream, or on more than there is."""
    fit = scenario.encoder.fit
    if scenario.data.kind in RECORD_KINDS or samples is None or fit < samples:
        return []
    return [
        f"encoder.fit={fit} is not less than the stream's {samples} samples, so all of them are "
        "scored by the fallback, and the accuracy while learning says nothing of the learner; set "
        f"encoder.fit={max(1, samples // 4)}, say"
    ]


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
