"""Kernel least squares over a set of keys, from sums that do not grow with the stream.

Answers are `f(q) = Σ_j k(k_j, q) ṽ_j`, the values minimising

    Σ_t ω_t ‖f(q_t) − v_t‖² + λ ‖f‖²,    ‖f‖² the norm of the kernel's space,

over all samples so far, which is kernel ridge regression restricted to the keys (subset of
regressors). With `K = R Rᵀ` over the keys, `z(q) = R^{-1} k(K, q)` are coordinates in which the
norm is Euclidean, so that with `G = Σ ω z zᵀ` and `B = Σ ω z vᵀ`

    W = (G + λI)^{-1} B,    ṽ = R^{-T} W.

Source: Engel, Mannor & Meir, "The kernel recursive least-squares algorithm", 2004, whose
approximate linear dependence decides which samples become keys.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from scipy.linalg import lapack
from torch import Tensor

from streamlearn.errors import FormatError
from streamlearn.solving import solve_positive
from streamlearn.state import StateTree

__all__ = ["Growth", "KernelLeastSquares"]

_TILE = 512
"""Rows of G that are updated together: half of it is computed, the other half is its mirror."""

_EPSILON = {torch.float32: 1e-5, torch.float64: 1e-10}
"""What a key must have, of its own k(q, q), that no combination of others has."""


class Growth(NamedTuple):
    """Samples that become keys: which of those given, in order, and their rows of R (b, n + b)."""

    chosen: Tensor
    rows: Tensor


class KernelLeastSquares:
    """The sums, and the coordinates that they are kept in.

    R stands in the lower triangle of one square matrix and G above it, but for the tiles on the
    diagonal, of which G has its own: `limit² + 512 limit` numbers in all. A new key adds a row to R
    and zeros to G and B, exactly what is known if all samples so far are keys themselves; where
    others were seen, they are taken to reach as far into the new direction as new samples do, and
    to want no change there.

    Args:
        limit: the most keys.
        outputs: C.
        dtype: float32 or float64, of all sums.
        device: where they are kept.
        discount: γ in (0, 1], what sums count for after each step.

    Attributes:
        count: keys so far, n.
        weight: Σ ω of all samples, discounted as the sums are.
        outside: the same of those that are not keys.
    """

    def __init__(
        self,
        limit: int,
        outputs: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        discount: float = 1.0,
    ) -> None:
        self.limit = limit
        self.discount = discount
        self.count = 0
        self.weight = 0.0
        self.outside = 0.0
        tiles = -(-limit // _TILE)
        size = min(_TILE, limit)
        self._square = torch.zeros(limit, limit, dtype=dtype, device=device)
        self._diagonal = torch.zeros(tiles, size, size, dtype=dtype, device=device)
        self.moment = torch.zeros(limit, outputs, dtype=dtype, device=device)  # B

    @property
    def dtype(self) -> torch.dtype:
        """Of all sums."""
        return self._square.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of R, G and B, with room for all keys."""
        return self._square.nbytes + self._diagonal.nbytes + self.moment.nbytes

    # -- coordinates ---------------------------------------------------------------------------

    @property
    def factor(self) -> Tensor:
        """A matrix (n, n) whose lower triangle is R."""
        return self._square[: self.count, : self.count]

    def coordinates(self, cross: Tensor) -> Tensor:
        """The z (n, B) of samples, from `k(K, q)` (n, B)."""
        if not self.count:
            return cross.to(self.dtype)
        solved: Tensor = torch.linalg.solve_triangular(
            self.factor, cross.to(self.dtype), upper=False
        )
        return solved

    def growth(self, coordinates: Tensor, own: Tensor, gate: float, most: int) -> Growth:
        """Which samples are to become keys: the most novel first.

        The novelty of q is `k(q, q) − ‖z‖²`, the squared distance from what the keys span, those
        that were just chosen among them.

        Args:
            coordinates: z (n, B).
            own: `k(q, q')` (B, B) among the samples.
            gate: the least novelty, relative to k(q, q).
            most: the most samples to choose, beside what `limit` allows.
        """
        most = min(most, self.limit - self.count)
        none = Growth(torch.zeros(0, dtype=torch.int64), coordinates.new_zeros(0, self.count))
        if most <= 0 or not len(own):
            return none
        wide = coordinates.to(torch.float64)
        rest = own.to(torch.float64) - wide.T @ wide  # (B, B)
        least = max(gate, _EPSILON[self.dtype]) * float(own.diagonal().amax())
        if float(rest.diagonal().amax()) <= least:
            return none
        # LAPACK's pivoted Cholesky takes the largest remaining diagonal at each step.
        lower, pivots, rank, _ = lapack.dpstrf(rest.cpu().numpy(), tol=least, lower=1)
        found = min(int(rank), most)
        chosen = torch.from_numpy(pivots[:found].astype("int64") - 1)
        square = torch.from_numpy(lower[:found, :found].copy()).tril().to(wide.device)
        rows = torch.cat([wide[:, chosen.to(wide.device)].T, square], 1)
        return Growth(chosen, rows.to(self.dtype))

    def grow(self, growth: Growth, coordinates: Tensor, own: Tensor) -> Tensor:
        """Take samples in as keys.

        Args:
            growth: what `growth` said.
            coordinates: z (n, B) of the samples that it chose from.
            own: `k(q, q')` (B', B) between the first of them, those that `growth` saw, and all.

        Returns:
            Their coordinates by all keys, (n + b, B).
        """
        start, added = self.count, len(growth.rows)
        if not added:
            return coordinates
        stop = start + added
        # G of new keys is zero, where R has its zeros too.
        self._square[start:stop, :stop] = growth.rows
        self.count = stop
        left, square = growth.rows[:, :start], growth.rows[:, start:]
        cross = own[growth.chosen.to(own.device)].to(self.dtype) - left @ coordinates  # (b, B)
        new = torch.linalg.solve_triangular(square, cross, upper=False)
        if self.outside:
            others = torch.ones(new.shape[1], dtype=torch.bool, device=new.device)
            others[growth.chosen.to(new.device)] = False
            seen = new[:, others] if bool(others.any()) else new
            energy = self.outside * seen.square().mean(1)  # (b,)
            for index, rows, inner in self._tiles(start, stop):
                there = slice(rows.start - start, rows.stop - start)
                self._diagonal[index].diagonal()[inner] += energy[there]
        return torch.cat([coordinates, new])

    def _tiles(self, start: int, stop: int) -> Iterator[tuple[int, slice, slice]]:
        """Tiles that have some of the rows: their numbers, these rows, and their places inside."""
        for index in range(start // _TILE, -(-stop // _TILE)):
            first, last = max(index * _TILE, start), min((index + 1) * _TILE, stop)
            yield index, slice(first, last), slice(first - index * _TILE, last - index * _TILE)

    # -- sums ----------------------------------------------------------------------------------

    def observe(
        self, coordinates: Tensor, targets: Tensor, share: Tensor | None = None, keys: int = 0
    ) -> None:
        """Add a step's samples to the sums.

        Args:
            coordinates: z (n, B).
            targets: v (B, C).
            share: ω (B,), what each counts for; None: 1.
            keys: how many of the samples became keys.
        """
        count = len(coordinates)
        targets = targets.to(self.dtype)
        added = float(len(targets))
        if share is not None:
            added = float(share.sum())
            root = share.to(self.dtype).sqrt()
            coordinates, targets = coordinates * root, targets * root[:, None]
        kept = self.discount
        for index, rows, inner in self._tiles(0, count):
            part = coordinates[rows]
            self._diagonal[index][inner, inner].addmm_(part, part.T, beta=kept)
            if rows.stop < count:
                above = self._square[rows, rows.stop : count]
                above.addmm_(part, coordinates[rows.stop :].T, beta=kept)
        self.moment[:count].addmm_(coordinates, targets, beta=kept)
        self.weight = kept * self.weight + added
        self.outside = kept * self.outside + added - keys

    def forget(self, kept: float) -> None:
        """Let all samples so far count less, 0 ≤ kept ≤ 1; keys stay."""
        for index, rows, inner in self._tiles(0, self.count):
            self._diagonal[index][inner, inner] *= kept
            self._square[rows, rows.stop : self.count] *= kept
        self.moment *= kept
        self.weight *= kept
        self.outside *= kept

    def gram(self) -> Tensor:
        """G (n, n), float64."""
        count = self.count
        gram = torch.zeros(count, count, dtype=torch.float64, device=self._square.device)
        for index, rows, inner in self._tiles(0, count):
            gram[rows, rows] = self._diagonal[index][inner, inner].to(torch.float64)
            above = self._square[rows, rows.stop : count].to(torch.float64)
            gram[rows, rows.stop :] = above
            gram[rows.stop :, rows] = above.T
        return gram

    def solve(self, regularisation: float) -> Tensor:
        """ṽ (n, C) in float64, made anew from the sums, so that no error adds up.

        Args:
            regularisation: λ > 0.
        """
        matrix = self.gram()
        matrix.diagonal().add_(regularisation)
        weight = solve_positive(matrix, self.moment[: self.count].to(torch.float64), regularisation)
        factor = self.factor.to(torch.float64)
        values: Tensor = torch.linalg.solve_triangular(factor.mT, weight, upper=True)
        return values

    # -- keys that go --------------------------------------------------------------------------

    def costs(self, regularisation: float) -> Tensor:
        """By how much the minimum rises when a key goes and the others adapt, (n,) float64.

        `‖ṽ_j‖² / [(R G Rᵀ + λK)^{-1}]_jj`, exact for one key.

        Source: Hassibi & Stork, "Optimal Brain Surgeon", 1993, for a quadratic loss.
        """
        matrix = self.gram()
        matrix.diagonal().add_(regularisation)
        lower = torch.linalg.cholesky(matrix)
        eye = torch.eye(self.count, dtype=torch.float64, device=matrix.device)
        inverse = torch.linalg.solve_triangular(self.factor.to(torch.float64), eye, upper=False)
        weight = torch.cholesky_solve(self.moment[: self.count].to(torch.float64), lower)
        values = inverse.mT @ weight  # ṽ = R^{-T} W
        spread = torch.linalg.solve_triangular(lower, inverse, upper=False)
        costs: Tensor = values.square().sum(1) / spread.square().sum(0)
        return costs

    def remove(self, rows: Tensor) -> None:
        """Let keys go: sums are those over the others, exactly.

        Args:
            rows: (r,) int64, their numbers; the others move up in their order.
        """
        left = torch.ones(self.count, dtype=torch.bool, device=self._square.device)
        left[rows.to(left.device)] = False
        # R without some rows is no triangle; Q turns it into one, and the sums with it.
        turn, upper = torch.linalg.qr(self.factor.to(torch.float64).tril()[left].mT)
        sign = torch.where(upper.diagonal() < 0, -1.0, 1.0).to(upper.dtype)
        turn, upper = turn * sign, upper * sign[:, None]
        gram = turn.mT @ self.gram() @ turn
        moment = turn.mT @ self.moment[: self.count].to(torch.float64)
        count = self.count = len(upper)
        for tensor in (self._square, self._diagonal, self.moment):
            tensor.zero_()
        self.factor.copy_(upper.mT.tril())
        self.moment[:count] = moment.to(self.dtype)
        for index, tile, inner in self._tiles(0, count):
            self._diagonal[index][inner, inner] = gram[tile, tile].to(self.dtype)
            self._square[tile, tile.stop : count] = gram[tile, tile.stop :].to(self.dtype)
        self.outside = min(self.weight, self.outside + len(rows))

    # -- state ---------------------------------------------------------------------------------

    def state_dict(self) -> StateTree:
        """All sums, as far as there are keys."""
        count = self.count
        tiles = -(-count // _TILE)
        return {
            "count": count,
            "weight": self.weight,
            "outside": self.outside,
            "square": self._square[:count, :count].clone(),
            "diagonal": self._diagonal[:tiles].clone(),
            "moment": self.moment[:count].clone(),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that.

        Raises:
            FormatError: sums of more keys, or of other outputs.
        """
        count, moment = int(state["count"]), state["moment"]
        if count > self.limit or moment.shape[1] != self.moment.shape[1]:
            raise FormatError(
                f"the state has sums of {count} keys and {moment.shape[1]} outputs where "
                f"{self.limit} keys and {self.moment.shape[1]} outputs fit; build the layer with "
                "the same settings"
            )
        for tensor in (self._square, self._diagonal, self.moment):
            tensor.zero_()
        self.count = count
        self.weight = float(state["weight"])
        self.outside = float(state["outside"])
        self._square[:count, :count] = state["square"]
        self._diagonal[: len(state["diagonal"])] = state["diagonal"]
        self.moment[:count] = moment
