"""LS-SVM: kernel ridge regression on all samples so far, solved anew whenever they have doubled."""

import torch
from torch import Tensor

from streamlearn.errors import ConfigError
from streamlearn.losses import Loss
from streamlearn.memory import Memory, Tuples
from streamlearn.solving import solve_by_rows
from streamlearn.state import StateTree

from .distances import gaussian, median_distance
from .refit import RefittedModel
from .ridge import answers_of, fitted_rows

__all__ = ["KernelModel"]


class KernelModel(RefittedModel):
    """Least squares in the feature space of a Gaussian, exact for a few thousand samples.

    `f(x) = Σ α_i k(x_i, x) + b` with `k = exp(−‖x − x_i‖²/(2h²))` and y being ±1 by class:

        [K + λI  1] [α]   [y]
        [1ᵀ      0] [b] = [0],

    or `(K + λI) α = y`, b = 0, which is kernel ridge regression. Probabilities are those of
    `ridge.shares_of`; where targets are numbers, y is these and f(x) the answer. Samples and their
    y are the tuples of a memory. While learning, batches are scored by the solution of the first
    samples, renewed when their number has doubled.

    Args:
        memory: of codes (n, D) and y (n, C), empty.
        loss: of answers.
        regularisation: λ > 0.
        bandwidth: h; None means `scale` times the median distance of the stream's first samples.
        scale: a factor of that median.
        bias: whether there is a b.
        first: samples at the first solution.
        limit: the most samples; a solution takes 4 limit² bytes for a while, three to
            six times that where λ is too small for float32 to factor.
    """

    def __init__(
        self,
        memory: Memory,
        loss: Loss,
        *,
        regularisation: float,
        bandwidth: float | None,
        scale: float,
        bias: bool,
        first: int,
        limit: int,
    ) -> None:
        super().__init__(memory.value_width, loss, memory.device)
        self.memory = memory
        self.regularisation = regularisation
        self.bandwidth = 1.0 if bandwidth is None else bandwidth
        self._scale = scale if bandwidth is None else None
        self.bias = bias
        self.first = first
        self.limit = limit

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Take the bandwidth from the stream's first samples, unless it is set."""
        if self._scale is not None:
            self.bandwidth = self._scale * median_distance(codes)

    def observe(self, codes: Tensor, targets: Tensor) -> None:
        """Store a batch.

        Raises:
            ConfigError: it would be more samples than the limit.
        """
        if len(self.memory) + len(codes) > self.limit:
            raise ConfigError(
                f"learner=kernel has learnt {len(self.memory)} samples and learner.limit="
                f"{self.limit} lets no batch of {len(codes)} follow; raise learner.limit, or end "
                "the stream earlier"
            )
        signs = fitted_rows(targets, self.classes, self.loss)
        weight = torch.ones(len(codes), device=self.device)
        self.memory.append(Tuples(codes, weight, signs), born=self.steps + 1)

    def due(self) -> bool:
        """At `first` samples, and whenever they have doubled since."""
        solved = 0 if self._solution is None else len(self._solution["alpha"])
        return self.samples >= max(self.first, 2 * solved)

    def solve(self) -> dict[str, Tensor]:
        """`alpha` (n, C) and `constant` (C,)."""
        keys, signs = self._columns()
        ones = torch.ones(len(keys), 1, dtype=torch.float64, device=self.device)
        solved = solve_by_rows(
            lambda start, stop: gaussian(keys[start:stop], keys, self.bandwidth),
            torch.cat([signs, ones], 1),
            self.regularisation,
        )
        alpha, share = solved[:, :-1], solved[:, -1:]  # ν (n, C), η (n, 1)
        constant = alpha.sum(0) / share.sum() if self.bias else torch.zeros_like(alpha[0])
        return {"alpha": (alpha - share * constant).contiguous(), "constant": constant}

    def _columns(self) -> tuple[Tensor, Tensor]:
        """All keys (n, D) and signs (n, C), float64."""
        parts = [
            {
                name: tensor.to(self.device, torch.float64)
                for name, tensor in self.memory.host_tensors(index).items()
                if name in ("key", "value")
            }
            for index in range(self.memory.block_count)
        ]
        return torch.cat([p["key"] for p in parts]), torch.cat([p["value"] for p in parts])

    def shares(self, solution: dict[str, Tensor], codes: Tensor) -> Tensor:
        """The machine's outputs as answers."""
        alpha = solution["alpha"]
        output = solution["constant"].expand(len(codes), -1).clone()  # (B, C)
        start = 0
        for block in self.memory.tiles(born=False, norms=False):
            count = min(block.count, len(alpha) - start)
            if count > 0:  # later samples have no coefficient yet
                near = gaussian(codes, block.key[:count], self.bandwidth)  # (B, count)
                output.addmm_(near, alpha[start : start + count])
            start += block.count
        return answers_of(output, self.loss)

    def memories(self) -> dict[str, Memory]:
        """The samples."""
        return {"samples": self.memory}

    def statistics(self) -> StateTree:
        """The bandwidth; the samples are in the memory."""
        return {"bandwidth": self.bandwidth}

    def load_statistics(self, state: StateTree) -> None:
        """Restore the bandwidth."""
        self.bandwidth = float(state["bandwidth"])
