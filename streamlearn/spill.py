"""Where blocks go that have no room in memory when nobody else keeps them: temporary raw files."""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamlearn.blocks import Columns
from streamlearn.errors import FormatError, StorageError

__all__ = ["SpillStore"]


class SpillStore:
    """A `BlockStore` of one file a block and column, in a folder that goes away with it.

    Args:
        parent: where the folder is made; None is the system's place for temporary files.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix="streamlearn-", dir=parent))
        except OSError as error:
            raise StorageError(
                f"blocks without room in memory cannot be kept ({error}); "
                "set TMPDIR to a folder with room, or raise memory.host_budget"
            ) from error
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def write(
        self, index: int, columns: Columns, names: frozenset[str], *, rewritten: frozenset[str]
    ) -> None:
        """Keep columns of a block; a column that was there is as it was until its file is whole.

        Raises:
            StorageError: the system refused.
        """
        for name in names:
            path = self._file(index, name)
            part = path.with_name(f"{path.name}.part")
            try:
                with part.open("wb", buffering=0) as file:
                    rest = np.ascontiguousarray(columns[name]).data.cast("B")
                    while rest:
                        rest = rest[file.write(rest) :]
                part.replace(path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)
                raise StorageError(
                    f"{str(path)!r} cannot be written ({error}); "
                    "make room, set TMPDIR to another folder, or raise memory.host_budget"
                ) from error

    def read(self, index: int, out: Mapping[str, NDArray[np.generic]]) -> None:
        """Fill arrays with the first rows of columns of a block.

        Raises:
            FormatError: a file is missing or too short; names it.
            StorageError: the system refused.
        """
        for name, array in out.items():
            path = self._file(index, name)
            try:
                with path.open("rb", buffering=0) as file:
                    rest = array.data.cast("B")
                    while rest and (count := file.readinto(rest)):
                        rest = rest[count:]
            except FileNotFoundError as error:
                raise FormatError(
                    f"{str(path)!r} is gone; let nobody clean that folder while a learner lives"
                ) from error
            except OSError as error:
                raise StorageError(
                    f"{str(path)!r} cannot be read ({error}); look at the disk"
                ) from error
            if rest:
                raise FormatError(
                    f"{str(path)!r} is too short by {len(rest)} bytes; "
                    "let nobody change that folder while a learner lives"
                )

    def discard(self, index: int, names: frozenset[str]) -> None:
        """Forget a block that somebody else keeps now."""
        for name in names:
            self._file(index, name).unlink(missing_ok=True)

    def _file(self, index: int, name: str) -> Path:
        return self.path / f"{index}.{name}"
