"""Growth as an optimizer: `FunctionalSGD(…).step()` stores what SGD would add to weights."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from streamlearn.approximate import ApproximateNearest
from streamlearn.errors import ConfigError, FormatError
from streamlearn.eviction import Eviction, Policy
from streamlearn.gates import Admission, ExactNearest, Gate
from streamlearn.layers import GrowingLayer
from streamlearn.memory import PRIOR, SAMPLE, UNKNOWN, Checked, Memory, Tuples
from streamlearn.retrieval import Forgetting
from streamlearn.ring import Ring, Run
from streamlearn.state import StateTree

__all__ = ["FunctionalSGD", "Group"]


_LOOKED_AT = 1 << 16
"""Rows whose births are looked at together."""


class Group(TypedDict):
    """Growing layers that share their rates."""

    layers: list[GrowingLayer]
    lr_value: float
    lr_weight: float
    momentum: float
    decay: float


_Write = tuple[GrowingLayer, Tuples, Tensor | None]
"""A layer, tuples of it, and which sample each is of."""


class FunctionalSGD:
    """Functional gradient descent on the growing layers of a network.

    Use it as any optimizer: `zero_grad()`, forward, `loss.sum().backward()`, `step()`; ordinary
    parameters of the same network belong to an ordinary optimizer beside it. Sum the loss over the
    samples: each tuple is the step of its own sample.

    Args:
        model: a network, whose growing layers are all found, but for those of second order; or
            groups, dictionaries with `layers` and any of the rates, as in `torch.optim`.
        lr_value: η_v (β in the gauge rule), the rate of values.
        lr_weight: η_w (η in the gauge rule), the rate of weights.
        momentum: μ in [0, 1).
        decay: γ in [0, 1), each step's decay of what was written, decoupled from the rates.
        rows: the most tuples that each layer keeps, its starting rows counted; once it is full, new
            ones take the place of the oldest, see `ring`. None keeps all.
        gate: τ, the distance that a new tuple's key must have from all that a layer has, see
            `gates`; more lets fewer in. None lets all in.
        nearest: how the gate finds the nearest keys; "approximate" is for large memories, see
            `approximate`, and not together with `rows`.
        refused: what becomes of the others: "drop", or "nearest", where weight and value are added
            to those of the nearest tuple.

    Attributes:
        rings: of the layers in their order, where `rows` are given.
        gates: of the layers in their order, where `gate` is given.

    Momentum and decay are exact and rewrite nothing: a tuple counts by its age, see
    `memory.decay_coefficients`. Rates may be changed between steps in `param_groups`; momentum and
    decay are fixed, since they apply to the past too.

    Raises:
        ConfigError: no growing layer, a layer in two groups, a rate out of range, or too few rows.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[dict[str, Any]],
        lr_value: float = 0.1,
        lr_weight: float = 0.003,
        momentum: float = 0.0,
        decay: float = 0.0,
        rows: int | None = None,
        gate: float | None = None,
        nearest: Literal["exact", "approximate"] = "exact",
        refused: Literal["drop", "nearest"] = "drop",
        policy: Policy = "oldest",
    ) -> None:
        rates = {
            "lr_value": lr_value,
            "lr_weight": lr_weight,
            "momentum": momentum,
            "decay": decay,
        }
        if isinstance(model, nn.Module):
            layers = [
                module
                for module in model.modules()
                if isinstance(module, GrowingLayer) and not module.second_order
            ]
            given: list[dict[str, Any]] = [{"layers": layers}] if layers else []
        else:
            given = list(model)
        self.param_groups: list[Group] = [_group({**rates, **group}) for group in given]
        layers = [layer for group in self.param_groups for layer in group["layers"]]
        if not layers:
            raise ConfigError(
                "the model has no growing layer to write to; add one of WeightedSoftmax, "
                "GaugeSoftmax, RBFLayer or DualLinear"
            )
        if len({id(layer) for layer in layers}) != len(layers):
            raise ConfigError("a growing layer is in two groups; each may be written by one only")
        # Tuples that are there already have their age: the clock goes on, 0 in a new network.
        self.steps = max(layer.forgetting.step for layer in layers)
        self.rows = rows
        self.rings: list[Ring] = []
        self.eviction: Eviction | None = None
        if rows is not None and policy == "oldest":
            self.rings = [Ring(layer.memory, rows) for layer in layers]
        elif rows is not None:
            last = self.param_groups[-1]
            memories = [layer.memory for layer in layers]
            self.eviction = Eviction(
                memories,
                rows,
                policy,
                last["momentum"],
                last["decay"],
                layers if policy == "merge" else (),
            )
        if nearest == "approximate" and rows is not None:
            raise ConfigError(
                f"rows={rows} lets new keys take the place of others, which an approximate search "
                "cannot follow; give nearest='exact', or rows=None"
            )
        find = ExactNearest if nearest == "exact" else ApproximateNearest
        self.gates = (
            [] if gate is None
            else [Gate(layer.memory, gate, find(layer.memory)) for layer in layers]
        )  # fmt: skip
        self.refused = refused
        self._set_clock()

    def zero_grad(self) -> None:
        """Forget forward passes that were not followed by a step."""
        for group in self.param_groups:
            for layer in group["layers"]:
                layer.traces.clear()

    def step(
        self,
        closure: Callable[[], Tensor] | None = None,
        *,
        places: Tensor | None = None,
        stored: int = 0,
        notes: Mapping[str, Tensor] | None = None,
        renewed: Collection[str] = (),
        before: Callable[[], object] | None = None,
        factor: float = 1.0,
    ) -> Tensor | None:
        """Store what every layer's last forward and backward passes say.

        Args:
            closure: recomputes the loss and calls backward; optional, as in `torch.optim`.
            places: (B,) int64, for layers that store one tuple a sample: a place below `stored`
                names the sample's own tuple, counted among the last `stored` of each memory, to
                which weight and value are added; the others are new and follow in their order.
                No tuple is named twice. What is added to a tuple whose row is taken at the same
                step is gone with it.
            stored: tuples of each layer that places count.
            notes: by column, (B, …) of each sample, for the memories that have such columns; all
                tuples of a sample get its own. A sample that is not told is `UNKNOWN`.
            renewed: those of the notes that samples with tuples of their own have written anew.
            before: called once nothing can refuse any more, before anything is stored; if it
                raises, nothing is. For the step of other parameters, so that all move or none.
            factor: of the rates, for this step alone.

        Returns:
            The closure's loss, if there is one.

        Raises:
            NotFiniteError: a layer would store a NaN or infinity; no layer stored anything.
        """
        loss = closure() if closure is not None else None
        writes: list[_Write] = []
        for group in self.param_groups:
            rates = {
                "lr_value": factor * group["lr_value"],
                "lr_weight": factor * group["lr_weight"],
            }
            for layer in group["layers"]:
                pending = zip(layer.pending(**rates), layer.origins(), strict=True)
                writes += [(layer, tuples, origin) for tuples, origin in pending]
        if places is not None and self.gates:
            raise ConfigError(
                "a gate lets some samples have no tuple, so that tuples cannot be found by places; "
                "set layer.gate=none, or learn without rehearsal and learner.revisit=append"
            )
        again = None if places is None else places < stored
        merged: list[_Merge] = []
        if places is not None and again is not None and bool(again.any()):
            merged = [
                _merged(layer.memory, tuples, places, again, stored) for layer, tuples, _ in writes
            ]
        if self.gates:
            writes, merged = self._admitted(writes)
        noted = {} if notes is None else dict(notes)
        anew: dict[str, Tensor] = {}
        if again is not None:
            anew = {name: noted[name][again.to(noted[name].device)] for name in renewed}
            # Whoever names places has one tuple a sample.
            writes = [(layer, _chosen(tuples, ~again), None) for layer, tuples, _ in writes]
            noted = {name: note[(~again).to(note.device)] for name, note in noted.items()}
        checked = [  # all layers or none
            (
                layer.memory,
                layer.memory.check(
                    tuples, self.steps + 1, _of_each(layer.memory, noted, origin, len(tuples.key))
                ),
            )
            for layer, tuples, origin in writes
        ]
        sums = [merge.sums() for merge in merged]
        for merge, tuples in zip(merged, sums, strict=True):
            merge.memory.check(tuples, self.steps + 1)
        turns = [turn for ring in self.rings for turn in _turns(ring, checked)]
        eviction, each = self.eviction, []
        if eviction is not None and checked:
            each = [_of_memory(memory, checked) for memory in eviction.memories]
            going = eviction.plan(each, self.steps + 1)
        rewrites = [merge.memory.rewrites for merge in merged]
        if before is not None:
            before()
        self.steps += 1
        for merge, tuples, seen in zip(merged, sums, rewrites, strict=True):
            memory = merge.memory
            if memory.rewrites != seen:  # they were trained meanwhile
                tuples = merge.sums()
            own = _own(memory, anew)
            memory.rewrite(merge.rows, weight=tuples.weight, value=tuples.value, notes=own)
            if eviction is not None:
                eviction.touch(merge.rows)
        for ring, plan, rows in turns:
            ring.put(plan, rows, born=self.steps)
        if eviction is not None and each:
            eviction.put(going, each, born=self.steps)
        for memory, rows in () if self.rows is not None else checked:
            if places is None or len(rows.key):
                memory.append_checked(rows, born=self.steps)
        self.zero_grad()
        self._set_clock()
        return loss

    def _admitted(self, writes: "list[_Write]") -> "tuple[list[_Write], list[_Merge]]":
        """What is new of what layers would store, and what is added to what they have."""
        admitted: list[_Write] = []
        merged: list[_Merge] = []
        layers = [layer for group in self.param_groups for layer in group["layers"]]
        for layer, gate in zip(layers, self.gates, strict=True):
            own = [write for write in writes if write[0] is layer]
            if not own:
                continue
            tuples, origin = _joined(own)
            # Also what is refused must be finite, for nothing is near to what is not.
            layer.memory.check(tuples, self.steps + 1)
            admission = gate.admit(tuples)
            accepted = _chosen(tuples, admission.accepted)
            if self.refused == "nearest" and len(admission.refused):
                accepted, merge = _added(layer.memory, tuples, accepted, admission)
                merged += [] if merge is None else [merge]
            origin = admission.accepted if origin is None else origin[admission.accepted]
            admitted.append((layer, accepted, origin))
        return admitted, merged

    def forget(self, steps: int) -> int:
        """Drop what was written before the last so many steps; what a layer began with stays.

        Returns:
            How many tuples were dropped, over all layers.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        oldest = self.steps - steps + 1
        layers = [layer for group in self.param_groups for layer in group["layers"]]
        return sum(_drop_before(layer.memory, oldest, self.rows is not None) for layer in layers)

    @property
    def left(self) -> int:
        """Tuples of each layer that went for others, in the layer that lost most."""
        gone = (ring.left for ring in self.rings)
        return max(gone, default=0) if self.eviction is None else self.eviction.left

    @property
    def nbytes(self) -> int:
        """What knowing which tuples are to go takes."""
        return 0 if self.eviction is None else self.eviction.nbytes

    def _set_clock(self) -> None:
        for group in self.param_groups:
            for layer in group["layers"]:
                layer.forgetting = Forgetting(self.steps, group["momentum"], group["decay"])

    def state_dict(self) -> StateTree:
        """The step count, each group's rates, and what bounds have written."""
        names = ("lr_value", "lr_weight", "momentum", "decay")
        groups = [{name: group[name] for name in names} for group in self.param_groups]  # type: ignore[literal-required]
        state: StateTree = {"steps": self.steps, "groups": groups}
        if self.rings:
            state |= {"rows": self.rows, "written": [ring.written for ring in self.rings]}
            if any(ring.gone for ring in self.rings):
                state["gone"] = [ring.gone for ring in self.rings]
        if self.eviction is not None:
            counts = [self.eviction.written, self.eviction.left]
            state |= {"rows": self.rows, "policy": self.eviction.policy, "evicted": counts}
        return state

    def load_state_dict(self, state: StateTree) -> None:
        """Restore the step count, rates, and where rings stand.

        Raises:
            FormatError: another number of groups, or of rows that layers keep.
        """
        groups = state["groups"]
        if len(groups) != len(self.param_groups):
            raise FormatError(
                f"the state has {len(groups)} groups but this optimizer has "
                f"{len(self.param_groups)}; build it over the same network"
            )
        if state.get("rows") != self.rows:
            raise FormatError(
                f"the state was saved with memory.rows={state.get('rows')} but here it is "
                f"{self.rows}; set it as it was"
            )
        policy = None if self.eviction is None else self.eviction.policy
        if state.get("policy") != policy:
            raise FormatError(
                f"the state was saved with memory.policy={state.get('policy') or 'oldest'} but "
                f"here it is {policy or 'oldest'}; set it as it was"
            )
        self.steps = int(state["steps"])
        if self.eviction is not None:
            self.eviction.written, self.eviction.left = (int(n) for n in state["evicted"])
            self.eviction.forget()
        for ring, written in zip(self.rings, state.get("written", ()), strict=True):
            ring.written, ring.gone = int(written), 0
        for ring, gone in zip(self.rings, state.get("gone", ()), strict=False):
            ring.gone = int(gone)
        for group, saved in zip(self.param_groups, groups, strict=True):
            group["lr_value"] = float(saved["lr_value"])
            group["lr_weight"] = float(saved["lr_weight"])
            group["momentum"] = float(saved["momentum"])
            group["decay"] = float(saved["decay"])
        self._set_clock()


def _of_memory(memory: Memory, checked: list[tuple[Memory, Checked]]) -> Checked:
    """All that is to be stored in a memory."""
    return Checked.joined([rows for its, rows in checked if its is memory])


def _turns(
    ring: Ring, checked: list[tuple[Memory, Checked]]
) -> list[tuple[Ring, list[Run], Checked]]:
    """Where a ring puts all that is to be stored in its memory, if anything is."""
    own = [rows for memory, rows in checked if memory is ring.memory]
    if not own:
        return []
    rows = Checked.joined(own)
    return [(ring, ring.plan(len(rows.key)), rows)]


def _drop_before(memory: Memory, step: int, ring: bool) -> int:
    """Drop the tuples that were born before a step; how many these were."""
    live = memory.live
    for start in range(0, len(memory), _LOOKED_AT):
        rows = torch.arange(start, min(start + _LOOKED_AT, len(memory)))
        born = memory.gather(rows, ("born",))["born"].cpu()
        memory.drop(rows[(born > PRIOR) & (born < step)])
        if bool((born >= step).all()) and not ring:  # rows stand in the order of their births
            break
    return live - memory.live


def _chosen(tuples: Tuples, which: Tensor) -> Tuples:
    """Some of the tuples."""
    which = which.to(tuples.key.device)
    return Tuples(*(column[which] for column in tuples))


def _own(memory: Memory, notes: dict[str, Tensor]) -> dict[str, Tensor]:
    """The notes that a memory has columns for."""
    return {name: notes[name] for name, _ in memory.layout.notes if name in notes}


def _of_each(
    memory: Memory, notes: dict[str, Tensor], origin: Tensor | None, count: int
) -> dict[str, Tensor]:
    """The notes of so many tuples, each that of its sample."""
    own = _own(memory, notes)
    if origin is not None:
        own = {name: note[origin.to(note.device)] for name, note in own.items()}
    if memory.identified and SAMPLE not in own:
        own[SAMPLE] = torch.full((count,), UNKNOWN)
    return own


class _Merge(NamedTuple):
    """Rows (n,) that are there, each once, and tuples whose weights and values are added to them.

    Tuples of the same key merge exactly by adding both; the key that is stored stays.
    """

    memory: Memory
    rows: Tensor
    new: Tuples

    def sums(self) -> Tuples:
        """What the rows hold with the new weights and values added."""
        there, new = self.memory.gather(self.rows, ("weight", "value")), self.new
        return Tuples(
            new.key,
            there["weight"] + new.weight.to(there["weight"].dtype),
            there["value"].to(new.value.dtype) + new.value,
        )


def _merged(memory: Memory, tuples: Tuples, places: Tensor, again: Tensor, stored: int) -> _Merge:
    """What samples that come again add to their own tuples."""
    if len(tuples.key) != len(places):
        raise ConfigError(
            f"a layer stores {len(tuples.key)} tuples for {len(places)} samples, so they cannot be "
            "updated in place; set learner.revisit=append"
        )
    return _Merge(memory, len(memory) - stored + places[again], _chosen(tuples, again))


def _joined(writes: Sequence[_Write]) -> tuple[Tuples, Tensor | None]:
    """The tuples of one layer's passes, one behind the other, and which sample each is of."""
    if len(writes) == 1:
        return writes[0][1:]
    keys, weights, values = zip(*(tuples for _, tuples, _ in writes), strict=True)
    origins = [
        torch.arange(len(tuples.key), device=tuples.key.device) if origin is None else origin
        for _, tuples, origin in writes
    ]
    return Tuples(torch.cat(keys), torch.cat(weights), torch.cat(values)), torch.cat(origins)


def _added(
    memory: Memory, tuples: Tuples, accepted: Tuples, admission: Admission
) -> tuple[Tuples, _Merge | None]:
    """Refused tuples added to the nearest: to those that are new, and to rows that are there."""
    refused, near = _chosen(tuples, admission.refused), admission.near
    inside = near < 0
    weight, value = accepted.weight.clone(), accepted.value.clone()
    weight.index_add_(0, -1 - near[inside], refused.weight[inside])
    value.index_add_(0, -1 - near[inside], refused.value[inside])
    accepted = Tuples(accepted.key, weight, value)
    if bool(inside.all()):
        return accepted, None
    rows, place = torch.unique(near[~inside], return_inverse=True)
    new = Tuples(
        memory.gather(rows, ("key",))["key"],
        refused.weight.new_zeros(len(rows)).index_add_(0, place, refused.weight[~inside]),
        refused.value.new_zeros(len(rows), memory.value_width).index_add_(
            0, place, refused.value[~inside]
        ),
    )
    return accepted, _Merge(memory, rows, new)


def _group(given: dict[str, Any]) -> Group:
    unknown = set(given) - set(Group.__annotations__)
    if unknown:
        raise ConfigError(
            f"a group of FunctionalSGD has no setting {sorted(unknown)[0]!r}; "
            f"it takes {', '.join(Group.__annotations__)}"
        )
    layers = list(given.get("layers", ()))
    foreign = next((layer for layer in layers if not isinstance(layer, GrowingLayer)), None)
    if foreign is not None or not layers:
        what = "no layers" if foreign is None else f"a {type(foreign).__name__} among its layers"
        raise ConfigError(
            f"a group of FunctionalSGD has {what}; give it layers=[…] of growing layers, ordinary "
            "parameters belong to an ordinary optimizer"
        )
    for name, below in (("lr_value", None), ("lr_weight", None), ("momentum", 1), ("decay", 1)):
        value = given[name]
        if not math.isfinite(value) or value < 0 or (below is not None and value >= below):
            limits = "at least 0" if below is None else f"in [0, {below})"
            raise ConfigError(f"{name}={value} must be finite and {limits}")
    return Group(
        layers=layers,
        lr_value=float(given["lr_value"]),
        lr_weight=float(given["lr_weight"]),
        momentum=float(given["momentum"]),
        decay=float(given["decay"]),
    )
