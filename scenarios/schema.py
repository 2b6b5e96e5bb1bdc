"""The schema of a scenario: the learner's settings, and the data, checkpoints and run around it."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    field_validator,
    model_validator,
)

from streamlearn.drift import DriftSettings
from streamlearn.sections import OptionalFloat, OptionalInt, Settings, bare_kind, none_word
from streamlearn.settings import LearnerSettings
from streamlearn.storage.objects import ObjectPath, RunPath, resolve
from streamlearn.streams.domains import DomainName
from streamlearn.streams.teachers import InputName, TeacherName

__all__ = [
    "RECORD_KINDS",
    "CheckpointSettings",
    "DataSettings",
    "EvaluationSettings",
    "RunSettings",
    "Scenario",
    "StreamSettings",
    "keys_of_data",
]

DataKind = Literal[
    "cifar10",
    "cifar100",
    "mnist",
    "fashion",
    "folder",
    "digits",
    "river",
    "npz",
    "teacher",
    "jsonl",
    "csv",
    "parquet",
    "watch",
    "generator",
]

RECORD_KINDS = frozenset({"jsonl", "csv", "parquet", "watch", "generator"})
"""Kinds of data whose samples are records, learnt as they come, whatever they bring."""

_KEYS_OF_KIND: dict[str, frozenset[str]] = {
    "cifar10": frozenset({"root", "download"}),
    "cifar100": frozenset({"root", "download"}),
    "mnist": frozenset({"root", "download"}),
    "fashion": frozenset({"root", "download"}),
    "folder": frozenset({"root", "path", "image_size", "holdout"}),
    "digits": frozenset({"holdout"}),
    "river": frozenset({"name", "holdout"}),
    "npz": frozenset({"path", "holdout", "image_size"}),
    "teacher": frozenset(
        {
            "teacher",
            "features",
            "outputs",
            "hidden",
            "width",
            "kappa",
            "inputs",
            "noise",
            "test",
            "seed",
        }
    ),
    "jsonl": frozenset({"path", "target", "task", "ignore", "idle_seconds"}),
    "csv": frozenset({"path", "target", "task", "ignore", "idle_seconds", "delimiter"}),
    "parquet": frozenset({"path", "target", "task", "ignore"}),
    "watch": frozenset({"path", "target", "task", "ignore", "idle_seconds", "delimiter"}),
    "generator": frozenset({"name", "seed"}),
}
_KEYS_OF_EVERY_KIND = frozenset(
    {
        "kind",
        "order",
        "experiences",
        "domain",
        "imbalance",
        "limit",
        "on_error",
        "epochs",
        "augment",
        "validation",
    }
)
_KEYS_OF_TEACHER = frozenset({"kind", "limit"})
"""Of those, the ones that mean something for samples that are made as they are read."""

_KEYS_OF_RECORDS = frozenset({"kind", "limit", "on_error"})


def keys_of_data(kind: DataKind) -> frozenset[str]:
    """The keys of the section `data` that mean something for this kind, `kind` among them."""
    every = _KEYS_OF_TEACHER if kind == "teacher" else _KEYS_OF_EVERY_KIND
    return _KEYS_OF_KIND[kind] | (_KEYS_OF_RECORDS if kind in RECORD_KINDS else every)


def _names(value: Any) -> Any:
    """Names that are separated by commas."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]

_TEACHERS_WITH = {"hidden": ("residual",), "width": ("residual", "softmax"), "kappa": ("softmax",)}


OptionalDomain = Annotated[DomainName | None, BeforeValidator(none_word)]


class DataSettings(Settings):
    """Where samples come from and in which order."""

    kind: DataKind = Field(
        "digits",
        description="what is learnt from: a data set by name, the user's own files, or records as "
        "they come",
    )
    root: Path | None = Field(None, description="folder of the data set's files")
    path: Path | None = Field(
        None, description="a file or folder; - is the standard input, for jsonl and csv"
    )
    name: str | None = Field(
        None, description="a data set or generator of river, such as Shuttle or RandomRBFDrift"
    )
    download: bool = Field(True, description="may be downloaded where it is not found")
    order: Literal["shuffled", "given", "classes", "domains"] = Field(
        "shuffled",
        description="shuffled by seed, as is, group of classes after group, shuffled in each, or "
        "shuffled in parts whose features are changed, see domain",
    )
    experiences: OptionalInt = Field(
        None,
        ge=1,
        le=10_000,
        description="groups of classes, where they come in turn, none: each by itself; or domains "
        "[groups]; more: fewer classes, or samples of a domain, at a time",
    )
    domain: OptionalDomain = Field(
        None,
        description="what changes from one experience to the next, where domains come in turn: the "
        "order of pixels, the angle, brightness and contrast, or the noise of images",
    )
    imbalance: OptionalFloat = Field(
        None,
        gt=0,
        le=1,
        description="items of the rarest class for each of the most frequent one, others between, "
        "drawn by seed from what is learnt; none: all items [share]; more: less "
        "imbalance: more items of the rare classes",
    )
    limit: OptionalInt = Field(
        None,
        ge=1,
        description="learn only this many samples of the order; none: all, without an end where "
        "there is none [samples]; more: a longer stream",
    )
    epochs: int = Field(
        1,
        ge=1,
        le=100_000,
        description="passes over these samples [passes]; more: learns more, at as many times the "
        "time and, but for learner.revisit=update, memory",
    )
    augment: Literal["none", "paper"] = Field(
        "none", description="paper: images are shifted by up to 4 pixels and flipped, every epoch"
    )
    holdout: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="share held out where there is no test set [share]; more: a surer test, fewer "
        "samples to learn from",
    )
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training part that is scored at the end instead of the test set, "
        "and not learnt: to choose settings by [share]; more: surer figures, fewer samples to "
        "learn from",
    )
    image_size: OptionalInt = Field(
        None,
        ge=1,
        description="side to resize images to; none: that of the first image, which others then "
        "have to have [pixels]; more: finer images, slower with its square",
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="what an unusable item does: stop the run, or be named and counted"
    )

    target: str | None = Field(None, description="the column that is to be predicted")
    task: Literal["auto", "classes", "numbers"] = Field(
        "auto", description="what the target is; auto: numbers where some are not whole"
    )
    ignore: Names = Field((), description="columns to leave out, separated by commas")
    delimiter: str | None = Field(
        None,
        description="what stands between the columns of csv; found in the first lines if not given",
    )
    idle_seconds: OptionalFloat = Field(
        None,
        gt=0,
        description="seconds without new rows that end a watched folder; none: never [seconds]; "
        "more: waits longer for new files",
    )

    teacher: TeacherName = Field("residual", description="the function that labels the samples")
    features: int = Field(
        100,
        ge=1,
        le=100_000,
        description="width of a teacher's sample [features]; more: a harder task",
    )
    outputs: int = Field(
        1,
        ge=1,
        le=10_000,
        description="numbers of a teacher's target [numbers]; more: more to answer for each sample",
    )
    hidden: int = Field(
        2,
        ge=0,
        le=64,
        description="residual blocks of the teacher [blocks]; more: a harder function",
    )
    width: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description="width of the teacher's blocks, or its keys [units]; more: a harder function",
    )
    kappa: float = Field(
        6.0,
        gt=0,
        le=500,
        description="largest logit of a softmax teacher [logit]; more: a sharper, harder function",
    )
    inputs: InputName = Field("sphere", description="samples of length 1, or standard normal ones")
    noise: float = Field(
        0.0,
        ge=0,
        description="deviation added to the targets to learn from [units of the target]; more: a "
        "harder task: the errors that remain rise with it",
    )
    test: int = Field(
        2000,
        ge=0,
        le=10_000_000,
        description="samples of the held-out test [samples]; more: a surer test; slower",
    )
    seed: OptionalInt = Field(
        None, ge=0, lt=2**63, description="seed of teacher and samples; none: the run's [number]"
    )

    @model_validator(mode="before")
    @classmethod
    def _records_go_on(cls, given: Any) -> Any:
        """Bad rows of a stream do not stop it, unless that is asked for."""
        if isinstance(given, dict) and given.get("kind") in RECORD_KINDS:
            return {"on_error": "skip", **given}
        return given

    @model_validator(mode="after")
    def _keys_fit_kind(self) -> Self:
        known = keys_of_data(self.kind)
        for key in sorted(self.model_fields_set - known):
            if getattr(self, key) != _default_of(self, key):
                raise ValueError(
                    f"data.{key} means nothing for data={self.kind}, which takes "
                    f"{', '.join(sorted(known - {'kind'}))}"
                )
        for key, teachers in _TEACHERS_WITH.items():
            fields = type(self).model_fields
            if self.teacher not in teachers and getattr(self, key) != fields[key].default:
                raise ValueError(
                    f"data.{key} means nothing for data.teacher={self.teacher}; leave it out, or "
                    f"set data.teacher={teachers[0]}"
                )
        if self.experiences is not None and self.order not in ("classes", "domains"):
            raise ValueError(
                f"data.experiences={self.experiences} means nothing for data.order={self.order}; "
                "set data.order=classes or data.order=domains"
            )
        if self.domain is not None and self.order != "domains":
            raise ValueError(
                f"data.domain={self.domain} means nothing for data.order={self.order}; set "
                "data.order=domains"
            )
        if self.order == "domains" and (self.domain is None or self.experiences is None):
            raise ValueError(
                "data.order=domains needs to know which and how many; set data.experiences=5, say, "
                "and data.domain=permute, rotate, brightness or noise"
            )
        return self


def _default_of(settings: DataSettings, key: str) -> Any:
    return type(settings).model_fields[key].default


OptionalPath = Annotated[Path | None, BeforeValidator(none_word)]


class StreamSettings(Settings):
    """How samples and their labels come."""

    delay: int = Field(
        0,
        ge=0,
        le=100_000_000,
        description="samples by which a label comes later than its sample [samples]; more: answers "
        "are given by what was known longer ago",
    )
    predictions: OptionalPath = Field(
        None, description="a new file that every answer is written to, one JSON object a line"
    )

    @field_validator("predictions")
    @classmethod
    def _is_a_file(cls, place: Path | None) -> Path | None:
        if place is not None and str(place) in ("-", ".", ""):
            raise ValueError(
                f"stream.predictions={place} cannot be used: answers go to a file, which a resumed "
                "run cuts back to what it had committed; name one, such as answers.jsonl"
            )
        return place


class EvaluationSettings(Settings):
    """What is measured."""

    window: int = Field(
        1000,
        ge=1,
        le=10_000_000,
        description="samples of the windowed accuracy or error [samples]; more: a smoother curve, "
        "slower to show changes",
    )
    abstain: OptionalFloat = Field(
        None,
        gt=0,
        le=1,
        description="probability below which an answer counts as withheld, for the coverage and "
        "the accuracy of the others; none: not counted [probability]; more: fewer answers, "
        "surer ones",
    )
    test: bool = Field(True, description="score the held-out test set at the end")
    matrix: bool = Field(
        True,
        description="score held-out samples of all experiences whenever one was learnt, with "
        "data.order=classes or domains",
    )
    matrix_samples: OptionalInt = Field(
        500,
        ge=1,
        description="at most so many for each group; none: all [samples]; more: surer figures; "
        "slower",
    )
    linearise: bool = Field(
        False, description="with 1 + x for e^x in growing layers, after learning with e^x"
    )


class CheckpointSettings(Settings):
    """When commits are made, beside those at a stop and at the end."""

    every_seconds: float = Field(
        30.0,
        gt=0,
        description="seconds between commits [seconds]; more: less is written; more is learnt "
        "again after a crash",
    )
    every_steps: OptionalInt = Field(
        None,
        ge=1,
        description="also every so many mini-batches; none: by time alone [mini-batches]; more: "
        "less is written; more is learnt again after a crash",
    )
    keep: int = Field(
        1,
        ge=1,
        le=10_000,
        description="newest commits that can be gone back to [commits]; more: more to go back to; "
        "a little more disk",
    )


def _place(value: object) -> RunPath:
    """The folder that a setting names, or a place in an object store."""
    if not isinstance(value, (str, Path, ObjectPath)):
        raise ValueError(f"run.dir={value} cannot be used: it is no path")
    return resolve(value)


class RunSettings(Settings):
    """Where the run is kept."""

    dir: Annotated[RunPath, PlainValidator(_place), PlainSerializer(str)] = Field(
        Path("runs"), description="folder of runs, made if missing, or s3://BUCKET/FOLDER"
    )
    name: str | None = Field(
        None, description="name of the run's folder; none: made of scenario and time"
    )


class Scenario(LearnerSettings):
    """A whole run: learner, data, evaluation, drift, checkpoints."""

    name: str = Field("custom", description="name of the scenario, shown and kept with the run")
    summary: str = Field("", description="what the scenario is, in a line")
    data: Annotated[DataSettings, BeforeValidator(bare_kind)] = DataSettings()
    stream: StreamSettings = StreamSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    drift: DriftSettings = DriftSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    run: RunSettings = RunSettings()

    @model_validator(mode="after")
    def _can_be_linearised(self) -> Self:
        if self.evaluation.linearise and not self.any_grows():
            raise ValueError(
                f"evaluation.linearise=true means nothing for learner={self.learner.kind} without "
                "growing layers; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _can_answer_drift(self) -> Self:
        action = self.drift.action
        if action == "none":
            return self
        if self.drift.detector == "none":
            raise ValueError(
                f"drift.action={action} means nothing for drift.detector=none; set "
                "drift.detector=adwin, or drift.action=none"
            )
        if not (self.any_grows() or (action == "forget" and self.solves())):
            raise ValueError(
                f"drift.action={action} means nothing for learner={self.learner.kind} without "
                "growing layers; set drift.action=none"
            )
        if action == "forget" and getattr(self.learner, "revisit", "append") == "update":
            raise ValueError(
                "drift.action=forget drops tuples, and learner.revisit=update needs those of "
                "earlier epochs; set learner.revisit=append, or drift.action=boost"
            )
        return self

    def learner_settings(self) -> LearnerSettings:
        """The part that a learner is built from."""
        names = set(LearnerSettings.model_fields)
        return LearnerSettings.model_validate(
            {name: getattr(self, name) for name in names}, from_attributes=True
        )
