"""The schema of a scenario: the learner's settings, and the data, checkpoints and run around it."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from streamlearn.sections import OptionalInt, Settings, bare_kind
from streamlearn.settings import LearnerSettings
from streamlearn.storage.objects import ObjectPath, RunPath, resolve

__all__ = [
    "CheckpointSettings",
    "DataSettings",
    "EvaluationSettings",
    "RunSettings",
    "Scenario",
]

DataKind = Literal["cifar10", "cifar100", "mnist", "fashion", "folder", "digits", "river", "npz"]

_KEYS_OF_KIND: dict[str, frozenset[str]] = {
    "cifar10": frozenset({"root", "download"}),
    "cifar100": frozenset({"root", "download"}),
    "mnist": frozenset({"root", "download"}),
    "fashion": frozenset({"root", "download"}),
    "folder": frozenset({"root", "path", "image_size", "holdout"}),
    "digits": frozenset({"holdout"}),
    "river": frozenset({"name", "holdout"}),
    "npz": frozenset({"path", "holdout", "image_size"}),
}
_KEYS_OF_EVERY_KIND = frozenset(
    {"kind", "order", "limit", "on_error", "epochs", "augment", "validation"}
)


class DataSettings(Settings):
    """Where samples come from and in which order."""

    kind: DataKind = "digits"
    root: Path | None = Field(None, description="folder of the data set's files")
    path: Path | None = Field(None, description="a zip file, folder or .npz file")
    name: str | None = Field(None, description="a data set that river bundles, such as Shuttle")
    download: bool = Field(True, description="may be downloaded where it is not found")
    order: Literal["shuffled", "given"] = Field(
        "shuffled", description="shuffled by seed, or as is"
    )
    limit: OptionalInt = Field(None, ge=1, description="learn only this many samples of the order")
    epochs: int = Field(1, ge=1, le=100_000, description="passes over these samples")
    augment: Literal["none", "paper"] = Field(
        "none", description="paper: images are shifted by up to 4 pixels and flipped, every epoch"
    )
    holdout: float = Field(0.2, ge=0, lt=1, description="share held out where there is no test set")
    validation: float = Field(
        0.0, ge=0, lt=1, description="share of the training part that is scored at the end instead "
        "of the test set, and not learnt: to choose settings by"
    )  # fmt: skip
    image_size: OptionalInt = Field(None, ge=1, description="side to resize images to, pixels")
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="what an unusable item does: stop the run, or be named and counted"
    )

    @model_validator(mode="after")
    def _keys_fit_kind(self) -> Self:
        known = _KEYS_OF_KIND[self.kind] | _KEYS_OF_EVERY_KIND
        for key in sorted(self.model_fields_set - known):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(
                    f"data.{key} means nothing for data={self.kind}, which takes "
                    f"{', '.join(sorted(known - {'kind'}))}"
                )
        return self


class EvaluationSettings(Settings):
    """What is measured."""

    window: int = Field(1000, ge=1, le=10_000_000, description="samples of the windowed accuracy")
    test: bool = Field(True, description="score the held-out test set at the end")
    linearise: bool = Field(
        False, description="with 1 + x for e^x in growing layers, after learning with e^x"
    )


class CheckpointSettings(Settings):
    """When commits are made, beside those at a stop and at the end."""

    every_seconds: float = Field(30.0, gt=0, description="seconds between commits")
    every_steps: OptionalInt = Field(None, ge=1, description="also every so many mini-batches")
    keep: int = Field(1, ge=1, le=10_000, description="newest commits that can be gone back to")


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
    name: str | None = Field(None, description="of the run's folder; made of scenario and time")


class Scenario(LearnerSettings):
    """A whole run: learner, data, evaluation, checkpoints."""

    name: str = "custom"
    summary: str = ""
    data: Annotated[DataSettings, BeforeValidator(bare_kind)] = DataSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
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

    def learner_settings(self) -> LearnerSettings:
        """The part that a learner is built from."""
        names = set(LearnerSettings.model_fields)
        return LearnerSettings.model_validate(
            {name: getattr(self, name) for name in names}, from_attributes=True
        )
