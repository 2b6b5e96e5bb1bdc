"""Optimizers with a rule for some parameters and AdamW for the rest, in one set of groups."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from streamlearn.errors import ConfigError, FormatError

__all__ = ["Closure", "Params", "SplitOptimizer", "in_range", "listed"]

Closure: TypeAlias = Callable[[], Any]
Params: TypeAlias = "nn.Module | Iterable[Any]"

REST = "adamw"


class SplitOptimizer(torch.optim.Optimizer, ABC):
    """A `torch.optim.Optimizer` whose rule fits only some parameters; AdamW takes the rest.

    Each group that is given becomes up to two in `param_groups`, told apart by `group["rule"]`: the
    one of this class's rule, and one of "adamw", with rate `fallback_lr`, no weight decay and
    AdamW's other defaults. Schedulers scale both. Frozen parameters and parameters without a
    gradient stay as they are; sparse gradients are made dense.

    Args:
        params: a network; modules; parameters; or groups, dictionaries with any of these as
            `params` and any of the settings.
        defaults: the settings of the rule, `lr` and `fallback_lr` among them.

    Raises:
        ConfigError: nothing to optimise, an unknown or impossible setting, or a parameter that is
            in a group already.
    """

    rule: str

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise ConfigError(
                f"{type(self).__name__} was given a tensor of shape {tuple(params.shape)}; give it "
                "a network, a list of parameters or a list of groups"
            )
        given = listed(params)
        if given and isinstance(given[0], dict):
            groups = [dict(group) for group in given]
        else:
            groups = [{"params": given}]
        if not any(_tensors(listed(group.get("params", ()))) for group in groups):
            raise ConfigError(f"{type(self).__name__} was given no parameter; give it a network")
        super().__init__(groups, defaults)

    @abstractmethod
    def owns(self, parameter: Tensor) -> bool:
        """Whether the rule, rather than AdamW, moves this parameter."""

    @abstractmethod
    def check(self, settings: dict[str, Any]) -> None:
        """Raise ConfigError for a setting of the rule that is out of range."""

    @abstractmethod
    def step_own(self, groups: list[dict[str, Any]]) -> None:
        """Move the parameters of the rule's groups."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: `params` (modules or parameters) and any of the settings.

        Raises:
            ConfigError: an unknown or impossible setting, or a parameter in two groups.
        """
        name = type(self).__name__
        settings = {key: value for key, value in param_group.items() if key != "params"}
        unknown = sorted(set(settings) - set(self.defaults))
        if unknown:
            raise ConfigError(
                f"a group of {name} has no setting {unknown[0]!r}; "
                f"it takes params, {', '.join(self.defaults)}"
            )
        settings = {**self.defaults, **settings}
        self.check(settings)
        tensors = _tensors(listed(param_group["params"]))
        taken = {id(parameter) for group in self.param_groups for parameter in group["params"]}
        twice = next((tensor for tensor in tensors if id(tensor) in taken), None)
        if twice is not None:
            raise ConfigError(
                f"a parameter of shape {tuple(twice.shape)} is in two groups of {name}; "
                "each may be moved by one only"
            )
        own = [tensor for tensor in tensors if self.owns(tensor)]
        rest = [tensor for tensor in tensors if not self.owns(tensor)]
        if own:
            super().add_param_group({"params": own, "rule": self.rule, **settings})
        if rest:
            adamw = torch.optim.AdamW(rest, lr=settings["fallback_lr"], weight_decay=0.0)
            group = {**adamw.param_groups[0], "rule": REST}
            known = set(group)
            super().add_param_group(group)
            for key in set(group) - known:  # the rule's settings mean nothing to AdamW
                del group[key]

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Move all parameters that have a gradient.

        Args:
            closure: recomputes the loss and calls backward; optional, as in `torch.optim`.

        Returns:
            The closure's loss, if there is one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    parameter.grad = parameter.grad.to_dense()
        self.step_own([group for group in self.param_groups if group["rule"] != REST])
        rest = [group for group in self.param_groups if group["rule"] == REST]
        if rest:
            self.delegate(torch.optim.AdamW, rest)
        return loss

    def delegate(self, kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]]) -> None:
        """Let another class step these groups; its state is kept with ours."""
        known: dict[str, torch.optim.Optimizer] = vars(self).setdefault("_delegates", {})
        if kind.__name__ not in known:
            known[kind.__name__] = kind(groups[0]["params"])  # type: ignore[call-arg]
        other = known[kind.__name__]
        other.param_groups, other.state = groups, self.state
        other.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore state and settings; tensors keep the dtype that they were saved in.

        Raises:
            FormatError: the state of another optimizer, or of another network.
        """
        ours = [(group["rule"], len(group["params"])) for group in self.param_groups]
        theirs = [(group.get("rule"), len(group["params"])) for group in state_dict["param_groups"]]
        if ours != theirs:
            raise FormatError(
                f"the state has groups of {_described(theirs)} but this {type(self).__name__} has "
                f"{_described(ours)}; build it with the same class over the same network"
            )
        super().load_state_dict(state_dict)
        # torch casts to the parameters' dtype, which would round float32 sums of a bfloat16 layer,
        # and shares tensors with the dictionary that it is given.
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for key, parameter in zip(saved, parameters, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    device = self.state[parameter][name].device
                    self.state[parameter][name] = value.detach().to(device, copy=True)


def in_range(
    settings: dict[str, Any],
    name: str,
    low: float,
    high: float | None = None,
    *,
    closed: bool = False,
) -> None:
    """Raise ConfigError unless `low ≤ settings[name] < high` (≤ high where closed)."""
    value = float(settings[name])
    above = high is not None and (value > high or (value == high and not closed))
    if not (value >= low and value < float("inf")) or above:
        limits = f"at least {low}" if high is None else f"in [{low}, {high}{']' if closed else ')'}"
        raise ConfigError(f"{name}={settings[name]} must be finite and {limits}")


def listed(params: Params) -> list[Any]:
    """Parameters, modules or groups as a list."""
    return [params] if isinstance(params, (nn.Module, Tensor)) else list(params)


def _tensors(given: list[Any]) -> list[Tensor]:
    """All parameters of modules, named parameters and parameters, in their order, each once."""
    found: dict[int, Tensor] = {}
    for item in given:
        value = item[1] if isinstance(item, tuple) else item
        for tensor in value.parameters() if isinstance(value, nn.Module) else [value]:
            if not isinstance(tensor, Tensor):
                raise ConfigError(
                    f"an optimizer was given a {type(tensor).__name__} to optimise; "
                    "give it modules or parameters"
                )
            found.setdefault(id(tensor), tensor)
    return list(found.values())


def _described(groups: list[tuple[str | None, int]]) -> str:
    return " + ".join(f"{count} parameters by {rule or 'another rule'}" for rule, count in groups)
