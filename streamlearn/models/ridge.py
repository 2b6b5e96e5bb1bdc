"""Ridge regression, exact after every batch: recursive least squares by its sums."""

import torch
import torch.nn.functional as F
from torch import Tensor

from streamlearn.losses import Loss
from streamlearn.solving import solve_positive
from streamlearn.state import StateTree

from .refit import RefittedModel

__all__ = ["RidgeModel", "answers_of", "fitted_rows", "shares_of"]

_FLOOR = 1e-6


class RidgeModel(RefittedModel):
    """The minimiser of `Σ ‖W x + b − y‖² + λ‖W‖²` over all samples so far, y being ±1 by class.

    Kept are `G = Σ [x|1]ᵀ[x|1]` and `B = Σ [x|1]ᵀ y`, in float64; then `(G + λ I°) [W|b]ᵀ = B`, I°
    without the constant's entry. The order of the samples does not matter. An output s estimates
    `2P(class) − 1`, so probabilities are `(1 + s)/2`, clipped to [0, 1] and normalised. Where
    targets are numbers, y is these and s the answer.

    Args:
        width: D.
        classes: C, or the number of values.
        loss: of answers.
        regularisation: λ > 0.
        refresh: batches from one solution to the next while learning.
        device: where sums are kept.
    """

    def __init__(
        self,
        width: int,
        classes: int,
        loss: Loss,
        *,
        regularisation: float,
        refresh: int,
        device: torch.device,
    ) -> None:
        super().__init__(classes, loss, device)
        self.regularisation = regularisation
        self.refresh = refresh
        size = width + 1
        self.gram = torch.zeros(size, size, dtype=torch.float64, device=device)  # G
        self.moment = torch.zeros(size, classes, dtype=torch.float64, device=device)  # B

    def observe(self, codes: Tensor, targets: Tensor) -> None:
        """Add a batch to both sums."""
        rows = F.pad(codes.to(torch.float64), (0, 1), value=1.0)  # [x|1] (B, D + 1)
        fitted = fitted_rows(targets, self.classes, self.loss)  # y (B, C)
        self.gram.addmm_(rows.T, rows)
        self.moment.addmm_(rows.T, fitted)

    def due(self) -> bool:
        """Every `refresh` batches, and after the first."""
        return self.steps % self.refresh == 0 or self.steps == 1

    def solve(self) -> dict[str, Tensor]:
        """`weight` [W|b]ᵀ (D + 1, C)."""
        matrix = self.gram.clone()
        matrix.diagonal()[:-1] += self.regularisation
        return {"weight": solve_positive(matrix, self.moment, self.regularisation)}

    def shares(self, solution: dict[str, Tensor], codes: Tensor) -> Tensor:
        """See `answers_of`."""
        weight = solution["weight"]
        output = torch.addmm(weight[-1], codes.to(weight.dtype), weight[:-1])
        return answers_of(output, self.loss)

    def statistics(self) -> StateTree:
        """Both sums."""
        return {"gram": self.gram, "moment": self.moment}

    def load_statistics(self, state: StateTree) -> None:
        """Restore both sums."""
        self.gram.copy_(state["gram"])
        self.moment.copy_(state["moment"])


def fitted_rows(targets: Tensor, classes: int, loss: Loss) -> Tensor:
    """What outputs are fitted to, (B, C) float64: rows of −1 with a 1 for classes, or values."""
    if loss.values:
        return targets.to(torch.float64)
    return 2.0 * F.one_hot(targets, classes).to(torch.float64) - 1.0


def answers_of(output: Tensor, loss: Loss) -> Tensor:
    """Outputs as answers: as they are where these are values, else see `shares_of`."""
    return output if loss.values else shares_of(output)


def shares_of(output: Tensor) -> Tensor:
    """Outputs fitted to ±1 as probabilities: `(1 + s)/2` clipped to [0, 1], and normalised."""
    shares = (0.5 * (1.0 + output)).clamp(0, 1) + _FLOOR
    return shares / shares.sum(-1, keepdim=True)
