"""From settings to encoders, networks and optimizers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from streamlearn.encoders import PCA, Chain, Encoder, ModuleEncoder, PatchFeatures, Standardise
from streamlearn.encoders.torchvision import backbone
from streamlearn.hardware import Hardware
from streamlearn.layers import DualLinear, GaugeSoftmax, GrowingLayer, RBFLayer, WeightedSoftmax
from streamlearn.networks import ResNetMLP
from streamlearn.optim import FunctionalSGD
from streamlearn.settings import (
    GaugeSettings,
    LearnerSettings,
    LinearSettings,
    PatchSettings,
    PCASettings,
    RBFSettings,
    StandardiseSettings,
)
from streamlearn.tiers import Tiers

__all__ = ["build_encoder", "build_network", "build_optimizer", "build_tiers"]


def build_encoder(settings: LearnerSettings, hardware: Hardware) -> Encoder:
    """The encoder that the settings name, not yet fitted."""
    chosen = settings.encoder
    if isinstance(chosen, StandardiseSettings):
        return Standardise(chosen.per, chosen.clip, chosen.constant)
    if isinstance(chosen, PCASettings):
        return PCA(
            chosen.width,
            whiten=chosen.whiten,
            floor=chosen.floor,
            standardise=chosen.standardise,
        )
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


def build_tiers(settings: LearnerSettings, hardware: Hardware) -> Tiers:
    """The budgets that all layers of a network share."""
    return Tiers(
        hardware.device,
        device_budget=settings.memory.device_budget,
        host_budget=settings.memory.host_budget,
    )


def build_network(
    settings: LearnerSettings,
    width: int,
    classes: int,
    hardware: Hardware,
    tiers: Tiers | None = None,
) -> ResNetMLP:
    """A ResNet-MLP of growing layers over codes of this width; seeded starting rows.

    Raises:
        ConfigError: a budget does not leave room for what must be in memory.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    tiers = build_tiers(settings, hardware) if tiers is None else tiers
    make = _layer_maker(settings, hardware, generator, tiers)
    hidden: list[nn.Module] = [make(width, width) for _ in range(settings.network.hidden)]
    network = ResNetMLP(hidden, make(width, classes))
    tiers.check()
    return network


def _layer_maker(
    settings: LearnerSettings, hardware: Hardware, generator: torch.Generator, tiers: Tiers
) -> Callable[[int, int], GrowingLayer]:
    layer = settings.layer
    options: dict[str, Any] = {
        "dtype": hardware.dtype,
        "device": hardware.device,
        "block_rows": settings.memory.block_rows,
        "tiers": tiers,
    }

    def make(inputs: int, outputs: int) -> GrowingLayer:
        if isinstance(layer, RBFSettings):
            return RBFLayer(inputs, outputs, gamma=layer.gamma, **options)
        if isinstance(layer, LinearSettings):
            return DualLinear(inputs, outputs, **options)
        temperature = inputs**0.5 / layer.kappa if layer.temperature is None else layer.temperature
        start: dict[str, Any] = {
            "temperature": temperature,
            "start_rows": layer.start_rows,
            "start_values": layer.start_values,
            "generator": generator,
            **options,
        }
        if isinstance(layer, GaugeSettings):
            return GaugeSoftmax(inputs, outputs, alpha=layer.alpha, **start)
        return WeightedSoftmax(inputs, outputs, bound=layer.bound, **start)

    return make


def build_optimizer(settings: LearnerSettings, network: ResNetMLP) -> FunctionalSGD:
    """Functional SGD with one group for the hidden layers, if any, and one for the output layer."""
    layer = settings.layer
    groups: list[dict[str, Any]] = [
        {"layers": list(network.hidden), "lr_value": layer.lr_value_hidden},
        {"layers": [network.output], "lr_value": layer.lr_value},
    ]
    if not isinstance(layer, (RBFSettings, LinearSettings)):
        groups[0]["lr_weight"] = layer.lr_weight_hidden
        groups[1]["lr_weight"] = layer.lr_weight
    return FunctionalSGD(
        [group for group in groups if group["layers"]],
        momentum=settings.optimizer.momentum,
        decay=settings.optimizer.decay,
    )
