"""The loop: a generator of events over a stream; whoever consumes it displays, logs, checkpoints.

Between two events the loop stands still with all of its state consistent, so a consumer may take a
checkpoint at any event.
"""

import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from streamlearn.errors import DataError
from streamlearn.evaluation import Prequential
from streamlearn.events import EncoderFitted, LayerStatus, Progress, Skipped, Tested, Testing
from streamlearn.learner import Learner
from streamlearn.state import StateTree
from streamlearn.streams.base import Dataset, Stream

__all__ = ["Loop", "held_out"]

_RATE_SECONDS = 5.0
_TEST_ROWS = 512


class Loop:
    """Test-then-train over a stream.

    Args:
        learner: what learns.
        stream: where its cursor stands.
        evaluation: the prequential counts.

    Attributes:
        step: mini-batches consumed.
        skipped: items that could not be used.
        seconds: time spent in `events`, over all sessions of a run.
    """

    def __init__(self, learner: Learner, stream: Stream, evaluation: Prequential) -> None:
        self.learner = learner
        self.stream = stream
        self.evaluation = evaluation
        self.step = 0
        self.skipped = 0
        self.seconds = 0.0
        self._recent: deque[tuple[float, int]] = deque()

    def events(self) -> Iterator[Progress | EncoderFitted | Skipped]:
        """Score and learn batch after batch, to the end of the stream."""
        batch_size = self.learner.settings.learner.batch
        mark = time.perf_counter()
        for batch in self.stream.batches(batch_size, ahead=True):
            rows = batch.rows
            fitted = self.learner.fitted
            before = time.perf_counter()
            scores = self.learner.learn(rows.features, rows.targets)
            self.evaluation.update(scores.probabilities, rows.targets, scores.losses)
            self.step += 1
            now = time.perf_counter()
            self.seconds, mark = self.seconds + now - mark, now
            skipped, self.skipped = self.skipped, self.skipped + len(rows.skipped)
            for number, item in enumerate(rows.skipped, start=skipped + 1):
                yield Skipped(item.item, item.reason, number)
            if self.learner.fitted and not fitted:
                yield self._encoder_fitted(now - before)
            yield self._progress(scores.losses.mean().item() if len(scores.losses) else 0.0, now)
        before = time.perf_counter()
        if self.learner.flush():
            now = time.perf_counter()
            self.seconds += now - before
            yield self._encoder_fitted(now - before)
            yield self._progress(self.evaluation.loss, now)
        if self.evaluation.samples == 0:
            raise DataError(
                f"the stream of {self.stream.dataset.name} held no usable sample "
                f"({self.skipped} skipped); look at the data, or at data.limit"
            )

    def _encoder_fitted(self, seconds: float) -> EncoderFitted:
        return EncoderFitted(
            step=self.step,
            samples=self.learner.samples,
            encoder=self.learner.settings.encoder.kind,
            width=self.learner.encoder.width,
            seconds=seconds,
        )

    def _progress(self, loss: float, now: float) -> Progress:
        self._recent.append((now, self.evaluation.samples))
        while len(self._recent) > 2 and now - self._recent[0][0] > _RATE_SECONDS:
            self._recent.popleft()
        elapsed = now - self._recent[0][0]
        learnt = self.evaluation.samples - self._recent[0][1]
        return Progress(
            step=self.step,
            samples=self.evaluation.samples,
            position=self.stream.position,
            total_samples=len(self.stream),
            skipped=self.skipped,
            seconds=self.seconds,
            rate=learnt / elapsed if elapsed > 0 else 0.0,
            loss=loss,
            accuracy=self.evaluation.accuracy,
            windowed_accuracy=self.evaluation.windowed_accuracy,
            layers=self.layers(),
        )

    def layers(self) -> tuple[LayerStatus, ...]:
        """The size of each growing layer."""
        return tuple(
            LayerStatus(name, len(memory), memory.nbytes)
            for name, memory in self.learner.memories().items()
        )

    def state_dict(self) -> StateTree:
        """Learner, stream, evaluation and counters; not the tuples of `learner.memories()`."""
        return {
            "learner": self.learner.state_dict(),
            "stream": self.stream.state_dict(),
            "evaluation": self.evaluation.state_dict(),
            "step": self.step,
            "skipped": self.skipped,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore all of that; the memories want their tuples afterwards."""
        self.learner.load_state_dict(state["learner"])
        self.stream.load_state_dict(state["stream"])
        self.evaluation.load_state_dict(state["evaluation"])
        self.step = int(state["step"])
        self.skipped = int(state["skipped"])
        self.seconds = float(state["seconds"])


def held_out(learner: Learner, dataset: Dataset) -> Iterator[Testing | Tested]:
    """Score a held-out data set: progress, then the result."""
    started = time.perf_counter()
    evaluation = Prequential(len(learner.classes))
    loss = learner.loss
    for start in range(0, len(dataset), _TEST_ROWS):
        stop = min(start + _TEST_ROWS, len(dataset))
        rows = dataset.read(np.arange(start, stop, dtype=np.int64))
        probabilities = learner.predict_proba(rows.features)
        losses = loss.of_probabilities(probabilities, rows.targets)
        evaluation.update(probabilities, rows.targets, losses)
        yield Testing(stop, len(dataset))
    yield Tested(
        samples=evaluation.samples,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        seconds=time.perf_counter() - started,
    )
