"""`zarr.json` files that say whether they are whole: a checksum among their attributes.

Any zarr reads them. Their text is canonical (our JSON, indented by two), and the attribute
"checksum" is the CRC-32 of that text without this attribute, so that no byte of it can change
unnoticed.
"""

import json
from functools import lru_cache
from typing import Any

from streamlearn.errors import FormatError

from . import documents, files
from .objects import RunPath

__all__ = ["METADATA_NAME", "read_metadata", "seal_metadata"]

METADATA_NAME = "zarr.json"
_ATTRIBUTES = "attributes"
_CHECKSUM = "checksum"


def seal_metadata(metadata: dict[str, Any]) -> bytes:
    """The text of a `zarr.json` with its checksum.

    Args:
        metadata: of a group or an array, without a checksum; it is not changed.
    """
    return _sealed(json.dumps(metadata))


def read_metadata(path: RunPath) -> dict[str, Any]:
    """The metadata in a file that holds what `seal_metadata` gave, without the checksum.

    Raises:
        FormatError: the file is missing or damaged; names it.
        StorageError: the system refused.
    """
    try:
        data = files.read_bytes(path)
    except FileNotFoundError as error:
        raise FormatError(f"{str(path)!r} is missing; put back a copy of this file") from error
    found = documents.parse(path, data)
    attributes = found.get(_ATTRIBUTES) if isinstance(found, dict) else None
    whole = False
    if isinstance(attributes, dict) and _CHECKSUM in attributes:
        del attributes[_CHECKSUM]
        try:
            whole = data == seal_metadata(found)
        except ValueError:  # NaN, which we never write
            whole = False
    if not whole:
        raise FormatError(
            f"{str(path)!r} is damaged (its checksum does not fit); put back a copy of this file"
        )
    metadata: dict[str, Any] = found
    return metadata


@lru_cache(maxsize=256)
def _sealed(text: str) -> bytes:
    # Indented JSON is made in Python, and what is read is mostly what was written or read before.
    metadata = json.loads(text)
    checksum = f"{files.checksum(documents.encode(metadata, indent=2)):08x}"
    metadata.setdefault(_ATTRIBUTES, {})[_CHECKSUM] = checksum
    return documents.encode(metadata, indent=2)
