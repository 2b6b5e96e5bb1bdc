"""What is noted of a run at each commit, and shown by `inspect` and `info`."""

from collections.abc import Mapping
from typing import Any

from streamlearn.events import Tested
from streamlearn.loop import Loop
from streamlearn.tasks import Classes, Task

__all__ = ["final_metrics", "summary_of", "width_of"]

_ERRORS = ("mae", "rmse", "r2")


def width_of(task: Task) -> dict[str, int]:
    """How many classes there are, or numbers of a target."""
    return {"classes" if isinstance(task, Classes) else "outputs": task.width}


def summary_of(loop: Loop, kind: str, tested: Tested | None) -> dict[str, Any]:
    """The facts of a run as it stands.

    Args:
        loop: of the run.
        kind: of its learner.
        tested: the result of the held-out test, once there is one.
    """
    return {
        **loop.evaluation.summary(),
        **_test(loop, tested),
        "test_loss": None if tested is None else tested.loss,
        "position": loop.stream.position,
        "total_samples": loop.stream.total,
        "skipped": loop.skipped,
        "seconds": loop.seconds,
        "held_samples": loop.learner.held,
        "encoder_width": loop.learner.encoder.width if loop.learner.fitted else None,
        **width_of(loop.learner.task),
        "learner": kind,
        "learner_bytes": loop.learner.nbytes,
        **({} if loop.matrix is None else loop.matrix.summary()),
    }


def _test(loop: Loop, tested: Tested | None) -> dict[str, float | None]:
    if isinstance(loop.learner.task, Classes):
        return {"test_accuracy": None if tested is None else tested.accuracy}
    found: Mapping[str, float | None] = {} if tested is None else tested.metrics
    return {f"test_{name}": found.get(name) for name in _ERRORS}


def final_metrics(loop: Loop, tested: Tested | None) -> dict[str, float | None]:
    """Errors over the whole stream and of the test, where targets are numbers."""
    if isinstance(loop.learner.task, Classes):
        return {}
    metrics = loop.evaluation.metrics
    whole = {f"prequential_{name}": metrics[name] for name in _ERRORS}
    return _test(loop, tested) | whole
