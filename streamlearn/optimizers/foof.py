"""Mesa and FOOF: steps that the inputs' second moments precondition."""

from typing import Any, Literal

from torch import Tensor

from streamlearn.errors import ConfigError

from .inverse import cholesky, newton_schulz, solve_cholesky
from .linear import LinearBatch, LinearOptimizer
from .split import Params, in_range

__all__ = ["FOOF", "Inverse", "Mesa", "Regularisation"]

Regularisation = Literal["cumulative", "static"]
Inverse = Literal["cholesky", "newton_schulz"]


class Mesa(LinearOptimizer):
    """The recursive solution of the mesa objective, as an optimizer of linear layers.

    For a layer `y = Wx`, W (C, D), with inputs X (n, D) and output gradients G (n, C):

        Φ ← γΦ + XᵀX/n
        Λ ← γΛ + λ   (cumulative, algorithm B)     or     Λ = λ   (static, algorithm A, FOOF)
        a ← γa + 1   where `average`, else a = 1
        V ← μV + (GᵀX/n) ((Φ + ΛI)/a)^{-1}
        W ← (1 − decay) W − ηV

    Both sums over a batch are divided by its n rows, so the damping is measured against the mean
    squared input and nothing depends on the batch size: a batch counts as one observation. With
    cumulative regularisation, without momentum and decay, `W_t` is the minimiser over W of

        Σ_{s≤t} γ^{t−s} [ ‖X_s Wᵀ − V_s‖²/(2n) + λ‖W − W_{s−1}‖²/2 ],
        V_s = X_s W_{s−1}ᵀ − η a_s G_s:

    targets are what the layer said less a step along its gradient, and each step's prior is the
    weights before it, so the prior keeps its share as Φ grows. Without `average` (a = 1) this is
    the recursion as derived, whose steps shrink while Φ grows, to 1 − γ of the first. With it, the
    default, the rate means the same at every step: Φ/a is the mean second moment, the damping
    relative to it is λ (static: λ/a), and η = 1 is a full Newton step on a squared loss.

    Args:
        model: a network, modules, or groups; see `LinearOptimizer` for what is summed, for biases,
            and for other parameters.
        lr: η, at least 0.
        discount: γ in [0, 1], how much of the past a step keeps; 0 is the batch alone.
        damping: λ, at least 0.
        regularisation: "cumulative" or "static".
        average: whether Φ and Λ are weighted means rather than weighted sums.
        momentum: μ in [0, 1).
        decay: each step's plain decay in [0, 1), decoupled from the rate as in `FunctionalSGD`.
        inverse: "cholesky", exact, or "newton_schulz".
        iterations: of Newton–Schulz, at least 1.
        refresh: steps from one inverse to the next; Φ is kept up to date at every step.
        fallback_lr: AdamW's rate for all other parameters.

    Only `.grad` and the inputs enter, so clipped or accumulated gradients count as they are.

    Source: arXiv 2610.03858, §4, §E.2–E.4, §F.7; FOOF: arXiv 2201.12250.
    """

    rule = "mesa"

    def __init__(
        self,
        model: Params,
        lr: float = 0.1,
        *,
        discount: float = 0.95,
        damping: float = 0.1,
        regularisation: Regularisation = "cumulative",
        average: bool = True,
        momentum: float = 0.0,
        decay: float = 0.0,
        inverse: Inverse = "cholesky",
        iterations: int = 10,
        refresh: int = 1,
        fallback_lr: float = 1e-3,
    ) -> None:
        defaults = {
            "lr": lr,
            "discount": discount,
            "damping": damping,
            "regularisation": regularisation,
            "average": average,
            "momentum": momentum,
            "decay": decay,
            "inverse": inverse,
            "iterations": iterations,
            "refresh": refresh,
            "fallback_lr": fallback_lr,
        }
        super().__init__(model, defaults, gradients=False)

    def check(self, settings: dict[str, Any]) -> None:
        """Raise ConfigError for a setting that is out of range."""
        for name in ("lr", "damping", "fallback_lr"):
            in_range(settings, name, 0)
        in_range(settings, "discount", 0, 1, closed=True)
        in_range(settings, "momentum", 0, 1)
        in_range(settings, "decay", 0, 1)
        in_range(settings, "iterations", 1)
        in_range(settings, "refresh", 1)
        choices = {"regularisation": ("cumulative", "static"),
                   "inverse": ("cholesky", "newton_schulz")}  # fmt: skip
        for name, known in choices.items():
            if settings[name] not in known:
                raise ConfigError(f"{name}={settings[name]!r} is unknown; use {' or '.join(known)}")

    def update(self, group: dict[str, Any], state: dict[str, Any], batch: LinearBatch) -> Tensor:
        """One step of the recursion; see the class."""
        _observe(group, state, batch.inputs)
        count = len(batch.inputs)
        direction = _precondition(group, state, batch.gradient / count, batch.columns)  # (C, d)
        if group["momentum"]:
            direction = _with_momentum(state, direction, batch, group["momentum"])
        state["steps"] += 1
        matrix: Tensor = (1 - group["decay"]) * batch.matrix - group["lr"] * direction
        return matrix


class FOOF(Mesa):
    """`Mesa` with static regularisation, algorithm A: the FOOF optimizer.

    `W ← W − η (GᵀX/n) ((Φ + λI)/a)^{-1}`, `Φ ← γΦ + XᵀX/n`. Without `average`, a rate of
    `η/(1 − γ)` and a damping of `λ/(1 − γ)` give the update with exponential averages
    `Φ ← γΦ + (1 − γ)XᵀX/n` that start from zero. Settings are those of `Mesa`.

    Source: arXiv 2610.03858, §E.4.1; arXiv 2201.12250.
    """

    rule = "foof"

    def __init__(
        self,
        model: Params,
        lr: float = 0.1,
        *,
        discount: float = 0.95,
        damping: float = 0.1,
        average: bool = True,
        momentum: float = 0.0,
        decay: float = 0.0,
        inverse: Inverse = "cholesky",
        iterations: int = 10,
        refresh: int = 1,
        fallback_lr: float = 1e-3,
    ) -> None:
        super().__init__(
            model,
            lr,
            discount=discount,
            damping=damping,
            regularisation="static",
            average=average,
            momentum=momentum,
            decay=decay,
            inverse=inverse,
            iterations=iterations,
            refresh=refresh,
            fallback_lr=fallback_lr,
        )

    def check(self, settings: dict[str, Any]) -> None:
        """Raise ConfigError for a setting that is out of range."""
        super().check(settings)
        if settings["regularisation"] != "static":
            raise ConfigError(
                "FOOF is static regularisation; use Mesa for regularisation=cumulative"
            )


def _observe(group: dict[str, Any], state: dict[str, Any], inputs: Tensor) -> None:
    """`Φ ← γΦ + XᵀX/n`, and the strength and count that go with it."""
    if not state:
        width = inputs.shape[1]
        state |= {
            "moment": inputs.new_zeros(width, width),
            "damping": 0.0,
            "count": 0.0,
            "steps": 0,
        }
    discount = group["discount"]
    moment: Tensor = state["moment"]
    state["moment"] = moment.addmm(inputs.T, inputs, beta=discount, alpha=1 / len(inputs))
    past = discount * state["damping"] if group["regularisation"] == "cumulative" else 0.0
    state["damping"] = past + group["damping"]
    state["count"] = discount * state["count"] + 1


def _precondition(
    group: dict[str, Any], state: dict[str, Any], gradient: Tensor, columns: slice
) -> Tensor:
    """`G ((Φ + ΛI)/a)^{-1}` over the trained columns; the inverse may be some steps old."""
    exact = group["inverse"] == "cholesky"
    name, other = ("factor", "inverse") if exact else ("inverse", "factor")
    state.pop(other, None)
    root = state.get(name)
    due = state["steps"] % group["refresh"] == 0
    if due or root is None or len(root) != gradient.shape[1]:
        matrix = state["moment"][columns, columns].clone()
        matrix.diagonal().add_(state["damping"])
        if group["average"]:
            matrix /= state["count"]
        root = cholesky(matrix) if exact else newton_schulz(matrix, group["iterations"])
    if group["refresh"] > 1:
        state[name] = root
    else:
        state.pop(name, None)  # made anew at the next step
    return solve_cholesky(gradient, root) if exact else gradient @ root


def _with_momentum(
    state: dict[str, Any], direction: Tensor, batch: LinearBatch, momentum: float
) -> Tensor:
    """`V ← μV + U` over the trained columns; the velocity of others waits."""
    if "velocity" not in state:
        state["velocity"] = direction.new_zeros(len(direction), batch.inputs.shape[1])
    state["velocity"] = state["velocity"].clone()
    velocity: Tensor = state["velocity"][:, batch.columns]
    return velocity.mul_(momentum).add_(direction)
