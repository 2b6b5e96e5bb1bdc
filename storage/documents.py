"""Strict JSON: no NaN, the same text for the same value, a checksum where it has to be right.

Text is ASCII (other characters escaped), so that a name with a character that no encoding holds, or
one that some reader takes for the end of a line, does no harm.
"""

import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from streamlearn.errors import FormatError

from . import files
from .objects import ObjectPath, RunPath

__all__ = ["FORMAT_VERSION", "encode", "parse", "plain", "seal", "unseal"]

FORMAT_VERSION = 1
"""The version of the run format that is written, and the newest that is read."""


def plain(value: Any) -> Any:
    """The value with nothing in it but what JSON knows; a float that is not finite becomes None.

    Raises:
        FormatError: something in it has no place in JSON.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (PurePath, ObjectPath)):
        return str(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):  # a numpy or torch scalar
        return plain(value.item())
    raise FormatError(
        f"a {type(value).__name__} ({str(value)[:40]!r}) cannot be written as JSON; "
        "use numbers, strings, lists and dictionaries"
    )


def encode(value: Any, *, indent: int | None = None) -> bytes:
    """The JSON text of a plain value, ending in a newline; one line unless indented."""
    separators = (",", ": ") if indent is not None else (",", ":")
    text = json.dumps(value, allow_nan=False, indent=indent, separators=separators)
    return text.encode("ascii") + b"\n"


def parse(path: RunPath, data: bytes) -> Any:
    """The value of a JSON file.

    Raises:
        FormatError: the bytes are no JSON; names the file.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{str(path)!r} is damaged (it is no JSON: {error}); put back a copy of this file"
        ) from error


def seal(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A JSON file that says what it is, which version, and a checksum over the rest of it.

    Args:
        kind: what the file is, "streamlearn-…".
        fields: the rest, plain.
    """
    document = {"format": kind, "version": FORMAT_VERSION, **fields}
    checksum = f"{files.checksum(encode(document)):08x}"
    return encode({**document, "checksum": checksum}, indent=1)


def unseal(kind: str, path: RunPath, data: bytes) -> dict[str, Any]:
    """The fields of a file that `seal` wrote.

    Raises:
        FormatError: it is damaged, something else, or of a newer version; names the file.
    """
    document = parse(path, data)
    if not isinstance(document, dict) or document.get("format") != kind:
        raise FormatError(
            f'{str(path)!r} is no {kind} file (its "format" says otherwise); '
            "put back a copy of this file"
        )
    version = document.get("version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FormatError(
            f"{str(path)!r} has format version {version} but this streamlearn reads up to "
            f"{FORMAT_VERSION}; upgrade it (pip install -U streamlearn)"
        )
    envelope = ("format", "version", "checksum")
    fields = {key: value for key, value in document.items() if key not in envelope}
    try:
        # To the byte: two texts of a number may mean the same, and yet only one was written.
        whole = version == FORMAT_VERSION and data == seal(kind, fields)
    except ValueError:  # NaN, which we never write
        whole = False
    if not whole:
        raise FormatError(
            f"{str(path)!r} is damaged (its checksum does not fit); put back a copy of this file"
        )
    return fields
