"""How far Newton–Schulz is from the exact inverse, iteration by iteration, and what it costs.

    python -m bench.newton_schulz [--widths 64 256 …] [--damping 0.1 0.01 …] [--threads N]

The matrices are those that Mesa inverts: Φ/a + λI, the mean second moment of 2,048 rows with a
damping. The rows are "white", or "correlated" with eigenvalues that fall as 1/i, as those of
images do. Errors are those of the preconditioned gradient, ‖G(Y − A⁻¹)‖/‖GA⁻¹‖, against Cholesky
in float64; `k(1e-6)` is the number of iterations, in float64, after which they agree to 1e-6.
Seconds are of one inverse by ten iterations and of one factorisation with its solve, in float32.
"""

import argparse
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from streamlearn.optimizers.inverse import cholesky, newton_schulz, solve_cholesky

ROWS, OUTPUTS = 2048, 64


def moment(width: int, kind: str, damping: float) -> Tensor:
    """Φ/a + λI (D, D) in float64."""
    source = torch.Generator().manual_seed(width)
    rows = torch.randn(ROWS, width, generator=source, dtype=torch.float64)
    if kind == "correlated":
        scale = torch.arange(1, width + 1, dtype=torch.float64).rsqrt()
        rows = rows * (scale / scale.square().mean().sqrt())
        rows = rows @ torch.linalg.qr(torch.randn(width, width, generator=source).double()).Q
    matrix = rows.T @ rows / ROWS
    matrix.diagonal().add_(damping)
    return matrix


def error(matrix: Tensor, gradient: Tensor, exact: Tensor, iterations: int) -> float:
    """The relative error of the preconditioned gradient."""
    found = gradient.to(matrix.dtype) @ newton_schulz(matrix, iterations)
    return float((found.double() - exact).norm() / exact.norm())


def seconds(work: Callable[[], Tensor]) -> float:
    """The fastest of three."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    """Measure and print, a row for each matrix."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 256, 768])
    parser.add_argument("--damping", nargs="+", type=float, default=[0.1, 0.01, 0.001])
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    table = Table(
        "rows", "D", "λ", "condition", "error after 5", "10", "10, float32", "20", "k(1e-6)",
        "s, 10 iterations", "s, Cholesky",
    )  # fmt: skip
    for kind in ("white", "correlated"):
        for width in options.widths:
            for damping in options.damping:
                table.add_row(*row(kind, width, damping))
    Console(width=150).print(table)


def row(kind: str, width: int, damping: float) -> list[str]:
    """All that is known of one matrix."""
    matrix = moment(width, kind, damping)
    gradient = torch.randn(OUTPUTS, width, dtype=torch.float64)
    exact = solve_cholesky(gradient, cholesky(matrix))
    values = torch.linalg.eigvalsh(matrix)
    needed = next(
        (k for k in range(1, 61) if error(matrix, gradient, exact, k) < 1e-6), None
    )  # fmt: skip
    small, slope = matrix.float(), gradient.float()
    return [
        kind,
        str(width),
        f"{damping:g}",
        f"{float(values[-1] / values[0]):,.0f}",
        *(f"{error(matrix, gradient, exact, k):.1e}" for k in (5, 10)),
        f"{error(small, gradient, exact, 10):.1e}",
        f"{error(matrix, gradient, exact, 20):.1e}",
        "more than 60" if needed is None else str(needed),
        f"{seconds(lambda: slope @ newton_schulz(small, 10)):.4f}",
        f"{seconds(lambda: solve_cholesky(slope, cholesky(small))):.4f}",
    ]


if __name__ == "__main__":
    main()
