"""Wider models that answer as before: more features, more classes, the same tuples.

A new column of a key is zero, so similarities of keys of a fixed length do not change; a new
column of a value is zero, so nothing is said of a class that is new. Widths that networks divide
by, D, grow by four, and the keys' length √D then doubles, which changes no bit of a mantissa.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.bits import to_bits
from streamlearn.errors import ConfigError
from streamlearn.eviction import Eviction
from streamlearn.losses import Loss
from streamlearn.memory import KEY_SCALE, Memory
from streamlearn.merging import nearest_of, projected
from streamlearn.models import Model, NetworkModel, ScaledModel
from streamlearn.optim import FunctionalSGD
from streamlearn.quantise import dequantised
from streamlearn.state import StateTree

__all__ = ["classes_room", "features_room", "loss_of_first", "widen_memory", "widen_model"]

_FEATURES = 16
_CLASSES = 15


def features_room(width: int) -> int:
    """The room for codes of a width: 16, 64, 256, …"""
    room = _FEATURES
    while room < width:
        room *= 4
    return room


def classes_room(count: int) -> int:
    """The room for that many classes: 15, 31, 63, …, one less than blocks are wide, for weights."""
    room = _CLASSES
    while room < count:
        room = 2 * room + 1
    return room


def loss_of_first(loss: Loss, count: int) -> Loss:
    """A loss of the first outputs only: the others have no share in it and probability 0.

    Args:
        loss: of as many outputs as there are.
        count: how many of them count, at least 1.
    """

    def per_sample(output: Tensor, target: Tensor) -> Tensor:
        return loss.per_sample(output[..., :count], target)

    def answers(output: Tensor) -> Tensor:
        return F.pad(loss.answers(output[..., :count]), (0, output.shape[-1] - count))

    def of_answers(given: Tensor, target: Tensor) -> Tensor:
        return loss.of_answers(given[..., :count], target)

    return Loss(per_sample, answers, of_answers, loss.values)


def widen_memory(memory: Memory, source: Memory, rows: Tensor | None = None) -> None:
    """Make a memory hold another's rows, its keys at the length that it wants.

    Args:
        memory: at least as wide in keys and values; what it holds is dropped.
        source: is left as it is.
        rows: (n,) int64, those of the source that it is to hold, in this order; None: all.
    """
    wider = memory.key_width - source.key_width, memory.value_width - source.value_width
    if min(wider) < 0 or (memory.dtype, memory.keys) != (source.dtype, source.keys):
        raise ConfigError(
            f"a memory of widths {source.key_width} and {source.value_width} in {source.dtype} "
            f"cannot become one of {memory.key_width} and {memory.value_width} in {memory.dtype}; "
            "widths only grow, and dtypes stay"
        )
    stretch = (memory.key_width / source.key_width) ** 0.5
    memory.clear()
    for columns in _parts(source, rows):
        if KEY_SCALE in columns:
            codes, scale = columns["key"], columns.pop(KEY_SCALE)
            columns["key"] = dequantised(codes, scale, torch.empty(codes.shape))
        columns["key"] = F.pad(columns["key"] * stretch, (0, wider[0]))
        columns["value"] = F.pad(columns["value"], (0, wider[1]))
        if "scale" in columns:  # code = scale · key, and the code's numbers stay
            columns["scale"] = columns["scale"] / stretch
        _widen_moments(columns, wider, stretch)
        memory.load_columns({name: to_bits(tensor) for name, tensor in columns.items()})


def _parts(source: Memory, rows: Tensor | None) -> Iterator[dict[str, Tensor]]:
    """Columns of rows on the host, a block at a time."""
    if rows is None:
        for index in range(source.block_count):
            yield dict(source.host_tensors(index))
        return
    for part in torch.split(rows, source.block_rows):
        yield {name: column.cpu() for name, column in source.gather(part).items()}


def _widen_moments(columns: dict[str, Tensor], wider: tuple[int, int], stretch: float) -> None:
    """AdamW's notes beside the tuples; the gradient to a longer key is that much smaller."""
    for what, more, longer in (("key", wider[0], stretch), ("value", wider[1], 1.0)):
        for kind, factor in (("mean", 1 / longer), ("square", longer**-2), ("rest", longer)):
            name = f"adam_{what}_{kind}"
            if name in columns:
                columns[name] = F.pad(columns[name] * factor, (0, more))


@torch.no_grad()
def widen_model(model: Model, source: Model) -> None:
    """Make a new model go on where another is, in memories at least as wide.

    Layers by name have the same rows, the optimizer the same clock. Where the other has a bound
    and this one another, only as many rows as this has room for come along; the policy of the
    memory says which.

    Args:
        model: a network of growing layers alone, new, made with the settings of the other.
        source: is left as it is.

    Raises:
        ConfigError: one of both has parameters of fixed size.
    """
    if isinstance(model, ScaledModel) and isinstance(source, ScaledModel):
        model.mean, model.deviation = source.mean.clone(), source.deviation.clone()
        model, source = model.model, source.model
    both = [m for m in (model, source) if isinstance(m, NetworkModel) and m.optimizer is None]
    if len(both) < 2 or both[0].growth is None or both[1].growth is None:
        raise ConfigError("only networks of growing layers can be widened; set learner=growing")
    state = both[1].state_dict()
    growth, kept = _taken_over(both[1].growth, both[0].growth.rows)
    own = both[0].state_dict()["parameters"]
    both[0].load_state_dict({**state, "growth": growth, "parameters": own})
    memories = source.memories()
    for name, memory in model.memories().items():
        widen_memory(memory, memories[name], kept.get(id(memories[name])))
    if both[1].growth.eviction is not None and kept:
        _project(both[0].growth, both[1].growth.eviction, next(iter(kept.values())))


def _project(growth: FunctionalSGD, source: Eviction, kept: Tensor) -> None:
    """Add the tuples that had no room to their nearest ones, where the policy is to merge."""
    if growth.eviction is None or growth.eviction.policy != "merge":
        return
    rows = kept.numpy()
    going, staying = source.going(rows), rows[source.first :]
    if not len(going) or not len(staying):
        return
    into = nearest_of(source.layers, going, staying)
    for layer, wide in zip(source.layers, growth.eviction.layers, strict=True):
        pair = torch.from_numpy(going), torch.from_numpy(into)
        sums = projected(layer.memory, layer.forgetting, *pair, layer.kernel)
        place = torch.searchsorted(kept, sums.rows)
        more = wide.out_features - layer.out_features
        wide.memory.rewrite(place, weight=sums.weight, value=F.pad(sums.value, (0, more)))


def _taken_over(growth: FunctionalSGD, most: int | None) -> tuple[StateTree, dict[int, Tensor]]:
    """The state for an optimizer whose layers keep so many rows, and the rows of each memory.

    Returns:
        By the memories' identities, rows in the order that the state means; none where all stay.
    """
    state = growth.state_dict()
    if most is None or most == growth.rows:
        return state, {}
    state["rows"] = most
    if growth.eviction is not None:
        eviction = growth.eviction
        rows = eviction.staying(most, growth.steps)
        there = sum(memory.live for memory in eviction.memories) // len(eviction.memories)
        state["evicted"] = [eviction.written, eviction.left + max(0, there - len(rows))]
        return state, {id(memory): rows for memory in eviction.memories}
    kept: dict[int, Tensor] = {}
    written, gone = [], []
    for ring in growth.rings:
        rows = ring.newest(most - ring.first)
        kept[id(ring.memory)] = torch.cat([torch.arange(ring.first), rows])
        # Of a full ring the next one takes the first row, which has the oldest tuple now.
        written.append(len(rows))
        gone.append(ring.left + ring.memory.live - ring.first - len(rows))
    return state | {"written": written, "gone": gone}, kept
