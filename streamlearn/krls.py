"""Second-order writes: an output layer whose stored values are solved for, not stepped towards.

The values of a layer over fixed keys are the weights of a linear layer over kernel features, so the
paper's own second thread, Mesa/FOOF, says how to learn them: the minimiser of the mesa objective
with targets `v = s − g`, which for the squared error is kernel recursive least squares. Nothing is
forgotten that has been seen, whatever the order it came in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from streamlearn.errors import ConfigError, FormatError, NotFiniteError
from streamlearn.influence import Influence
from streamlearn.kernels import rbf
from streamlearn.layers import GrowingLayer
from streamlearn.leastsquares import Growth, KernelLeastSquares
from streamlearn.memory import Checked, Tuples
from streamlearn.retrieval import Trace
from streamlearn.state import StateTree

__all__ = ["LeastSquaresLayer", "RecursiveLeastSquares"]


class LeastSquaresLayer(GrowingLayer):
    """Kernel least squares on `exp(−γ‖k − q‖²/D)` over at most `keys` of the samples.

    Its tuples are keys with their values; weights are 1 and count nothing. Beside them stand the
    sums of `KernelLeastSquares`, `keys²` numbers, which only learning needs.

    Args:
        keys: the most keys; the first samples that the gate lets pass become keys.
        gamma: γ; 0.75 on normalised codes is a softmax's kernel at κ = 1.5.
        regularisation: λ > 0.
        discount: in (0, 1], what all samples so far count for after each step.
        gate: the least share of a new key that no combination of the others spans.
        statistics: the dtype of the sums; keys and values have that of `options`.
        averaged: whether samples come as queries (B, V, D) of V views each, over which the network
            averages what this layer answers: then f(x) = mean_v g(q_v) is what is fitted, and the
            first view may become a key. Otherwise each query is a sample.
        options: device, block_rows, tiers, notes as for `GrowingLayer`.

    Attributes:
        fresh: values (n, C) of all that was learnt, by which it answers in evaluation mode; None
            where those that are stored are.

    Source: Engel, Mannor & Meir 2004; arXiv 2610.03858, §4 and appendix E.
    """

    second_order = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        keys: int = 2000,
        *,
        gamma: float = 0.75,
        regularisation: float = 0.1,
        discount: float = 1.0,
        gate: float = 1e-3,
        statistics: torch.dtype = torch.float32,
        averaged: bool = False,
        **options: Any,
    ) -> None:
        if not regularisation > 0:
            raise ConfigError(
                f"least_squares.regularisation={regularisation} must be above 0: without it the "
                "values of keys that are much alike have no bound"
            )
        if not 0 < discount <= 1:
            raise ConfigError(f"least_squares.discount={discount} must be above 0 and at most 1")
        if keys < 1:
            raise ConfigError(f"least_squares.keys={keys} must be at least 1")
        if not 0 <= gate < 1:
            raise ConfigError(f"least_squares.gate={gate} must be at least 0 and below 1")
        # The sums belong to the keys as they came, so these stay as they are.
        super().__init__(
            in_features, out_features, rbf(in_features, gamma), keys="plain", **options
        )
        self.gamma = gamma
        self.averaged = averaged
        self.fresh: Tensor | None = None
        self.regularisation = regularisation
        self.gate = gate
        self.sums = KernelLeastSquares(
            keys,
            out_features,
            dtype=statistics,
            device=self.memory.device,
            discount=discount,
        )

    def forward(self, query: Tensor) -> Tensor:
        """Retrieve: (…, D) → (…, C), in the query's dtype."""
        if self.training or self.fresh is None:
            return super().forward(query)
        with torch.no_grad():
            near = self.similarity(query.reshape(-1, self.in_features))  # (n, B)
            output = near.T @ self.fresh.to(near.dtype)
        return output.to(query.dtype).reshape(*query.shape[:-1], self.out_features)

    def get_extra_state(self) -> dict[str, Any]:
        """The stored tuples, the clock and the sums."""
        return {**super().get_extra_state(), "sums": self.sums.state_dict()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Replace all of them by saved ones."""
        super().set_extra_state(state)
        self.sums.load_state_dict(state["sums"])
        self.fresh = None

    def similarity(self, query: Tensor) -> Tensor:
        """`k(K, q)` (n, B) of queries (B, D), in the accumulation dtype."""
        wide = self.memory.layout.wide
        given = query.to(self.memory.dtype)
        square = given.to(wide).square().sum(-1, keepdim=True)  # (B, 1)
        scaled = (self.kernel.scale * given.to(wide)).to(self.memory.dtype)
        parts = []
        for block in self.memory.tiles(born=False):
            out = torch.empty(
                len(given), block.padded, dtype=self.memory.dtype, device=given.device
            )
            self.kernel.scores_(block, scaled, square, out)
            parts.append(out[:, : block.count].to(wide).exp().T)
        if not parts:
            return torch.zeros(0, len(given), dtype=wide, device=given.device)
        return torch.cat(parts)

    def among(self, query: Tensor, others: Tensor) -> Tensor:
        """`k(q, q')` (B, B') among queries as they would be stored, float64."""
        one, two = (rows.to(self.memory.dtype).to(torch.float64) for rows in (query, others))
        squares = one.square().sum(1)[:, None] + two.square().sum(1)
        distance = (squares - 2.0 * (one @ two.T)).clamp_min(0)
        return (-0.5 * self.kernel.scale * distance).exp()

    def influences(self, query: Tensor) -> Iterator[Influence]:
        """The shares of all keys, with the values by which it answers."""
        for part in super().influences(query):
            if self.fresh is None:
                yield part
            else:
                rows = slice(part.start, part.start + len(part.value))
                yield part._replace(value=self.fresh[rows].to(part.value))

    def write(self, trace: Trace, *, lr_value: float, lr_weight: float) -> Tuples:
        """There is no write of one sample by itself.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "a LeastSquaresLayer is written by RecursiveLeastSquares, not by FunctionalSGD; give "
            "each optimizer its own layers"
        )


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step would do to one layer."""

    layer: LeastSquaresLayer
    growth: Growth
    coordinates: Tensor  # z (n, B)
    own: Tensor  # (B', B), of those that may become keys, with all
    targets: Tensor  # v (B, C)
    share: Tensor  # (B,)
    rows: Checked | None  # new keys


def _samples(layer: LeastSquaresLayer) -> tuple[Tensor, Tensor]:
    """Queries (B, V, D) in V views of each sample, and targets (B, C) for their mean output."""
    queries, targets = [], []
    for trace in layer.traces:
        if trace.gradient is not None:
            views = trace.each if layer.averaged else 1
            query, output, gradient = (
                rows.reshape(-1, views, rows.shape[-1])
                for rows in (trace.query, trace.output, trace.gradient)
            )
            queries.append(query)
            # What is averaged hands each of its parts a share of the gradient.
            targets.append(output.mean(1) - gradient.sum(1))
    return torch.cat(queries), torch.cat(targets)


class RecursiveLeastSquares:
    """Second-order writes of `LeastSquaresLayer`s, as an optimizer.

    `zero_grad()`, forward, `loss.sum().backward()`, `step()`, beside the optimizers of other layers
    and parameters. Each sample's target is `v = s − g`, g the gradient of its loss to the layer's
    output: for the squared error `½‖s − y‖²` that is y.

    Args:
        layers: each of them once.
        refresh: values are solved for anew once the samples since the last time count for this
            share of all; 0 means at each step.

    Attributes:
        steps: so far.

    Raises:
        ConfigError: no layer, or `refresh` below 0.
    """

    def __init__(self, layers: list[LeastSquaresLayer], refresh: float = 0.1) -> None:
        if not layers:
            raise ConfigError("there is no LeastSquaresLayer to write to")
        if not refresh >= 0:
            raise ConfigError(f"least_squares.refresh={refresh} must be at least 0")
        self.layers = layers
        self.refresh = refresh
        self.steps = 0
        self._since = [0.0 for _ in layers]  # samples since values were solved for

    def zero_grad(self) -> None:
        """Forget forward passes that were not followed by a step."""
        for layer in self.layers:
            layer.traces.clear()

    def step(self, notes: Mapping[str, Tensor] | None = None) -> None:
        """Learn from the last forward and backward passes: `apply(prepare())`."""
        self.apply(self.prepare(notes))

    @torch.no_grad()
    def prepare(
        self,
        notes: Mapping[str, Tensor] | None = None,
        *,
        again: int = 0,
        share: float = 1.0,
    ) -> list[_Step]:
        """All of a step that may be refused; nothing has changed after it.

        Args:
            notes: by column, (B, …) of each new sample, for memories that have such columns.
            again: how many samples, the last of the batch, were learnt before.
            share: what these count for now.

        Raises:
            NotFiniteError: a NaN or infinity among queries, outputs or gradients.
        """
        return [
            self._prepared(layer, notes or {}, again, share)
            for layer in self.layers
            if any(trace.gradient is not None for trace in layer.traces)
        ]

    def _prepared(
        self, layer: LeastSquaresLayer, notes: Mapping[str, Tensor], again: int, share: float
    ) -> _Step:
        query, targets = _samples(layer)
        new = len(query) - again
        if again and not share:
            query, targets = query[:new], targets[:new]
        if not bool(torch.isfinite(targets.sum() + query.square().sum())):
            raise NotFiniteError(
                f"step {self.steps + 1} would learn a NaN or infinity; lower the learning rates of "
                "the layers before, or look for such numbers in the data"
            )
        sums = layer.sums
        count, views = query.shape[:2]
        near = layer.similarity(query.flatten(0, 1)).reshape(sums.count, count, views)
        coordinates = sums.coordinates(near.mean(-1))
        largest = float(coordinates.abs().amax()) if len(coordinates) else 1.0
        added = len(targets) * max(largest, 1.0) * float(targets.abs().amax())
        if float(sums.moment.abs().amax()) + added > torch.finfo(sums.dtype).max / 2:
            raise NotFiniteError(
                f"step {self.steps + 1} would make the sums of a layer too large for {sums.dtype}; "
                "scale targets down, or set least_squares.dtype=float64"
            )
        room = sums.limit - sums.count
        first = query[:, 0]
        own = query.new_zeros(0, count)
        single, alike = coordinates, own
        if room:  # novelty is wanted while there is room only
            both = layer.among(first[:new], query.flatten(0, 1)).reshape(new, count, views)
            own, alike = both.mean(-1), both[..., 0]
            # Keys are samples as they are, so it is these that span something or not.
            single = coordinates if views == 1 else sums.coordinates(near[..., 0])
        growth = sums.growth(single[:, :new], alike[:, :new], layer.gate, room)
        rows = None
        if len(growth.chosen):
            key = first[growth.chosen.to(query.device)]
            memory = layer.memory
            blank = key.new_zeros(len(key), layer.out_features)
            given = {
                name: notes[name][growth.chosen.to(notes[name].device)]
                for name, _ in memory.layout.notes
                if name in notes
            }
            rows = memory.check(Tuples(key, key.new_ones(len(key)), blank), self.steps + 1, given)
        counts = torch.ones(len(query), dtype=sums.dtype, device=query.device)
        counts[new:] = share
        return _Step(layer, growth, coordinates, own, targets, counts, rows)

    @torch.no_grad()
    def apply(self, prepared: list[_Step]) -> None:
        """Do what `prepare` gave.

        Raises:
            FormatError, StorageError: a block lies in a store that cannot be read.
        """
        self.steps += 1
        for one in prepared:
            layer, sums = one.layer, one.layer.sums
            coordinates = sums.grow(one.growth, one.coordinates, one.own)
            if one.rows is not None:
                layer.memory.append_checked(one.rows, born=self.steps)
            sums.observe(coordinates, one.targets, one.share, len(one.growth.chosen))
            layer.fresh = None
            place = self.layers.index(layer)
            self._since[place] += float(one.share.sum())
            if self._since[place] >= self.refresh * sums.weight:
                self.solve(layer)
        self.zero_grad()

    @torch.no_grad()
    def solve(self, layer: LeastSquaresLayer) -> None:
        """Give a layer's keys the values of all that was learnt."""
        count = layer.sums.count
        if not count:
            return
        values = layer.sums.solve(layer.regularisation)
        layer.memory.rewrite(torch.arange(count), value=values.to(layer.memory.layout.wide))
        layer.fresh = None
        self._since[self.layers.index(layer)] = 0.0

    @torch.no_grad()
    def freshen(self) -> None:
        """Let layers answer by all that was learnt; no later step is another one for it."""
        for layer, since in zip(self.layers, self._since, strict=True):
            if since and layer.fresh is None and layer.sums.count:
                layer.fresh = layer.sums.solve(layer.regularisation)

    def forget(self, samples: int) -> None:
        """Let all samples so far count for no more than so many; keys stay."""
        for layer in self.layers:
            if layer.sums.weight > samples:
                layer.sums.forget(samples / layer.sums.weight)
                self.solve(layer)

    @property
    def nbytes(self) -> int:
        """Bytes of all sums."""
        return sum(layer.sums.nbytes for layer in self.layers)

    def state_dict(self) -> StateTree:
        """Steps, and the sums of each layer; its tuples are in its memory."""
        return {
            "steps": self.steps,
            "since": list(self._since),
            "sums": [layer.sums.state_dict() for layer in self.layers],
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that.

        Raises:
            FormatError: another number of layers, or sums that do not fit.
        """
        if len(state["sums"]) != len(self.layers):
            raise FormatError(
                f"the state has sums of {len(state['sums'])} layers where {len(self.layers)} are "
                "wanted; build the network with the same settings"
            )
        self.steps = int(state["steps"])
        self._since = [float(since) for since in state["since"]]
        for layer, sums in zip(self.layers, state["sums"], strict=True):
            layer.sums.load_state_dict(sums)
            layer.fresh = None
