"""The file that bad rows are put aside in, to be looked at, mended and given again."""

import dataclasses
import os
from collections.abc import Iterable

from streamlearn.jsonlines import JsonLinesFile

from .base import Quarantined

__all__ = ["Quarantine"]


class Quarantine(JsonLinesFile):
    """JSON lines of {"item", "reason", "raw"}, in the order of the stream.

    Args:
        path: of the file; what is there is kept.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "bad rows")

    def append(self, items: Iterable[Quarantined]) -> None:
        """Write rows, so that other processes can read them; not yet durably."""
        self.write(dataclasses.asdict(item) for item in items)
