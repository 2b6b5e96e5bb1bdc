"""Where a memory's blocks lie when they have no room in memory: the shards of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlearn.errors import RunStateError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from streamlearn.memory import Columns

    from .layers import StoredLayer
    from .writer import RunStore

__all__ = ["CommittedLayer", "LayerStore"]


class LayerStore:
    """One layer of a run that is open for writing, as a memory's `BlockStore`.

    Args:
        store: the run.
        name: of the layer.
    """

    def __init__(self, store: RunStore, name: str) -> None:
        self._store = store
        self._name = name

    def belongs_to(self, store: RunStore, name: str) -> bool:
        """Whether it stands for this layer of this run."""
        return self._store is store and self._name == name

    def read(self, index: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill arrays with the rows of a block as it was last written.

        Raises:
            FormatError: a file is missing or damaged; names it.
            StorageError: the system refused.
        """
        self._store.read_block(self._name, index, out)

    def write(
        self, index: int, columns: Columns, names: frozenset[str], *, rewritten: frozenset[str]
    ) -> None:
        """Write the changed columns of a full block; the next commit will name them.

        Raises:
            StorageError: the system refused; what was committed is whole.
        """
        changed = {name: columns[name] for name in columns if name in names}
        self._store.write_block(self._name, index, changed, rewritten)


class CommittedLayer:
    """One layer of one commit, to be read only, as a memory's `BlockStore`.

    Args:
        layer: as the commit has it.
        run: the directory, for messages.
    """

    def __init__(self, layer: StoredLayer, run: str) -> None:
        self._layer = layer
        self._run = run

    def read(self, index: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill arrays with the committed rows of a block.

        Raises:
            FormatError: a file is missing or damaged; names it.
            StorageError: the system refused.
        """
        for column, array in out.items():
            self._layer.read(column, index, array)

    def write(
        self, index: int, columns: Columns, names: frozenset[str], *, rewritten: frozenset[str]
    ) -> None:
        """Refuse: nothing is written to a run that was opened to be read.

        Raises:
            RunStateError: always.
        """
        raise RunStateError(
            f"the run {self._run!r} was opened to be read, so block {index} cannot be written to "
            "it; resume the run instead"
        )
