"""The file that bad rows are put aside in, to be looked at, mended and given again."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from streamlearn.errors import FormatError, StorageError

from .base import Quarantined

__all__ = ["Quarantine"]


class Quarantine:
    """JSON lines of {"item", "reason", "raw"}, appended in the order of the stream.

    The file is made with its first row. A run that is resumed cuts it back to the size that it
    committed, and then the rows after it come again.

    Args:
        path: of the file; what is there is kept.

    Attributes:
        size: bytes of the file.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: BinaryIO | None = None
        try:
            self.size = self.path.stat().st_size if self.path.exists() else 0
        except OSError as error:
            raise self._refused(error) from error

    def append(self, items: Iterable[Quarantined]) -> None:
        """Write rows, so that other processes can read them; not yet durably."""
        lines = [
            json.dumps(
                {"item": item.item, "reason": item.reason, "raw": item.raw}, ensure_ascii=False
            ).encode("utf-8", "backslashreplace")
            + b"\n"
            for item in items
        ]
        if not lines:
            return
        data = b"".join(lines)
        try:
            if self._file is None:
                # Not in append mode: a write that failed half-way is written over by the next.
                self._file = self._opened()
            self._file.seek(self.size)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise self._refused(error) from error
        self.size += len(data)

    def _opened(self) -> BinaryIO:
        return open(self.path, "r+b" if self.path.exists() else "w+b")

    def sync(self) -> None:
        """Make what was appended durable."""
        if self._file is None:
            return
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from error

    def cut(self, size: int) -> None:
        """Forget all but the first `size` bytes.

        Raises:
            FormatError: there are fewer.
        """
        if size > self.size:
            raise FormatError(
                f"{self.path} has {self.size} bytes but the run had written {size}; give the file "
                "back, or fall back to an earlier commit"
            )
        try:
            if self.path.exists():
                os.truncate(self.path, size)
        except OSError as error:
            raise self._refused(error) from error
        self.size = size

    def close(self) -> None:
        """Close the file; appending opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(
            f"bad rows cannot be written to {self.path} ({error.strerror}); make room or give the "
            "run a folder that can be written"
        )
