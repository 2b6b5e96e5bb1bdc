"""What a learner can be told: validated settings, each with its meaning, unit and range.

A section that has kinds (`encoder`, `layer`) may be given as the kind's bare name: `"pca"` means
`{"kind": "pca"}`, all other settings of that kind at their defaults.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from streamlearn.errors import ConfigError
from streamlearn.hardware import DeviceName, DtypeName
from streamlearn.losses import LossName

__all__ = [
    "EncoderSettings",
    "GaugeSettings",
    "LayerSettings",
    "LearnerSettings",
    "LinearSettings",
    "MemorySettings",
    "NetworkSettings",
    "OptimizerSettings",
    "PCASettings",
    "PatchSettings",
    "RBFSettings",
    "Settings",
    "SoftmaxSettings",
    "StandardiseSettings",
    "TorchvisionSettings",
    "TrainingSettings",
    "bare_kind",
    "explain",
    "none_word",
    "settings_of",
]


class Settings(BaseModel):
    """A section of settings: unknown keys are errors, and a section never changes once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def bare_kind(value: Any) -> Any:
    """`"pca"` as `{"kind": "pca"}`; anything else as it is."""
    return {"kind": value} if isinstance(value, str) else value


def none_word(value: Any) -> Any:
    """The words none and null mean "not set" where a number is expected."""
    if isinstance(value, str) and value.lower() in ("none", "null", ""):
        return None
    return value


OptionalFloat = Annotated[float | None, BeforeValidator(none_word)]


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


LayerSettings = Annotated[
    SoftmaxSettings | GaugeSettings | RBFSettings | LinearSettings, Field(discriminator="kind")
]


class NetworkSettings(Settings):
    """The network between encoder and outputs."""

    hidden: int = Field(
        1, ge=0, le=64, description="residual growing layers before the output layer"
    )


class OptimizerSettings(Settings):
    """How what was written counts later."""

    momentum: float = Field(0.0, ge=0, lt=1, description="momentum μ, exact, by birth step")
    decay: float = Field(0.0, ge=0, lt=1, description="decay γ of what was written, for each step")


class TrainingSettings(Settings):
    """Batches, loss and hardware."""

    kind: Literal["growing"] = "growing"
    batch: int = Field(64, ge=1, le=65536, description="samples scored, then learnt, at once")
    loss: LossName = "cross_entropy"
    dtype: DtypeName = Field("auto", description="of keys and values; auto: bfloat16 where fast")
    device: DeviceName = "auto"
    cold_start: Literal["online", "chance"] = Field(
        "online", description="how samples are scored until the encoder is fitted"
    )


class MemorySettings(Settings):
    """How tuples are kept."""

    block_rows: int = Field(
        4096, ge=512, multiple_of=512, description="tuples in a block, which is a shard on disk"
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
    network: NetworkSettings = NetworkSettings()
    layer: Annotated[LayerSettings, BeforeValidator(bare_kind)] = SoftmaxSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    learner: Annotated[TrainingSettings, BeforeValidator(bare_kind)] = TrainingSettings()
    memory: MemorySettings = MemorySettings()


def settings_of(sections: Mapping[str, Any]) -> LearnerSettings:
    """Learner settings from plain dictionaries by section.

    Raises:
        ConfigError: the first thing that is wrong, in one sentence.
    """
    try:
        return LearnerSettings.model_validate(dict(sections))
    except ValidationError as error:
        raise ConfigError(explain(error, LearnerSettings)) from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence that names the first wrong key and its value, and says what would be right."""
    first = error.errors()[0]
    kinds = _kinds(model)
    # pydantic puts the kind of a tagged section into the path: layer.softmax.kappa → layer.kappa
    path = [
        str(part)
        for index, part in enumerate(first["loc"])
        if not (index == 1 and str(part) in kinds.get(str(first["loc"][0]), ()))
    ]
    key = ".".join(path)
    value = first["input"]
    if first["type"] == "extra_forbidden":
        tag = str(first["loc"][1]) if len(first["loc"]) > 2 else None
        known = _known_keys(model, path[:-1], tag)
        nearest = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = (
            f"did you mean {'.'.join([*path[:-1], nearest[0]])}?"
            if nearest
            else (f"known here: {', '.join(known)}")
        )
        return f"{key} is not a setting; {hint}"
    choices = list(kinds.get(path[0], ())) if path else []
    if first["type"] == "union_tag_not_found":
        return f"{key}.kind is missing; choose {', '.join(choices)}"
    if first["type"] == "union_tag_invalid":
        given = value.get("kind") if isinstance(value, dict) else value
        nearest = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"choose {', '.join(choices)}"
        return f"{key}={given} is not a kind of {key}; {hint}"
    if first["type"] in ("model_type", "model_attributes_type"):
        inner = (_known_keys(model, path, None) or ["kind"])[0]
        return f"{key}={value} cannot be used: {key} is a section, set {key}.{inner}=…"
    reason = first["msg"].replace("Input should be", "it should be")
    if first["type"].startswith("byte_size"):
        return f"{key}={value} cannot be used: give bytes, such as 400MB, 2GiB or none"
    if first["type"] == "missing":
        return f"{key} is missing; set {key}=…"
    return f"{key}={value} cannot be used: {reason[0].lower() + reason[1:]}"


def _kinds(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The kinds of each section that has kinds."""
    result = {}
    for name, field in model.model_fields.items():
        variants = _variants(field.annotation)
        tags = [str(variant.model_fields["kind"].default) for variant in variants
                if "kind" in variant.model_fields]  # fmt: skip
        if len(tags) > 1:
            result[name] = tuple(tags)
    return result


def _variants(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _variants(part)]


def _known_keys(model: type[BaseModel], path: list[str], tag: str | None) -> list[str]:
    """The settings that stand at a path, of the kind `tag` where the section has kinds."""
    if not path:
        return list(model.model_fields)
    if path[0] not in model.model_fields:
        return []
    variants = _variants(model.model_fields[path[0]].annotation)
    chosen = [
        variant
        for variant in variants
        if len(variants) == 1 or variant.model_fields["kind"].default == tag
    ]
    return _known_keys(chosen[0], path[1:], None) if chosen else []
