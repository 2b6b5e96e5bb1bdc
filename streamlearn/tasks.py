"""What targets are: one of some classes, or numbers. Whatever differs between both begins here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from streamlearn.errors import ConfigError, FormatError, NotFiniteError, ShapeError
from streamlearn.losses import LOSSES, VALUE_LOSSES, Loss
from streamlearn.state import StateTree

__all__ = ["Classes", "OpenClasses", "Outputs", "Task", "task_from", "task_of_state"]

_LARGEST = 1e15
"""Of a target: losses square it, in float32."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Classification: a target is the index of a class, an answer a row of probabilities.

    Args:
        names: of the classes, in the order of the targets' indices.

    Raises:
        ConfigError: fewer than two classes, or one that is there twice.
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise ConfigError(
                f"a classifier needs at least 2 classes but was given {len(self.names)}; "
                "look at the data's labels"
            )
        if len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ConfigError(f"class {twice!r} is there twice; give each class one name")

    @property
    def width(self) -> int:
        """Numbers of an answer: a probability for each class."""
        return len(self.names)

    def loss(self, name: str) -> Loss:
        """The loss of that name; "auto" is cross-entropy.

        Raises:
            ConfigError: a loss of numbers.
        """
        return _loss(LOSSES, name, "classes")

    def checked(self, targets: Tensor, count: int) -> Tensor:
        """Targets (count,) as int64.

        Raises:
            ShapeError: no row of that many integers.
            ConfigError: an index outside the classes.
        """
        if targets.shape != (count,) or targets.is_floating_point():
            raise ShapeError(
                f"targets have shape {tuple(targets.shape)} and dtype {targets.dtype} but must be "
                f"({count},) integers, one class index a sample"
            )
        targets = targets.to(torch.int64)
        if count and not 0 <= int(targets.min()) <= int(targets.max()) < self.width:
            wrong = targets[(targets < 0) | (targets >= self.width)][0].item()
            raise ConfigError(
                f"target {wrong} is outside the {self.width} classes; "
                f"targets are indices from 0 to {self.width - 1}"
            )
        return targets

    def state_dict(self) -> StateTree:
        """The names."""
        return {"classes": list(self.names)}

    def check_state(self, state: StateTree) -> None:
        """Compare with the task of a saved learner.

        Raises:
            FormatError: it is another one.
        """
        if "classes" not in state:
            raise FormatError(
                f"the saved learner answers with {state['outputs']} values but this one with "
                f"classes; build it with outputs={state['outputs']}"
            )
        if tuple(state["classes"]) != self.names:
            raise FormatError(
                f"the saved learner knows the classes {state['classes']} but this one "
                f"{list(self.names)}; build it with the same classes in the same order"
            )


@dataclass(frozen=True, slots=True)
class OpenClasses(Classes):
    """Classification where classes come one after the other: any number of them, none at first."""

    def __post_init__(self) -> None:
        """Any names are right."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Regression: a target is a row of numbers, and so is an answer.

    Args:
        width: K, numbers of a target.

    Raises:
        ConfigError: fewer than one.
    """

    width: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ConfigError(
                f"outputs={self.width} is not possible; a regression has at least 1 output"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """None: there are no classes."""
        return ()

    def loss(self, name: str) -> Loss:
        """The loss of that name; "auto" is the squared error.

        Raises:
            ConfigError: a loss of classes.
        """
        return _loss(VALUE_LOSSES, name, "numbers")

    def checked(self, targets: Tensor, count: int) -> Tensor:
        """Targets (count, K), or (count,) where K is 1, as (count, K) float64.

        Raises:
            ShapeError: targets of another shape, or of no real type.
            NotFiniteError: a target that is NaN, infinite or beyond 1e15.
        """
        shapes = [(count, self.width), *([(count,)] if self.width == 1 else [])]
        if tuple(targets.shape) not in shapes or targets.is_complex():
            raise ShapeError(
                f"targets have shape {tuple(targets.shape)} and dtype {targets.dtype} but must be "
                f"{' or '.join(map(str, shapes))} numbers; bring them to that shape, or build the "
                "learner with another number of outputs"
            )
        rows = targets.detach().to(torch.float64).reshape(count, self.width)
        usable = rows.abs() <= _LARGEST  # False for NaN too
        if not bool(usable.all()):
            row, column = (~usable).nonzero()[0].tolist()
            raise NotFiniteError(
                f"target {column} of row {row} is {rows[row, column].item():g}, where numbers up "
                f"to {_LARGEST:g} can be learnt; leave such rows out (data.on_error=skip does so "
                "in a run), or scale them"
            )
        return rows

    def state_dict(self) -> StateTree:
        """The number of outputs."""
        return {"outputs": self.width}

    def check_state(self, state: StateTree) -> None:
        """Compare with the task of a saved learner.

        Raises:
            FormatError: it is another one.
        """
        if state.get("outputs") != self.width:
            known = f"{state['outputs']} values" if "outputs" in state else "classes"
            raise FormatError(
                f"the saved learner answers with {known} but this one with {self.width} values; "
                "build it for the same targets"
            )


Task: TypeAlias = Classes | Outputs


def task_from(classes: int | Sequence[str] | Task | None, outputs: int | None) -> Task:
    """The task that a number or names of classes, or a number of outputs, stand for.

    Raises:
        ConfigError: both or neither are given.
    """
    if (classes is None) == (outputs is None):
        raise ConfigError(
            "give either classes=… for a classifier or outputs=… for a regression, not "
            f"{'both' if outputs is not None else 'neither'}"
        )
    if outputs is not None:
        return Outputs(outputs)
    if isinstance(classes, (Classes, Outputs)):
        return classes
    if isinstance(classes, int):
        return Classes(tuple(str(index) for index in range(classes)))
    return Classes(tuple(classes or ()))


def task_of_state(state: StateTree) -> Task:
    """The task of a saved learner."""
    return Classes(tuple(state["classes"])) if "classes" in state else Outputs(state["outputs"])


def _loss(losses: dict[str, Loss], name: str, what: str) -> Loss:
    if name == "auto":
        return next(iter(losses.values()))
    if name not in losses:
        raise ConfigError(
            f"learner.loss={name} does not fit targets that are {what}; choose "
            f"{' or '.join(losses)}"
        )
    return losses[name]
