"""What a learner can be told: validated settings, each with its meaning, unit and range.

A section that has kinds (`encoder`, `layer`) may be given as the kind's bare name: `"pca"` means
`{"kind": "pca"}`, all other settings of that kind at their defaults.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ByteSize, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from streamlearn.errors import ConfigError
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


Budget = Annotated[ByteSize | None, BeforeValidator(byte_words)]
Fit = Annotated[
    int,
    Field(
        ge=1,
        le=1_000_000,
        description="samples at the start of the stream to fit on; they are held back, scored by "
        "an online fallback, then learnt",
    ),
]
Whiten = Annotated[
    float, Field(ge=0, le=2, description="whitening exponent a: 0 none, 1 unit variance")
]
Floor = Annotated[
    float, Field(ge=0, le=1, description="share of the largest variance added before whitening")
]


class StandardiseSettings(Settings):
    """Zero mean and unit variance, flattened."""

    kind: Literal["standardise"] = "standardise"
    fit: Fit = 2048
    per: Literal["feature", "channel"] = Field(
        "feature", description="statistics of each feature, or of each channel of an image"
    )
    clip: float = Field(10.0, gt=0, description="bound of a standardised value")
    constant: float = Field(
        1.0, ge=0, description="a constant column beside the features; keeps their length; 0: none"
    )


class PCASettings(Settings):
    """Projection on whitened principal components."""

    kind: Literal["pca"] = "pca"
    fit: Fit = 2048
    width: int = Field(256, ge=1, description="components kept: the width of keys; more is slower")
    whiten: Whiten = 1.0
    floor: Floor = 0.01
    standardise: bool = Field(False, description="divide each feature by its deviation first")


class PatchSettings(Settings):
    """Whitened patches as filters, pooled, then whitened principal components: for images."""

    kind: Literal["patch"] = "patch"
    fit: Fit = 2048
    width: int = Field(512, ge=1, description="components kept: the width of keys")
    whiten: Whiten = 1.0
    floor: Floor = 0.01
    filters: int = Field(200, ge=1, description="random patches used as filters")
    patch: int = Field(6, ge=1, description="side of a patch, pixels")
    pool: int = Field(3, ge=1, description="cells along each side in which responses are averaged")
    bias: float = Field(0.5, ge=0, description="what a filter's response must exceed to count")
    contrast: float = Field(10.0, gt=0, description="added to a patch's variance, (1/255)²")
    zca: float = Field(0.1, gt=0, description="added to the patches' covariance before whitening")
    power: float = Field(0.5, gt=0, le=2, description="exponent of pooled features")
    mirror: bool = Field(True, description="features that do not change when the image is flipped")


class TorchvisionSettings(Settings):
    """A frozen torchvision backbone with the user's own weights, then whitened components."""

    kind: Literal["torchvision"] = "torchvision"
    fit: Fit = 2048
    model: str = Field("resnet18", description="name of a torchvision classification model")
    weights: Path = Field(description="its state_dict, .pth (weights only) or .safetensors")
    image_size: int = Field(224, ge=8, description="images are resized to this side, pixels")
    width: int = Field(512, ge=1, description="components kept: the width of keys")
    whiten: Whiten = 1.0
    floor: Floor = 0.01


EncoderSettings = Annotated[
    StandardiseSettings | PCASettings | PatchSettings | TorchvisionSettings,
    Field(discriminator="kind"),
]


class _Rates(Settings):
    lr_value: float = Field(
        0.2, ge=0, description="rate η_v at which the output layer's values are written"
    )
    lr_value_hidden: float = Field(0.1, ge=0, description="the same for hidden layers")


class _Start(_Rates):
    kappa: float = Field(
        6.0, gt=0, description="largest logit κ = √D/T; 4 to 8 work, more is more like 1-NN"
    )
    temperature: OptionalFloat = Field(
        None, gt=0, description="T as in the paper; instead of kappa"
    )
    start_rows: int = Field(16, ge=1, description="random keys to start from")
    start_values: Literal["zero", "random"] = "zero"


class SoftmaxSettings(_Start):
    """Weighted softmax, negative weights clipped."""

    kind: Literal["softmax"] = "softmax"
    lr_weight: float = Field(0.003, ge=0, description="rate η_w of the output layer's weights")
    lr_weight_hidden: float = Field(0.003, ge=0, description="the same for hidden layers")
    bound: OptionalFloat = Field(None, gt=0, description="limit of |⟨s, g⟩| in a weight")


class GaugeSettings(_Start):
    """Weighted softmax with gauge-invariant, always positive weights."""

    kind: Literal["gauge"] = "gauge"
    lr_weight: float = Field(0.003, ge=0, description="rate η of the output layer's weights")
    lr_weight_hidden: float = Field(0.0003, ge=0, description="the same for hidden layers")
    alpha: float = Field(1.0, gt=0, description="gauge offset α: weights are η α ‖g‖")


class RBFSettings(_Rates):
    """Radial basis functions, unnormalised: value rates are about e^κ larger than for softmax."""

    kind: Literal["rbf"] = "rbf"
    lr_value: float = Field(3.0, ge=0, description="rate η_v of the output layer")
    lr_value_hidden: float = Field(30.0, ge=0, description="the same for hidden layers")
    gamma: float = Field(3.0, gt=0, description="γ in exp(−γ‖k − q‖²/D); κ/2 is softmax's kernel")


class LinearSettings(_Rates):
    """The linear layer's dual form: SGD on a weight matrix, kept as samples."""

    kind: Literal["linear"] = "linear"
    lr_value: float = Field(0.0003, ge=0, description="rate η of the output layer")
    lr_value_hidden: float = Field(0.00003, ge=0, description="the same for hidden layers")


class DecoupledSettings(SoftmaxSettings):
    """Weighted softmax whose writes are divided by the old normaliser."""

    kind: Literal["decoupled"] = "decoupled"  # type: ignore[assignment]


class UnweightedSettings(_Start):
    """The ordinary softmax, grown all the same: a negative control."""

    kind: Literal["unweighted"] = "unweighted"
    lr_value: float = Field(10.0, ge=0, description="rate η_v of the output layer")
    lr_value_hidden: float = Field(1.0, ge=0, description="the same for hidden layers")


class ParametricSoftmaxSettings(Settings):
    """A softmax layer of fixed width, whose keys, values and weights are trained parameters."""

    kind: Literal["parametric-softmax"] = "parametric-softmax"
    width: int = Field(5000, ge=1, description="keys of a layer")
    weighted: bool = Field(True, description="a trained weight beside each key")
    kappa: float = Field(6.0, gt=0, description="largest logit of keys at their start, √D/T")
    temperature: OptionalFloat = Field(
        None, gt=0, description="T as in the paper; instead of kappa"
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

Layers = Annotated[
    Literal["growing", "dense", "mixed"] | None,
    BeforeValidator(none_word),
    Field(
        description="growing: those of the section layer; dense: ordinary ones; mixed: the first "
        "`network.growing` hidden ones as the section layer says, the others dense; none: what "
        "suits the learner"
    ),
]


Output = Annotated[
    Literal["growing", "dense", "least-squares"] | None,
    BeforeValidator(none_word),
    Field(
        description="the output layer; least-squares: a bounded number of keys whose values are "
        "solved for, see the section least_squares; none: as layers say, dense where they are mixed"
    ),
]


class MLPSettings(Settings):
    """Residual layers and an output layer, each behind RMSNorm."""

    kind: Literal["mlp"] = "mlp"
    hidden: int = Field(1, ge=0, le=64, description="residual layers before the output layer")
    layers: Layers = None
    growing: int = Field(1, ge=0, description="hidden layers that grow, where layers are mixed")
    output: Output = None
    width: int = Field(512, ge=1, description="of the inner layer of a dense one")
    activation: Literal["gelu", "relu", "silu", "tanh"] = "gelu"


class ViTSettings(Settings):
    """A vision transformer over the pixels: `encoder=standardise encoder.constant=0`."""

    kind: Literal["vit"] = "vit"
    hidden: int = Field(4, ge=0, le=64, description="blocks of attention and feed-forward layer")
    layers: Layers = None
    growing: int = Field(1, ge=0, description="feed-forward layers that grow, where mixed")
    output: Output = "dense"
    patch: int = Field(8, ge=1, description="side of a patch, pixels")
    width: int = Field(128, ge=1, description="of a token")
    heads: int = Field(4, ge=1, description="of attention")
    inner: int = Field(512, ge=1, description="of the inner layer of a dense feed-forward one")
    activation: Literal["gelu", "relu", "silu", "tanh"] = "gelu"

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
        description="the most samples that it keeps as keys; its sums take 4 keys² bytes (8 in "
        "float64), and more is more exact",
    )
    kappa: float = Field(
        1.5, gt=0, description="sharpness of its kernel on normalised codes; more is more local"
    )
    regularisation: float = Field(0.1, gt=0, description="λ, added to the sum of squares")
    discount: float = Field(
        1.0, gt=0, le=1, description="what all samples so far count for after each step; drift: <1"
    )
    gate: float = Field(
        1e-3,
        ge=0,
        lt=1,
        description="the least share of a new key that no combination of the others spans",
    )
    refresh: float = Field(
        0.1,
        ge=0,
        le=1,
        description="values are solved for anew once this share of all samples is new",
    )
    again: float = Field(
        0.0, ge=0, le=1, description="what rehearsed samples count for in its sums"
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="of its sums")


class OptimizerSettings(Settings):
    """How what was written counts later."""

    momentum: float = Field(0.0, ge=0, lt=1, description="momentum μ, exact, by birth step")
    decay: float = Field(0.0, ge=0, lt=1, description="decay γ of what was written, for each step")


class MemorySettings(Settings):
    """How tuples are kept."""

    block_rows: int | None = Field(
        None,
        ge=512,
        multiple_of=512,
        description="tuples in a block, which is a shard on disk; by their width if not given",
    )
    rows: OptionalInt = Field(
        None,
        ge=1,
        description="the most tuples of a growing layer, starting rows counted; once it is full, "
        "new ones take the place of others; none: all stay",
    )
    budget: Budget = Field(
        None,
        gt=0,
        description="bytes for the whole learner, such as 64MiB: encoder, parameters, sums and "
        "tuples; says memory.rows",
    )
    policy: Literal["oldest", "balanced", "least"] = Field(
        "oldest",
        description="whose tuples go once there is no room: the oldest samples'; those of the "
        "classes that have most, of each the oldest; or those that count for least",
    )
    device_budget: Budget = Field(
        None, gt=0, description="bytes for tuples on the device, such as 8GiB; others pass through"
    )
    host_budget: Budget = Field(
        None, gt=0, description="bytes for tuples in host memory; others stay on disk"
    )


class LearnerSettings(Settings):
    """All that a learner is made of."""

    seed: int = Field(0, ge=0, lt=2**63, description="of starting rows, filters and stream order")
    encoder: Annotated[EncoderSettings, BeforeValidator(bare_kind)] = StandardiseSettings()
    network: Annotated[NetworkSettings, BeforeValidator(kind_or("mlp"))] = MLPSettings()
    layer: Annotated[LayerSettings, BeforeValidator(bare_kind)] = SoftmaxSettings()
    least_squares: LeastSquaresSettings = LeastSquaresSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    learner: Annotated[KindSettings, BeforeValidator(kind_or("growing"))] = GrowingSettings()
    memory: MemorySettings = MemorySettings()

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        kind = self.learner.kind
        self._check_memory()
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
