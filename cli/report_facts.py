"""What a report tells of a run: its figures, and its history as curves of bounded length."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamlearn.storage import RunPath, RunReader

from .inspect import describe_run
from .series import Series

__all__ = ["RunFacts", "facts_of", "settings_lines"]

_POINTS = 800


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run as it was committed last, and what its event log says of the way there.

    name: of the run. facts: what `inspect` knows. scenario: its settings. course: (samples, whole,
    windowed), accuracies, or mean absolute errors where targets are numbers. load: (samples, bytes
    of tuples, samples a second, bytes of the process). tuples: (samples, of each layer in turn).
    marks: samples at which something happened, by what it was. confusion: rows of true classes,
    counts of what was answered; none where there are no classes.
    """

    name: str
    facts: dict[str, Any]
    scenario: Mapping[str, Any]
    numbers: bool
    course: Series
    load: Series
    tuples: dict[str, Series]
    marks: dict[str, list[int]] = field(default_factory=dict)
    confusion: list[list[int]] = field(default_factory=list)

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures of the last commit."""
        found: Mapping[str, Any] = self.facts.get("summary") or {}
        return found


_MARKED = {"checkpoint": "checkpoint", "drift": "drift", "experience": "experience ended",
           "class_arrived": "class arrived"}  # fmt: skip


def facts_of(path: RunPath) -> RunFacts:
    """Read a run without touching it.

    Raises:
        StreamlearnError: there is no run, or it cannot be read.
    """
    reader = RunReader(path)
    events, _ = reader.events()
    facts = describe_run(reader, time.time())
    numbers = "prequential_mae" in (facts.get("summary") or {})
    told = RunFacts(
        name=str(facts["name"] or path.name),
        facts=facts,
        scenario=reader.scenario,
        numbers=numbers,
        course=Series(_POINTS),
        load=Series(_POINTS),
        tuples={},
    )
    for event in events:
        kind = event.get("event")
        if kind == "progress":
            _add(told, event)
        elif kind in _MARKED:
            told.marks.setdefault(_MARKED[kind], []).append(int(event["samples"]))
        elif kind == "started" and event.get("samples"):
            told.marks.setdefault("resumed", []).append(int(event["samples"]))
    _add_evaluation(told, reader)
    return told


def _add(told: RunFacts, event: Mapping[str, Any]) -> None:
    """A point of each curve; a run that went back to a checkpoint goes on from there."""
    samples = float(event["samples"])
    layers = {layer["name"]: layer for layer in event["layers"]}
    for name in layers:
        told.tuples.setdefault(name, Series(_POINTS))
    for series in (told.course, told.load, *told.tuples.values()):
        series.cut(samples)
    for marks in told.marks.values():
        marks[:] = [mark for mark in marks if mark <= samples]
    metrics = event.get("metrics") or {}
    source, names = (metrics, ("mae", "windowed_mae")) if told.numbers else (
        event, ("accuracy", "windowed_accuracy")
    )  # fmt: skip
    course = [float(source[name]) for name in names if source.get(name) is not None]
    if len(course) == len(names):
        told.course.add(samples, *course)
    size = sum(layer["bytes"] for layer in layers.values())
    memory = event.get("memory") or {}
    told.load.add(samples, size, float(event["rate"]), float(memory.get("rss_bytes", 0)))
    for name, layer in layers.items():
        told.tuples[name].add(samples, float(layer["tuples"]))


def _add_evaluation(told: RunFacts, reader: RunReader) -> None:
    """The confusion matrix, where answers are classes."""
    if told.numbers or "commit" not in told.facts:
        return
    evaluation = reader.state()["loop"]["evaluation"]
    confusion = evaluation.get("confusion")
    if confusion is None:
        return
    count = len((told.summary.get("by_class") or {}).get("class", ())) or len(confusion)
    told.confusion.extend(confusion[:count, :count].tolist())


def settings_lines(scenario: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every setting as a key and its value in words."""
    lines = []
    for section, value in scenario.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        lines += [
            (f"{section}.{key}" if key else section, json.dumps(one, default=str).strip('"'))
            for key, one in inner
            if one is not None
        ]
    return lines
