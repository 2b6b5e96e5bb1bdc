"""From settings to encoders, networks and models."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from streamlearn.blocks import ROW_MULTIPLE, block_rows_for
from streamlearn.budget import Needs, needs_of, within
from streamlearn.dense import DenseBlock, ParametricSoftmax, linear
from streamlearn.encoders import (
    PCA,
    Chain,
    Encoder,
    ModuleEncoder,
    PatchFeatures,
    Standardise,
    Views,
)
from streamlearn.encoders.torchvision import backbone
from streamlearn.errors import ConfigError
from streamlearn.hardware import Hardware
from streamlearn.hybrid import HybridAdamW, hybrid_notes
from streamlearn.kinds import (
    DiscriminantSettings,
    FeaturesSettings,
    GrowingSettings,
    KernelSettings,
    KNNSettings,
    ParametricSettings,
    RidgeSettings,
)
from streamlearn.krls import LeastSquaresLayer, RecursiveLeastSquares
from streamlearn.layers import (
    DecoupledSoftmax,
    DualLinear,
    GaugeSoftmax,
    GrowingLayer,
    RBFLayer,
    UnweightedSoftmax,
    WeightedSoftmax,
)
from streamlearn.losses import LOSSES, Loss
from streamlearn.memory import SAMPLE_NOTE, Column, Memory, accumulation_dtype
from streamlearn.models import (
    DiscriminantModel,
    FeatureMap,
    FeaturesModel,
    KernelModel,
    KNNModel,
    Model,
    NetworkModel,
    NormalisedModel,
    Rehearsal,
    Reservoir,
    RidgeModel,
    ScaledModel,
    Schedule,
    notes_for,
    reservoir_columns,
)
from streamlearn.networks import ResNetMLP
from streamlearn.optim import FunctionalSGD
from streamlearn.optimizers import build_optimizer
from streamlearn.settings import (
    DecoupledSettings,
    GaugeSettings,
    LearnerSettings,
    LinearSettings,
    MemorySettings,
    ParametricSoftmaxSettings,
    PatchSettings,
    PCASettings,
    RBFSettings,
    SoftmaxSettings,
    StandardiseSettings,
    UnweightedSettings,
    ViTSettings,
)
from streamlearn.tasks import Outputs, Task
from streamlearn.thumbnails import thumbnail_notes
from streamlearn.tiers import Tiers
from streamlearn.vit import Attention, VisionTransformer, VisionTransformerBlock, patches_of

__all__ = [
    "bounded",
    "build_encoder",
    "build_growth",
    "build_hybrid",
    "build_model",
    "build_network",
    "build_tiers",
    "check_task",
]

_CLASSIFIERS = ("discriminant", "features")


def check_task(settings: LearnerSettings, task: Task) -> None:
    """Refuse settings that do not fit what targets are, before anything is learnt.

    Raises:
        ConfigError: a setting of classifiers for a regression, or the other way round.
    """
    chosen = settings.learner
    task.loss(settings.loss)
    if not isinstance(task, Outputs):
        adjusts = getattr(chosen, "adjust", "none") != "none"
        if adjusts and task.loss(settings.loss) is not LOSSES["cross_entropy"]:
            raise ConfigError(
                f"learner.adjust={getattr(chosen, 'adjust', None)} is for cross-entropy, and this "
                f"learner minimises {settings.loss}; set learner.adjust=none, or learner.loss="
                "cross_entropy and no network.output=least-squares"
            )
        if chosen.scale_targets:
            raise ConfigError(
                "learner.scale_targets=true means nothing for targets that are classes; leave it "
                "out"
            )
        return
    if settings.memory.policy == "balanced":
        raise ConfigError(
            "memory.policy=balanced is about classes, but the targets are numbers; set "
            "memory.policy=oldest or least"
        )
    for name, word, plain in (("rehearse", "balanced", "uniform"), ("adjust", "batch", "none")):
        if getattr(chosen, name, plain) == word:
            raise ConfigError(
                f"learner.{name}={word} is about classes, but the targets are numbers; set "
                f"learner.{name}={plain}"
            )
    if chosen.kind in _CLASSIFIERS:
        raise ConfigError(
            f"learner={chosen.kind} only knows classes, but the targets are numbers; choose "
            "learner=growing, parametric, ridge, kernel or knn"
        )
    if chosen.cold_start == "chance":
        raise ConfigError(
            "learner.cold_start=chance means nothing for targets that are numbers, whose running "
            "mean is the answer until the encoder is fitted; leave it out"
        )


def build_encoder(settings: LearnerSettings, hardware: Hardware) -> Encoder:
    """The encoder that the settings name, not yet fitted."""
    chosen = settings.encoder
    if isinstance(chosen, StandardiseSettings):
        return Standardise(chosen.per, chosen.clip, chosen.constant)
    if isinstance(chosen, PCASettings):
        components = PCA(
            chosen.width,
            whiten=chosen.whiten,
            floor=chosen.floor,
            standardise=chosen.standardise,
        )
        if not chosen.has_views:
            return components
        return Views(components, shifts=chosen.shifts, stride=chosen.stride, mirror=chosen.mirror)
    components = PCA(chosen.width, whiten=chosen.whiten, floor=chosen.floor, standardise=True)
    if isinstance(chosen, PatchSettings):
        features: Encoder = PatchFeatures(
            filters=chosen.filters,
            patch=chosen.patch,
            pool=chosen.pool,
            bias=chosen.bias,
            contrast=chosen.contrast,
            zca=chosen.zca,
            power=chosen.power,
            mirror=chosen.mirror,
            seed=settings.seed,
            dtype=hardware.dtype,
        )
    else:
        module, prepare = backbone(chosen.model, chosen.weights, chosen.image_size)
        features = ModuleEncoder(module, prepare=prepare, images=True)
    return Chain([features, components])


def build_tiers(settings: LearnerSettings, hardware: Hardware, sharing: int = 1) -> Tiers:
    """The budgets that all memories of a model share.

    Args:
        settings: of the learner.
        hardware: where it computes.
        sharing: models among which the budgets are divided.
    """
    device, host = settings.memory.device_budget, settings.memory.host_budget
    return Tiers(
        hardware.device,
        device_budget=None if device is None else device // sharing,
        host_budget=None if host is None else host // sharing,
    )


def build_network(
    settings: LearnerSettings,
    width: int,
    classes: int,
    hardware: Hardware,
    tiers: Tiers | None = None,
    shape: tuple[int, ...] | None = None,
    notes: Mapping[str, Column] | None = None,
    *,
    always: Mapping[str, Column] | None = None,
    identified: bool = True,
) -> ResNetMLP | VisionTransformer:
    """The network over codes of this width; seeded starting rows and parameters.

    Args:
        settings: of the whole learner.
        width: of codes.
        classes: their number.
        hardware: where it lives.
        tiers: the budgets of its memories; those of the settings if None.
        shape: of a sample, which a vision transformer wants to know.
        notes: columns that the first layer's memory has beside its tuples.
        always: columns that every growing layer's memory has.
        identified: whether every tuple says which sample it is of.

    Raises:
        ConfigError: a budget does not leave room for what must be in memory, or samples that are
            not what the network takes.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    tiers = build_tiers(settings, hardware) if tiers is None else tiers
    make = _layer_maker(settings, hardware, generator, tiers)
    network = settings.network
    wide = accumulation_dtype(hardware.dtype)
    hidden_grows, output_grows = settings.grows()
    inner = network.width
    if isinstance(network, ViTSettings):
        patches_of(shape or (), width, network.patch)
        width, inner = network.width, network.inner
    every = {**(SAMPLE_NOTE if identified else {}), **(always or {})}
    first = {**(notes or {}), **every}
    hidden: list[nn.Module] = [
        make(width, width, every if index else first)
        if grows
        else DenseBlock(
            width,
            inner,
            activation=network.activation,
            generator=generator,
            dtype=wide,
        )
        for index, grows in enumerate(hidden_grows)
    ]
    output: nn.Module
    if settings.solves():
        output = _least_squares(settings, width, classes, hardware, tiers, every)
    elif output_grows:
        output = make(width, classes, every if hidden else first)
    else:
        output = linear(width, classes, generator, zero=True, dtype=wide)
    result: ResNetMLP | VisionTransformer
    if isinstance(network, ViTSettings) and shape is not None:
        seeded: dict[str, Any] = {"generator": generator, "dtype": wide}
        blocks = [
            VisionTransformerBlock(Attention(width, network.heads, **seeded), ffn) for ffn in hidden
        ]
        image = (shape[0], shape[1], shape[2])
        result = VisionTransformer(image, network.patch, width, blocks, output, **seeded)
    else:
        result = ResNetMLP(hidden, output)
    tiers.check()
    return result.to(hardware.device)


def _least_squares(
    settings: LearnerSettings,
    width: int,
    classes: int,
    hardware: Hardware,
    tiers: Tiers,
    notes: Mapping[str, Column],
) -> LeastSquaresLayer:
    chosen = settings.least_squares
    wide = accumulation_dtype(hardware.dtype)
    whole = -(-chosen.keys // ROW_MULTIPLE) * ROW_MULTIPLE
    return LeastSquaresLayer(
        width,
        classes,
        chosen.keys,
        gamma=chosen.kappa / 2,
        regularisation=chosen.regularisation,
        discount=chosen.discount,
        gate=chosen.gate,
        statistics=torch.float64 if chosen.dtype == "float64" else wide,
        averaged=True,  # as a network does with views
        dtype=wide,
        device=hardware.device,
        block_rows=min(block_rows_for(width, classes, wide), whole),
        tiers=tiers,
        notes=notes,
    )


def _layer_maker(
    settings: LearnerSettings, hardware: Hardware, generator: torch.Generator, tiers: Tiers
) -> Callable[[int, int, Mapping[str, Column]], nn.Module]:
    layer = settings.layer
    every: dict[str, Any] = {
        "dtype": hardware.dtype,
        "device": hardware.device,
        "tiers": tiers,
        "keys": settings.memory.keys,
    }

    def make(inputs: int, outputs: int, notes: Mapping[str, Column]) -> nn.Module:
        block_rows = _block_rows(settings.memory, inputs, outputs, hardware.dtype)
        trained = hybrid_notes(
            inputs,
            outputs,
            hardware.dtype,
            settings.optimizer.train,
            weighted=settings.has_weights(),
        )
        options = {**every, "notes": {**notes, **trained}, "block_rows": block_rows}
        if isinstance(layer, RBFSettings):
            return RBFLayer(inputs, outputs, gamma=layer.gamma, **options)
        if isinstance(layer, LinearSettings):
            return DualLinear(inputs, outputs, **options)
        temperature = inputs**0.5 / layer.kappa if layer.temperature is None else layer.temperature
        if isinstance(layer, ParametricSoftmaxSettings):
            return ParametricSoftmax(
                inputs,
                outputs,
                layer.width,
                temperature=temperature,
                weighted=layer.weighted,
                generator=generator,
                dtype=accumulation_dtype(hardware.dtype),
            )
        start: dict[str, Any] = {
            "temperature": temperature,
            "start_rows": layer.start_rows,
            "start_values": layer.start_values,
            "generator": generator,
            **options,
        }
        if isinstance(layer, GaugeSettings):
            return GaugeSoftmax(inputs, outputs, alpha=layer.alpha, **start)
        if isinstance(layer, UnweightedSettings):
            return UnweightedSoftmax(inputs, outputs, **start)
        if isinstance(layer, DecoupledSettings):
            return DecoupledSoftmax(inputs, outputs, bound=layer.bound, **start)
        return WeightedSoftmax(inputs, outputs, bound=layer.bound, **start)

    return make


def _block_rows(
    memory: MemorySettings, inputs: int, outputs: int, dtype: torch.dtype
) -> int | None:
    """Tuples in a block: no more than a layer may have, since a snapshot may copy a block."""
    if memory.block_rows is not None or memory.rows is None:
        return memory.block_rows
    whole = -(-memory.rows // ROW_MULTIPLE) * ROW_MULTIPLE
    short = memory.keys == "int8"
    return min(block_rows_for(inputs, outputs, dtype, quantised=short), whole)


def build_growth(
    settings: LearnerSettings, network: ResNetMLP | VisionTransformer
) -> FunctionalSGD | None:
    """Functional SGD with one group for growing hidden layers, if any, and one for the output."""
    layer = settings.layer
    if isinstance(layer, ParametricSoftmaxSettings):
        return None
    groups: list[dict[str, Any]] = [
        {"layers": _growing(network.hidden), "lr_value": layer.lr_value_hidden},
        {"layers": _growing([network.output]), "lr_value": layer.lr_value},
    ]
    if isinstance(layer, (SoftmaxSettings, GaugeSettings)):
        groups[0]["lr_weight"] = layer.lr_weight_hidden
        groups[1]["lr_weight"] = layer.lr_weight
    groups = [group for group in groups if group["layers"]]
    if not groups:
        return None
    return FunctionalSGD(
        groups,
        momentum=settings.optimizer.momentum,
        decay=settings.optimizer.decay,
        rows=settings.memory.rows,
        gate=layer.gate,
        nearest=layer.nearest,
        refused=layer.refused,
        policy=settings.memory.policy,
    )


def build_hybrid(
    settings: LearnerSettings, network: ResNetMLP | VisionTransformer
) -> HybridAdamW | None:
    """What trains the tuples of growing layers, if anything does."""
    chosen = settings.optimizer
    if chosen.train == "none":
        return None
    return HybridAdamW(
        network,
        chosen.train,
        lr=chosen.lr,
        lr_weight=chosen.lr_weight,
        lr_key=chosen.lr_key,
        betas=(chosen.beta1, chosen.beta2),
        weight_decay=chosen.weight_decay,
        every=chosen.every,
    )


def _growing(modules: Iterable[nn.Module]) -> list[GrowingLayer]:
    return [layer for module in modules for layer in module.modules()
            if isinstance(layer, GrowingLayer) and not layer.second_order]  # fmt: skip


def build_model(
    settings: LearnerSettings,
    width: int,
    task: Task,
    hardware: Hardware,
    tiers: Tiers,
    shape: tuple[int, ...] | None = None,
    *,
    identified: bool = True,
    beside: int = 0,
) -> Model:
    """The model that `learner` names, over codes of this width, nothing learnt yet.

    Args:
        settings: of the whole learner.
        width: of codes.
        task: what targets are.
        hardware: where it lives.
        tiers: the budgets of its memories.
        shape: of a sample, which a vision transformer wants to know.
        identified: whether every tuple of a growing layer says which sample it is of; runs that
            began before there was such a column go on without it.
        beside: bytes of its encoder, which a budget counts.

    Raises:
        ConfigError: settings that do not fit the width, or a budget that leaves no room.
    """
    settings = bounded(settings, width, task, hardware, shape, identified=identified, beside=beside)
    loss = task.loss(settings.loss)
    model = _unscaled_model(
        settings, width, task.width, loss, hardware, tiers, shape, identified=identified
    )
    if isinstance(task, Outputs) and settings.learner.scale_targets is not False:
        return ScaledModel(model, task.width, loss)
    return model


def bounded(
    settings: LearnerSettings,
    width: int,
    task: Task,
    hardware: Hardware,
    shape: tuple[int, ...] | None = None,
    *,
    identified: bool = True,
    beside: int = 0,
    sharing: int = 1,
) -> LearnerSettings:
    """The settings with rows for each growing layer in the place of a budget, if there is one.

    Args:
        settings: of the whole learner.
        width: of codes.
        task: what targets are.
        hardware: where it lives.
        shape: of a sample.
        identified: as for `build_model`.
        beside: bytes that stand beside the model.
        sharing: models among which the budget is divided.

    Raises:
        ConfigError: the budget leaves no room.
    """

    def measure(other: LearnerSettings) -> Needs:
        tiny = build_model(
            other, width, task, hardware, Tiers(hardware.device), shape, identified=identified
        )
        codes = torch.ones(1, width, device=hardware.device)
        return needs_of(tiny, codes, task.checked(torch.zeros(1, dtype=torch.int64), 1))

    return within(settings, beside, measure, sharing)


def _unscaled_model(
    settings: LearnerSettings,
    width: int,
    classes: int,
    loss: Loss,
    hardware: Hardware,
    tiers: Tiers,
    shape: tuple[int, ...] | None,
    *,
    identified: bool,
) -> Model:
    """A model of targets as they are."""
    chosen = settings.learner
    if isinstance(chosen, (GrowingSettings, ParametricSettings)):
        wide = accumulation_dtype(hardware.dtype)
        outputs = classes if loss.values else None
        kept = isinstance(chosen, ParametricSettings) and chosen.reservoir is not None
        rehearses = bool(chosen.rehearsal) and not kept
        notes = notes_for(outputs, wide, chosen.rehearse) if rehearses else {}
        if settings.memory.policy == "balanced":
            notes = {"target": Column(None, "int64")} | notes
        network = build_network(
            settings,
            width,
            classes,
            hardware,
            tiers,
            shape,
            notes,
            always=thumbnail_notes(settings.memory.thumbnails, shape, outputs),
            identified=identified,
        )
        growth = build_growth(settings, network)
        options: dict[str, Any] = {
            "growth": growth,
            "hybrid": build_hybrid(settings, network),
            "update": chosen.revisit == "update",
            "adjust": chosen.adjust == "batch",
            "leave_out": chosen.leave_out,
        }
        if isinstance(network.output, LeastSquaresLayer):
            least = settings.least_squares
            options["readout"] = RecursiveLeastSquares([network.output], least.refresh)
            options["again"] = least.again
        if rehearses:
            layers = [*_growing(network.hidden), *_growing([network.output])]
            ring = None if growth is None else growth.eviction or next(iter(growth.rings), None)
            options["rehearsal"] = Rehearsal(
                layers, chosen.rehearsal, chosen.rehearse, settings.seed, ring=ring
            )
        if isinstance(chosen, GrowingSettings):
            return NetworkModel(network, loss, **options)
        if kept:
            options["reservoir"] = _reservoir(settings.seed, chosen, width, outputs, hardware)
        optimizer = build_optimizer(chosen.optimizer, network, lr=chosen.rate, **chosen.options())
        schedule = Schedule(chosen.schedule, chosen.schedule_samples, chosen.warmup)
        return NetworkModel(network, loss, optimizer=optimizer, schedule=schedule, **options)
    model = _plain_model(settings, chosen, width, classes, loss, hardware, tiers)
    return NormalisedModel(model) if chosen.normalise else model


def _reservoir(
    seed: int, chosen: ParametricSettings, width: int, outputs: int | None, hardware: Hardware
) -> Reservoir:
    """The reservoir that the settings name, empty.

    Raises:
        ConfigError: there is no room for a sample.
    """
    columns = reservoir_columns(width, outputs, hardware.dtype, chosen.rehearse)
    sample = sum(column.row_bytes for column in columns.values())
    size = chosen.reservoir_samples(sample)
    if not size:
        raise ConfigError(
            f"learner.reservoir={chosen.reservoir} has no room for one sample, which takes "
            f"{sample} bytes; give more, such as 64MiB"
        )
    return Reservoir(size, columns, chosen.rehearsal, chosen.rehearse, seed)


def _plain_model(
    settings: LearnerSettings,
    chosen: KNNSettings | RidgeSettings | DiscriminantSettings | KernelSettings | FeaturesSettings,
    width: int,
    classes: int,
    loss: Loss,
    hardware: Hardware,
    tiers: Tiers,
) -> Model:
    """A model that is no network."""
    if isinstance(chosen, (KNNSettings, KernelSettings)):
        return _over_samples(settings, chosen, width, classes, loss, hardware, tiers)
    device = hardware.device
    if isinstance(chosen, RidgeSettings):
        return RidgeModel(
            width,
            classes,
            loss,
            regularisation=chosen.regularisation,
            refresh=chosen.refresh,
            device=device,
        )
    if isinstance(chosen, DiscriminantSettings):
        return DiscriminantModel(
            width,
            classes,
            loss,
            shrinkage=chosen.shrinkage,
            refresh=chosen.refresh,
            device=device,
        )
    return FeaturesModel(
        FeatureMap(chosen.map, chosen.count, chosen.bandwidth, settings.seed),
        classes,
        loss,
        alpha=chosen.alpha,
        schedule=chosen.schedule,
        lr=chosen.lr,
    )


def _over_samples(
    settings: LearnerSettings,
    chosen: KNNSettings | KernelSettings,
    width: int,
    classes: int,
    loss: Loss,
    hardware: Hardware,
    tiers: Tiers,
) -> Model:
    """A model whose memory holds the samples themselves."""
    near = isinstance(chosen, KNNSettings) and not loss.values
    memory = Memory(
        width,
        classes,
        # A kernel machine's coefficients belong to the codes as they were, not as rounded, and
        # rounding would spoil values, where classes are exact.
        dtype=hardware.dtype if near else accumulation_dtype(hardware.dtype),
        device=hardware.device,
        block_rows=settings.memory.block_rows,
        tiers=tiers,
    )
    tiers.check()
    if isinstance(chosen, KNNSettings):
        return KNNModel(
            memory,
            loss,
            k=chosen.k,
            metric=chosen.metric,
            weighting=chosen.weighting,
            bandwidth=chosen.bandwidth,
        )
    return KernelModel(
        memory,
        loss,
        regularisation=chosen.regularisation,
        bandwidth=chosen.bandwidth,
        scale=chosen.scale,
        bias=chosen.bias,
        first=chosen.first,
        limit=chosen.limit,
    )
