"""Muon for matrices and AdamW for the rest, as one optimizer."""

from typing import Any

import torch
from torch import Tensor

from streamlearn.errors import ConfigError

from .split import Params, SplitOptimizer, in_range

__all__ = ["Muon"]


class Muon(SplitOptimizer):
    """`torch.optim.Muon` on every matrix; it refuses all else, which AdamW takes.

    Args:
        params: a network, modules, parameters, or groups; see `SplitOptimizer`.
        lr: of matrices; their steps are orthogonalised and of this size whatever the gradient's.
        momentum: in [0, 1).
        weight_decay: of matrices, times the rate, as in torch.
        nesterov: whether momentum is Nesterov's.
        ns_steps: Newton–Schulz iterations, 1 to 99.
        adjust_lr_fn: how torch scales the rate with a matrix's shape: None or "original",
            "match_rms_adamw".
        fallback_lr: AdamW's rate for all other parameters.
    """

    rule = "muon"

    def __init__(
        self,
        params: Params,
        lr: float = 0.02,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        fallback_lr: float = 1e-3,
    ) -> None:
        defaults = {
            **torch.optim.Muon([torch.zeros(1, 1)]).defaults,  # those not named here stay torch's
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "fallback_lr": fallback_lr,
        }
        super().__init__(params, defaults)

    def owns(self, parameter: Tensor) -> bool:
        """Whether it is a matrix."""
        return parameter.dim() == 2

    def check(self, settings: dict[str, Any]) -> None:
        """Raise ConfigError for a setting that is out of range."""
        for name in ("lr", "weight_decay", "fallback_lr"):
            in_range(settings, name, 0)
        in_range(settings, "momentum", 0, 1)
        in_range(settings, "ns_steps", 1, 99, closed=True)
        chosen = settings["adjust_lr_fn"]
        try:
            torch.optim.Muon([torch.zeros(1, 1)], adjust_lr_fn=chosen)
        except ValueError as error:
            raise ConfigError(
                f"adjust_lr_fn={chosen!r} is unknown; use original or match_rms_adamw"
            ) from error

    def step_own(self, groups: list[dict[str, Any]]) -> None:
        """Let torch's Muon step the matrices."""
        if groups:
            self.delegate(torch.optim.Muon, groups)
