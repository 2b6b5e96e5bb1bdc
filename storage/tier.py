"""Where a memory's blocks lie when they have no room in memory: the shards of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlearn.errors import FormatError, RunStateError, StreamlearnError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        self._epoch = store.epoch

    def belongs_to(self, store: RunStore, name: str) -> bool:
        """Whether it stands for this layer of this run, as its rows are numbered now."""
        return self._store is store and self._name == name and self._epoch == store.epoch

    def read(self, index: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill arrays with the rows of a block as it was last written.

        Raises:
            FormatError: a file is missing or damaged; names it.
            StorageError: the system refused.
        """
        self._require_current()
        self._store.read_block(self._name, index, out)

    def write(
        self, index: int, columns: Columns, names: frozenset[str], *, rewritten: frozenset[str]
    ) -> None:
        """Write the changed columns of a full block; the next commit will name them.

        Raises:
            StorageError: the system refused; what was committed is whole.
        """
        changed = {name: columns[name] for name in columns if name in names}
        self._require_current()
        self._store.write_block(self._name, index, changed, rewritten)

    def _require_current(self) -> None:
        if self._epoch != self._store.epoch:
            raise RunStateError(
                f"the run {str(self._store.path)!r} went back or was compacted since this memory "
                f"of layer {self._name!r} was opened; open it again"
            )


class CommittedLayer:
    """One layer of one commit, to be read only, as a memory's `BlockStore`.

    Args:
        layer: as the commit has it.
        run: the directory, for messages.
        explain: says what a damaged file means, for the commit may have been dropped.
    """

    def __init__(
        self, layer: StoredLayer, run: str, explain: Callable[[FormatError], StreamlearnError]
    ) -> None:
        self._layer = layer
        self._run = run
        self._explain = explain

    def read(self, index: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill arrays with the committed rows of a block.

        Raises:
            FormatError: a file is missing or damaged; names it.
            RunStateError: the commit was dropped meanwhile.
            StorageError: the system refused.
        """
        try:
            for column, array in out.items():
                self._layer.read(column, index, array)
        except FormatError as error:
            raise self._explain(error) from None

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
