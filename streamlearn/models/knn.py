"""The k nearest neighbours among all samples so far."""

import math
from contextlib import closing
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.blocks import Block, accumulation_dtype
from streamlearn.losses import Loss
from streamlearn.memory import Memory, Tuples
from streamlearn.state import StateTree

from .base import Scores, scored

__all__ = ["KNNModel", "Metric", "Weighting"]

Metric: TypeAlias = Literal["euclidean", "cosine", "dot"]
Weighting: TypeAlias = Literal["uniform", "distance", "kernel"]


class KNNModel:
    """The k nearest samples vote for their classes or values, and every sample is kept.

    Distances d are `‖q − x‖`, `1 − cos(q, x)`, or for "dot" `max_x ⟨q, x⟩ − ⟨q, x⟩`. Votes are 1
    ("uniform"), 1/d, where d = 0 outvotes all else ("distance"), or `exp(−d²/(2h²))` ("kernel").
    Codes are kept in the memory's dtype, and compared in float32 (float64 for float64 codes). An
    answer is the share of votes of each class, or the mean of the values weighted by them.

    Args:
        memory: of codes (n, D) and one-hot classes or values (n, C), empty.
        loss: of answers.
        k: how many vote; all of them while there are fewer.
        metric: "euclidean", "cosine" or "dot".
        weighting: "uniform", "distance" or "kernel".
        bandwidth: h; None means the distance of the k-th neighbour.
    """

    def __init__(
        self,
        memory: Memory,
        loss: Loss,
        *,
        k: int,
        metric: Metric = "euclidean",
        weighting: Weighting = "uniform",
        bandwidth: float | None = None,
    ) -> None:
        self.memory = memory
        self.loss = loss
        self.k = k
        self.metric = metric
        self.weighting = weighting
        self.bandwidth = bandwidth
        self.steps = 0

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Nothing is wanted of them."""

    def answer(self, codes: Tensor) -> Tensor:
        """The neighbours' votes as answers (B, C); `Loss.blank` before anything was learnt."""
        width = self.memory.value_width
        if len(self.memory) == 0:
            return self.loss.blank(len(codes), width)
        distances, labels = self.neighbours(codes)
        votes = self._votes(distances)  # (B, k)
        if self.loss.values:
            wide = votes.to(torch.float64)
            shares = wide / wide.sum(-1, keepdim=True)
            return (shares[:, :, None] * labels.to(torch.float64)).sum(1).to("cpu")
        shares = votes.new_zeros(len(codes), width).scatter_add_(1, labels, votes)
        return (shares / shares.sum(-1, keepdim=True)).to("cpu", torch.float32)

    def neighbours(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Distances (B, k), ascending, of the nearest samples, and their classes (B, k).

        Values (B, k, C) where targets are numbers. Fewer than k where there are fewer samples.
        """
        query = codes.to(self.memory.device, accumulation_dtype(self.memory.dtype))
        if self.metric == "cosine":
            query = _unit(query)
        best = query.new_empty(len(query), 0)
        labels: Tensor | None = None
        rows = torch.arange(len(query), device=query.device)[:, None]
        with closing(self.memory.tiles(born=False, norms=False)) as blocks:
            for block in blocks:
                found, classes = self._nearest(block, query)
                best, chosen = torch.cat([best, found], 1).topk(
                    min(self.k, best.shape[1] + found.shape[1]), largest=False
                )
                joined = classes if labels is None else torch.cat([labels, classes], 1)
                labels = joined[rows, chosen]
        if self.metric == "dot":
            best = best - best[:, :1]
        return best, best.new_empty(len(query), 0) if labels is None else labels

    def _nearest(self, block: Block, query: Tensor) -> tuple[Tensor, Tensor]:
        """Distances (B, min(k, n)) of a block's nearest rows, and their classes or values."""
        keys = block.key[: block.count].to(query.dtype)  # (n, D)
        if self.metric == "cosine":
            keys = _unit(keys)
        distances = -(query @ keys.T)  # (B, n)
        if self.metric == "euclidean":
            distances = 0.5 * keys.square().sum(-1) + distances  # up to ½‖q‖²
        found, chosen = distances.topk(min(self.k, block.count), largest=False)
        if self.metric == "euclidean":  # not from the product, which cancels for the nearest
            found = torch.stack([
                (row - keys[nearest]).square().sum(-1)
                for row, nearest in zip(query, chosen, strict=True)
            ]).sqrt()  # fmt: skip
        elif self.metric == "cosine":
            found = (1.0 + found).clamp_min(0)
        values = block.side[: block.count, : self.memory.value_width]
        return found, values[chosen] if self.loss.values else values[chosen].argmax(-1)

    def _votes(self, distances: Tensor) -> Tensor:
        if self.weighting == "uniform":
            return torch.ones_like(distances)
        if self.weighting == "distance":
            equal = distances == 0
            votes = torch.where(equal, 1.0, 0.0)
            return torch.where(equal.any(-1, keepdim=True), votes, 1.0 / distances)
        width = distances[:, -1:] if self.bandwidth is None else self.bandwidth
        # Relative to the nearest, whose vote would vanish where all are far away.
        gap = distances.square() - distances[:, :1].square()
        ratio = torch.where(gap > 0, gap / torch.as_tensor(width).square(), 0.0)
        return (-0.5 * ratio).exp()

    @torch.no_grad()
    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score a batch, then keep it."""
        scores = scored(self.answer(codes), targets, self.loss)
        targets = targets.to(self.memory.device)
        values = targets if self.loss.values else F.one_hot(targets, self.memory.value_width)
        weight = torch.ones(len(codes), device=self.memory.device)
        self.memory.append(Tuples(codes, weight, values.to(codes.dtype)), born=self.steps + 1)
        self.steps += 1
        return scores

    def memories(self) -> dict[str, Memory]:
        """The samples."""
        return {"samples": self.memory}

    @property
    def nbytes(self) -> int:
        """The samples'."""
        return self.memory.nbytes

    def state_dict(self) -> StateTree:
        """The count of batches."""
        return {"steps": self.steps}

    def load_state_dict(self, state: StateTree) -> None:
        """Restore it, without samples."""
        self.steps = int(state["steps"])
        self.memory.clear()


def _unit(rows: Tensor) -> Tensor:
    """Rows at length 1; a zero row stays zero."""
    return F.normalize(rows, dim=-1, eps=math.sqrt(torch.finfo(rows.dtype).tiny))
