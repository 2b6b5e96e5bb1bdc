"""Approximate nearest keys: a graph of small worlds (HNSW) in memory, by the package usearch.

It stands behind `gates.NearestKeys` in the place of `ExactNearest`, whose time grows with the rows,
and may miss the nearest key: then a gate lets a tuple in that it would have refused. The candidates
of the graph are compared exactly, in float32 or wider.
"""

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from streamlearn.errors import ConfigError
from streamlearn.memory import DEAD, Memory

__all__ = ["ApproximateNearest"]

_MORE = 7
"""Candidates beyond those asked for, whose distances are computed exactly."""


class ApproximateNearest:
    """The nearest keys of a memory by a graph over them, see `gates.NearestKeys`.

    Rows that were appended are taken in, in their order and by one thread, whenever keys are asked
    for; nothing is saved. A graph depends on that order alone, so one that is made anew from stored
    rows is the one that grew with them. When rows were dropped, it is made anew.

    Args:
        memory: whose keys; they must not be changed in their place.
        expansion: nodes that a search looks at, at least; more finds better and takes longer.

    Raises:
        ConfigError: the package usearch is not there.
    """

    def __init__(self, memory: Memory, *, expansion: int = 128) -> None:
        try:
            self._usearch = importlib.import_module("usearch.index")
        except ImportError as error:
            raise ConfigError(
                f"layer.nearest=approximate needs the package usearch ({error}); install it by "
                "`pip install 'streamlearn[ann]'`, or set layer.nearest=exact"
            ) from error
        self.memory = memory
        self.expansion = expansion
        self._begin()

    def _begin(self) -> None:
        self._index: Any = self._usearch.Index(
            ndim=self.memory.key_width,
            metric="l2sq",
            dtype="f32",
            expansion_search=self.expansion,
        )
        self._rows = 0
        self._of = self._state()

    def _state(self) -> tuple[int, int]:
        """What says that rows went: a graph of others is of no use."""
        return self.memory.generation, len(self.memory) - self.memory.live

    def _take_in(self) -> None:
        if self._of != self._state() or len(self.memory) < self._rows:
            self._begin()
        while self._rows < len(self.memory):
            stop = min(self._rows + self.memory.block_rows, len(self.memory))
            rows = torch.arange(self._rows, stop)
            there = self.memory.gather(rows, ("key", "born"))
            live = (there["born"] != DEAD).cpu()
            key = there["key"].to("cpu", torch.float32)[live]
            if len(key):
                self._index.add(rows[live].numpy(), key.numpy(), threads=1)
            self._rows = stop

    @torch.no_grad()
    def nearest(self, query: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
        """See `gates.NearestKeys`; what is found is near, but others may be nearer.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        self._take_in()
        memory = self.memory
        wide = query.detach().to(memory.device, memory.layout.wide)  # (B, D)
        few = min(count + _MORE, len(self._index))
        if not few or not len(wide):
            none = torch.empty(len(wide), 0, dtype=torch.int64, device=memory.device)
            return none.to(wide.dtype), none
        asked = wide.to("cpu", torch.float32).numpy()
        found = self._index.search(np.atleast_2d(asked), few, threads=1)
        keys = np.asarray(found.keys).reshape(len(wide), few).astype(np.int64)
        # One query alone has no counts; a graph may give fewer than were asked for.
        counts = np.broadcast_to(np.asarray(getattr(found, "counts", few)), len(wide))
        there = torch.from_numpy(np.arange(few) < counts[:, None]).to(memory.device)
        rows = torch.from_numpy(np.where(there.cpu().numpy(), keys, 0)).to(memory.device)
        key = memory.gather(rows.reshape(-1), ("key",))["key"].to(wide.dtype)
        distance = (wide[:, None] - key.view(len(wide), few, -1)).square().sum(-1).sqrt()
        distance.masked_fill_(~there, torch.inf)  # (B, few)
        best, order = distance.topk(min(count, few), largest=False)
        return best, rows.gather(1, order)
