"""What optimizers of linear layers share: finding the layers, their rows, and refusing NaN."""

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from streamlearn.errors import ConfigError, GraphError, NotFiniteError

from .recording import LinearRecorder, Unit, find_linears, units_of
from .split import Params, SplitOptimizer, listed

__all__ = ["LinearBatch", "LinearOptimizer"]


class LinearBatch(NamedTuple):
    """One layer's step: its whole matrix [W | b] has D' columns, of which a slice is trained.

    columns: the trained slice; all of [W | b] unless the weight or the bias is frozen.
    matrix: the trained columns (C, d). gradient: their `.grad` (C, d).
    inputs: [x | 1] of each row, all columns (n, D').
    outputs: ∂L/∂(output) of each row (n, C), or None where the rule does not need them.
    All are float32, or float64 for float64 layers.
    """

    columns: slice
    matrix: Tensor
    gradient: Tensor
    inputs: Tensor
    outputs: Tensor | None


class LinearOptimizer(SplitOptimizer):
    """The base of optimizers that need each row's input to a linear layer, not only its gradient.

    Every `nn.Linear` within the modules that are given is moved by the rule; its bias is the weight
    of a constant input 1. All other parameters, among them those that are given as parameters
    rather than in their module, are moved by AdamW at the rate `fallback_lr`.

    **Sum** the loss over the samples before `backward()`, as for `FunctionalSGD`. Call this
    object's own `zero_grad()`, which also forgets the rows of backward passes that no step
    followed. Rows are recorded wherever gradients flow, in training and evaluation mode alike.

    Args:
        model: a network, modules, or groups (dictionaries with modules as `params`).
        defaults: the rule's settings.
        gradients: whether the rule needs the rows' output gradients.

    Raises:
        ConfigError: no `nn.Linear` among the modules.
        GraphError: by `step`, a weight has a gradient although its layer was never called.
        NotFiniteError: by `step`, inputs or gradients are not finite; nothing was changed.
    """

    def __init__(self, model: Params, defaults: dict[str, Any], *, gradients: bool) -> None:
        self._recorder = LinearRecorder(gradients=gradients)
        self._owned: set[int] = set()
        super().__init__(model, defaults)
        if not self._recorder.units:
            raise ConfigError(
                f"{type(self).__name__} found no nn.Linear to optimise; give it the network or its "
                "modules rather than their parameters"
            )

    @abstractmethod
    def update(self, group: dict[str, Any], state: dict[str, Any], batch: LinearBatch) -> Tensor:
        """The new trained columns (C, d) of one layer.

        `state` is the layer's own: its entries are replaced, never changed in their place.
        """

    def owns(self, parameter: Tensor) -> bool:
        """Whether it is the weight of a linear layer, or the bias that belongs to one."""
        return id(parameter) in self._owned

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group: `params` (modules or parameters) and any of the settings."""
        given = listed(param_group["params"])
        linears = find_linears(item for item in given if isinstance(item, nn.Module))
        units = units_of(linears)
        self._owned |= {id(parameter) for unit in units for parameter in unit.parameters()}
        super().add_param_group({**param_group, "params": given})
        self._recorder.watch(units, linears)

    def step_own(self, groups: list[dict[str, Any]]) -> None:
        """Move the linear layers: all of them, or none where something is not finite."""
        work = [
            (group, unit, batch)
            for group in groups
            for parameter in group["params"]
            if (unit := self._recorder.units.get(id(parameter))) is not None
            and (batch := _batch(unit)) is not None
        ]
        _refuse_not_finite([batch for _, _, batch in work])
        before = [(unit.weight, dict(self.state[unit.weight])) for _, unit, _ in work]
        try:
            updates = [
                self.update(group, self.state[unit.weight], batch) for group, unit, batch in work
            ]
        except BaseException:  # a matrix without an inverse, say: no layer has seen this batch
            self.state.update(before)
            raise
        for (_, unit, batch), matrix in zip(work, updates, strict=True):
            _write(unit, batch.columns, matrix)
        self._recorder.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget gradients, and the rows that were recorded since the last step."""
        super().zero_grad(set_to_none)
        self._recorder.clear()

    def close(self) -> None:
        """Remove the hooks from the layers; this object cannot step afterwards."""
        self._recorder.close()

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigError(
            f"a {type(self).__name__} cannot be copied, since it listens to its own network's "
            "layers; build one over the copied network and load this one's state_dict"
        )


def _batch(unit: Unit) -> LinearBatch | None:
    """What the layer's step needs; None where nothing is trained or nothing was seen."""
    weight, bias = unit.weight, unit.bias
    trained = [
        parameter is not None and parameter.requires_grad and parameter.grad is not None
        for parameter in (weight, bias)
    ]
    if not any(trained):
        return None
    dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
    rows = unit.rows(dtype)
    columns = slice(0 if trained[0] else weight.shape[1], weight.shape[1] + trained[1])
    values, gradients = [], []
    for parameter, used in zip((weight, bias), trained, strict=True):
        if used and parameter is not None and parameter.grad is not None:
            values.append(_columns(parameter).to(dtype))
            gradients.append(_columns(parameter.grad).to(dtype))
    gradient = torch.cat(gradients, 1)  # (C, d)
    if rows is None or len(rows.inputs) == 0:
        if rows is None and bool(gradient.any()):
            raise GraphError(
                f"the weight of a linear layer of shape {tuple(weight.shape)} has a gradient, but "
                "no call of the layer was recorded; call the layer itself and this optimizer's "
                "zero_grad, or give it the parameters rather than the module"
            )
        return None
    return LinearBatch(columns, torch.cat(values, 1), gradient, rows.inputs, rows.gradients)


def _columns(tensor: Tensor) -> Tensor:
    """A weight as it is, a bias as a column (C, 1)."""
    return tensor.detach() if tensor.dim() == 2 else tensor.detach()[:, None]


def _write(unit: Unit, columns: slice, matrix: Tensor) -> None:
    width = unit.weight.shape[1]
    if columns.start == 0:
        unit.weight.copy_(matrix[:, :width])
    if unit.bias is not None and columns.stop > width:
        unit.bias.copy_(matrix[:, -1])


def _refuse_not_finite(batches: list[LinearBatch]) -> None:
    """Raise unless all sums of squares are finite: one look at the device for all layers."""
    if not batches:
        return
    device = batches[0].inputs.device
    sizes = torch.stack(
        [
            (batch.inputs.square().sum() + batch.gradient.square().sum()).to(device)
            for batch in batches
        ]
    )
    if not bool(sizes.isfinite().all()):
        worst = batches[int(sizes.isfinite().int().argmin())]
        outputs, width = worst.gradient.shape[0], worst.inputs.shape[1]
        raise NotFiniteError(
            f"inputs or gradients of a linear layer with {outputs} outputs and {width} columns are "
            "not finite or too large to square; no parameter was changed, check the features or "
            "lower lr"
        )
