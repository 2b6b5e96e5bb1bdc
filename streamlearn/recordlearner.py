"""An open learner as a loop and a run want one: it takes rows of records, and keeps its memories.

Labels are whatever the records bring; they are numbered in the order in which they come, and that
number is what evaluation counts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.hardware import Hardware
from streamlearn.losses import Loss
from streamlearn.members import companions
from streamlearn.memory import Memory
from streamlearn.models import Seen, Taken
from streamlearn.openworld import OpenLearner
from streamlearn.records import Record, RecordEncoder
from streamlearn.saving import take_tuples, tuples_of
from streamlearn.settings import LearnerSettings
from streamlearn.state import StateTree
from streamlearn.streams.records import RecordRows
from streamlearn.tagged import Tags
from streamlearn.tasks import OpenClasses, Outputs, Task
from streamlearn.tiers import InTiers

__all__ = ["RecordLearner"]


class RecordLearner:
    """What a loop asks of a learner, over an `OpenLearner`.

    Rows without a label are left out; nothing is learnt from them.

    Args:
        settings: of a growing learner; `learner.members` is how many networks there are.
        regression: whether targets are numbers.
        warmup: see `OpenLearner`.

    Raises:
        ConfigError: as `OpenLearner` does.
    """

    ready = False
    """There is no encoder to be fitted on samples that are held back."""

    held = 0
    fitted = True

    def __init__(
        self, settings: LearnerSettings, *, regression: bool = False, warmup: int = 64
    ) -> None:
        more = getattr(settings.learner, "members", 1) - 1
        others = companions(settings, regression=regression)[:more] if more else []
        self.open = OpenLearner(settings, regression=regression, warmup=warmup, others=others)

    # -- what it is ------------------------------------------------------------------------------

    @property
    def settings(self) -> LearnerSettings:
        """All settings."""
        return self.open.settings

    @property
    def hardware(self) -> Hardware:
        """Device and dtype."""
        return self.open.hardware

    @property
    def encoder(self) -> RecordEncoder:
        """What turns records into codes."""
        return self.open.encoder

    @property
    def task(self) -> Task:
        """Numbers, or the classes that came so far."""
        return Outputs(1) if self.open.regression else OpenClasses(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes in the order in which they came; none in a regression.

        Labels that look alike, such as 1 and "1", are told apart by quotes.
        """
        names = [str(label) for label in self.open.labels]
        return tuple(
            name if names.count(name) == 1 else repr(label)
            for name, label in zip(names, self.open.labels, strict=True)
        )

    @property
    def labels(self) -> Sequence[Any]:
        """The classes themselves, in the same order."""
        return self.open.labels

    @property
    def loss(self) -> Loss:
        """What answers are judged by."""
        return Outputs(1).loss("auto") if self.open.regression else OpenClasses(()).loss("auto")

    @property
    def tiers(self) -> InTiers:
        """Where the tuples of all networks are."""
        return self.open.tiers

    @property
    def samples(self) -> int:
        """How many were learnt."""
        return self.open.samples

    @property
    def nbytes(self) -> int:
        """Bytes that it needs to predict and to go on learning."""
        return self.open.nbytes

    def bounds(self) -> dict[str, int]:
        """Bounds of the memory, see `Learner.bounds`."""
        return self.open.bounds()

    # -- answering and learning ------------------------------------------------------------------

    def answer(self, features: Sequence[Record]) -> Tensor:
        """Class probabilities (B, classes so far), or values (B, 1)."""
        return self._tensor(self.open.answer(features))

    @property
    def shares(self) -> list[float]:
        """What each network counts for in the answer."""
        return self.open.shares

    def see(self, features: Sequence[Record]) -> Seen | None:
        """What the network makes of records, layer by layer; None before learning."""
        return self.open.see(features)

    def labelled(self, rows: RecordRows) -> RecordRows:
        """The rows that have a label."""
        missing = set(self.without_label(rows))
        if not missing:
            return rows
        kept = [place for place in range(len(rows.targets)) if place not in missing]
        return RecordRows(
            [rows.features[place] for place in kept],
            [rows.targets[place] for place in kept],
            [rows.index[place] for place in kept],
            rows.skipped,
        )

    def without_label(self, rows: RecordRows) -> list[int]:
        """The numbers of the rows that have none."""
        return [place for place, target in enumerate(rows.targets) if target is None]

    def truths(self, rows: RecordRows) -> Sequence[Any]:
        """The label or number of each row, None where there is none."""
        return rows.targets

    def take(self, rows: RecordRows) -> Taken:
        """Answer to rows, then learn them.

        Raises:
            StreamlearnError: a row that cannot be learnt; none was.
        """
        rows = self.labelled(rows)
        answers = self._tensor(
            self.open.test_then_train(rows.features, rows.targets, index=rows.index)
        )
        targets = self.numbered(rows.targets)
        return Taken(answers, targets, self.losses(answers, targets))

    def numbered(self, targets: Sequence[Any]) -> Tensor:
        """Labels that have come as class indices (B,), or numbers (B, 1)."""
        if self.open.regression:
            return torch.tensor([float(target) for target in targets], dtype=torch.float64)[:, None]
        return torch.tensor(self.open.places(targets), dtype=torch.int64)

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of each answer, (B,)."""
        return self.loss.of_answers(answers, targets).to(torch.float32)

    def _tensor(self, answers: NDArray[np.float64]) -> Tensor:
        found = torch.from_numpy(answers)
        return found[:, None] if self.open.regression else found.to(torch.float32)

    def boost(self, factor: float, samples: int) -> bool:
        """Learn faster for the next samples; whether it can."""
        return self.open.boost(factor, samples)

    def forget(self, samples: int) -> bool:
        """Drop what was stored before the last samples; whether it can."""
        return self.open.forget(samples)

    def flush(self, pulse: Callable[[], None] = lambda: None) -> bool:
        """Nothing is held back."""
        return False

    # -- state -----------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        """The memories of the network as it is wide now; none while it may yet begin anew.

        A wider network has layers of other names, which take the place of those before.
        """
        return {} if self._warming else self._named()

    @property
    def _warming(self) -> bool:
        return self.open.samples < self.open.warmup

    def _named(self) -> dict[str, Memory]:
        end = f".{self.open.widened + 1}" if self.open.widened else ""
        return {f"{name}{end}": memory for name, memory in self.open.memories().items()}

    def state_dict(self) -> StateTree:
        """Everything but the tuples of `memories()`.

        Raises:
            FormatError: a label or category that no file can hold.
        """
        tags = Tags()
        state = self.open.state_dict(tags)
        tags.refuse()
        if self._warming:
            memories = self.open.memories()
            state["tuples"] = dict(tuples_of(memories))
            state["counts"] = {name: len(memory) for name, memory in memories.items()}
        return state

    def load_state_dict(self, state: StateTree) -> None:
        """Restore everything but the tuples; `memories()` are empty afterwards and want them.

        Raises:
            FormatError: the state belongs to another learner.
        """
        self.open.load_state_dict(state, Tags())
        if "tuples" in state:
            take_tuples("the state", self.open.memories(), state["tuples"], state["counts"])

    def rows_state(self, rows: RecordRows) -> StateTree:
        """Rows as a state tree."""
        tags = Tags()
        return {
            "features": [tags.encode(dict(record)) for record in rows.features],
            "targets": [tags.encode(target) for target in rows.targets],
            "index": list(rows.index),
        }

    def rows_from(self, state: Mapping[str, Any]) -> RecordRows:
        """The rows that `rows_state` described."""
        tags = Tags()
        return RecordRows(
            [tags.decode(record) for record in state["features"]],
            [tags.decode(target) for target in state["targets"]],
            [int(index) for index in state["index"]],
            (),
        )
