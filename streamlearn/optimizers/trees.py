"""An optimizer's state as a state tree, which can be saved without pickle."""

import copy
from typing import Any

import torch

from streamlearn.errors import FormatError
from streamlearn.state import StateTree

__all__ = ["load_state_tree", "state_tree"]


def state_tree(optimizer: torch.optim.Optimizer) -> StateTree:
    """`optimizer.state_dict()` as `streamlearn.state.flatten` takes it: string keys, no tuples."""
    state = optimizer.state_dict()
    return {
        "state": {str(key): dict(value) for key, value in state["state"].items()},
        "groups": [
            {
                key: list(value) if isinstance(value, tuple) else value
                for key, value in group.items()
            }
            for group in state["param_groups"]
        ],
    }


def load_state_tree(optimizer: torch.optim.Optimizer, tree: StateTree) -> None:
    """Restore what `state_tree` gave, in an optimizer of the same class over the same network.

    Nothing is shared with the tree afterwards. `lr` and all other settings come from the tree.

    Raises:
        FormatError: the tree is that of another optimizer or network.
    """
    present = [dict(group) for group in optimizer.param_groups]
    groups: list[dict[str, Any]] = copy.deepcopy(tree["groups"])
    for group, here in zip(groups, present, strict=False):
        group |= {
            key: tuple(value)
            for key, value in group.items()
            if isinstance(value, list) and isinstance(here.get(key), tuple)
        }
    state = {int(key): copy.deepcopy(value) for key, value in tree["state"].items()}
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except FormatError:
        raise
    except (ValueError, KeyError) as error:
        raise FormatError(
            f"the state does not fit this {type(optimizer).__name__}: {error}; build it with the "
            "same class over the same network"
        ) from error
