"""A saved learner: what of it goes into its file, and a learner made anew from what was read."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from streamlearn.bits import to_bits
from streamlearn.errors import FormatError, StreamlearnError
from streamlearn.files import read_learner_file, write_learner_file
from streamlearn.hardware import DeviceName
from streamlearn.memory import Memory
from streamlearn.settings import LearnerSettings
from streamlearn.state import StateTree, flatten, unflatten
from streamlearn.tasks import Task, task_of_state

__all__ = ["Restorable", "read_learner", "take_tuples", "tuples_of", "write_learner"]


class Restorable(Protocol):
    """What takes back a state, and then the tuples of its memories."""

    def load_state_dict(self, state: StateTree) -> None:
        """Restore everything but the tuples."""
        ...

    def memories(self) -> dict[str, Memory]:
        """The memories, empty after that."""
        ...


L = TypeVar("L", bound=Restorable)


def write_learner(
    path: Path, settings: LearnerSettings, state: StateTree, memories: Mapping[str, Memory]
) -> None:
    """Write settings, state and tuples to one file, replaced only once complete.

    Raises:
        StorageError: the system refused; a file that was there before is as it was.
    """
    tensors, tree = flatten(state)
    tensors |= tuples_of(memories)
    header = {
        "settings": settings.model_dump_json(),
        "state": json.dumps(tree),
        "tuples": json.dumps({name: len(memory) for name, memory in memories.items()}),
    }
    write_learner_file(path, tensors, header)


def tuples_of(memories: Mapping[str, Memory]) -> dict[str, Tensor]:
    """The tuples of memories as named tensors, a block at a time."""
    return {
        f"memory/{name}/{index}/{column}": tensor
        for name, memory in memories.items()
        for index in range(memory.block_count)
        for column, tensor in memory.host_tensors(index).items()
    }


def take_tuples(
    what: str, memories: Mapping[str, Memory], tensors: Mapping[str, Tensor], counts: dict[str, int]
) -> None:
    """Fill empty memories with what `tuples_of` gave.

    Args:
        what: the tensors came in, for people.
        memories: by name.
        tensors: those tensors, among others.
        counts: how many tuples each memory had.

    Raises:
        FormatError: some are missing.
    """
    for name, memory in memories.items():
        index = 0
        while f"memory/{name}/{index}/key" in tensors:
            memory.load_columns(
                {
                    column: to_bits(tensors[f"memory/{name}/{index}/{column}"])
                    for column in memory.columns()
                }
            )
            index += 1
        if len(memory) != counts[name]:
            raise FormatError(
                f"{what} is damaged: {len(memory)} of {counts[name]} tuples of layer {name!r} are "
                "there; fall back to a copy"
            )


def read_learner(
    path: Path, make: Callable[[Task, LearnerSettings], L], device: DeviceName | None
) -> L:
    """The learner of a file that `write_learner` wrote.

    Args:
        path: the file.
        make: a new learner for such targets with these settings.
        device: where to compute from now on; None means as its settings say.

    Raises:
        DataNotFoundError: no such file.
        FormatError: not a learner, damaged, or written by a newer version.
    """
    tensors, header = read_learner_file(path)
    if "open" in header:
        raise FormatError(
            f"{str(path)!r} holds a model of streamlearn.adapters; load it by its own class"
        )
    try:
        return _rebuilt(path, header, tensors, make, device)
    except StreamlearnError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise FormatError(f"{str(path)!r} is damaged ({reason}); fall back to a copy") from error


def _rebuilt(
    path: Path,
    header: Mapping[str, str],
    tensors: dict[str, Tensor],
    make: Callable[[Task, LearnerSettings], L],
    device: DeviceName | None,
) -> L:
    state = unflatten(tensors, json.loads(header["state"]))
    settings = LearnerSettings.model_validate_json(header["settings"])
    # "auto" may mean another dtype here than where the tuples were written.
    chosen: dict[str, Any] = {"dtype": state["dtype"]}
    if device is not None:
        chosen["device"] = device
    training = settings.learner.model_copy(update=chosen)
    learner = make(task_of_state(state), settings.model_copy(update={"learner": training}))
    learner.load_state_dict(state)
    take_tuples(repr(str(path)), learner.memories(), tensors, json.loads(header["tuples"]))
    return learner
