"""What is noted of a run at each commit, and shown by `inspect` and `info`."""

from collections.abc import Mapping
from typing import Any

from streamlearn.evaluation import Prequential, without_order
from streamlearn.events import Tested
from streamlearn.loop import Loop
from streamlearn.tasks import Classes, Task

__all__ = ["final_metrics", "summary_of", "width_of"]


def width_of(task: Task) -> dict[str, int]:
    """How many classes there are, or numbers of a target."""
    return {"classes" if isinstance(task, Classes) else "outputs": task.width}


def summary_of(loop: Loop[Any], kind: str, tested: Tested | None) -> dict[str, Any]:
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
        **_bounds(loop),
        **({} if loop.matrix is None else loop.matrix.summary()),
        **({} if loop.drift is None else loop.drift.summary()),
        **_late(loop),
        **_by_class(loop),
    }


def _bounds(loop: Loop[Any]) -> dict[str, int]:
    """Bounds of the memory and what they have cost, where there are any."""
    names = {
        "budget": "budget_bytes",
        "used": "used_bytes",
        "rows": "most_tuples",
        "left": "left_tuples",
    }
    found = loop.learner.bounds()
    return {name: found[key] for key, name in names.items() if key in found}


def _late(loop: Loop[Any]) -> dict[str, int]:
    """By how many samples labels come late, and how many samples wait for theirs."""
    delayed = loop.delayed
    return {"label_delay": delayed.delay, "waiting": delayed.samples} if delayed.delay else {}


def _by_class(loop: Loop[Any]) -> dict[str, Any]:
    """The columns of a table with a row for each class, where there are classes."""
    if not isinstance(loop.evaluation, Prequential):
        return {}
    columns = loop.evaluation.by_class()
    count = len(columns["samples"])
    return {"by_class": {"class": list(loop.learner.classes[:count]), **columns}}


def _test(loop: Loop[Any], tested: Tested | None) -> dict[str, float | None]:
    """test_accuracy, test_mae, …; None before the test."""
    accuracy: dict[str, float | None] = {}
    if isinstance(loop.learner.task, Classes):
        accuracy = {"test_accuracy": None if tested is None else tested.accuracy}
    found: Mapping[str, float | None] = {} if tested is None else tested.metrics
    names = without_order(loop.evaluation.metrics)
    return {**accuracy, **{f"test_{name}": found.get(name) for name in names}}


def final_metrics(loop: Loop[Any], tested: Tested | None) -> dict[str, float | None]:
    """Figures of the test and over the whole stream, the accuracies left out."""
    metrics = loop.evaluation.metrics
    test = {name: value for name, value in _test(loop, tested).items() if name != "test_accuracy"}
    whole = {
        f"prequential_{name}": value
        for name, value in metrics.items()
        if not name.startswith("windowed_")
    }
    return test | whole
