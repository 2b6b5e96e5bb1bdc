"""Which stored samples come again: draws without replacement, of random words alone.

Any sample alike, or each class alike as far as it has as many, or by loss.

By loss, a sample i of n is drawn with a chance that grows with the loss ℓ_i that was last seen of
it, before it was learnt: without replacement, one after the other, each time

    p_i ∝ ℓ_i / ℓ̄ + ε,  ℓ̄ = 1/n Σ_j ℓ_j,  ε = 1

among those that are left. That is what the R smallest of the keys −ln(u_i) / (ℓ_i/ℓ̄ + ε) are, u_i
uniform in (0, 1]. Losses are divided by their mean, so that their unit does not matter; ε lets
samples that are known come again now and then, or nothing would tell that they were forgotten.

Source: Efraimidis and Spirakis, doi:10.1016/j.ipl.2005.11.003 (the keys).
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["FLOOR", "Rehearse", "Rows", "Words", "distinct", "loss_keys", "shares"]

Rehearse: TypeAlias = Literal["uniform", "balanced", "loss"]
Rows: TypeAlias = NDArray[np.int64]
Words: TypeAlias = Callable[[int], NDArray[np.uint64]]

FLOOR = 1.0
"""ε, in mean losses."""


def loss_keys(words: NDArray[np.uint64], losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The keys (n,) of samples, the smallest of which are drawn, see the module.

    Args:
        words: (n,) random ones.
        losses: (n,), at least 0.
    """
    chances = losses / (losses.mean() or 1.0) + FLOOR if len(losses) else losses
    uniform = ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53  # in (0, 1]
    return -np.log(uniform) / chances


def distinct(words: Words, count: int, wanted: int) -> Rows:
    """So many different numbers below `count`, or all of them, each alike."""
    if wanted >= count:
        return np.arange(count, dtype=np.int64)
    if count <= 4 * wanted:
        return np.argsort(words(count), kind="stable")[:wanted]
    numbers = np.zeros(0, np.int64)
    while len(numbers) < wanted:  # hardly ever more than once
        drawn = (words(2 * wanted) % np.uint64(count)).astype(np.int64)
        numbers = np.concatenate([numbers, drawn])
        numbers = numbers[np.sort(np.unique(numbers, return_index=True)[1])]
    return numbers[:wanted]


def shares(words: Words, counts: Rows, wanted: int) -> Rows:
    """How many to draw of each class: alike as far as it has them; chance says who has one more."""
    found = np.zeros_like(counts)
    left = min(wanted, int(counts.sum()))
    while left:
        open_ = np.flatnonzero(counts > found)
        each = left // len(open_)
        if each == 0:
            open_ = open_[np.argsort(words(len(open_)), kind="stable")[:left]]
        added = np.minimum(counts[open_] - found[open_], max(each, 1))
        found[open_] += added
        left -= int(added.sum())
    return found
