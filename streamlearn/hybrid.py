"""Hybrid growth: stored tuples as parameters that AdamW trains, while new ones are added.

For each number θ of a stored row, whose own gradient is summed over the batch,

    m ← β₁ m + (1 − β₁) ∂θ,  u ← β₂ u + (1 − β₂) ∂θ²,  n ← n + 1
    θ ← (1 − ηλ) θ − η (m/(1 − β₁ⁿ)) / (√(u/(1 − β₂ⁿ)) + ε)

where n counts the updates of this row: one that was born late takes the same first step as one born
early. With the table's count it would be about three times as long. m, u and n are notes beside the
tuple, so that they grow, are saved, resume and go with it.

Source: arXiv 2610.03858, §3.3 and appendix F.4; Loshchilov & Hutter, "Decoupled weight decay
regularization", 2019.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn

from streamlearn.bits import name_of
from streamlearn.blocks import Block
from streamlearn.errors import ConfigError, FormatError
from streamlearn.layers import GrowingLayer
from streamlearn.memory import DEAD, PRIOR, Column, accumulation_dtype
from streamlearn.rowgradients import RowGradients, Traced
from streamlearn.state import StateTree

__all__ = ["HybridAdamW", "Train", "hybrid_notes", "trained_columns"]

Train: TypeAlias = Literal["none", "values", "weights+values", "all"]
"""Which columns of stored tuples are trained; "all" takes keys too."""

COUNT = "adam_count"
"""The note that counts a row's updates."""

LEAST_PRIOR_WEIGHT = 1e-4
"""Of the rows that a layer starts with, so that no denominator can become 0."""

_LARGEST = 1e15
"""Of a gradient, whose square is to be finite in float32."""


def trained_columns(train: Train, *, weighted: bool) -> tuple[str, ...]:
    """The columns that are trained, of a layer whose weights mean something or not."""
    chosen = {
        "none": (),
        "values": ("value",),
        "weights+values": ("weight", "value"),
        "all": ("weight", "value", "key"),
    }[train]
    return tuple(name for name in chosen if weighted or name != "weight")


def hybrid_notes(
    key_width: int, value_width: int, dtype: torch.dtype, train: Train, *, weighted: bool
) -> dict[str, Column]:
    """What a layer's memory keeps beside each tuple: moments, and the count of its updates.

    In float32 (float64 for a float64 memory). Where keys and values are kept in fewer bits, most
    steps are smaller than their rounding, and what was rounded off is kept too.

    Args:
        key_width: D.
        value_width: C.
        dtype: of keys and values.
        train: what is trained.
        weighted: see `GrowingLayer.weighted`.
    """
    wide = accumulation_dtype(dtype)
    widths = {"weight": None, "value": value_width, "key": key_width}
    notes: dict[str, Column] = {}
    for name in trained_columns(train, weighted=weighted):
        column = Column(widths[name], name_of(wide))
        notes |= {_mean(name): column, _square(name): column}
        if name != "weight" and dtype != wide:
            notes[_rest(name)] = column
    return notes | {COUNT: Column(None, "int64")} if notes else {}


class HybridAdamW:
    """AdamW over the tuples of growing layers, each row by its own count of updates.

    `step()` comes after the backward pass and before `FunctionalSGD.step()`, which adds rows and
    forgets the passes: rows are trained on the batches that came after they were written.

    Args:
        layers: growing layers, whose memories have the columns of `hybrid_notes`; or a network, of
            which all are taken but those of second order.
        train: "values", "weights+values" or "all", which takes keys too. A layer whose tuples have
            no weights trains none.
        lr: η of values.
        lr_weight: of weights; None: that of values.
        lr_key: of keys; None: that of values.
        betas: β₁ and β₂ in [0, 1).
        eps: ε.
        weight_decay: λ, of values alone: weights only count against one another, and a key's length
            is part of what it means.
        every: train at every so-manieth step, on that step's batch alone.

    Attributes:
        steps: calls of `step`.

    Weights never fall below 0, nor those of starting rows below 1e-4. The rows that a layer starts
    with are trained as all others.

    Raises:
        ConfigError: a setting out of range, or a layer whose memory lacks the columns.
    """

    def __init__(
        self,
        layers: Sequence[GrowingLayer] | nn.Module,
        train: Train = "weights+values",
        *,
        lr: float = 1e-3,
        lr_weight: float | None = None,
        lr_key: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        every: int = 1,
    ) -> None:
        if isinstance(layers, nn.Module):
            found = (m for m in layers.modules() if isinstance(m, GrowingLayer))
            layers = [layer for layer in found if not layer.second_order]
        if train not in get_args(Train) or train == "none":
            raise ConfigError(f"train={train!r} trains nothing; give values, weights+values or all")
        self.layers = list(layers)
        self.train = train
        self.rates = {
            "value": lr,
            "weight": lr if lr_weight is None else lr_weight,
            "key": lr if lr_key is None else lr_key,
        }
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.every = every
        self.steps = 0
        self._check()

    def _check(self) -> None:
        for name, rate in {**self.rates, "weight_decay": self.weight_decay}.items():
            if not (math.isfinite(rate) and rate >= 0):
                raise ConfigError(f"rate {name}={rate} must be finite and at least 0")
        if not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0 or self.every < 1:
            raise ConfigError(
                f"betas={self.betas}, eps={self.eps} and every={self.every} must be in [0, 1), "
                "above 0, and at least 1"
            )
        if not self.layers:
            raise ConfigError("there is no growing layer whose tuples could be trained")
        for layer in self.layers:
            memory = layer.memory
            if self.train == "all" and memory.keys == "int8":
                raise ConfigError(
                    "train='all' moves keys, and int8 keys would lose such small moves; give "
                    "train='weights+values', or layers with keys='plain'"
                )
            wanted = hybrid_notes(
                memory.key_width,
                memory.value_width,
                memory.dtype,
                self.train,
                weighted=layer.weighted,
            )
            there = dict(memory.layout.notes)
            missing = next((name for name in wanted if there.get(name) != wanted[name]), None)
            if missing is not None:
                raise ConfigError(
                    f"a layer's memory has no column {missing!r} of the right width; build the "
                    f"layer with notes=hybrid_notes(…, {self.train!r})"
                )

    @torch.no_grad()
    def step(self) -> None:
        """Train the rows of each layer on what its passes since the last step say.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read; rows before it
                were trained.
        """
        self.steps += 1
        if self.steps % self.every:
            return
        for layer in self.layers:
            traces = [trace for trace in layer.traces if trace.gradient is not None]
            if traces:
                traced = Traced(layer.memory, layer.kernel, layer.forgetting, traces)
                self._train(layer, traced)

    def _train(self, layer: GrowingLayer, traced: Traced) -> None:
        names = trained_columns(self.train, weighted=layer.weighted)
        memory = layer.memory
        for index in range(memory.block_count):
            start = index * memory.block_rows
            for tile in memory.parts(memory.block_at(index)):
                gradients = traced.gradients(tile, start, keys="key" in names)
                rows = _Rows.of(tile, memory.value_width)
                columns, notes = self._moved(rows, gradients, names)
                there = torch.arange(start, start + tile.count)
                if memory.live < len(memory):  # those that were dropped stay so
                    live = rows.born != DEAD
                    there = there[live.cpu()]
                    columns = {name: column[live] for name, column in columns.items()}
                    notes = {name: note[live] for name, note in notes.items()}
                memory.rewrite(
                    there,
                    key=columns.get("key"),
                    weight=columns.get("weight"),
                    value=columns.get("value"),
                    notes=notes,
                )
                start += tile.count

    def _moved(
        self, rows: "_Rows", gradients: RowGradients, names: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The columns of rows after one update, and their notes."""
        count = rows.notes[COUNT] + 1  # (n,)
        first, second = self.betas
        age = count.to(torch.float64)
        mean_share, square_share = 1 - first**age, 1 - second**age
        columns: dict[str, Tensor] = {}
        notes = {COUNT: count}
        for name in names:
            gradient = getattr(gradients, name).clamp(-_LARGEST, _LARGEST)
            there = rows.columns[name].to(gradient.dtype)
            if _rest(name) in rows.notes:
                there = there + rows.notes[_rest(name)]
            mean = torch.lerp(gradient, rows.notes[_mean(name)], first)
            square = torch.lerp(gradient.square(), rows.notes[_square(name)], second)
            shape = (-1, *[1] * (gradient.ndim - 1))
            step = (self.rates[name] / mean_share).to(mean.dtype).view(shape)
            scale = square_share.sqrt().to(mean.dtype).view(shape)
            if name == "value" and self.weight_decay:
                there = there * (1 - self.rates[name] * self.weight_decay)
            moved = there - step * mean / (square.sqrt() / scale + self.eps)
            if name == "weight":
                least = torch.where(rows.born == PRIOR, LEAST_PRIOR_WEIGHT, 0.0)
                # A weight that is at its floor already stays: it was written so.
                moved = torch.maximum(moved, torch.minimum(least.to(moved.dtype), there))
            notes |= {_mean(name): mean, _square(name): square}
            if _rest(name) in rows.notes:
                notes[_rest(name)] = moved - moved.to(rows.columns[name].dtype).to(moved.dtype)
            columns[name] = moved
        return columns, notes

    def state_dict(self) -> StateTree:
        """The count of steps, and the longest key that each layer ever had."""
        largest = [layer.memory.max_key_square for layer in self.layers]
        return {"steps": self.steps, "largest": largest}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore both; moments come with the tuples.

        Raises:
            FormatError: another number of layers.
        """
        largest = state["largest"]
        if len(largest) != len(self.layers):
            raise FormatError(
                f"the state is of {len(largest)} layers but this optimizer has {len(self.layers)}; "
                "build it over the same network"
            )
        self.steps = int(state["steps"])
        for layer, square in zip(self.layers, largest, strict=True):
            # It bounds exponents, and a key that is shorter now would change how they are summed.
            layer.memory.max_key_square = max(layer.memory.max_key_square, float(square))


class _Rows(NamedTuple):
    """The filled rows of a tile: key, weight and value; births; and notes."""

    columns: Mapping[str, Tensor]
    born: Tensor
    notes: Mapping[str, Tensor]

    @classmethod
    def of(cls, tile: Block, value_width: int) -> "_Rows":
        count = tile.count
        columns = {
            "key": tile.key[:count],
            "weight": tile.weight[:count],
            "value": tile.side[:count, :value_width],
        }
        notes = {name: note[:count] for name, note in tile.notes.items()}
        return cls(columns, tile.born[:count], notes)


def _mean(name: str) -> str:
    return f"adam_{name}_mean"


def _square(name: str) -> str:
    return f"adam_{name}_square"


def _rest(name: str) -> str:
    return f"adam_{name}_rest"
