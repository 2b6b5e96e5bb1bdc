"""Networks of growing layers."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["ResNetMLP", "rms_norm"]

_EPSILON = 1e-8


def rms_norm(values: Tensor) -> Tensor:
    """Scale rows to root mean square 1, ‖q‖ = √D; no learned scale, and a zero row stays zero."""
    return F.rms_norm(values, (values.shape[-1],), eps=_EPSILON)


class ResNetMLP(nn.Module):
    """Residual layers and an output layer, each behind RMSNorm.

        e ← e + layer(RMSNorm(e))  for each hidden layer,  then  output(RMSNorm(e)).

    Where a sample has several views, outputs are averaged over them.

    Args:
        hidden: modules D → D: growing layers, or any others.
        output: a module D → C.

    Source: arXiv 2610.03858, §5.
    """

    def __init__(self, hidden: Sequence[nn.Module], output: nn.Module) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(hidden)
        self.output = output

    def forward(self, features: Tensor) -> Tensor:
        """Map features (B, D), or (B, V, D) of V views each, to outputs (B, C)."""
        stream = features  # e (B, D)
        for layer in self.hidden:
            stream = stream + layer(rms_norm(stream))
        output: Tensor = self.output(rms_norm(stream))
        return output if features.ndim < 3 else output.mean(-2)
