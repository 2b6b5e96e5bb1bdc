"""A layer's rows without those that are dead, in new versions of its shards.

The old shards stay where they are until the commit has happened, and longer where a commit that is
kept names them. Rows keep their order; nothing else of them changes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .layers import StoredLayer
from .manifest import TableEntry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from .layers import Placed
    from .layout import Layout
    from .manifest import LayerEntry
    from .writing import Writing

__all__ = ["compacted"]


def compacted(
    layout: Layout, old: StoredLayer, entry: LayerEntry, last: int, writing: Writing
) -> tuple[StoredLayer, list[Placed], int]:
    """Write a layer's live rows.

    Args:
        layout: of the run.
        old: the layer as it is.
        entry: as it is committed.
        last: the number of that commit.
        writing: where the files go through; finished at the end.

    Returns:
        The layer as it will be, the shards that were written, and how many rows they have.

    Raises:
        FormatError: a file is damaged; names it.
        StorageError: the system refused.
    """
    every = [
        (column, shard, known[0].version)
        for column in entry.columns
        for shard in range(entry.shards)
        if (known := old.table.get(column, shard)) is not None
    ]
    first = max(version for _, _, version in every) + 1
    bare = dataclasses.replace(
        entry, rows=0, live=0, first_version=first, table=TableEntry(), tail={}
    )
    new = StoredLayer(layout, bare)
    new.replaced = [*old.replaced, *((last, *item) for item in every)]
    placed: list[Placed] = []
    rows = 0
    for shard, columns in enumerate(_blocks(old, entry)):
        for name, column in columns.items():
            done = new.put(name, shard, column, rewritten=False, last=last, writing=writing)
            placed += [done] if done is not None else []
        rows += len(next(iter(columns.values())))
    writing.finish()
    new.placed(placed)
    return new, placed, rows


def _blocks(old: StoredLayer, entry: LayerEntry) -> Iterator[dict[str, NDArray[Any]]]:
    """The live rows, a block at a time."""
    import numpy as np

    from streamlearn.memory import DEAD

    waiting: dict[str, list[NDArray[Any]]] = {name: [] for name in entry.columns}
    count = 0
    for shard in range(entry.shards):
        alive = old.read_column(entry, "born", shard) != DEAD
        count += int(alive.sum())
        for name, parts in waiting.items():
            parts.append(old.read_column(entry, name, shard)[alive])
        while count >= entry.block_rows:
            whole = {name: np.concatenate(parts) for name, parts in waiting.items()}
            yield {name: column[: entry.block_rows] for name, column in whole.items()}
            waiting = {name: [column[entry.block_rows :]] for name, column in whole.items()}
            count -= entry.block_rows
    if count:
        yield {name: np.concatenate(parts) for name, parts in waiting.items()}
