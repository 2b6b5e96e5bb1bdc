"""One growing network of an open learner: its view of records, its widths, its loss.

Several members with different views learn the same samples side by side, and answer together:

    p(y) = Σ_k w_k p_k(y),   w_k ∝ e^{S_k},   S_k ← λ S_k + [argmax p_k is right]  with each sample

so whoever was right more often among the last 1/(1 − λ) samples is followed (exponential weights
with forgetting: Littlestone & Warmuth 1994; Cesa-Bianchi & Lugosi 2006, §2.11). For numbers, −|e|/s
stands for being right, with s the mean error of the best member.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.build import bounded, build_model, build_tiers
from streamlearn.errors import ConfigError
from streamlearn.hardware import Hardware
from streamlearn.losses import Loss
from streamlearn.memory import Memory, accumulation_dtype
from streamlearn.models import Model, NetworkModel, ScaledModel
from streamlearn.records import RecordEncoder, View
from streamlearn.settings import LearnerSettings, settings_of
from streamlearn.state import StateTree
from streamlearn.tasks import Classes, Outputs
from streamlearn.tiers import Tiers
from streamlearn.widening import classes_room, features_room, loss_of_first, widen_model

__all__ = ["Member", "Mixture", "companions", "learn_together"]

_STEPS = {"kind": "rbf", "gamma": 1.0, "lr_value": 1.5}
"""The layer of the second network for classes, whose view of numbers is by thresholds."""

_WIDE = {"kind": "rbf", "gamma": 2.0, "lr_value": 1.5}
"""The layer of the third network for classes, whose view is that of the first."""

_FADE = 1.25e-4
"""What those two forget of older samples with each sample: half of it in 5,500."""

_VALUES = {"kind": "rbf", "gamma": 5.0, "lr_value": 0.8}
"""The layer of the second network for numbers, whose view knows values that recur."""

Held: TypeAlias = tuple[Model | None, tuple[int, int], Loss | None, Tiers, int | None]
"""A member's network, widths, loss, tiers and most rows."""

_FORGET = 0.99
"""λ; about the last 100 samples decide."""


def companions(
    settings: LearnerSettings, *, regression: bool
) -> list[tuple[View, LearnerSettings]]:
    """The networks that learn beside a first one.

    Smooth and curved borders are the first one's, an RBF network over standardised features. Where
    what counts are thresholds and sums of many features' effects, one with a wide kernel over
    thermometer codes learns faster; where a border is nearly a plane, one with a wide kernel over
    the features themselves. Both forget slowly, which the first does not. Their mixture follows
    whichever predicts better of late. With numbers as targets a wide kernel is right for most
    features already, but for those that only name something, whose values the view "values" tells
    apart.

    Args:
        settings: of the first network; all but the layer, and a decay where there is none, are the
            others' too. With rehearsal no network has a decay: its tuples are of no age.
        regression: whether targets are numbers.
    """
    sections = settings.model_dump()
    sections["memory"]["thumbnails"] = None  # the first network keeps them
    if regression:
        return [("values", settings_of(sections | {"layer": _VALUES}))]
    optimizer = dict(sections["optimizer"])
    if not optimizer["decay"] and not getattr(settings.learner, "rehearsal", 0):
        optimizer["decay"] = 1 - (1 - _FADE) ** settings.learner.batch
    fading = sections | {"optimizer": optimizer}
    return [
        ("thermometer", settings_of(fading | {"layer": _STEPS})),
        ("standardised", settings_of(fading | {"layer": _WIDE})),
    ]


class Member:
    """A network over one view of the records; it is made anew when it is to be wider.

    Args:
        settings: of a growing learner.
        view: of records.
        hardware: where it computes.
        regression: whether targets are numbers.
        sharing: members among which the budgets of memory are divided.

    Attributes:
        model: None before anything was learnt.
        tiers: the budgets of its memories as they are now.
        rows: the most tuples of a growing layer as wide as they are now; None: any number.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        view: View,
        hardware: Hardware,
        *,
        regression: bool,
        sharing: int = 1,
    ) -> None:
        self.settings = settings
        self.view = view
        self.hardware = hardware
        self.regression = regression
        self.model: Model | None = None
        self.sharing = sharing
        self.tiers = build_tiers(settings, hardware, sharing)
        self.rows = settings.memory.rows
        self._widths = (0, 0)  # of codes and of outputs
        self._loss: Loss | None = None
        self._masked = 0  # classes that the model's loss knows
        self._identified = True

    # -- widths ----------------------------------------------------------------------------------

    def fit_widths(self, encoder: RecordEncoder, labels: int, beside: int = 0) -> bool:
        """Make a network with room for every feature and class, if this one has none.

        Where there is a budget, the wider tuples are fewer, and those that have no room go first.

        Args:
            encoder: of the records.
            labels: classes that have come.
            beside: bytes that its part of a budget counts beside the network.

        Returns:
            Whether a network was made wider.

        Raises:
            ConfigError: the budget leaves no room for a network so wide.
        """
        outputs = 1 if self.regression else classes_room(labels)
        widths = (features_room(encoder.width_of(self.view)), max(outputs, self._widths[1]))
        wider = self.model is not None and widths != self._widths
        if self.model is None or wider:
            self.build(widths, beside=beside)
        self.mask(labels)
        return wider

    def build(self, widths: tuple[int, int], *, beside: int = 0, rows: int | None = None) -> Model:
        """Make a network of these widths that goes on where the present one is.

        Args:
            widths: of codes and of outputs.
            beside: as for `fit_widths`.
            rows: that a budget was turned into before.
        """
        tiers = build_tiers(self.settings, self.hardware, self.sharing)
        task = self._task(widths[1])
        if self.model is None:
            identified = self._identified
        else:  # a wider network takes over the columns that there are
            identified = all(memory.identified for memory in self.model.memories().values())
        settings = self._within(widths[0], task, identified, beside, rows)
        model = build_model(settings, widths[0], task, self.hardware, tiers, identified=identified)
        if self.model is not None:
            widen_model(model, self.model)
        self.model, self._widths, self.tiers = model, widths, tiers
        self.rows = settings.memory.rows
        self._loss = task.loss(self.settings.loss)
        self._masked = 0
        return model

    def _within(
        self, width: int, task: Classes | Outputs, identified: bool, beside: int, rows: int | None
    ) -> LearnerSettings:
        """The settings with rows in the place of a budget."""
        if rows is None or self.settings.memory.budget is None:
            return bounded(
                self.settings,
                width,
                task,
                self.hardware,
                identified=identified,
                beside=beside,
                sharing=self.sharing,
            )
        memory = self.settings.memory.model_copy(update={"budget": None, "rows": rows})
        return self.settings.model_copy(update={"memory": memory})

    def mask(self, labels: int) -> None:
        """Leave the classes out that have not come."""
        if self._loss is None or self.regression or self._masked == labels:
            return
        if isinstance(self.model, NetworkModel):
            self.model.loss = loss_of_first(self._loss, labels)
            self._masked = labels

    def _task(self, outputs: int) -> Classes | Outputs:
        if self.regression:
            return Outputs(1)
        return Classes(tuple(str(place) for place in range(outputs)))

    # -- answering and learning ------------------------------------------------------------------

    def codes(self, encoder: RecordEncoder, rows: Sequence[NDArray[np.float64]]) -> Tensor:
        """Raw rows as this member sees them, (B, D)."""
        wide = accumulation_dtype(self.hardware.dtype)
        codes = encoder.encode(rows, self._widths[0], self.view)
        return codes.to(self.hardware.device, wide)

    def _made(self) -> Model:
        """The network, which there must be.

        Raises:
            ConfigError: nothing was learnt yet.
        """
        if self.model is None:
            raise ConfigError(
                f"the network over {self.view} features has learnt nothing yet and cannot answer; "
                "let it learn a sample first"
            )
        return self.model

    def start(self, codes: Tensor, targets: Tensor) -> None:
        """Look at the samples that a new network begins with."""
        self._made().start(codes, targets)

    def answer(self, codes: Tensor) -> NDArray[np.float64]:
        """Probabilities (B, room for classes), or values (B, 1)."""
        answers: NDArray[np.float64] = self._made().answer(codes).to(torch.float64).numpy()
        return answers

    def learn(
        self,
        codes: Tensor,
        targets: Tensor,
        samples: Tensor,
        before: Callable[[], object],
        beside: Mapping[str, Tensor] | None = None,
    ) -> NDArray[np.float64]:
        """Learn a batch.

        Args:
            codes: (B, D).
            targets: class indices (B,), or (B, 1) numbers.
            samples: (B,) int64, which these are.
            before: see `NetworkModel.before`.
            beside: see `NetworkModel.noting`.

        Returns:
            What was answered to it before.

        Raises:
            NotFiniteError: it cannot be learnt; nothing was.
        """
        model, network = self._made(), self.network()
        if network is not None:
            network.before = before
        notes = nullcontext() if network is None else network.noting(beside or {})
        try:
            with notes:
                scores = model.learn(codes, targets, samples)
            answers: NDArray[np.float64] = scores.answers.double().numpy()
        finally:
            if network is not None:
                network.before = None
        return answers

    def network(self) -> NetworkModel | None:
        """The network, without what scales its targets."""
        model = self.model.model if isinstance(self.model, ScaledModel) else self.model
        return model if isinstance(model, NetworkModel) else None

    # -- state -----------------------------------------------------------------------------------

    def held(self) -> "Held":
        """What `put_back` wants, to undo a step that failed."""
        return self.model, self._widths, self._loss, self.tiers, self.rows

    def put_back(self, held: "Held") -> None:
        """Be as before a step that failed."""
        self.model, self._widths, self._loss, self.tiers, self.rows = held
        self._masked = 0

    def memories(self) -> dict[str, Memory]:
        """The network's memories by layer name; none before anything was learnt."""
        return {} if self.model is None else self.model.memories()

    @property
    def nbytes(self) -> int:
        """Bytes that it needs."""
        return 0 if self.model is None else self.model.nbytes

    def state_dict(self) -> StateTree:
        """Widths and network, without the tuples."""
        return {
            "widths": list(self._widths),
            **({} if self.settings.memory.budget is None else {"rows": self.rows}),
            "identified": all(memory.identified for memory in self.memories().values()),
            "model": None if self.model is None else self.model.state_dict(),
        }

    def load_state_dict(self, state: StateTree, labels: int) -> None:
        """Restore that; the memories want their tuples afterwards."""
        if state["model"] is None:
            return
        self._identified = bool(state.get("identified", False))
        widths = int(state["widths"][0]), int(state["widths"][1])
        model = self.build(widths, rows=state.get("rows"))
        self._identified = True  # for a network that is begun anew
        self.mask(labels)
        model.load_state_dict(state["model"])


def learn_together(
    members: Sequence[Member],
    codes: Sequence[Tensor],
    targets: Tensor,
    samples: Tensor,
    beside: Mapping[str, Tensor] | None = None,
) -> list[NDArray[np.float64]]:
    """Let each member learn a batch by its own codes: all of them, or none.

    Only the first keeps what is `beside` its tuples, see `NetworkModel.noting`. Each one's step
    waits, once it is sure not to refuse, for those of all after it.

    Returns:
        What each answered before.

    Raises:
        NotFiniteError: one cannot learn it; none has.
    """
    answers: list[NDArray[np.float64]] = []

    def learn(place: int) -> None:
        if place < len(members):
            member, after = members[place], place + 1
            notes = None if place else beside
            said = member.learn(codes[place], targets, samples, lambda: learn(after), notes)
            answers.append(said)

    learn(0)
    return answers[::-1]


class Mixture:
    """How much each member counts.

    Args:
        members: their number.
        regression: whether they answer with numbers.
    """

    def __init__(self, members: int, *, regression: bool) -> None:
        self.regression = regression
        self.scores: NDArray[np.float64] = np.zeros(members)  # S_k, or discounted errors
        self.weight = 0.0  # of the errors

    @property
    def shares(self) -> NDArray[np.float64]:
        """w, (members,)."""
        scores = self.scores
        if self.regression:
            best = scores.min()
            scores = -scores / (best / self.weight) if best > 0 else np.zeros(len(scores))
        shares: NDArray[np.float64] = np.exp(scores - scores.max())
        shares /= shares.sum()
        return shares

    def together(self, answers: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The members' answers, each (B, C), as one."""
        if len(answers) == 1:
            return answers[0]
        total: NDArray[np.float64] = np.tensordot(self.shares, np.stack(answers), 1)
        return total

    def judge(self, answers: Sequence[NDArray[np.float64]], targets: Sequence[float]) -> None:
        """Take in what members answered to samples, (B, C) each, whose targets are known now."""
        if len(answers) == 1:
            return
        every = np.stack(answers)  # (members, B, C)
        if self.regression:
            told = np.abs(every[:, :, 0] - np.asarray(targets, np.float64))
        else:
            told = (every.argmax(-1) == np.asarray(targets, np.int64)).astype(np.float64)
        for sample in told.T:
            self.scores = _FORGET * self.scores + sample
            self.weight = _FORGET * self.weight + 1.0
