"""State trees: how learners, streams and evaluators say all that they know, without pickle.

A state tree is a dictionary with string keys whose leaves are tensors, strings, numbers, booleans,
None, or lists and dictionaries of these. `flatten` splits it into named tensors (for safetensors)
and a JSON value in which each tensor is a reference; `unflatten` is its exact inverse.
"""

from typing import Any, TypeAlias

from torch import Tensor

from streamlearn.errors import FormatError

__all__ = ["StateTree", "flatten", "unflatten"]

StateTree: TypeAlias = dict[str, Any]

_REFERENCE = "$tensor"


def flatten(tree: StateTree) -> tuple[dict[str, Tensor], Any]:
    """Split a state tree into its tensors, by dotted path, and a JSON value that refers to them.

    Tensors come back contiguous, on the CPU and without gradient; no bit of them changes.

    Raises:
        FormatError: a leaf is of a type that neither JSON nor a tensor can hold.
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, Tensor):
            while path in tensors:  # a key with a dot in it may spell another path
                path += "'"
            tensors[path] = value.detach().to("cpu", copy=True).contiguous()
            return {_REFERENCE: path}
        if isinstance(value, dict):
            odd = [key for key in value if not isinstance(key, str) or key == _REFERENCE]
            if odd:
                raise FormatError(
                    f"the state at {path!r} has the key {odd[0]!r}, which cannot be saved; "
                    f"keys are strings other than {_REFERENCE!r}"
                )
            return {key: walk(item, f"{path}.{key}" if path else key)
                    for key, item in value.items()}  # fmt: skip
        if isinstance(value, (list, tuple)):
            return [walk(item, f"{path}.{index}") for index, item in enumerate(value)]
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise FormatError(
            f"the state at {path!r} is a {type(value).__name__}, which cannot be saved; "
            "keep tensors, numbers, strings, lists and dictionaries in state trees"
        )

    return tensors, walk(tree, "")


def unflatten(tensors: dict[str, Tensor], tree: Any) -> StateTree:
    """Put the tensors back where `flatten` left references to them.

    Raises:
        FormatError: the tree refers to a tensor that is not there, or is no dictionary.
    """

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {_REFERENCE}:
                name = value[_REFERENCE]
                if name not in tensors:
                    raise FormatError(
                        f"the state refers to a tensor {name!r} that is missing; the file is "
                        "damaged, fall back to an earlier commit"
                    )
                return tensors[name]
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return value

    result = walk(tree)
    if not isinstance(result, dict):
        raise FormatError("a state must be a dictionary at its root; the file is damaged")
    return result
