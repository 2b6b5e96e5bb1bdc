"""Pruning: tuples that have faded are dropped, tuples of equal or near keys become one.

Both go block by block, through `Memory.gather`, `rewrite` and `drop`, so that a block may live in
any tier. Rows that a memory started with stay as they are, which keeps the sum of the weights above
0: no write rule gives a tuple a weight below 0. Rows that go stay as dead ones, numbered as before.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import ConfigError
from streamlearn.kernels import Kernel
from streamlearn.layers import GrowingLayer
from streamlearn.memory import DEAD, PRIOR, Memory
from streamlearn.merging import coefficients, distance_of, projected
from streamlearn.retrieval import Forgetting

__all__ = ["Pruned", "faded", "merge", "near", "prune"]

_ROWS = 1024
"""Rows whose distances are computed together."""


class Pruned(NamedTuple):
    """Tuples that went.

    faded: for they count for too little. merged: into others. bytes: that all of these took.
    """

    faded: int
    merged: int
    bytes: int


@torch.no_grad()
def prune(
    layers: Sequence[GrowingLayer],
    *,
    below: float | None = None,
    distance: float | None = None,
    similarity: float | None = None,
    alike: bool = False,
) -> list[Pruned]:
    """Drop what has faded in layers, then merge what is near; gives what went of each.

    Args:
        layers: of first order.
        below: ε of `faded`; None drops nothing.
        distance: of `near`; what is so near is added up. None merges nothing.
        similarity: τ of the kernel, see `merging`: what is at least so similar to another is
            projected on it. None merges nothing.
        alike: a row stands for the same sample in all layers, so that it is dropped only where it
            has faded in all of them.

    Raises:
        ConfigError: a number below 0, or merging under momentum. Nothing was changed.
        FormatError, StorageError: a block lies in a store that cannot be read.
    """
    for name, given in (("below", below), ("distance", distance)):
        _check(name, given or 0.0)
    reach = [
        None if similarity is None else distance_of(layer.kernel, similarity, layer.in_features)
        for layer in layers
    ]
    if distance is not None or similarity is not None:
        for layer in layers:
            _check_momentum(layer.forgetting)
    gone = [torch.zeros(0, dtype=torch.int64) for _ in layers]
    if below is not None:
        gone = [faded(layer.memory, layer.forgetting, below) for layer in layers]
        if alike:
            every = gone[0]
            for rows in gone[1:]:
                every = every[torch.isin(every, rows)]
            gone = [every for _ in layers]
    result = []
    for layer, rows, similar in zip(layers, gone, reach, strict=True):
        memory, merged = layer.memory, 0
        memory.drop(rows)
        if distance is not None:
            merged = merge(memory, layer.forgetting, *near(memory, distance))
        if similar is not None:
            merged += merge(memory, layer.forgetting, *near(memory, similar), layer.kernel)
        result.append(Pruned(len(rows), merged, (len(rows) + merged) * memory.row_bytes))
    return result


@torch.no_grad()
def faded(memory: Memory, clock: Forgetting, below: float) -> Tensor:
    """The rows that count for less than ε by now: c(n)·‖ṽ‖ < ε and c(n)·w < ε, (n,) int64.

    With n the age of a tuple in steps, see `decay_coefficients`. Starting rows are never among
    them, and none is for ε = 0.

    Args:
        memory: of a layer.
        clock: the layer's step, momentum and decay.
        below: ε ≥ 0, in the unit of the layer's values and of its weights.

    Raises:
        ConfigError: ε is below 0 or no number.
        FormatError, StorageError: a block lies in a store that cannot be read.
    """
    _check("below", below)
    found = [torch.zeros(0, dtype=torch.int64)]
    for rows in _blocks(memory):
        part = memory.gather(rows, ("weight", "value", "born"))
        count = coefficients(part["born"], clock)  # c(n) (rows,)
        size = torch.linalg.vector_norm(part["value"].double(), dim=1)
        least = (count * size < below) & (count * part["weight"].double().abs() < below)
        found.append(rows[(least & (part["born"] > PRIOR)).cpu()])
    return torch.cat(found)


@torch.no_grad()
def near(memory: Memory, distance: float) -> tuple[Tensor, Tensor]:
    """Which tuples can be merged into which others of near keys.

    From the newest to the oldest, each one joins the nearest of those before that have joined
    none, if it is within `distance`: ‖k − k'‖/√D, the root mean square of the difference. 0 finds
    equal keys alone. Starting rows and dropped ones take no part.

    Args:
        memory: of a layer.
        distance: ≥ 0; keys that are normalised are at most 2 apart.

    Returns:
        The rows that can go, (n,) int64, and for each the row that it joins.

    Raises:
        ConfigError: the distance is below 0 or no number.
        FormatError, StorageError: a block lies in a store that cannot be read.
    """
    _check("distance", distance)
    rows = _by_age(memory)
    # What is equal goes first: it is quick, and the rest is smaller.
    gone, into = _equal(memory, rows)
    if not distance or not len(rows):
        return gone, into
    left = rows[~torch.isin(rows, gone)]
    also, those = _within(memory, left, distance)
    place = torch.arange(len(memory))
    place[also] = those
    return torch.cat([gone, also]), torch.cat([place[into], those])


@torch.no_grad()
def merge(
    memory: Memory, clock: Forgetting, rows: Tensor, into: Tensor, kernel: Kernel | None = None
) -> int:
    """Let tuples go whose weights and values are added to those of others; gives their number.

        w ← w + Σ w_i c_i/c,   ṽ ← ṽ + Σ ṽ_i c_i/c

    with c the coefficients by age, whose ratio stays the same under decay. So answers stay what
    they are where the keys are equal, now and later. With a kernel, each one is projected on
    the one that it joins, see `merging`.

    Args:
        memory: of a layer.
        clock: the layer's step, momentum and decay.
        rows: (n,) int64, each once, that go.
        into: (n,) int64, the rows that they join, which are none of those that go.
        kernel: the layer's, to project; None adds up.

    Raises:
        ConfigError: there is momentum, under which tuples of different ages do not stay one.
        FormatError, StorageError: a block lies in a store that cannot be read.
    """
    _check_momentum(clock)
    order = torch.argsort(into, stable=True)
    rows, into = rows[order], into[order]
    start = 0
    while start < len(rows):
        stop = min(start + memory.block_rows, len(rows))
        # All that join one row are added together.
        stop = int(torch.searchsorted(into, into[stop - 1], right=True))
        _add(memory, clock, rows[start:stop], into[start:stop], kernel)
        start = stop
    memory.drop(rows)
    return len(rows)


def _add(
    memory: Memory, clock: Forgetting, rows: Tensor, into: Tensor, kernel: Kernel | None
) -> None:
    found = projected(memory, clock, rows, into, kernel)
    memory.rewrite(found.rows, weight=found.weight, value=found.value)


def _check(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{name}={value:g} must be a finite number of at least 0")


def _check_momentum(clock: Forgetting) -> None:
    if clock.momentum:
        raise ConfigError(
            f"optimizer.momentum={clock.momentum:g} lets tuples of different ages count by shares "
            "that change, so they cannot be merged; leave merging out"
        )


def _blocks(memory: Memory) -> Iterator[Tensor]:
    """The numbers of all rows, a block at a time."""
    for start in range(0, len(memory), memory.block_rows):
        yield torch.arange(start, min(start + memory.block_rows, len(memory)))


def _by_age(memory: Memory) -> Tensor:
    """The rows that may be merged, the newest first, (n,) int64."""
    parts = [memory.gather(rows, ("born",))["born"].cpu() for rows in _blocks(memory)]
    born = torch.cat([torch.zeros(0, dtype=torch.int64), *parts])
    rows = ((born != PRIOR) & (born != DEAD)).nonzero()[:, 0]
    return rows[torch.argsort(born[rows], stable=True)].flip(0)


def _equal(memory: Memory, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the rows have the key of one before them, and which that is."""
    # A product with odd numbers modulo 2⁶⁴ tells nearly all keys apart; then keys are compared.
    factors = np.random.PCG64(0).random_raw(memory.key_width) | np.uint64(1)
    marks = np.zeros(len(rows), np.uint64)
    for start in range(0, len(rows), memory.block_rows):
        part = rows[start : start + memory.block_rows]
        key = memory.gather(part, ("key",))["key"].cpu().double() + 0.0  # −0 is 0
        bits: NDArray[np.uint64] = key.numpy().view(np.uint64)
        # The high bits of short numbers are all that differ, and a product moves bits up only.
        marks[start : start + len(part)] = ((bits ^ (bits >> np.uint64(32))) * factors).sum(1)
    _, first, place = np.unique(marks, return_index=True, return_inverse=True)
    leader = torch.from_numpy(first[place.reshape(-1)])
    gone, into = [rows[:0]], [rows[:0]]
    other = (leader != torch.arange(len(rows))).nonzero()[:, 0]
    for start in range(0, len(other), memory.block_rows):
        part = other[start : start + memory.block_rows]
        one, two = (memory.gather(r, ("key",))["key"] for r in (rows[part], rows[leader[part]]))
        same = (one == two).all(1).cpu()
        gone.append(rows[part[same]])
        into.append(rows[leader[part[same]]])
    return torch.cat(gone), torch.cat(into)


def _within(memory: Memory, rows: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    """The same for keys within a distance."""
    wide, device = memory.layout.wide, memory.device
    exact = memory.layout.exact_keys
    most = distance * distance * memory.key_width
    # Keys of those that have joined none, and their rows, with room for all.
    leaders = torch.zeros(len(rows), memory.key_width, dtype=exact, device=device)
    squares = torch.zeros(len(rows), dtype=wide, device=device)
    numbers = torch.zeros(len(rows), dtype=torch.int64)
    known = 0
    gone, into = [rows[:0]], [rows[:0]]
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        key = memory.gather(part, ("key",))["key"]
        joined = torch.zeros(len(part), dtype=torch.bool)
        if known:
            nearest = _nearest(key.to(wide), leaders[:known], squares[:known])
            # What decides is computed without cancelling.
            apart = (key.double() - leaders[nearest].double()).square().sum(1)
            joined = (apart <= most).cpu()
            gone.append(part[joined])
            into.append(numbers[nearest.cpu()[joined]])
        part, key = part[~joined], key[(~joined).to(device)]
        leads, follows, whom = _among(key.double(), most)
        gone.append(part[follows])
        into.append(part[whom])
        more = known + len(leads)
        leaders[known:more] = key[leads.to(device)]
        squares[known:more] = leaders[known:more].to(wide).square().sum(1)
        numbers[known:more] = part[leads]
        known = more
    return torch.cat(gone), torch.cat(into)


def _nearest(key: Tensor, leaders: Tensor, squares: Tensor) -> Tensor:
    """Which leader is the nearest to each key, (n,) int64."""
    best = torch.full((len(key),), float("inf"), dtype=key.dtype, device=key.device)
    which = torch.zeros(len(key), dtype=torch.int64, device=key.device)
    for start in range(0, len(leaders), 4 * _ROWS):
        part = leaders[start : start + 4 * _ROWS].to(key.dtype)
        apart = squares[start : start + 4 * _ROWS] - 2.0 * (key @ part.T)
        least, place = apart.min(1)
        closer = least < best
        best = torch.where(closer, least, best)
        which = torch.where(closer, place + start, which)
    return which


def _among(key: Tensor, most: float) -> tuple[Tensor, Tensor, Tensor]:
    """Which keys lead in their order, which join one, and which one that is; all as places."""
    squares = key.square().sum(1)
    apart = (squares[:, None] + squares - 2.0 * (key @ key.T)).cpu()
    close = (apart <= most).tril(-1)  # [row, one before it]
    leads = torch.zeros(len(key), dtype=torch.bool)
    open_ = torch.ones(len(key), dtype=torch.bool)
    while bool(open_.any()):  # as often as there are links in the longest chain
        new = open_ & ~(close & open_).any(1)
        leads |= new
        open_ &= ~new & ~(close & new).any(1)
    follows = (~leads).nonzero()[:, 0]
    reach = torch.where(close & leads, apart, float("inf"))[follows]
    whom = reach.argmin(1) if len(follows) else follows
    return leads.nonzero()[:, 0], follows, whom
