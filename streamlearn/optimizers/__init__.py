"""Optimizers for networks of fixed size: those of advanced linear attention, and the baselines.

All are `torch.optim.Optimizer` classes. Losses are **summed** over the samples before `backward()`
throughout the project, as `FunctionalSGD` demands; `foof`, `mesa` and `delta` say in their
docstrings what they do with the sum, and for `sgd` the rate is that of one sample.
"""

import inspect
from typing import Any, Literal

import torch
from torch import nn

from streamlearn.errors import ConfigError

from .delta import Delta
from .foof import FOOF, Mesa
from .muon import Muon
from .split import SplitOptimizer
from .trees import load_state_tree, state_tree

__all__ = [
    "FOOF",
    "OPTIMIZERS",
    "Delta",
    "Mesa",
    "Muon",
    "OptimizerName",
    "build_optimizer",
    "load_state_tree",
    "state_tree",
]

OptimizerName = Literal["sgd", "adam", "adamw", "rmsprop", "muon", "foof", "mesa", "delta"]

OPTIMIZERS: dict[OptimizerName, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "muon": Muon,
    "foof": FOOF,
    "mesa": Mesa,
    "delta": Delta,
}


def build_optimizer(name: str, network: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """The named optimizer over all parameters of a network.

    Args:
        name: a key of `OPTIMIZERS`.
        network: whose parameters, frozen ones too, it shall hold.
        options: settings of the class, `lr` first among them; its defaults for the others.

    Raises:
        ConfigError: an unknown name, or a setting that the class does not have or refuses.
    """
    kind = next((kind for known, kind in OPTIMIZERS.items() if known == name), None)
    if kind is None:
        raise ConfigError(f"optimizer {name!r} is unknown; use one of {', '.join(OPTIMIZERS)}")
    known = list(inspect.signature(kind).parameters)[1:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(
            f"optimizer {name} has no setting {unknown[0]!r}; it takes {', '.join(known)}"
        )
    if issubclass(kind, SplitOptimizer):
        return kind(network, **options)
    try:
        return kind(network.parameters(), **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"optimizer {name} refuses its settings: {error}") from error
