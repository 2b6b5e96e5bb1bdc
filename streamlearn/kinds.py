"""The kinds of learners and what each can be told: the section `learner` of the settings."""

import contextlib
import re
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from streamlearn.hardware import DeviceName, DtypeName
from streamlearn.losses import LossName
from streamlearn.sections import OptionalBool, OptionalFloat, OptionalInt, Settings, none_word

__all__ = [
    "COMMON",
    "LINEAR_OPTIMIZERS",
    "NETWORK_KINDS",
    "NETWORK_SECTIONS",
    "DiscriminantSettings",
    "FeaturesSettings",
    "GrowingSettings",
    "KNNSettings",
    "KernelSettings",
    "KindSettings",
    "ParametricSettings",
    "RidgeSettings",
    "TrainingSettings",
]


class TrainingSettings(Settings):
    """What learners of every kind share: batches, loss and hardware."""

    batch: int = Field(
        64,
        ge=1,
        le=65536,
        description="samples scored, then learnt, at once [samples]; more: faster, by larger "
        "matrix products; samples of a batch do not learn from each other",
    )
    loss: LossName = Field(
        "auto", description="auto: cross-entropy for classes, squared error for numbers"
    )
    scale_targets: OptionalBool = Field(
        None,
        description="standardise targets that are numbers by those that the encoder is fitted on; "
        "none: true for such targets",
    )
    dtype: DtypeName = Field("auto", description="of keys and values; auto: bfloat16 where fast")
    device: DeviceName = Field(
        "auto", description="where to compute; auto: CUDA where there is one"
    )
    cold_start: Literal["online", "chance"] = Field(
        "online", description="how samples are scored until the encoder is fitted"
    )


Revisit = Annotated[
    Literal["append", "update"],
    Field(description="what a sample of an earlier epoch does: a new tuple, or its own is updated"),
]


Rehearsal = Annotated[
    int,
    Field(
        ge=0,
        le=65536,
        description="stored samples that are learnt again with each batch, in place; 0: none "
        "[samples]; more: forgets less where classes come in turn, and is slower",
    ),
]

Rehearse = Annotated[
    Literal["uniform", "balanced", "loss"],
    Field(
        description="which these are: any stored sample alike, each class alike, or rather those "
        "on which more was lost when they were last seen"
    ),
]


LeaveOut = Annotated[
    bool,
    Field(
        description="rehearsed samples are answered without their own tuples, so that they teach "
        "what others do not know yet"
    ),
]

Adjust = Annotated[
    Literal["none", "batch"],
    Field(
        description="batch: learn as if all classes of a step were equally many, by adding the "
        "logarithm of each one's share to its output"
    ),
]


Members = Annotated[
    int,
    Field(
        ge=1,
        le=3,
        description="networks that learn records side by side and answer together [networks]; "
        "more: for classes a second one over thresholds of numbers and a third with a wide kernel, "
        "for numbers a second one that knows values which recur; so many times the time",
    ),
]


def _samples_or_bytes(value: Any) -> Any:
    """A number of samples as such; bytes, which have a unit, as they are written."""
    value = none_word(value)
    if value is None:
        return value
    text = str(value).strip()
    if re.fullmatch(r"\d+", text):
        return int(text)
    # pydantic would take no notice of what stands behind a unit.
    if isinstance(value, str) and re.fullmatch(r"[\d.]+\s*[a-zA-Z]+", text):
        with contextlib.suppress(ValidationError):
            return text if _BYTES.validate_python(text) else 0
    raise PydanticCustomError("reservoir", "give samples, such as 5000, or bytes, such as 64MiB")


_BYTES = TypeAdapter(ByteSize)

Reservoir = Annotated[
    int | str | None,
    BeforeValidator(_samples_or_bytes),
    Field(
        description="how much a network of fixed size keeps of all samples, chosen by chance, for "
        "learner.rehearsal to draw from: samples, such as 5000, or bytes, such as 64MiB; none: "
        "nothing [samples, or bytes]; more: the past comes again more evenly, and takes memory"
    ),
]


class GrowingSettings(TrainingSettings):
    """A network of growing layers; see the sections network, layer and optimizer."""

    kind: Literal["growing"] = "growing"
    revisit: Revisit = "append"
    rehearsal: Rehearsal = 0
    rehearse: Rehearse = "uniform"
    leave_out: LeaveOut = True
    adjust: Adjust = "none"
    members: Members = 1


LINEAR_OPTIMIZERS = ("foof", "mesa", "delta")
"""Optimizers that move linear layers, and leave other parameters to AdamW."""

_OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": ("momentum", "weight_decay"),
    "adam": ("weight_decay",),
    "adamw": ("weight_decay",),
    "rmsprop": ("momentum", "weight_decay"),
    "muon": ("momentum", "weight_decay", "fallback_lr"),
    "foof": ("discount", "damping", "momentum", "decay", "inverse", "iterations", "refresh",
             "fallback_lr"),
    "mesa": ("discount", "damping", "momentum", "decay", "inverse", "iterations", "refresh",
             "fallback_lr"),
    "delta": ("forget", "form", "decay", "fallback_lr"),
}  # fmt: skip
"""Which of the settings below each optimizer takes, beside its rate."""

_RATES = {
    "sgd": 0.0003,
    "adam": 0.001,
    "adamw": 0.001,
    "rmsprop": 0.0003,
    "muon": 0.01,
    "foof": 0.03,
    "mesa": 0.03,
    "delta": 0.0003,
}

OptimizerWord: TypeAlias = Literal[
    "sgd", "adam", "adamw", "rmsprop", "muon", "foof", "mesa", "delta"
]


class ParametricSettings(TrainingSettings):
    """A network of fixed size, or one that grows in part, trained by an ordinary optimizer.

    Losses are summed over a batch, so the rate of sgd is that of one sample. Settings of the
    optimizer that are not set stay as its class has them.
    """

    kind: Literal["parametric"] = "parametric"
    optimizer: OptimizerWord = Field("muon", description="how ordinary parameters are trained")
    lr: OptionalFloat = Field(
        None,
        ge=0,
        description="rate; none: one that suits the optimizer [step per unit of gradient]; more: "
        "learns faster, and diverges when it is too much",
    )
    momentum: OptionalFloat = Field(
        None,
        ge=0,
        lt=1,
        description="how much of a step goes on in the next, of sgd, rmsprop, muon, foof and mesa; "
        "none: the optimizer's own [share]; more: smoother and longer steps",
    )
    weight_decay: OptionalFloat = Field(
        None,
        ge=0,
        description="pull of weights to zero, of sgd, adam, adamw, rmsprop and muon; none: the "
        "optimizer's own [per unit of rate]; more: smaller weights: fits the past less",
    )
    decay: OptionalFloat = Field(
        None,
        ge=0,
        lt=1,
        description="each step's decay of weights, of foof, mesa and delta; none: the optimizer's "
        "own [share a step]; more: smaller weights: fits the past less",
    )
    discount: OptionalFloat = Field(
        None,
        ge=0,
        le=1,
        description="γ of foof and mesa: how much of the inputs' second moments a step keeps; "
        "none: the optimizer's own [share a step]; more: a longer and steadier estimate, "
        "slower to follow changes",
    )
    damping: OptionalFloat = Field(
        None,
        ge=0,
        description="λ of foof and mesa, added to the inputs' second moments; none: the "
        "optimizer's own [mean squared input]; more: steps become more like those of sgd",
    )
    inverse: Annotated[Literal["cholesky", "newton_schulz"] | None, BeforeValidator(none_word)] = (
        Field(
            None,
            description="how foof and mesa invert: exactly, or by Newton–Schulz iterations; none: "
            "the optimizer's own",
        )
    )
    iterations: OptionalInt = Field(
        None,
        ge=1,
        description="iterations of Newton–Schulz; none: the optimizer's own [iterations]; more: a "
        "more exact inverse; slower",
    )
    refresh: OptionalInt = Field(
        None,
        ge=1,
        description="steps of foof and mesa from one inverse to the next; none: the optimizer's "
        "own [steps]; more: faster, with older inverses",
    )
    forget: OptionalFloat = Field(
        None,
        ge=0,
        lt=2,
        description="β of delta: how much of what a layer said along an input goes first; none: "
        "the optimizer's own [share]; more: what was said before of such inputs is "
        "forgotten sooner",
    )
    form: Annotated[Literal["sequential", "batch"] | None, BeforeValidator(none_word)] = Field(
        None,
        description="of delta: the rows of a batch one after the other, or all from the weights "
        "before it; none: the optimizer's own",
    )
    fallback_lr: OptionalFloat = Field(
        None,
        ge=0,
        description="AdamW's rate of what muon, foof, mesa and delta do not move; none: the "
        "optimizer's own [AdamW's rate]; more: these parameters learn faster, and "
        "diverge when it is too much",
    )
    schedule: Literal["none", "linear", "cosine"] = Field(
        "none", description="how rates fall to zero over schedule_samples"
    )
    schedule_samples: OptionalInt = Field(
        None,
        ge=1,
        description="length of the schedule; none: that of the run's stream [samples]; more: rates "
        "fall more slowly",
    )
    revisit: Revisit = "append"
    rehearsal: Rehearsal = 0
    rehearse: Rehearse = "uniform"
    leave_out: LeaveOut = True
    adjust: Adjust = "none"
    warmup: int = Field(
        0,
        ge=0,
        description="samples over which rates rise from zero [samples]; more: a gentler start",
    )
    reservoir: Reservoir = None

    @property
    def rate(self) -> float:
        """The rate of the optimizer."""
        return _RATES[self.optimizer] if self.lr is None else self.lr

    def reservoir_samples(self, sample_bytes: int) -> int:
        """How many samples of so many bytes each are kept; 0 where none are."""
        if isinstance(self.reservoir, str):
            return int(_BYTES.validate_python(self.reservoir)) // sample_bytes
        return self.reservoir or 0

    def options(self) -> dict[str, float | int | str]:
        """The optimizer's settings that were set."""
        given = {name: getattr(self, name) for name in _OPTIONS[self.optimizer]}
        return {name: value for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        taken = _OPTIONS[self.optimizer]
        for name in sorted({name for names in _OPTIONS.values() for name in names} - set(taken)):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"learner.{name} means nothing for learner.optimizer={self.optimizer}, which "
                    f"takes lr, {', '.join(taken)}"
                )
        if self.schedule == "none" and self.schedule_samples is not None:
            raise ValueError(
                f"learner.schedule_samples={self.schedule_samples} means nothing without a "
                "schedule; set learner.schedule=linear or cosine"
            )
        if self.reservoir is not None and not self.rehearsal:
            raise ValueError(
                f"learner.reservoir={self.reservoir} keeps samples that nothing draws; set "
                "learner.rehearsal=64, say, or leave it out"
            )
        if self.reservoir == 0:
            raise ValueError(
                "learner.reservoir=0 keeps no sample to draw from; give samples or bytes, such as "
                "64MiB, or set learner.rehearsal=0 and learner.reservoir=none"
            )
        return self


class PlainSettings(TrainingSettings):
    """What learners share that are no networks."""

    normalise: bool = Field(
        False, description="bring codes to root mean square 1 first, as networks do"
    )


class KNNSettings(PlainSettings):
    """The k nearest of all samples so far vote, or their values are averaged."""

    kind: Literal["knn"] = "knn"
    k: int = Field(
        15,
        ge=1,
        le=4096,
        description="neighbours that vote [samples]; more: smoother: single odd neighbours count "
        "less",
    )
    metric: Literal["euclidean", "cosine", "dot"] = Field(
        "euclidean", description="how near is measured: distance, angle, or the inner product"
    )
    weighting: Literal["uniform", "distance", "kernel"] = Field(
        "uniform", description="votes: equal, 1/distance, or a Gaussian of it"
    )
    bandwidth: OptionalFloat = Field(
        None,
        gt=0,
        description="of the Gaussian; none: the k-th neighbour's distance [distance]; more: "
        "further neighbours count more",
    )

    @model_validator(mode="after")
    def _weighting_fits(self) -> Self:
        if self.metric == "dot" and self.weighting == "distance":
            raise ValueError(
                "learner.weighting=distance means nothing for learner.metric=dot, which has no "
                "distances; use uniform or kernel"
            )
        if self.bandwidth is not None and self.weighting != "kernel":
            raise ValueError(
                f"learner.bandwidth={self.bandwidth:g} means nothing for "
                f"learner.weighting={self.weighting}; set learner.weighting=kernel"
            )
        return self


class RidgeSettings(PlainSettings):
    """Exact ridge regression, on classes or numbers, from sums over all samples so far."""

    kind: Literal["ridge"] = "ridge"
    regularisation: float = Field(
        1.0,
        gt=0,
        description="λ, added to the sum of squares [squared input]; more: smaller weights: "
        "smoother, and slower to fit",
    )
    refresh: int = Field(
        8,
        ge=1,
        description="steps from one solution to the next while learning [steps]; more: faster, "
        "with answers by older solutions",
    )


class DiscriminantSettings(PlainSettings):
    """Linear discriminant analysis, from exact class means and their shared covariance."""

    kind: Literal["discriminant"] = "discriminant"
    shrinkage: float = Field(
        0.01,
        gt=0,
        le=1,
        description="share of a spherical covariance [share]; more: directions count more alike: "
        "steadier with few samples",
    )
    refresh: int = Field(
        8,
        ge=1,
        description="steps from one solution to the next while learning [steps]; more: faster, "
        "with answers by older solutions",
    )


class KernelSettings(PlainSettings):
    """LS-SVM: kernel ridge regression with a bias on all samples so far."""

    kind: Literal["kernel"] = "kernel"
    regularisation: float = Field(
        0.1,
        gt=0,
        description="λ, added to the kernel's diagonal [kernel]; more: smoother: single samples "
        "are fitted less",
    )
    bandwidth: OptionalFloat = Field(
        None,
        gt=0,
        description="of the Gaussian; none: the median distance of the first samples [distance]; "
        "more: smoother: further samples count",
    )
    scale: float = Field(
        1.0,
        gt=0,
        description="the bandwidth as a multiple of that median [factor]; more: smoother: further "
        "samples count",
    )
    bias: bool = Field(True, description="a constant beside the kernel, not regularised")
    first: int = Field(
        64,
        ge=1,
        description="samples at the first solution; then on doubling [samples]; more: later first "
        "answers",
    )
    limit: int = Field(
        10_000,
        ge=1,
        le=100_000,
        description="most samples; memory grows with their square [samples]; more: a longer stream "
        "fits; memory rises with the square, time with the cube",
    )


class FeaturesSettings(PlainSettings):
    """scikit-learn's SGDClassifier on random Fourier or Nystroem features."""

    kind: Literal["features"] = "features"
    map: Literal["fourier", "nystroem"] = Field(
        "fourier", description="how random features are made: Fourier's, or Nystroem's from samples"
    )
    count: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="random features [features]; more: nearer to the exact kernel; slower",
    )
    bandwidth: OptionalFloat = Field(
        None,
        gt=0,
        description="of the Gaussian; none: the median distance of the first samples [distance]; "
        "more: smoother: further samples count",
    )
    alpha: float = Field(
        1e-5,
        gt=0,
        description="SGDClassifier's regularisation [penalty]; more: smaller weights: smoother",
    )
    schedule: Literal["optimal", "constant", "invscaling"] = Field(
        "optimal", description="SGDClassifier's learning_rate"
    )
    lr: float = Field(
        0.1,
        gt=0,
        description="eta0, where the schedule is not optimal [step per unit of gradient]; more: "
        "learns faster, and diverges when it is too much",
    )


KindSettings = Annotated[
    GrowingSettings
    | ParametricSettings
    | KNNSettings
    | RidgeSettings
    | DiscriminantSettings
    | KernelSettings
    | FeaturesSettings,
    Field(discriminator="kind"),
]

COMMON = frozenset(TrainingSettings.model_fields)
"""Settings of every kind; another kind chosen by a word keeps them."""

NETWORK_KINDS = frozenset({"growing", "parametric"})
"""Kinds that are networks; others take no notice of the sections in `NETWORK_SECTIONS`."""

NETWORK_SECTIONS = frozenset({"network", "layer", "least_squares", "optimizer"})
"""Sections that describe networks and how their growing layers learn."""
