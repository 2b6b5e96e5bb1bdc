"""What `nn.Linear` layers saw: each row's input and the gradient of its output, by hooks.

A row is one sample, or one position of one sample where a layer is applied along a sequence. Losses
are **summed** over the samples before `backward()`, as for `FunctionalSGD`: the gradient of a row
is then that of its own sample's loss, whatever else is in the batch.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils.hooks import RemovableHandle

__all__ = ["LinearRecorder", "Rows", "Unit", "find_linears", "units_of"]


class Rows(NamedTuple):
    """What a layer saw since the last step.

    inputs: x (n, D), with a last column of ones where the layer has a bias of its own (n, D + 1).
    gradients: ∂L/∂(output) of each row (n, C), or None where they are not kept.
    """

    inputs: Tensor
    gradients: Tensor | None


@dataclass(eq=False)
class _Trace:
    """One forward pass; it counts once its gradient has arrived."""

    order: int
    inputs: Tensor
    arrived: bool = False
    gradients: Tensor | None = None


@dataclass(eq=False)
class Unit:
    """A weight matrix (C, D) and the bias (C,) that belongs to it alone, if there is one.

    The bias is the weight of a constant input 1: together they are one matrix (C, D + 1).
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    traces: list[_Trace] = field(default_factory=list)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The weight, then the bias."""
        yield self.weight
        if self.bias is not None:
            yield self.bias

    def rows(self, dtype: torch.dtype) -> Rows | None:
        """All rows whose gradient has arrived, in the order of their forward passes."""
        if not self.traces:
            return None
        traces = sorted(self.traces, key=lambda trace: trace.order)
        inputs = torch.cat([trace.inputs for trace in traces]).to(dtype)  # (n, D)
        if self.bias is not None:
            inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)  # (n, D + 1)
        gradients = [trace.gradients for trace in traces if trace.gradients is not None]
        return Rows(inputs, torch.cat(gradients).to(dtype) if gradients else None)


class LinearRecorder:
    """Forward hooks on `nn.Linear` layers and gradient hooks on their outputs.

    A forward pass is kept by its own graph and enters the record only when its gradient arrives:
    evaluation leaves nothing behind. A layer used several times gives rows for every use; several
    backward passes through one graph add up, as they do in `.grad`.

    Args:
        gradients: whether to keep the rows' output gradients, or only their inputs.

    Hooks refer to the recorder weakly; they are removed when it is closed or dropped.
    """

    def __init__(self, *, gradients: bool) -> None:
        self.units: dict[int, Unit] = {}  # by id(weight); a unit keeps its weight alive
        self._gradients = gradients
        self._passes = 0
        self._handles: list[RemovableHandle] = []
        weakref.finalize(self, _remove, self._handles)

    def watch(self, units: Iterable[Unit], linears: Iterable[nn.Linear]) -> None:
        """Record these layers, whose weights are those of these units."""
        self.units |= {id(unit.weight): unit for unit in units}
        hook = _forward_hook(weakref.ref(self))
        for linear in linears:
            self._handles.append(linear.register_forward_hook(hook, with_kwargs=True))

    def clear(self) -> None:
        """Forget what was recorded; a graph that is still alive may be run backward anew."""
        for unit in self.units.values():
            for trace in unit.traces:
                trace.arrived, trace.gradients = False, None
            unit.traces.clear()

    def close(self) -> None:
        """Remove the hooks; nothing is recorded from now on."""
        _remove(self._handles)

    def _record(self, unit: Unit, inputs: Tensor, output: Tensor) -> None:
        self._passes += 1
        trace = _Trace(self._passes, inputs.detach().reshape(-1, inputs.shape[-1]))
        keep = self._gradients

        def arrive(gradient: Tensor) -> None:
            if not trace.arrived:
                trace.arrived = True
                unit.traces.append(trace)
            if keep:
                rows = gradient.detach().reshape(-1, gradient.shape[-1])  # (n, C)
                trace.gradients = rows if trace.gradients is None else trace.gradients + rows

        output.register_hook(arrive)  # type: ignore[no-untyped-call]


def find_linears(modules: Iterable[nn.Module]) -> list[nn.Linear]:
    """The `nn.Linear` layers within these modules whose forward pass can be seen, each once.

    Left out are the output projection of `nn.MultiheadAttention`, which is never called, and layers
    whose weight is computed by a parametrization rather than stored.
    """
    found = {
        id(module): module
        for root in modules
        for module in root.modules()
        if isinstance(module, nn.Linear)
        and not isinstance(module, NonDynamicallyQuantizableLinear)
        and module._parameters.get("weight") is not None
    }
    return list(found.values())


def units_of(linears: Iterable[nn.Linear]) -> list[Unit]:
    """One unit for each weight, shared or not; a bias joins the only weight that it is used with.

    A bias that is shared among weights, or one of several biases of a shared weight, is no weight
    of a constant input of one matrix, and stays outside.
    """
    weights: dict[int, nn.Parameter] = {}
    biases_of: dict[int, dict[int, nn.Parameter | None]] = {}
    weights_of: dict[int, set[int]] = {}
    for linear in linears:
        weight: Any = linear.weight
        bias: nn.Parameter | None = linear.bias
        weights[id(weight)] = weight
        biases_of.setdefault(id(weight), {})[id(bias)] = bias
        weights_of.setdefault(id(bias), set()).add(id(weight))

    def own_bias(weight: int) -> nn.Parameter | None:
        (only, *others) = biases_of[weight].values()
        return only if not others and len(weights_of[id(only)]) == 1 else None

    return [Unit(weight, own_bias(key)) for key, weight in weights.items()]


def _forward_hook(
    reference: "weakref.ref[LinearRecorder]",
) -> Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any], Tensor], None]:
    def hook(
        module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> None:
        recorder = reference()
        if recorder is None or not torch.is_grad_enabled() or not output.requires_grad:
            return
        # A copy of the network carries this hook along, but not these weights.
        unit = recorder.units.get(id(module.weight))
        if unit is not None and any(part.requires_grad for part in unit.parameters()):
            recorder._record(unit, args[0] if args else kwargs["input"], output)

    return hook


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()
