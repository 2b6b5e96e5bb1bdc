"""A network trained by gradients: growing layers by `FunctionalSGD`, parameters by an optimizer."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from streamlearn.attribution import queries
from streamlearn.errors import ConfigError, FormatError, NotFiniteError
from streamlearn.hybrid import HybridAdamW
from streamlearn.krls import RecursiveLeastSquares
from streamlearn.layers import GrowingLayer
from streamlearn.losses import Loss, log_shares
from streamlearn.memory import SAMPLE, UNKNOWN, Memory
from streamlearn.optim import FunctionalSGD
from streamlearn.optimizers import load_state_tree, state_tree
from streamlearn.state import StateTree

from .base import Scores, tensor_bytes
from .places import Places
from .rehearsal import Rehearsal, Rehearsed, root_mean_square
from .reservoir import Reservoir
from .schedule import Schedule

__all__ = ["NetworkModel", "Seen"]

_LARGEST = 1e30
"""Of a loss that is kept, so that a sum of them is finite."""


class NetworkModel:
    """A network whose layers grow, or are ordinary ones, or both.

    One forward pass gives the scores and, backward, what every layer learns.

    Args:
        network: codes (B, D) → outputs (B, C).
        loss: of each sample; it is summed over the batch.
        growth: writes the growing layers; None where there are none.
        optimizer: moves the parameters; None where there are none.
        schedule: of the optimizer's rates; those of growing layers stay.
        update: whether a sample that comes again updates its own tuples rather than adding some.
        rehearsal: draws stored samples to be learnt again with each batch.
        reservoir: keeps samples and draws from them to the same end, where no layer grows.
        adjust: learn as if all classes of a step were equally many, see `losses.log_shares`.
        leave_out: answer to samples that come again without the tuples that are their own.
        readout: writes the layers of second order; None where there are none.
        again: what samples that come again count for in its sums.
        hybrid: trains the tuples of growing layers; None where they stay as they were written.

    Attributes:
        before: called by `learn` once nothing can refuse any more, before anything is learnt; if it
            raises, nothing is. For another model that learns the same batch.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        *,
        growth: FunctionalSGD | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        schedule: Schedule | None = None,
        update: bool = False,
        rehearsal: Rehearsal | None = None,
        reservoir: Reservoir | None = None,
        adjust: bool = False,
        leave_out: bool = False,
        readout: RecursiveLeastSquares | None = None,
        again: float = 0.0,
        hybrid: HybridAdamW | None = None,
    ) -> None:
        self.network = network
        self.loss = loss
        self.growth = growth
        self.optimizer = optimizer
        self.schedule = schedule or Schedule()
        self.samples = 0
        self.rehearsal = rehearsal
        self.reservoir = reservoir
        self.adjust = adjust
        self.leave_out = leave_out
        self.readout = readout
        self.again = again
        self.hybrid = hybrid
        self.before: Callable[[], object] | None = None
        self.beside: Mapping[str, Tensor] = {}
        self._boost = 1.0  # factor of growing layers' rates
        self._boosted = 0  # samples after which it is over
        self.places = Places() if update and growth is not None else None
        first = next(network.parameters(), None)
        self._dtype = None if first is None else first.dtype
        self._rates = [] if optimizer is None else [g["lr"] for g in optimizer.param_groups]

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Nothing is wanted of them."""

    def answer(self, codes: Tensor) -> Tensor:
        """The answers (B, C)."""
        self.network.eval()
        if self.readout is not None:
            self.readout.freshen()
        return self.loss.answers(self.network(self._cast(codes))).to("cpu", self.loss.dtype)

    def see(self, codes: Tensor) -> "Seen":
        """What it makes of codes (B, D), layer by layer."""
        self.network.eval()
        if self.readout is not None:
            self.readout.freshen()
        return Seen(self, *queries(self.network, self._cast(codes)))

    def learn(self, codes: Tensor, targets: Tensor, index: Tensor | None = None) -> Scores:
        """Score and learn a batch in one forward pass.

        Raises:
            NotFiniteError: a gradient, or what a layer would store, is not finite; nothing was
                learnt.
        """
        self.network.train()
        if self.growth is not None:
            self.growth.zero_grad()
        if self.readout is not None:
            self.readout.zero_grad()
        if self.optimizer is not None:
            self.optimizer.zero_grad()
        count = len(codes)
        written = None if self.growth is None else self._written(self.growth, codes, targets, index)
        replayed = None if self.reservoir is None else self.reservoir.draw()
        again = replayed if written is None else written.again
        if again is not None:
            codes = torch.cat([codes, again.codes.to(codes)])  # (B + R, D)
            targets = torch.cat([targets, again.targets.to(targets.device)])
        if written is not None and written.again is not None and self.leave_out:
            own = torch.cat([torch.full((count,), -1), written.again.rows])
            output = self._left_out(codes, own)
        else:
            output = self.network(self._cast(codes))
        targets = targets.to(output.device)
        losses = self.loss.per_sample(output, targets)  # (B + R,)
        if written is not None and written.again is not None:
            written.notes["loss"] = losses.detach().clamp(max=_LARGEST)
        learnt = losses
        if self.adjust:
            shares = log_shares(targets, output.shape[-1]).to(output.dtype)
            learnt = self.loss.per_sample(output + shares, targets)
        learnt.sum().backward()  # type: ignore[no-untyped-call]
        if self.optimizer is not None:
            self._check_gradients()
            self._set_rates(self.optimizer)
        # Each may refuse, and then none has moved anything.
        samples = self._samples(count, index)
        move = self._move(samples, len(codes) - count)
        if self.growth is not None:
            self._grow(self.growth, written, samples, index, move, targets)
        elif move is not None:
            move()
        if self.reservoir is not None and replayed is not None:
            self.reservoir.keep(
                codes[:count], targets[:count], losses.detach().clamp(max=_LARGEST), replayed
            )
        self.samples += count
        output = output.detach()[:count]
        return Scores(
            self.loss.answers(output).to("cpu", self.loss.dtype),
            losses.detach()[:count].to("cpu", torch.float32),
        )

    @contextlib.contextmanager
    def noting(self, beside: Mapping[str, Tensor]) -> Iterator[None]:
        """Keep notes (B, …) of the batch that is learnt meanwhile beside its tuples, by column."""
        self.beside = beside
        try:
            yield
        finally:
            self.beside = {}

    def _move(self, samples: Tensor, again: int) -> Callable[[], object] | None:
        """What moves all but what growing layers write, once nothing can refuse any more."""
        moves: list[Callable[[], object] | None] = [self.before]
        if self.optimizer is not None:
            moves.append(self.optimizer.step)
        if self.hybrid is not None:
            moves.append(self.hybrid.step)
        readout = self.readout
        if readout is not None:
            noted = {**self.beside, SAMPLE: samples}
            prepared = readout.prepare(noted, again=again, share=self.again)
            moves.append(lambda: readout.apply(prepared))
        return _in_turn([move for move in moves if move is not None])

    def _grow(
        self,
        growth: FunctionalSGD,
        written: "_Written | None",
        samples: Tensor,
        index: Tensor | None,
        move: Callable[[], object] | None,
        targets: Tensor,
    ) -> None:
        factor = self._boost if self.samples < self._boosted else 1.0
        if written is None:
            # The memory has a column for targets only where classes are to be kept in balance.
            noted = {**self.beside, SAMPLE: samples, "target": targets.cpu()}
            growth.step(notes=noted, before=move, factor=factor)
            return
        # What comes again has rows that say already which sample they are of.
        unknown = torch.full((written.drawn,), UNKNOWN)
        beside = {name: _padded(note, written.drawn) for name, note in self.beside.items()}
        notes = {**written.notes, **beside, SAMPLE: torch.cat([samples, unknown])}
        growth.step(
            places=written.places,
            stored=written.stored,
            notes=notes,
            renewed=() if written.again is None else ("loss",),
            before=move,
            factor=factor,
        )
        if self.rehearsal is not None and written.again is not None:
            self.rehearsal.saw(written.places, written.notes["loss"])
        if self.places is not None:
            new = written.places[: len(written.places) - written.drawn]
            self.places.keep(new, index)

    def _samples(self, count: int, index: Tensor | None) -> Tensor:
        """Which samples a batch is of, (B,) int64; counted from the first that was learnt."""
        if index is None:
            return self.samples + torch.arange(count)
        return index.detach().to("cpu", torch.int64)

    def boost(self, factor: float, samples: int) -> None:
        """Multiply the rates of growing layers for the next so many samples; not over and over."""
        self._boost, self._boosted = factor, self.samples + samples

    def forget(self, steps: int) -> None:
        """Drop what growing layers stored before the last so many steps."""
        if self.growth is not None:
            self.growth.forget(steps)
        if self.readout is not None:
            done = max(self.readout.steps, 1)
            self.readout.forget(round(self.samples * min(steps, done) / done))

    def _left_out(self, codes: Tensor, own: Tensor) -> Tensor:
        """The network's output without the row of each layer that is a sample's own; -1 is none."""
        layers = [
            m for m in self.network.modules() if isinstance(m, GrowingLayer) and not m.second_order
        ]
        try:
            for layer in layers:
                layer.without = own
            return self.network(self._cast(codes))  # type: ignore[no-any-return]
        finally:
            for layer in layers:
                layer.without = None

    def _written(
        self, growth: FunctionalSGD, codes: Tensor, targets: Tensor, index: Tensor | None
    ) -> "_Written | None":
        """Where the tuples of a batch go, and of what comes again with it; None: to the end."""
        rehearsal = self.rehearsal
        if self.places is None and rehearsal is None:
            return None
        stored, places = 0, torch.zeros(0)
        if self.places is not None:
            stored, places = self.places.stored, self.places.of(len(codes), index)
        if rehearsal is None:
            return _Written(stored, places, {})
        if self.places is None:
            stored = rehearsal.stored
            places = stored + torch.arange(len(codes))
        rows = next(iter(self.memories().values()))
        before = len(rows) - stored
        again = rehearsal.draw(growth.steps, (before + places).numpy())
        both = torch.cat([codes, again.codes.to(codes.dtype)])
        wanted = torch.cat([targets.cpu(), again.targets])
        notes = {"target": wanted, "scale": root_mean_square(both)}
        return _Written(stored, torch.cat([places, again.rows - before]), notes, again)

    def _cast(self, codes: Tensor) -> Tensor:
        """Codes in the dtype of parameters; growing layers alone take any."""
        return codes if self._dtype is None else codes.to(self._dtype)

    def _check_gradients(self) -> None:
        # A sum is not finite as soon as one term is not: one number instead of a mask each.
        total = sum(
            (p.grad.detach().sum(dtype=torch.float64) for p in self.network.parameters()
             if p.grad is not None),
            start=torch.zeros((), dtype=torch.float64),
        )  # fmt: skip
        if not bool(torch.isfinite(total)):
            raise NotFiniteError(
                f"a gradient is NaN or infinite after {self.samples} samples; lower learner.lr or "
                "look for such numbers in the data"
            )

    def _set_rates(self, optimizer: torch.optim.Optimizer) -> None:
        factor = self.schedule.factor(self.samples)
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def linearised(self) -> contextlib.ExitStack:
        """Answer with every growing layer linearised until what is returned is closed.

        Raises:
            ConfigError: no layer grows.
        """
        stack = contextlib.ExitStack()
        growing = [
            m for m in self.network.modules() if isinstance(m, GrowingLayer) and not m.second_order
        ]
        if not growing:
            raise ConfigError(
                "no layer of this network grows, so there is nothing to linearise; leave "
                "evaluation.linearise out"
            )
        for layer in growing:
            stack.enter_context(layer.linearised())
        return stack

    def memories(self) -> dict[str, Memory]:
        """Each growing layer's memory by the layer's name."""
        return {
            name: module.memory
            for name, module in self.network.named_modules()
            if isinstance(module, GrowingLayer)
        }

    @property
    def nbytes(self) -> int:
        """Parameters, the optimizer's state, tuples, and samples that are kept."""
        tuples = sum(memory.nbytes for memory in self.memories().values())
        state = {} if self.optimizer is None else state_tree(self.optimizer)
        places = {} if self.places is None else self.places.state_dict()
        kept = (self.growth, self.rehearsal, self.reservoir, self.readout)
        rows = sum(0 if one is None else one.nbytes for one in kept)
        return rows + tuples + tensor_bytes([list(self._tensors_of()), state, places])

    def _tensors_of(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers by name; tuples are neither."""
        yield from self.network.named_parameters()
        yield from self.network.named_buffers()

    def state_dict(self) -> StateTree:
        """Parameters, both optimizers, the count of samples, and those that are kept."""
        return {
            "samples": self.samples,
            "boost": [self._boost, self._boosted],
            "growth": None if self.growth is None else self.growth.state_dict(),
            "optimizer": None if self.optimizer is None else state_tree(self.optimizer),
            "places": None if self.places is None else self.places.state_dict(),
            **({} if self.reservoir is None else {"reservoir": self.reservoir.state_dict()}),
            **({} if self.readout is None else {"readout": self.readout.state_dict()}),
            **({} if self.hybrid is None else {"hybrid": self.hybrid.state_dict()}),
            "parameters": {name: tensor.detach() for name, tensor in self._tensors_of()},
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that.

        Raises:
            FormatError: the state of another network.
        """
        saved: dict[str, Tensor] = state["parameters"]
        own = dict(self._tensors_of())
        odd = next((name for name in {**own, **saved} if not _fits(own, saved, name)), None)
        halves: dict[str, object] = {
            "growth": self.growth,
            "optimizer": self.optimizer,
            "readout": self.readout,
            "hybrid": self.hybrid,
        }
        odd_half = any((state.get(k) is None) != (v is None) for k, v in halves.items())
        if odd is not None or odd_half:
            raise FormatError(
                f"the saved network is another one than this ({odd or 'its optimizers'} differs); "
                "build it with the same settings"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(saved[name])
        if self.growth is not None:
            self.growth.load_state_dict(state["growth"])
        if self.optimizer is not None:
            load_state_tree(self.optimizer, state["optimizer"])
        if self.readout is not None:
            self.readout.load_state_dict(state["readout"])
        if self.places is not None:
            self.places.load_state_dict(state["places"])
        self.samples = int(state["samples"])
        boost, boosted = state.get("boost", (1.0, 0))
        self._boost, self._boosted = float(boost), int(boosted)
        for memory in self.memories().values():
            memory.clear()
        if self.hybrid is not None:  # behind the clearing, which forgets the longest key
            self.hybrid.load_state_dict(state["hybrid"])
        if self.rehearsal is not None:
            self.rehearsal.forget()
        if self.reservoir is not None:
            self.reservoir.load_state_dict(state["reservoir"])


class Seen(NamedTuple):
    """What a network makes of samples.

    network: the model. output: (B, C), before any softmax. queries: of each layer whose output is a
    sum over stored rows, by its name, (B·each, D). mean, deviation: what numbers that are learnt
    were standardised by, (C,) float64; None where they are not.
    """

    network: NetworkModel
    output: Tensor
    queries: dict[str, Tensor]
    mean: Tensor | None = None
    deviation: Tensor | None = None


class _Written(NamedTuple):
    """Where tuples go, see `FunctionalSGD.step`, and the samples that come again."""

    stored: int
    places: Tensor
    notes: dict[str, Tensor]
    again: Rehearsed | None = None

    @property
    def drawn(self) -> int:
        """R, samples that come again."""
        return 0 if self.again is None else len(self.again.rows)


def _padded(note: Tensor, count: int) -> Tensor:
    """A note with so many rows of zeros behind it."""
    return torch.cat([note, note.new_zeros(count, *note.shape[1:])])


def _in_turn(moves: Sequence[Callable[[], object]]) -> Callable[[], object] | None:
    """All of them as one, None where there is none."""
    return (lambda: [move() for move in moves]) if moves else None


def _fits(own: dict[str, Tensor], saved: dict[str, Tensor], name: str) -> bool:
    return name in own and name in saved and own[name].shape == saved[name].shape
