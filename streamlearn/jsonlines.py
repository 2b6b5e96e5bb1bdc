"""A file of JSON lines beside a run, which is as long as the run's last commit says."""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from streamlearn.errors import FormatError, StorageError

__all__ = ["JsonLinesFile"]

_PART = 1 << 20
_ENDS = "\x85\u2028\u2029"


class JsonLinesFile:
    """JSON objects, appended in the order of the stream.

    The file is made with its first line. A run that is resumed cuts it back to the size that it
    committed, and then the lines after it come again.

    Args:
        path: of the file; what is there is kept.
        what: its lines, for messages.

    Attributes:
        size: bytes of the file.
        checksum: CRC-32 of these bytes, of those that were appended or checked since it was opened.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        self.path = Path(path)
        self.what = what
        self.checksum = 0
        self._file: BinaryIO | None = None
        try:
            self.size = self.path.stat().st_size if self.path.exists() else 0
        except OSError as error:
            raise self._refused(error) from error

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append a line for each, so that other processes can read them; not yet durably."""
        data = b"".join(_line(record) for record in records)
        if not data:
            return
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
        self.checksum = zlib.crc32(data, self.checksum)

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

    def cut(self, size: int, checksum: int | None = None) -> None:
        """Forget all but the first `size` bytes.

        Args:
            size: in bytes.
            checksum: of these bytes; they are read and compared before anything is cut.

        Raises:
            FormatError: there are fewer, or they are others.
        """
        if size > self.size:
            raise FormatError(
                f"{self.path} has {self.size} bytes but the run had written {size}; give the file "
                "back, or fall back to an earlier commit"
            )
        try:
            if checksum is not None and self._sum(size) != checksum:
                raise FormatError(
                    f"{self.path} does not begin with the {self.what} that the run has written; "
                    "give that file back, or name the place that it was moved to"
                )
            if self.path.exists():
                os.truncate(self.path, size)
        except OSError as error:
            raise self._refused(error) from error
        self.size = size
        self.checksum = checksum or 0

    def _sum(self, size: int) -> int:
        total, left = 0, size
        if size:
            with open(self.path, "rb") as file:
                while left and (part := file.read(min(left, _PART))):
                    total, left = zlib.crc32(part, total), left - len(part)
        return total

    def close(self) -> None:
        """Close the file; writing opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(
            f"{self.what} cannot be written to {self.path} ({error.strerror}); make room, or "
            "give a folder that can be written"
        )


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False)
    for end in _ENDS:  # of a line, to many a reader
        text = text.replace(end, f"\\u{ord(end):04x}")
    return text.encode("utf-8", "backslashreplace") + b"\n"
