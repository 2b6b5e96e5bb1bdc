"""Answers as they are given, in words that a file can hold: one record a sample.

`{"index": 17, "label": "cat", "probability": 0.82, "target": "dog"}`, or with "value" in place of
label and probability where targets are numbers. A label whose class nobody knew of yet is null, as
is a probability then; "target" is left out of rows that have none.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from streamlearn.tasks import Classes, Task

__all__ = ["Answered", "records_of"]


class Answered(NamedTuple):
    """Samples that were answered to.

    places: in the stream, counted from 0. answers: (B, C) probabilities, or (B, K) values. targets:
    labels or numbers as people know them, None where there is none.
    """

    places: Sequence[int]
    answers: Tensor
    targets: Sequence[Any]


def records_of(
    parts: Iterable[Answered], task: Task, labels: Sequence[Any]
) -> list[dict[str, Any]]:
    """A record for each answer, in the order of the stream.

    Args:
        parts: what was answered.
        task: what targets are.
        labels: the classes so far, in the order of the columns of answers.
    """
    found = []
    for part in parts:
        said = _labels(part.answers, labels) if isinstance(task, Classes) else _values(part.answers)
        for place, answer, target in zip(part.places, said, part.targets, strict=True):
            known = {} if target is None else {"target": target}
            found.append({"index": int(place), **answer, **known})
    return sorted(found, key=lambda record: record["index"])


def _labels(answers: Tensor, labels: Sequence[Any]) -> list[dict[str, Any]]:
    if answers.shape[-1] == 0:
        return [{"label": None, "probability": None}] * len(answers)
    most, places = answers.max(-1)
    return [
        # The shortest digits that give the same float32 again.
        {"label": labels[place], "probability": float(str(probability))}
        if probability > 0
        else {"label": None, "probability": None}
        for probability, place in zip(most.numpy(), places.tolist(), strict=True)
    ]


def _values(answers: Tensor) -> list[dict[str, Any]]:
    return [{"value": row[0] if len(row) == 1 else row} for row in answers.tolist()]
