"""Linear discriminant analysis, exact after every batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.losses import Loss
from streamlearn.solving import solve_positive
from streamlearn.state import StateTree

from .refit import RefittedModel

__all__ = ["DiscriminantModel"]


class DiscriminantModel(RefittedModel):
    """Gaussian classes with a shared covariance, and shares of classes as they came.

    Kept are each class's count n_c and mean μ_c, and the scatter within classes S, in float64,
    updated exactly (Chan, Golub & LeVeque 1979). With `Σ = (1 − ρ) S/n + ρ tr(S/n)/D I`,

        log P(c | x) = μ_cᵀ Σ^{-1} x − ½ μ_cᵀ Σ^{-1} μ_c + log(n_c/n) + constant.

    A class that has not come yet has probability 0.

    Args:
        width: D.
        classes: C.
        loss: of probabilities.
        shrinkage: ρ in (0, 1].
        refresh: batches from one solution to the next while learning.
        device: where all is kept.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        loss: Loss,
        *,
        shrinkage: float,
        refresh: int,
        device: torch.device,
    ) -> None:
        super().__init__(classes, loss, device)
        self.shrinkage = shrinkage
        self.refresh = refresh
        self.count = torch.zeros(classes, dtype=torch.float64, device=device)  # n_c
        self.mean = torch.zeros(classes, width, dtype=torch.float64, device=device)  # μ_c
        self.scatter = torch.zeros(width, width, dtype=torch.float64, device=device)  # S

    def observe(self, codes: Tensor, targets: Tensor) -> None:
        """Merge a batch's counts, means and scatter with those so far."""
        rows = codes.to(torch.float64)
        chosen = F.one_hot(targets, self.classes).to(torch.float64)  # (B, C)
        count = chosen.sum(0)  # (C,)
        mean = (chosen.T @ rows) / count.clamp_min(1)[:, None]  # (C, D)
        inner = rows - mean[targets]  # (B, D)
        total = self.count + count
        gap = mean - self.mean  # (C, D)
        # The scatter between both parts of a class: n_c m_c/(n_c + m_c) times the gap's square.
        between = (self.count * count / total.clamp_min(1)).sqrt()[:, None] * gap
        self.scatter.addmm_(inner.T, inner).addmm_(between.T, between)
        self.mean += gap * (count / total.clamp_min(1))[:, None]
        self.count = total

    def due(self) -> bool:
        """Every `refresh` batches, and after the first."""
        return self.steps % self.refresh == 0 or self.steps == 1

    def solve(self) -> dict[str, Tensor]:
        """`weight` Σ^{-1}μᵀ (D, C) and `constant` (C,) of each class's discriminant."""
        covariance = self.scatter / self.count.sum()
        # Where all samples are equal there is no scatter, and any distance is a large one.
        level = float(covariance.diagonal().mean()) or 1.0
        matrix = (1.0 - self.shrinkage) * covariance
        matrix.diagonal().add_(self.shrinkage * level)
        weight = solve_positive(matrix, self.mean.T, self.shrinkage * level)  # (D, C)
        share = (self.count / self.count.sum()).log()  # −inf for a class that has not come
        constant = share - 0.5 * (self.mean * weight.T).sum(-1)  # (C,)
        return {"weight": weight, "constant": constant}

    def shares(self, solution: dict[str, Tensor], codes: Tensor) -> Tensor:
        """The softmax of the discriminants."""
        weight, constant = solution["weight"], solution["constant"]
        return torch.softmax(torch.addmm(constant, codes.to(weight.dtype), weight), -1)

    def statistics(self) -> StateTree:
        """Counts, means and scatter."""
        return {"count": self.count, "mean": self.mean, "scatter": self.scatter}

    def load_statistics(self, state: StateTree) -> None:
        """Restore all three."""
        self.count = state["count"].to(self.device, copy=True)
        self.mean.copy_(state["mean"])
        self.scatter.copy_(state["scatter"])
