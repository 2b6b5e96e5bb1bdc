"""Which stored tuples made an answer: contributions that sum to it, and what was attended to.

A layer whose output is a sum over stored rows says so by two methods, see `Attributable`. All that
is asked here goes over its rows once, a part at a time, wherever they are; contributions are

    s_c(q) = Σ_i a_i(q) v_ic + b_c(q),

v_i a row's value, a_i its share and b what no row makes. Attention is |a_i| / Σ_j |a_j|.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from streamlearn.influence import Influence
from streamlearn.memory import PRIOR, UNKNOWN

__all__ = [
    "Attributable",
    "Attribution",
    "Ranked",
    "answer_of_top",
    "attribute",
    "purity",
    "queries",
]


@runtime_checkable
class Attributable(Protocol):
    """A layer whose output is a sum over stored rows."""

    def influences(self, query: Tensor) -> Iterator[Influence]:
        """What each row has in the answers to queries (B, D), part by part."""
        ...

    def beside(self, query: Tensor) -> Tensor | None:
        """What no row makes of the answers, (B, C) float64; None: nothing."""
        ...


class Ranked(NamedTuple):
    """Rows of a memory by a score, the largest first: for each query the same number of places.

    score: (…, K) float64. row, born, sample: (…, K) int64. A place without a row has row -1; a row
    of which nobody knows the sample has `UNKNOWN`.
    """

    score: Tensor
    row: Tensor
    born: Tensor
    sample: Tensor

    @property
    def there(self) -> Tensor:
        """Which places have a row, (…, K)."""
        return self.row >= 0


class Attribution(NamedTuple):
    """What the rows of a layer make of queries; all float64, on the layer's device.

    output: (B, C), contributions and `beside` summed. size: (B, C), Σ |contribution|.
    starting: (B, C), what starting rows have in it. beside: (B, C), what no row makes.
    attended: (B, K) by attention. helpers, hurters: (B, M, K) by contribution to each of M outputs,
    hurters by its negative. effective: (B,), 1/Σ p² of the attention p: how many rows it is on.
    groups: (B, G), attention by group, the last one for rows of none, starting rows left out; empty
    without groups.
    spans: (B, S), attention by time of writing, from the first to the last; starting rows left out.
    written: (S,), the share of tuples that were written then.

    Starting rows and dropped ones are not ranked.
    """

    output: Tensor
    size: Tensor
    starting: Tensor
    beside: Tensor
    attended: Ranked
    helpers: Ranked
    hurters: Ranked
    effective: Tensor
    groups: Tensor
    spans: Tensor
    written: Tensor


@torch.no_grad()
def attribute(
    layer: Attributable,
    query: Tensor,
    *,
    outputs: Tensor | None = None,
    top: int = 50,
    group_of: Callable[[Tensor, Tensor], Tensor] | None = None,
    groups: int = 0,
    spans: int = 10,
    steps: int = 1,
    each: int = 1,
    averaged: bool = False,
) -> Attribution:
    """What the rows of a layer make of queries.

    Args:
        layer: whose output is a sum over rows.
        query: (B·each, D), as the layer gets them.
        outputs: (B, M) int64, the outputs for which contributions are ranked; None: none.
        top: K, rows to rank.
        group_of: from rows and their samples, (n,) int64 each, to groups (n,) int64, negative for
            none.
        groups: their number; G is one more.
        spans: S, parts of equal length that the steps so far are divided into.
        steps: that were made so far.
        each: queries of a sample, one after the other; its attention is their mean.
        averaged: whether its answer is their mean too, so that there is one for each sample.
    """
    count = len(query) // each
    mean = each if averaged else 1
    each //= mean
    device = query.device
    chosen = torch.zeros(count, 0, dtype=torch.int64) if outputs is None else outputs
    chosen = chosen.to(device)
    attended, helpers, hurters = _Strongest(top), _Strongest(top), _Strongest(top)
    sums: list[Tensor] = []  # output, size, starting: (3, B·each, C)
    masses = torch.zeros(count, groups + 1, dtype=torch.float64, device=device)
    times = torch.zeros(count, spans, dtype=torch.float64, device=device)
    written = torch.zeros(spans, dtype=torch.float64, device=device)
    mass = torch.zeros(count, 1, dtype=torch.float64, device=device)
    square = torch.zeros(count, dtype=torch.float64, device=device)
    for part in layer.influences(query):
        if mean > 1:  # shares of the same values
            part = part._replace(share=part.share.reshape(count, mean, -1).mean(1))
        size = part.share.abs()
        starting = part.born == PRIOR
        found = torch.stack(
            [part.share @ part.value, size @ part.value.abs(),
             part.share[:, starting] @ part.value[starting]]
        )  # fmt: skip
        sums = [found if not sums else sums[0] + found]
        attention = size.reshape(count, each, -1).mean(1)  # (B, n)
        mass += attention.sum(-1, keepdim=True)
        square += attention.square().sum(-1)
        own = (part.born > PRIOR).nonzero()[:, 0]
        born = part.born[own]
        unknown = torch.full_like(born, UNKNOWN)
        sample = unknown if part.sample is None else part.sample[own]
        tags = torch.stack([part.start + own, born, sample])  # (3, n)
        attention = attention[:, own]
        attended.add(attention, tags)
        span = ((born - 1) * spans // max(steps, 1)).clamp(0, spans - 1)
        times.index_add_(1, span, attention)
        written += torch.bincount(span, minlength=spans)
        if group_of is not None:
            group = group_of(tags[0], sample).to(device)
            masses.index_add_(1, torch.where(group < 0, groups, group), attention)
        if chosen.shape[1]:
            value = part.value[own].T[chosen]  # (B, M, n)
            contribution = part.share[:, None, own] * value
            helpers.add(contribution, tags)
            hurters.add(-contribution, tags)
    beside = layer.beside(query)
    if beside is not None and mean > 1:
        beside = beside.reshape(count, mean, -1).mean(1)
    output, size, start = sums[0] if sums else torch.zeros(3, count * each, 0)
    none = torch.zeros_like(output)
    whole = mass.clamp_min(torch.finfo(torch.float64).tiny)
    by_attention = attended.ranked(count)
    return Attribution(
        output if beside is None else output + beside,
        size if beside is None else size + beside.abs(),
        start,
        none if beside is None else beside,
        by_attention._replace(score=by_attention.score / whole),
        helpers.ranked(count, chosen.shape[1]),
        hurters.ranked(count, chosen.shape[1]),
        whole[:, 0].square() / square.clamp_min(torch.finfo(torch.float64).tiny),
        masses / whole if group_of is not None else masses[:, :0],
        times / whole,
        written / written.sum().clamp_min(1),
    )


def purity(ranked: Ranked, groups: Tensor, own: Tensor, but: Tensor | None = None) -> Tensor:
    """The share of rows that are of a query's own group, (B,) float64; NaN where none has a group.

    Args:
        ranked: rows (B, K).
        groups: of these rows, (B, K) int64, negative for none.
        own: (B,) the queries' groups.
        but: (B,) samples that are not counted: the queries themselves.
    """
    known = ranked.there & (groups >= 0)
    if but is not None:
        known &= ranked.sample != but[:, None]
    right = (groups == own[:, None]) & known
    return right.sum(-1).double() / known.sum(-1).double()


@torch.no_grad()
def answer_of_top(layer: Attributable, query: Tensor, count: int) -> Tensor:
    """The answers to queries (B, D) by the rows alone that each attends to most, (B, C) float64.

    Starting rows stay, which keep the denominator above 0 where weights are clipped.
    """
    strongest = _Strongest(count)
    for part in layer.influences(query):
        own = (part.born > PRIOR).nonzero()[:, 0]
        strongest.add(part.share[:, own].abs(), torch.stack([own, own, own]))
    least = strongest.ranked(len(query)).score[:, -1:]  # (B, 1)
    total: Tensor | None = None
    divisor: Tensor | None = None
    for part in layer.influences(query):
        stays = (part.share.abs() >= least) | (part.born == PRIOR)
        share = part.share * stays
        answer = share @ part.value
        total = answer if total is None else total + answer
        if part.weight is not None:
            weight = (share @ part.weight)[:, None]
            divisor = weight if divisor is None else divisor + weight
    if total is None:
        return torch.zeros(len(query), 0, dtype=torch.float64)
    beside = layer.beside(query)
    total = total if divisor is None else total / divisor
    return total if beside is None else total + beside


def queries(network: nn.Module, codes: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """A network's output for codes, and the queries (B·each, D) of its layers that have rows."""
    found: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            found[name] = given[0].detach().reshape(-1, given[0].shape[-1])

        return keep

    hooks = [
        network.get_submodule(name).register_forward_pre_hook(keeper(name))
        for name, module in network.named_modules()
        if isinstance(module, Attributable)
    ]
    try:
        with torch.no_grad():
            return network(codes), found
    finally:
        for hook in hooks:
            hook.remove()


class _Strongest:
    """The rows with the largest scores of each query, of all parts so far.

    Args:
        count: K.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._score: Tensor | None = None
        self._tags: Tensor | None = None  # row, born, sample: (3, …, K)

    def add(self, score: Tensor, tags: Tensor) -> None:
        """Take in scores (…, n) of rows with tags (3, n)."""
        best, at = score.topk(min(self._count, score.shape[-1]), dim=-1)
        found = tags[:, at]  # (3, …, k)
        if self._score is not None and self._tags is not None:
            best = torch.cat([self._score, best], -1)
            found = torch.cat([self._tags, found], -1)
            best, at = best.sort(dim=-1, descending=True, stable=True)
            best, at = best[..., : self._count], at[..., : self._count]
            found = found.gather(-1, at.expand(3, *at.shape))
        self._score, self._tags = best, found

    def ranked(self, *shape: int) -> Ranked:
        """All of them, with places without a row behind; `shape` of the queries."""
        score = torch.zeros(*shape, 0, dtype=torch.float64) if self._score is None else self._score
        tags = torch.zeros(3, *shape, 0) if self._tags is None else self._tags
        missing = self._count - score.shape[-1]
        if missing > 0:
            score = nn.functional.pad(score, (0, missing))
            tags = nn.functional.pad(tags, (0, missing), value=-1)
        row, born, sample = tags.to(torch.int64)
        return Ranked(score, row, born, sample)
