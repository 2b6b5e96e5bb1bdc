"""The loop: a generator of events over a stream; whoever consumes it displays, logs, checkpoints.

Between two events the loop stands still with all of its state consistent, so a consumer may take a
checkpoint at any event.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from streamlearn.continual import AccuracyMatrix
from streamlearn.delay import Delayed, StreamLearner
from streamlearn.drift import DriftMonitor
from streamlearn.errors import DataError
from streamlearn.evaluation import Evaluation, Prequential, evaluation_of, without_order
from streamlearn.events import (
    ClassArrived,
    DriftDetected,
    EncoderFitted,
    ExperienceEnded,
    LayerStatus,
    Notice,
    Progress,
    Skipped,
    Tested,
    Testing,
)
from streamlearn.learner import Learner
from streamlearn.models import Taken
from streamlearn.predictions import Answered
from streamlearn.state import StateTree
from streamlearn.streams.base import AnyStream, Dataset

__all__ = ["Loop", "held_out"]

L = TypeVar("L", bound=StreamLearner)

_RATE_SECONDS = 5.0
_TEST_ROWS = 512
_FIRST_SAMPLES = 1000
"""In which classes come without being told of."""


class _Interrupted(Exception):
    """A stop was asked for in the middle of the encoder's fit."""


class Loop(Generic[L]):
    """Test-then-train over a stream.

    Args:
        learner: what learns.
        stream: where its cursor stands.
        evaluation: the prequential counts, of the kind that suits the targets.
        matrix: what is measured whenever an experience of the stream was learnt.
        drift: what hears the errors.
        delay: how many samples later than a sample its label comes; until then it is answered to
            but neither scored nor learnt.

    Attributes:
        step: mini-batches consumed.
        experience: experiences of the stream that were learnt, and measured.
        skipped: items that could not be used.
        seconds: time spent in `events`, over all sessions of a run.
        should_stop: asked during the encoder's fit, which may take long: whether to give it up,
            undone, and yield to the consumer.
        answered: told of all answers to a mini-batch before anything is said of it, also of those
            to rows whose label never comes; None: nobody is.
    """

    def __init__(
        self,
        learner: L,
        stream: AnyStream,
        evaluation: Evaluation,
        matrix: AccuracyMatrix | None = None,
        drift: DriftMonitor | None = None,
        delay: int = 0,
    ) -> None:
        self.delayed = Delayed(learner, delay)
        self.learner = learner
        self.stream = stream
        self.evaluation = evaluation
        self.matrix = matrix
        self.drift = drift
        self.experience = 0
        self.step = 0
        self.skipped = 0
        self.seconds = 0.0
        self.should_stop: Callable[[], bool] = lambda: False
        self.answered: Callable[[list[Answered]], None] | None = None
        self._recent: deque[tuple[float, int]] = deque()
        self._mark = 0.0

    def events(
        self,
    ) -> Iterator[
        Progress
        | EncoderFitted
        | ExperienceEnded
        | ClassArrived
        | DriftDetected
        | Testing
        | Skipped
        | Notice
    ]:
        """Score and learn batch after batch, to the end of the stream.

        Raises:
            StreamlearnError: a batch cannot be read or learnt. The state is that before this
                batch, so it may be saved, and the batch is the next one again.
        """
        self._mark = time.perf_counter()
        learner, stream = self.learner, self.stream
        batches = stream.batches(learner.settings.learner.batch, ahead=True)
        while True:
            if learner.ready:
                yield from self._fit()
                continue
            position = stream.position
            if position != stream.total:
                yield from self._experiences()
            batch = next(batches, None)
            if batch is None:
                break
            rows = batch.rows
            taken: list[Taken] = []
            try:
                # Before it is learnt, what has no label.
                answered = [] if self.answered is None else self._others(batch)
                if self.delayed.delay:
                    answers = self.delayed.admit(rows, batch.position)
                else:
                    taken.append(learner.take(rows))
                    answers = taken[0].answers
            except BaseException:
                stream.position = position
                raise
            self.step += 1
            if self.answered is not None:
                self.answered([*answered, self._labelled(batch, answers)])
            changes = [change for one in taken for change in self._counted(one)]
            while self.delayed.due(batch.position):
                taken.append(self.delayed.late())
                changes += self._counted(taken[-1])
            skipped, self.skipped = self.skipped, self.skipped + len(rows.skipped)
            for number, item in enumerate(rows.skipped, start=skipped + 1):
                yield Skipped(item.item, item.reason, number, getattr(item, "raw", ""))
            yield from changes
            yield self._progress(_mean_loss(taken))
        while self.delayed.waiting:
            if learner.ready:
                yield from self._fit()
                continue
            late = self.delayed.late()
            self.step += 1
            yield from self._counted(late)
            yield self._progress(_mean_loss([late]))
        while learner.held:  # the stream was shorter than the encoder's fit
            yield from self._fit()
        yield from self._experiences()
        if self.evaluation.samples == 0:
            unlabelled = self.stream.position - self.skipped
            without = f", {unlabelled} without a label" if unlabelled else ""
            raise DataError(
                f"the stream of {self.stream.name} held no usable sample "
                f"({self.skipped} skipped{without}); look at the data, or at data.limit"
            )

    def _others(self, batch: Any) -> list[Answered]:
        """The answers to rows without a label."""
        others = self.learner.without_label(batch.rows)
        if not others:
            return []
        answers = self.learner.answer([batch.rows.features[row] for row in others])
        return [Answered([batch.places[row] for row in others], answers, [None] * len(others))]

    def _labelled(self, batch: Any, answers: Tensor) -> Answered:
        others = set(self.learner.without_label(batch.rows))
        rows = [row for row in range(len(batch.places)) if row not in others]
        truths = self.learner.truths(batch.rows)
        return Answered([batch.places[row] for row in rows], answers, [truths[r] for r in rows])

    def _counted(self, taken: Taken) -> list[ClassArrived | DriftDetected]:
        """Count what was answered before it was learnt; gives what that shows."""
        if len(taken.losses) == 0:
            return []
        return self._changes(self.evaluation.update(*taken))

    def _changes(self, errors: Tensor) -> list[ClassArrived | DriftDetected]:
        """What the last batch showed of a stream that changes; drift is answered at once.

        Args:
            errors: (B,) of the batch, which was evaluated.
        """
        found: list[ClassArrived | DriftDetected] = []
        # Classes that come in turn are told of by their experiences.
        if isinstance(self.evaluation, Prequential) and not self.stream.experiences:
            found += [
                ClassArrived(self.step, sample, self.learner.classes[label])
                for label, sample in self.evaluation.arrived
                if sample > _FIRST_SAMPLES
            ]
        if self.drift is not None:
            found += self.drift.hear(self.learner, errors, self.evaluation.samples, self.step)
        return found

    def _fit(self) -> Iterator[Progress | EncoderFitted | Notice]:
        """Fit the encoder and learn what was held back; a stop that is asked for ends it undone."""
        yield Notice(f"fitting the encoder on {self.learner.held:,} samples and learning them")
        began = time.perf_counter()
        with contextlib.suppress(_Interrupted):
            self.learner.flush(self._pulse)
            yield self._encoder_fitted(time.perf_counter() - began)
        yield self._progress(self.evaluation.loss)

    def _experiences(self) -> Iterator[Testing | ExperienceEnded]:
        """Measure after each experience that was learnt; begun anew if that is not waited for."""
        experiences = self.stream.experiences
        for experience in experiences[self.experience :]:
            if self.stream.position < experience.stop:
                return
            matrix = self.matrix
            if matrix is not None:
                yield from matrix.score(self.learner)  # type: ignore[arg-type]  # of a data set
            self.experience += 1
            figures = {} if matrix is None else matrix.figures()
            yield ExperienceEnded(
                step=self.step,
                samples=self.evaluation.samples,
                experience=self.experience,
                experiences=len(experiences),
                classes=experience.named(self.learner.classes),
                accuracies=None if matrix is None else tuple(matrix.rows[-1]),
                average_accuracy=figures.get("average_accuracy"),
                forgetting=figures.get("forgetting"),
            )

    def _pulse(self) -> None:
        if self.should_stop():
            raise _Interrupted

    def _encoder_fitted(self, seconds: float) -> EncoderFitted:
        return EncoderFitted(
            step=self.step,
            samples=self.learner.samples,
            encoder=self.learner.settings.encoder.kind,
            width=self.learner.encoder.width,
            seconds=seconds,
        )

    def rest(self, seconds: float) -> None:
        """Do not count these seconds, in which a consumer of `events` let nothing be learnt."""
        self._mark += seconds
        self._recent = deque((then + seconds, samples) for then, samples in self._recent)

    def _progress(self, loss: float) -> Progress:
        now = time.perf_counter()
        self.seconds, self._mark = self.seconds + now - self._mark, now
        self._recent.append((now, self.evaluation.samples))
        while len(self._recent) > 2 and now - self._recent[0][0] > _RATE_SECONDS:
            self._recent.popleft()
        elapsed = now - self._recent[0][0]
        learnt = self.evaluation.samples - self._recent[0][1]
        return Progress(
            step=self.step,
            samples=self.evaluation.samples,
            position=self.stream.position,
            total_samples=self.stream.total,
            skipped=self.skipped,
            seconds=self.seconds,
            rate=learnt / elapsed if elapsed > 0 else 0.0,
            loss=loss,
            accuracy=self.evaluation.accuracy,
            windowed_accuracy=self.evaluation.windowed_accuracy,
            layers=self.layers(),
            learner_bytes=self.learner.nbytes,
            metrics=self.evaluation.metrics,
            waiting=self.delayed.samples,
            bounds=self.learner.bounds(),
        )

    def layers(self) -> tuple[LayerStatus, ...]:
        """The size of each memory."""
        return tuple(
            LayerStatus(name, len(memory), memory.nbytes)
            for name, memory in self.learner.memories().items()
        )

    def state_dict(self) -> StateTree:
        """Learner, stream, evaluation and counters; not the tuples of `learner.memories()`."""
        state: StateTree = {
            "learner": self.learner.state_dict(),
            "stream": self.stream.state_dict(),
            "evaluation": self.evaluation.state_dict(),
            "step": self.step,
            "skipped": self.skipped,
            "seconds": self.seconds,
            "delayed": self.delayed.state_dict(),
        }
        if self.stream.experiences:
            state["experience"] = self.experience
            state["matrix"] = None if self.matrix is None else self.matrix.state_dict()
        if self.drift is not None:
            state["drift"] = self.drift.state_dict()
        return state

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that; the memories want their tuples afterwards."""
        self.learner.load_state_dict(state["learner"])
        self.stream.load_state_dict(state["stream"])
        self.evaluation.load_state_dict(state["evaluation"])
        self.step = int(state["step"])
        self.skipped = int(state["skipped"])
        self.seconds = float(state["seconds"])
        self.delayed.load_state_dict(state.get("delayed", {}))
        self.experience = int(state.get("experience", 0))
        if self.matrix is not None and state.get("matrix") is not None:
            self.matrix.load_state_dict(state["matrix"])
        if self.drift is not None and "drift" in state:  # older runs had no ear for it
            self.drift.load_state_dict(state["drift"])


def _mean_loss(taken: Sequence[Taken]) -> float:
    """Over all rows that were learnt in a step, 0 if there are none."""
    losses = [one.losses for one in taken if len(one.losses)]
    return torch.cat(losses).mean().item() if losses else 0.0


def held_out(
    learner: Learner,
    dataset: Dataset,
    *,
    linearise: bool = False,
    abstain: float | None = None,
) -> Iterator[Testing | Tested]:
    """Score a held-out data set: progress, then the result.

    Args:
        learner: as it is.
        dataset: to be scored.
        linearise: with 1 + x for e^x in every growing layer.
        abstain: as of `evaluation_of`.

    Raises:
        ConfigError: there is nothing to linearise, or nothing to abstain from.
    """
    started = time.perf_counter()
    evaluation = evaluation_of(learner.task, abstain=abstain)
    loss = learner.loss
    for start in range(0, len(dataset), _TEST_ROWS):
        stop = min(start + _TEST_ROWS, len(dataset))
        rows = dataset.read(np.arange(start, stop, dtype=np.int64))
        with learner.linearised() if linearise else contextlib.nullcontext():
            answers = learner.answer(rows.features)
        targets = learner.task.checked(rows.targets, len(rows.targets))
        evaluation.update(answers, targets, loss.of_answers(answers, targets))
        yield Testing(stop, len(dataset))
    yield Tested(
        samples=evaluation.samples,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        seconds=time.perf_counter() - started,
        linearised=linearise,
        metrics=without_order(evaluation.metrics),
    )
