"""A state tree to the bytes of one safetensors file and back, to the bit.

The tensors are the file's; the rest of the tree is JSON in its metadata. Numbers that JSON does not
know (NaN and the infinities) are written as `{"$float": "inf"}`, so that they survive.
"""

import json
import math
import struct
from typing import Any

from safetensors.torch import load, save

from streamlearn.errors import FormatError
from streamlearn.state import StateTree, flatten, unflatten

from .documents import FORMAT_VERSION
from .objects import RunPath

__all__ = ["decode_state", "encode_state"]

_METADATA_KEY = "streamlearn-state"
_FLOAT = "$float"


def encode_state(tree: StateTree) -> bytes:
    """The bytes of a state file.

    Raises:
        FormatError: something in the tree cannot be saved.
    """
    tensors, rest = flatten(tree)
    # One key: safetensors keeps the order of several in a hash map, and the bytes would vary.
    document = {"version": FORMAT_VERSION, "tree": _escape(rest)}
    data: bytes = save(tensors, {_METADATA_KEY: json.dumps(document, allow_nan=False)})
    return data


def decode_state(path: RunPath, data: bytes) -> StateTree:
    """The state tree of a file's bytes.

    Args:
        path: of the file, for the messages.
        data: its bytes.

    Raises:
        FormatError: it is damaged or of a newer version; names the file.
    """
    try:
        (length,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + length])
        document = json.loads(header["__metadata__"][_METADATA_KEY])
        version, rest = document["version"], _unescape(document["tree"])
        if version > FORMAT_VERSION:
            raise FormatError(
                f"{str(path)!r} has format version {version} but this streamlearn reads up to "
                f"{FORMAT_VERSION}; upgrade it (pip install -U streamlearn)"
            )
        tensors = load(data)
    except FormatError:
        raise
    except Exception as error:  # safetensors has an error of its own that is only an Exception
        raise FormatError(
            f"{str(path)!r} is damaged (no state can be read from it: {error}); "
            "put back a copy of this file"
        ) from error
    return unflatten(tensors, rest)


def _escape(value: Any) -> Any:
    if isinstance(value, float):
        value = float(value)  # a numpy float64 is one too, and would not print as one
        return value if math.isfinite(value) else {_FLOAT: repr(value)}
    if isinstance(value, dict):
        if set(value) == {_FLOAT}:
            raise FormatError(f"a state must not use the key {_FLOAT!r}; give it another name")
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return value


def _unescape(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_FLOAT}:
            return float(value[_FLOAT])
        return {key: _unescape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unescape(item) for item in value]
    return value
