"""What a learner can be told: validated settings, each with its meaning, unit and range.

A section that has kinds (`encoder`, `layer`) may be given as the kind's bare name: `"pca"` means
`{"kind": "pca"}`, all other settings of that kind at their defaults.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from streamlearn.errors import ConfigError
from streamlearn.hybrid import Train
from streamlearn.kinds import (
    LINEAR_OPTIMIZERS,
    NETWORK_KINDS,
    GrowingSettings,
    KindSettings,
    ParametricSettings,
)
from streamlearn.losses import LossName
from streamlearn.sections import (
    OptionalFloat,
    OptionalInt,
    Settings,
    bare_kind,
    explain,
    kind_or,
    none_word,
)

__all__ = [
    "DecoupledSettings",
    "EncoderSettings",
    "GaugeSettings",
    "LayerSettings",
    "LearnerSettings",
    "LeastSquaresSettings",
    "LinearSettings",
    "MLPSettings",
    "MemorySettings",
    "NetworkSettings",
    "OptimizerSettings",
    "PCASettings",
    "ParametricSoftmaxSettings",
    "PatchSettings",
    "RBFSettings",
    "SoftmaxSettings",
    "StandardiseSettings",
    "TorchvisionSettings",
    "UnweightedSettings",
    "ViTSettings",
    "settings_of",
]


def byte_words(value: Any) -> Any:
    """Bytes as a number and a unit; pydantic would take no notice of what stands behind them."""
    value = none_word(value)
    if isinstance(value, str) and not re.fullmatch(r"\s*[\d.]+\s*[a-zA-Z]*\s*", value):
        raise PydanticCustomError("byte_size", "no number of bytes")
    return value


def byte_count(value: Any) -> Any:
    """The same as a whole number, where that is what the words mean."""
    words = byte_words(value)
    if not isinstance(words, str):
        return words
    try:
        return int(TypeAdapter(ByteSize).validate_python(words))
    except ValidationError:
        raise PydanticCustomError("byte_size", "no number of bytes") from None


Budget = Annotated[ByteSize | None, BeforeValidator(byte_words)]
Thumbnails = Annotated[int | None, BeforeValidator(byte_count)]
Fit = Annotated[
    int,
    Field(
        ge=1,
        le=1_000_000,
        description="samples at the start of the stream to fit on; they are held back, scored by "
        "an online fallback, then learnt [samples]; more: a better encoder, fitted later",
    ),
]
Whiten = Annotated[
    float,
    Field(
        ge=0,
        le=2,
        description="whitening, 0 none, 1 unit variance [exponent]; more: weak directions, and "
        "noise, count more",
    ),
]
Floor = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="share of the largest variance added before whitening [share]; more: weak "
        "directions are amplified less",
    ),
]


class StandardiseSettings(Settings):
    """Zero mean and unit variance, flattened."""

    kind: Literal["standardise"] = "standardise"
    fit: Fit = 2048
    per: Literal["feature", "channel"] = Field(
        "feature", description="statistics of each feature, or of each channel of an image"
    )
    clip: float = Field(
        10.0,
        gt=0,
        description="bound of a standardised value [standard deviations]; more: outliers reach "
        "further",
    )
    constant: float = Field(
        1.0,
        ge=0,
        description="a constant column beside the features; keeps their length; 0: none [standard "
        "deviations]; more: samples look more alike, and the length of their features "
        "counts beside the direction",
    )


class PCASettings(Settings):
    """Projection on whitened principal components."""

    kind: Literal["pca"] = "pca"
    fit: Fit = 2048
    width: int = Field(
        256,
        ge=1,
        description="components kept: the width of keys [features]; more: keeps more of the input; "
        "memory and time rise with it",
    )
    whiten: Whiten = 1.0
    floor: Floor = 0.01
    standardise: bool = Field(False, description="divide each feature by its deviation first")
    shifts: int = Field(
        0,
        ge=0,
        le=8,
        description="images are also seen moved, so many times each way along each side, and "
        "answers averaged over these views [moves]; more: answers change less when the image "
        "moves; time rises with (2 shifts + 1)²",
    )
    stride: int = Field(
        2, ge=1, description="how far a move goes [pixels]; more: views are less alike"
    )
    mirror: bool = Field(
        False, description="images, and their moved views, are also seen flipped left to right"
    )

    @property
    def has_views(self) -> bool:
        """Whether an image is encoded more than once."""
        return self.shifts > 0 or self.mirror


class PatchSettings(Settings):
    """Whitened patches as filters, pooled, then whitened principal components: for images."""

    kind: Literal["patch"] = "patch"
    fit: Fit = 2048
    width: int = Field(
        512,
        ge=1,
        description="components kept: the width of keys [features]; more: keeps more of the image; "
        "memory and time rise with it",
    )
    whiten: Whiten = 1.0
    floor: Floor = 0.01
    filters: int = Field(
        200,
        ge=1,
        description="random patches used as filters [filters]; more: better features, from a "
        "slower encoder",
    )
    patch: int = Field(
        6, ge=1, description="side of a patch [pixels]; more: filters see larger structures"
    )
    pool: int = Field(
        3,
        ge=1,
        description="cells along each side in which responses are averaged [cells a side]; more: "
        "keeps where things are; features rise with its square",
    )
    bias: float = Field(
        0.5,
        ge=0,
        description="what a filter's response must exceed to count [response]; more: fewer filters "
        "answer to a patch, those that match best",
    )
    contrast: float = Field(
        10.0,
        gt=0,
        description="added to a patch's variance [(1/255)²]; more: flat patches count "
        "less beside textured ones",
    )
    zca: float = Field(
        0.1,
        gt=0,
        description="added to the patches' covariance before whitening [variance]; more: fine "
        "detail and noise are amplified less",
    )
    power: float = Field(
        0.5,
        gt=0,
        le=2,
        description="exponent of pooled features [exponent]; more: strong responses count more "
        "beside weak ones",
    )
    mirror: bool = Field(True, description="features that do not change when the image is flipped")


class TorchvisionSettings(Settings):
    """A frozen torchvision backbone with the user's own weights, then whitened components."""

    kind: Literal["torchvision"] = "torchvision"
    fit: Fit = 2048
    model: str = Field("resnet18", description="name of a torchvision classification model")
    weights: Path = Field(
        description="file of the backbone's state_dict, .pth (weights only) or .safetensors"
    )
    image_size: int = Field(
        224,
        ge=8,
        description="images are resized to this side [pixels]; more: finer images, slower "
        "with its square",
    )
    width: int = Field(
        512,
        ge=1,
        description="components kept: the width of keys [features]; more: keeps more of the image; "
        "memory and time rise with it",
    )
    whiten: Whiten = 1.0
    floor: Floor = 0.01


EncoderSettings = Annotated[
    StandardiseSettings | PCASettings | PatchSettings | TorchvisionSettings,
    Field(discriminator="kind"),
]


class _Rates(Settings):
    lr_value: float = Field(
        0.2,
        ge=0,
        description="rate η_v at which the output layer's values are written [step per unit of "
        "gradient]; more: learns faster from each sample, and overshoots when it is too "
        "much",
    )
    lr_value_hidden: float = Field(
        0.1,
        ge=0,
        description="rate η_v at which the hidden layers' values are written [step per unit of "
        "gradient]; more: hidden layers change faster; too much makes them unstable",
    )
    gate: OptionalFloat = Field(
        None,
        gt=0,
        description="τ, how far a new tuple's key must be from all that its layer has, at most "
        "twice √D, the length of keys [distance]; more: fewer come in; none: all do",
    )
    nearest: Literal["exact", "approximate"] = Field(
        "exact",
        description="how the gate finds the nearest key: exactly, or approximately by the package "
        "usearch, which is for more than some 500,000 tuples and may let in what is near",
    )
    refused: Literal["drop", "nearest"] = Field(
        "drop", description="what a refused tuple does: nothing, or it is added to the nearest one"
    )


class _Start(_Rates):
    kappa: float = Field(
        6.0,
        gt=0,
        description="largest logit κ = √D/T of the softmax; 4 to 8 work [logit]; more: only nearer "
        "tuples count: sharper, more like the nearest neighbour",
    )
    temperature: OptionalFloat = Field(
        None,
        gt=0,
        description="T as in the paper, by which logits are divided; instead of kappa, κ = √D/T; "
        "none: by kappa [divisor]; more: more tuples count: smoother answers",
    )
    start_rows: int = Field(
        16,
        ge=1,
        description="random keys that a layer starts from [tuples]; more: a more even start",
    )
    start_values: Literal["zero", "random"] = Field(
        "zero", description="values of the starting keys: none, or random ones"
    )


class SoftmaxSettings(_Start):
    """Weighted softmax, negative weights clipped."""

    kind: Literal["softmax"] = "softmax"
    lr_weight: float = Field(
        0.003,
        ge=0,
        description="rate η_w at which the output layer's weights are written [step per unit of "
        "⟨s, g⟩]; more: answers that were too large are pulled back more",
    )
    lr_weight_hidden: float = Field(
        0.003,
        ge=0,
        description="rate η_w at which the hidden layers' weights are written [step per unit of "
        "⟨s, g⟩]; more: hidden answers that were too large are pulled back more",
    )
    bound: OptionalFloat = Field(
        None,
        gt=0,
        description="limit of |⟨s, g⟩| in a weight; none: no limit [⟨s, g⟩]; more: rare, very "
        "wrong answers may write heavier tuples",
    )


class GaugeSettings(_Start):
    """Weighted softmax with gauge-invariant, always positive weights."""

    kind: Literal["gauge"] = "gauge"
    lr_weight: float = Field(
        0.003,
        ge=0,
        description="rate η of the output layer's weights [step per unit of gradient]; more: "
        "heavier new tuples, which dilute older ones",
    )
    lr_weight_hidden: float = Field(
        0.0003,
        ge=0,
        description="rate η of the hidden layers' weights [step per unit of gradient]; more: "
        "heavier new tuples, which dilute older ones",
    )
    alpha: float = Field(
        1.0,
        gt=0,
        description="gauge offset α: weights are η α ‖g‖ [factor]; more: weights rise with it and "
        "values with its square: new tuples dilute older ones",
    )


class RBFSettings(_Rates):
    """Radial basis functions, unnormalised: value rates are about e^κ larger than for softmax."""

    kind: Literal["rbf"] = "rbf"
    lr_value: float = Field(
        3.0,
        ge=0,
        description="rate η_v at which the output layer's values are written [step per unit of "
        "gradient]; more: learns faster from each sample, and overshoots when it is too "
        "much",
    )
    lr_value_hidden: float = Field(
        30.0,
        ge=0,
        description="rate η_v at which the hidden layers' values are written [step per unit of "
        "gradient]; more: hidden layers change faster; too much makes them unstable",
    )
    gamma: float = Field(
        3.0,
        gt=0,
        description="γ in exp(−γ‖k − q‖²/D); κ/2 is softmax's kernel [1 / mean squared distance]; "
        "more: only nearer tuples count; far from all of them the answer is 0",
    )


class LinearSettings(_Rates):
    """The linear layer's dual form: SGD on a weight matrix, kept as samples."""

    kind: Literal["linear"] = "linear"
    lr_value: float = Field(
        0.0003,
        ge=0,
        description="rate η at which the output layer's values are written [step per unit of "
        "gradient]; more: learns faster, and diverges when it is too much",
    )
    lr_value_hidden: float = Field(
        0.00003,
        ge=0,
        description="rate η at which the hidden layers' values are written [step per unit of "
        "gradient]; more: hidden layers change faster, and diverge when it is too much",
    )


class DecoupledSettings(SoftmaxSettings):
    """Weighted softmax whose writes are divided by the old normaliser."""

    kind: Literal["decoupled"] = "decoupled"  # type: ignore[assignment]


class UnweightedSettings(_Start):
    """The ordinary softmax, grown all the same: a negative control."""

    kind: Literal["unweighted"] = "unweighted"
    lr_value: float = Field(
        10.0,
        ge=0,
        description="rate η_v at which the output layer's values are written [step per unit of "
        "gradient]; more: learns faster from each sample, and overshoots when it is too "
        "much",
    )
    lr_value_hidden: float = Field(
        1.0,
        ge=0,
        description="rate η_v at which the hidden layers' values are written [step per unit of "
        "gradient]; more: hidden layers change faster; too much makes them unstable",
    )


class ParametricSoftmaxSettings(Settings):
    """A softmax layer of fixed width, whose keys, values and weights are trained parameters."""

    kind: Literal["parametric-softmax"] = "parametric-softmax"
    width: int = Field(
        5000,
        ge=1,
        description="keys of a layer [keys]; more: learns more; memory and time rise with it",
    )
    weighted: bool = Field(True, description="a trained weight beside each key")
    kappa: float = Field(
        6.0,
        gt=0,
        description="largest logit of keys at their start, √D/T [logit]; more: only nearer keys "
        "count: sharper answers",
    )
    temperature: OptionalFloat = Field(
        None,
        gt=0,
        description="T as in the paper, by which logits are divided; instead of kappa; none: by "
        "kappa [divisor]; more: more keys count: smoother answers",
    )


LayerSettings = Annotated[
    SoftmaxSettings
    | GaugeSettings
    | RBFSettings
    | LinearSettings
    | DecoupledSettings
    | UnweightedSettings
    | ParametricSoftmaxSettings,
    Field(discriminator="kind"),
]

_WEIGHTED = ("softmax", "gauge", "decoupled")
"""Layers whose tuples have weights that may be trained."""

Layers = Annotated[
    Literal["growing", "dense", "mixed"] | None,
    BeforeValidator(none_word),
    Field(
        description="growing: those of the section layer; dense: ordinary ones; mixed: the first "
        "`network.growing` hidden ones as the section layer says, the others dense; none: what "
        "suits the learner"
    ),
]


Output = Annotated[Literal["growing", "dense", "least-squares"] | None, BeforeValidator(none_word)]


class MLPSettings(Settings):
    """Residual layers and an output layer, each behind RMSNorm."""

    kind: Literal["mlp"] = "mlp"
    hidden: int = Field(
        1,
        ge=0,
        le=64,
        description="residual layers before the output layer [layers]; more: deeper features; "
        "every growing layer stores tuples of its own, so memory and time rise with it",
    )
    layers: Layers = None
    growing: int = Field(
        1,
        ge=0,
        description="hidden layers that grow, where layers are mixed [layers]; more: more layers "
        "remember samples, fewer are trained",
    )
    output: Output = Field(
        None,
        description="the output layer; least-squares: a bounded number of samples whose values are "
        "solved for, see least_squares; none: as layers say, dense where they are mixed",
    )
    width: int = Field(
        512,
        ge=1,
        description="width of the inner layer of a dense layer [units]; more: more can be learnt; "
        "slower",
    )
    activation: Literal["gelu", "relu", "silu", "tanh"] = Field(
        "gelu", description="what stands between the two matrices of a dense layer"
    )


class ViTSettings(Settings):
    """A vision transformer over the pixels: `encoder=standardise encoder.constant=0`."""

    kind: Literal["vit"] = "vit"
    hidden: int = Field(
        4,
        ge=0,
        le=64,
        description="blocks of attention and feed-forward layer [blocks]; more: deeper features; "
        "memory and time rise with it",
    )
    layers: Layers = None
    growing: int = Field(
        1,
        ge=0,
        description="feed-forward layers that grow, where mixed [layers]; more: more layers "
        "remember samples, fewer are trained",
    )
    output: Output = Field(
        "dense", description="the output layer, as for network=mlp; none: as layers say"
    )
    patch: int = Field(
        8, ge=1, description="side of a patch [pixels]; more: fewer, coarser tokens: faster"
    )
    width: int = Field(
        128, ge=1, description="width of a token [features]; more: more can be learnt; slower"
    )
    heads: int = Field(
        4,
        ge=1,
        description="heads of attention, which share the width [heads]; more: more places are "
        "looked at at once, each by narrower features",
    )
    inner: int = Field(
        512,
        ge=1,
        description="width of the inner layer of a dense feed-forward one [units]; more: more can "
        "be learnt; slower",
    )
    activation: Literal["gelu", "relu", "silu", "tanh"] = Field(
        "gelu", description="what stands between the two matrices of a dense feed-forward layer"
    )

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"network.heads={self.heads} does not divide network.width={self.width}; choose a "
                "width that is a multiple of the heads"
            )
        return self


NetworkSettings = Annotated[MLPSettings | ViTSettings, Field(discriminator="kind")]


class LeastSquaresSettings(Settings):
    """The output layer of `network.output=least-squares`: kernel recursive least squares."""

    keys: int = Field(
        2000,
        ge=1,
        le=50_000,
        description="the most samples that are kept as keys [tuples]; more: more exact; memory "
        "rises with the square, 4 keys² bytes (8 in float64), and six times that while it solves",
    )
    kappa: float = Field(
        1.5,
        gt=0,
        description="sharpness of the kernel on normalised codes [exponent]; more: answers are "
        "more local, and more keys are needed",
    )
    regularisation: float = Field(
        0.1, gt=0, description="λ, added to the sum of squares [samples]; more: smoother answers"
    )
    discount: float = Field(
        1.0,
        gt=0,
        le=1,
        description="what all samples so far count for after each step [share]; more: old samples "
        "count longer; below 1 for streams that drift",
    )
    gate: float = Field(
        1e-3,
        ge=0,
        lt=1,
        description="the least share of a new key that no combination of the others spans [share]; "
        "more: fewer keys",
    )
    refresh: float = Field(
        0.1,
        ge=0,
        le=1,
        description="values are solved for anew once this share of all samples is new [share]; "
        "more: faster, answers lag behind",
    )
    again: float = Field(
        0.0,
        ge=0,
        le=1,
        description="what rehearsed samples count for in the sums [samples]; more: sums follow the "
        "features that hidden layers give old samples now",
    )
    dtype: Literal["float32", "float64"] = Field(
        "float32", description="of the sums; float64 takes twice the memory"
    )


class OptimizerSettings(Settings):
    """How what was written counts later."""

    momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="momentum μ, exact, by birth step [share a step]; more: a write goes on in the "
        "steps after it, and counts up to 1/(1 − μ) times",
    )
    decay: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay γ of what was written, for each step [share a step]; more: older tuples "
        "fade sooner: follows changes better, forgets more",
    )
    train: Train = Field(
        "none",
        description="what AdamW trains of stored tuples while new ones are added; all: keys too",
    )
    lr: float = Field(
        0.001, ge=0, description="AdamW's rate of values [rate]; more: stored values move further"
    )
    lr_weight: OptionalFloat = Field(
        None,
        ge=0,
        description="AdamW's rate of weights, none: that of values [rate]; more: they move further",
    )
    lr_key: OptionalFloat = Field(
        None,
        ge=0,
        description="AdamW's rate of keys, none: that of values [rate]; more: they move further",
    )
    beta1: float = Field(
        0.9, ge=0, lt=1, description="what is kept of the mean gradient [share]; more: steadier"
    )
    beta2: float = Field(
        0.999,
        ge=0,
        lt=1,
        description="the same of the mean squared gradient [share]; more: steadier",
    )
    weight_decay: float = Field(
        0.0, ge=0, description="λ of values, decoupled [share a rate]; more: smaller values"
    )
    every: int = Field(
        1, ge=1, description="steps from one update to the next [steps]; more: faster, less trained"
    )

    @model_validator(mode="after")
    def _trains(self) -> Self:
        if self.train == "none":
            named = ("lr", "lr_weight", "lr_key", "beta1", "beta2", "weight_decay", "every")
            for name in named:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"optimizer.{name}={getattr(self, name)} means nothing where no tuple is "
                        "trained; set optimizer.train=values, weights+values or all"
                    )
        if self.train != "all" and self.lr_key is not None:
            raise ValueError(
                f"optimizer.lr_key={self.lr_key} means nothing for optimizer.train={self.train}; "
                "set optimizer.train=all"
            )
        if self.train == "values" and self.lr_weight is not None:
            raise ValueError(
                f"optimizer.lr_weight={self.lr_weight} means nothing for optimizer.train=values; "
                "set optimizer.train=weights+values or all"
            )
        return self


class MemorySettings(Settings):
    """How tuples are kept."""

    block_rows: OptionalInt = Field(
        None,
        ge=512,
        multiple_of=512,
        description="tuples in a block, which is a shard on disk; by their width if not given; "
        "below 32,768 it changes last bits of answers to single samples [tuples]; more: fewer, "
        "larger files, and more bytes written again at a commit",
    )
    rows: OptionalInt = Field(
        None,
        ge=1,
        description="the most tuples of a growing layer, starting rows counted; once it is full, "
        "new ones take the place of others; none: all stay [tuples]; more: "
        "remembers longer; memory and time rise until it is full",
    )
    budget: Budget = Field(
        None,
        gt=0,
        description="memory of the whole learner, encoder, parameters, sums and tuples, such as "
        "64MiB; it says memory.rows [bytes]; more: remembers longer",
    )
    policy: Literal["oldest", "newest", "balanced", "least", "merge"] = Field(
        "oldest",
        description="whose tuples go once there is no room: the oldest samples'; the newest, so "
        "that none come in and layers stay as they are, unless rehearsed; those of the classes "
        "that have most, of each the oldest; those that count for least; or those that are missed "
        "least once they are merged into their nearest ones",
    )
    keys: Literal["plain", "int8"] = Field(
        "plain",
        description="how growing layers keep keys: plain, as learner.dtype says; or int8, a byte a "
        "number with a scale a row, which takes half the bytes of bfloat16",
    )
    thumbnails: Thumbnails = Field(
        None,
        ge=64,
        le=65536,
        description="room beside each tuple for a thumbnail of its sample, such as 1KiB, with its "
        "label, so that explain shows samples whose data has gone: the largest picture that fits, "
        "or its record or numbers as JSON, cut where it is longer; none: no thumbnails [bytes]; "
        "more: finer pictures and longer records; memory and disk rise with it",
    )
    device_budget: Budget = Field(
        None,
        gt=0,
        description="bytes for tuples on the device, such as 8GiB; others pass through; none: as "
        "many as come [bytes]; more: more stays on the device: faster",
    )
    host_budget: Budget = Field(
        None,
        gt=0,
        description="bytes for tuples in host memory, such as 2GiB; others stay on disk; none: as "
        "many as come [bytes]; more: less is read from the disk at every step: faster",
    )


class LearnerSettings(Settings):
    """All that a learner is made of."""

    seed: int = Field(
        0,
        ge=0,
        lt=2**63,
        description="seed of starting rows, filters and stream order: the same one gives the same "
        "bits [number]",
    )
    encoder: Annotated[
        EncoderSettings,
        BeforeValidator(bare_kind),
        Field(description="what turns a sample into the code that is learnt from"),
    ] = StandardiseSettings()
    network: Annotated[
        NetworkSettings,
        BeforeValidator(kind_or("mlp")),
        Field(description="how layers are put together"),
    ] = MLPSettings()
    layer: Annotated[
        LayerSettings,
        BeforeValidator(bare_kind),
        Field(description="how a growing layer answers out of its tuples, and writes new ones"),
    ] = SoftmaxSettings()
    least_squares: LeastSquaresSettings = Field(
        LeastSquaresSettings(), description="the output layer whose values are solved for"
    )
    optimizer: OptimizerSettings = OptimizerSettings()
    learner: Annotated[
        KindSettings,
        BeforeValidator(kind_or("growing")),
        Field(description="what learns behind the encoder"),
    ] = GrowingSettings()
    memory: MemorySettings = MemorySettings()

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        kind = self.learner.kind
        self._check_views()
        self._check_memory()
        self._check_hybrid()
        if kind not in NETWORK_KINDS:
            return self
        by_gradient = self.layer.kind == "parametric-softmax"
        if kind == "growing" and by_gradient:
            raise ValueError(
                f"layer={self.layer.kind} is trained by gradients and does not grow; "
                "set learner=parametric"
            )
        if kind == "growing" and self.network.kind == "vit":
            raise ValueError(
                "network=vit has attention, which is trained by gradients; set learner=parametric, "
                "and network.layers=growing for feed-forward layers that grow"
            )
        self._check_updates()
        hidden, output = self.grows()
        self._check_mixed(hidden, output)
        if self.solves() and self.learner.loss not in ("auto", "squared_error"):
            raise ValueError(
                f"learner.loss={self.learner.loss} is not what network.output=least-squares "
                "minimises; set learner.loss=squared_error or auto"
            )
        output = output or self.solves()
        if kind == "growing" and not (output and all(hidden)):
            raise ValueError(
                f"network.layers={self.network.layers} is not made of growing layers alone; "
                "set learner=parametric, which trains the others"
            )
        grown = self.network.kind == "mlp" and output and all(hidden)
        if kind == "parametric" and not by_gradient and grown:
            raise ValueError(
                f"learner=parametric has nothing to train where all layers are {self.layer.kind} "
                "layers, which grow; set learner=growing, or network.layers=dense or mixed"
            )
        return self

    def _check_views(self) -> None:
        """Whether the network can average over views of an image."""
        encoder = self.encoder
        if not isinstance(encoder, PCASettings) or not encoder.has_views:
            return
        said = f"encoder.shifts={encoder.shifts}" if encoder.shifts else "encoder.mirror=true"
        if not (self.solves() and self.network.kind == "mlp" and not self.network.hidden):
            raise ValueError(
                f"{said} gives several views of an image, over which only an output layer of "
                "second order without hidden layers averages; set network.output=least-squares "
                "network.hidden=0, or encoder.shifts=0 encoder.mirror=false"
            )
        if self.learner.kind != "growing" or self.learner.rehearsal:
            raise ValueError(
                f"{said} gives several views of an image, which are not stored to be learnt again; "
                "set learner=growing learner.rehearsal=0, or encoder.shifts=0 encoder.mirror=false"
            )

    def _check_hybrid(self) -> None:
        """Whether there is what a gate lets in and what AdamW trains."""
        gate, refused = getattr(self.layer, "gate", None), getattr(self.layer, "refused", "drop")
        train = self.optimizer.train
        if refused != "drop" and gate is None:
            raise ValueError(
                f"layer.refused={refused} means nothing where no gate refuses; set layer.gate, or "
                "leave it out"
            )
        if getattr(self.layer, "nearest", "exact") == "approximate":
            self._check_approximate(gate)
        for said, given in ((f"layer.gate={gate}", gate is not None),
                            (f"optimizer.train={train}", train != "none")):  # fmt: skip
            if given and not self.any_grows():
                raise ValueError(
                    f"{said} is about growing layers, of which learner={self.learner.kind} has "
                    "none here; leave it out"
                )
        if refused == "nearest" and (self.optimizer.momentum or self.optimizer.decay):
            raise ValueError(
                "layer.refused=nearest needs tuples whose age does not matter; set "
                "optimizer.momentum=0 and optimizer.decay=0, or layer.refused=drop"
            )
        rehearsal: int = getattr(self.learner, "rehearsal", 0)
        if gate is not None and rehearsal:
            raise ValueError(
                f"layer.gate={gate} leaves samples without tuples of their own, which "
                "learner.rehearsal draws; set learner.rehearsal=0, or layer.gate=none"
            )
        if gate is not None and getattr(self.learner, "revisit", "append") == "update":
            raise ValueError(
                f"layer.gate={gate} leaves samples without tuples of their own, which "
                "learner.revisit=update needs; set learner.revisit=append, or layer.gate=none"
            )
        if train == "weights+values" and self.layer.kind not in _WEIGHTED:
            raise ValueError(
                f"optimizer.train={train} wants weights, and layer={self.layer.kind} has none that "
                "could be trained; set optimizer.train=values or all"
            )

    def _check_approximate(self, gate: float | None) -> None:
        """Whether there are keys to be found that stay as they are."""
        said = "layer.nearest=approximate"
        if gate is None:
            raise ValueError(
                f"{said} means nothing where no gate asks for the nearest key; set layer.gate, or "
                "leave it out"
            )
        memory, moves = self.memory, ""
        if memory.rows is not None or memory.budget is not None:
            bound = "rows" if memory.rows is not None else "budget"
            moves = f"memory.{bound}={getattr(memory, bound)}"
        elif self.optimizer.train == "all":
            moves = "optimizer.train=all"
        if moves:
            raise ValueError(
                f"{said} searches keys that stay as they are, and {moves} puts others in their "
                f"place; set layer.nearest=exact, or {moves.partition('=')[0]}=none"
            )

    def _check_memory(self) -> None:
        """Whether bounds of memory are about layers that there are."""
        memory, kind = self.memory, self.learner.kind
        said = f"memory.rows={memory.rows}"
        if memory.budget is not None:
            if memory.rows is not None:
                raise ValueError(
                    f"{said} and memory.budget={memory.budget} are two bounds of the same layers; "
                    "set one of them"
                )
            said = f"memory.budget={memory.budget}"
        bound = memory.rows is not None or memory.budget is not None
        solved = memory.budget is not None and self.solves()
        if bound and not self.any_grows() and not solved:
            raise ValueError(
                f"{said} is about growing layers, of which learner={kind} has none here; leave it "
                "out"
            )
        if memory.rows is not None and memory.rows <= self.starting_rows():
            raise ValueError(
                f"{said} leaves no room beside the {self.starting_rows()} starting rows of a "
                "layer; raise it, or lower layer.start_rows"
            )
        self._check_keys()
        if memory.thumbnails is not None and not self.any_grows() and not self.solves():
            raise ValueError(
                f"memory.thumbnails={memory.thumbnails} are beside the tuples of growing layers, "
                f"of which learner={kind} has none here; leave it out"
            )
        if memory.policy == "oldest":
            return
        said = f"memory.policy={memory.policy}"
        if not bound or not self.any_grows():
            raise ValueError(
                f"{said} says which tuples go once growing layers are full; set memory.rows or "
                "memory.budget, or memory.policy=oldest"
            )
        if self.network.kind == "vit" or self.layer.kind == "gauge":
            what = "network=vit" if self.network.kind == "vit" else "layer=gauge"
            raise ValueError(
                f"{said} needs one tuple a sample, and {what} may store more or fewer; set "
                "memory.policy=oldest"
            )
        gated = getattr(self.layer, "gate", None) is not None
        if gated or self.optimizer.train != "none":
            what = "layer.gate" if gated else f"optimizer.train={self.optimizer.train}"
            why = (
                "lets in tuples of some samples only"
                if gated
                else "changes which tuples count for least"
            )
            raise ValueError(
                f"{said} and {what} do not go together, for that {why}; set memory.policy=oldest"
            )
        if memory.policy == "merge" and (self.optimizer.momentum or self.layer.kind == "linear"):
            what = f"optimizer.momentum={self.optimizer.momentum:g}"
            if not self.optimizer.momentum:
                what = f"layer={self.layer.kind}"
            raise ValueError(
                f"{said} adds tuples to others whose keys are near, which {what} does not allow; "
                "set memory.policy=oldest or least"
            )

    def _check_keys(self) -> None:
        """Whether keys may be whole numbers."""
        if self.memory.keys == "plain":
            return
        said = f"memory.keys={self.memory.keys}"
        if not self.any_grows():
            raise ValueError(
                f"{said} is about growing layers, of which learner={self.learner.kind} has none "
                "here; leave it out"
            )
        if self.optimizer.train == "all":
            raise ValueError(
                f"{said} would lose the small moves of keys that optimizer.train=all trains; set "
                "memory.keys=plain, or optimizer.train=weights+values"
            )

    def _check_mixed(self, hidden: list[bool], output: bool) -> None:
        """Whether there are layers for what is asked of them."""
        network, by_gradient = self.network, self.layer.kind == "parametric-softmax"
        if network.layers == "mixed" and network.growing > network.hidden:
            raise ValueError(
                f"network.growing={network.growing} of network.hidden={network.hidden} hidden "
                "layers cannot be as layer says; raise network.hidden or lower network.growing"
            )
        if network.layers == "mixed" and not output and not any(hidden):
            raise ValueError(
                "network.layers=mixed has no layer that is as layer says; raise network.hidden and "
                "network.growing, set network.output=growing, or leave network.layers out"
            )
        optimizer = getattr(self.learner, "optimizer", None)
        all_keys = network.kind == "mlp" and by_gradient and output and all(hidden)
        if self.learner.kind == "parametric" and all_keys and optimizer in LINEAR_OPTIMIZERS:
            raise ValueError(
                f"learner.optimizer={optimizer} moves linear layers, and all of this network's are "
                "parametric-softmax layers; set learner.optimizer=adam, or network.layers=mixed"
            )

    def _check_updates(self) -> None:
        if not isinstance(self.learner, (GrowingSettings, ParametricSettings)):
            return
        if self.learner.revisit == "update":
            self._check_in_place("learner.revisit=update", "learner.revisit=append")
            for name in ("rows", "budget"):
                bound = getattr(self.memory, name)
                if bound is not None:
                    raise ValueError(
                        f"memory.{name}={bound} lets tuples go, and learner.revisit=update needs "
                        "those of earlier epochs; set learner.revisit=append, or "
                        f"memory.{name}=none"
                    )
        if getattr(self.learner, "reservoir", None) is not None:
            if self.any_grows():
                raise ValueError(
                    f"learner.reservoir={getattr(self.learner, 'reservoir', None)} is for networks "
                    "of fixed size, and layers of this one grow, which keep what they learnt; set "
                    "learner.reservoir=none, or network.layers=dense"
                )
            return
        if self.learner.rehearsal:
            said = f"learner.rehearsal={self.learner.rehearsal}"
            self._check_in_place(said, "learner.rehearsal=0")
            hidden, output = self.grows()
            grows = hidden[0] if hidden else output
            if self.layer.kind == "parametric-softmax" or not grows:
                raise ValueError(
                    f"{said} learns again what the first layer has stored, and that layer does not "
                    "grow; set learner=growing, learner.reservoir=64MiB to keep samples beside "
                    "such a network, or learner.rehearsal=0"
                )

    def _check_in_place(self, said: str, instead: str) -> None:
        """Refuse what keeps a sample's own tuple from being updated."""
        if self.network.kind == "vit" or self.layer.kind == "gauge":
            what = "network=vit" if self.network.kind == "vit" else "layer=gauge"
            raise ValueError(
                f"{said} needs one tuple a sample, and {what} may store more or fewer; "
                f"set {instead}"
            )
        if self.optimizer.momentum or self.optimizer.decay:
            raise ValueError(
                f"{said} needs tuples whose age does not matter; set "
                f"optimizer.momentum=0 and optimizer.decay=0, or {instead}"
            )

    def starting_rows(self) -> int:
        """Rows that a growing layer begins with."""
        rows: int = getattr(self.layer, "start_rows", 0)
        return rows

    def solves(self) -> bool:
        """Whether the output layer's values are solved for."""
        return self.learner.kind in NETWORK_KINDS and self.network.output == "least-squares"

    def has_weights(self) -> bool:
        """Whether tuples have weights that may be trained."""
        return self.layer.kind in _WEIGHTED

    @property
    def loss(self) -> LossName:
        """The loss that `learner.loss` means, "auto" where that is the task's."""
        return "squared_error" if self.solves() else self.learner.loss

    def any_grows(self) -> bool:
        """Whether any layer grows."""
        if self.learner.kind not in NETWORK_KINDS or self.layer.kind == "parametric-softmax":
            return False
        hidden, output = self.grows()
        return output or any(hidden)

    def grows(self) -> tuple[list[bool], bool]:
        """Which hidden layers, and whether the output layer, are as the section `layer` says."""
        network = self.network
        layers = network.layers
        if layers is None:
            as_said = self.learner.kind == "growing" or self.layer.kind == "parametric-softmax"
            layers = "growing" if as_said else "dense"
        count = {"growing": network.hidden, "dense": 0, "mixed": network.growing}[layers]
        output = layers == "growing" if network.output is None else network.output == "growing"
        return [index < count for index in range(network.hidden)], output


def settings_of(sections: Mapping[str, Any]) -> LearnerSettings:
    """Learner settings from plain dictionaries by section.

    Raises:
        ConfigError: the first thing that is wrong, in one sentence.
    """
    try:
        return LearnerSettings.model_validate(dict(sections))
    except ValidationError as error:
        raise ConfigError(explain(error, LearnerSettings)) from None
