"""Which of the samples that a run was shown made an answer: its last commit, read only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamlearn.attribution import Attributable, Attribution, Ranked, attribute, purity
from streamlearn.errors import ConfigError, RunStateError, StreamlearnError
from streamlearn.learner import Learner
from streamlearn.memory import SAMPLE, Memory
from streamlearn.models import Seen
from streamlearn.recordlearner import RecordLearner
from streamlearn.storage import RunPath, RunReader
from streamlearn.tasks import Classes, task_of_state

from .build import settled
from .kept import KeptItems, Thumbnails
from .schema import RECORD_KINDS, Scenario
from .sources import Item, ItemSource, Labels, NotedLabels, Pictures, RecordItems, SetItems
from .words import override

__all__ = [
    "FIRST",
    "Asked",
    "Case",
    "Explaining",
    "Explanation",
    "LayerView",
    "Witness",
    "explain",
    "restored",
]

FIRST = 50
"""Samples that are attended to most, whose labels say how pure attention is."""

SPANS = 10
"""Parts of the run by which attention is told."""

TOLERANCE = 1e-4
"""How far contributions may be from summing to an output of order 1."""

_LAST = 4096
"""Rows at a layer's end that the newest samples are looked for in."""

_OUTPUTS = 4
"""Numbers of a regression's answer that are explained, at most."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be explained: exactly one of a sample, a file and a row.

    test: the sample is one of the held-out test.
    """

    sample: int | None = None
    file: Path | None = None
    row: str | None = None
    test: bool = False

    def read(self, source: ItemSource) -> Item:
        """The item.

        Raises:
            ConfigError: none or several are asked for.
            StreamlearnError: it cannot be read.
        """
        if sum(one is not None for one in (self.sample, self.file, self.row)) != 1:
            raise ConfigError(
                "say what is to be explained by one of --sample N, --file PATH and --row JSON"
            )
        if self.test and self.sample is None:
            raise ConfigError("--test says where --sample N is from; give both, or leave it out")
        if self.sample is not None:
            return source.item(self.sample, held_out=self.test)
        return source.row(self.row or "") if self.file is None else source.file(self.file)

    @property
    def name(self) -> str:
        """For people."""
        if self.sample is not None:
            return f"sample {self.sample}{' of the test' if self.test else ''}"
        return "the row" if self.file is None else str(self.file)


@dataclass(frozen=True, slots=True)
class Witness:
    """A stored tuple and what it has in an answer.

    score: its contribution to an output, or its share of the attention. sample: that it was written
    for, None where nobody knows. label: of that. age: samples ago that it was written, step: the
    step that wrote it, row: in its layer. itself: whether it is of the very sample explained.
    """

    score: float
    sample: int | None
    label: str | None
    age: int
    step: int
    row: int
    itself: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """What speaks for and against one output: its value and the tuples with most to say."""

    name: str
    output: float
    helpers: list[Witness]
    hurters: list[Witness]


@dataclass(frozen=True, slots=True)
class LayerView:
    """What a layer attends to.

    effective: how many tuples its attention is on, 1/Σp². purity: of the first 50 samples, how many
    have the label that `purity_of` names; None where labels are not known. by_class: attention by
    label, the tuples without one left out. by_time: by tenths of the run, from the first; written:
    how many of the tuples were written then.
    """

    name: str
    tuples: int
    effective: float
    attended: list[Witness]
    purity: float | None
    by_class: dict[str, float]
    by_time: list[float]
    written: list[float]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer and what made it.

    truth, prediction: a class, or numbers. answers: probabilities by class, or values. outputs: of
    the network before any softmax. attributed: the layer whose tuples sum to the outputs, None
    where there is none, and `reason` says why. off: how far they are from it at most; sums: whether
    that is within `tolerance`. starting: what starting rows have in the outputs, beside: what no
    tuple makes. notes: what could not be found out. texts: records and numbers that
    thumbnails keep, as JSON.
    """

    run: str
    step: int
    samples: int
    asked: str
    truth: str | None
    prediction: str
    answers: dict[str, float]
    outputs: dict[str, float]
    attributed: str | None
    reason: str
    off: float | None
    tolerance: float | None
    sums: bool | None
    starting: dict[str, float]
    beside: dict[str, float]
    cases: list[Case]
    layers: list[LayerView]
    purity_of: str
    labels: str | None
    notes: list[str]
    texts: dict[int, str] = field(default_factory=dict)
    pictures: Pictures = field(default_factory=dict, compare=False)
    picture: Any = None


def restored(
    path: RunPath, words: Sequence[str] = ()
) -> tuple[RunReader, Scenario, Learner | RecordLearner, dict[str, Any]]:
    """The learner of a run's last commit, without its data, and the state of its loop.

    Raises:
        StreamlearnError: the run has never committed, or cannot be read.
    """
    reader = RunReader(path)
    if reader.manifest() is None:
        raise RunStateError(
            f"run {str(path)!r} was never committed, so there is nothing to explain yet"
        )
    scenario = override(reader.scenario, words)
    state: dict[str, Any] = reader.state()["loop"]
    saved = state["learner"]
    learner: Learner | RecordLearner
    if scenario.data.kind in RECORD_KINDS:
        learner = RecordLearner(scenario.learner_settings(), regression=saved["regression"])
    else:
        settings = settled(scenario.learner_settings(), state["stream"].get("items"))
        learner = Learner(task_of_state(saved), settings)
    learner.load_state_dict(saved)
    for name, memory in learner.memories().items():
        reader.open_memory(name, memory)
    return reader, scenario, learner, state


def explain(path: RunPath, asked: Asked, words: Sequence[str] = (), *, top: int = 8) -> Explanation:
    """What made a run's answer to a sample; nothing is written.

    Args:
        path: of the run, which may be going on.
        asked: what is to be explained.
        words: changes such as where the data lies.
        top: helpers, hurters and attended samples to name.

    Raises:
        StreamlearnError: the run or the sample cannot be read, or no layer keeps tuples.
    """
    return Explaining(path, words).told(asked, top=top)


class Explaining:
    """A run's last commit, read once, of which several answers are explained.

    Args:
        path: of the run, which may be going on.
        words: changes such as where the data lies.

    Raises:
        StreamlearnError: the run cannot be read, or has stored nothing yet.
    """

    def __init__(self, path: RunPath, words: Sequence[str] = ()) -> None:
        self._path = path
        _, self._scenario, self._learner, self._state = restored(path, words)
        learner = self._learner
        self._source: ItemSource
        kept = Thumbnails(learner)
        if isinstance(learner, RecordLearner):
            self._source = RecordItems(self._scenario, learner, self._state["stream"])
        else:
            # Fewer files would have other numbers, so thumbnails know better.
            items = self._state["stream"].get("items") if kept else None
            self._source = SetItems(self._scenario, learner, items)
        if kept:
            self._source = KeptItems(self._source, kept, learner)
        if not learner.fitted:
            raise RunStateError(
                f"run {str(path)!r} has stored nothing yet, for it holds back {learner.held} "
                "samples until its encoder is fitted; explain it once it has gone on"
            )

    def told(self, asked: Asked, *, top: int = 8) -> Explanation:
        """See `explain`."""
        learner = self._learner
        if isinstance(self._source, KeptItems):
            self._source.notes.clear()
        item = asked.read(self._source)
        seen = learner.see(item.features)
        if seen is None or not seen.queries:
            what = "has learnt nothing yet" if isinstance(learner, RecordLearner) else (
                f"has learner={self._scenario.learner.kind}, none of whose layers keeps tuples"
            )  # fmt: skip
            raise ConfigError(
                f"run {str(self._path)!r} {what}, so no stored samples made its answers; explain a "
                "run of learner=growing"
            )
        answers = learner.answer(item.features)[0]
        return _Explainer(learner, seen, item, self._source, top).told(
            str(self._path), int(self._state["step"]), asked.name, answers
        )

    def examples(self, count: int) -> list[Asked]:
        """Samples worth a look: spread over the held-out test; without one the last ones stored.

        Raises:
            StreamlearnError: the data cannot be read.
        """
        tests = self._source.tests()
        if tests:
            places = sorted({(2 * place + 1) * tests // (2 * count) for place in range(count)})
            return [Asked(sample=place, test=True) for place in places]
        return [Asked(sample=sample) for sample in self._stored_last(count)]

    def _stored_last(self, count: int) -> list[int]:
        """The newest samples that have a tuple, the newest first."""
        found: dict[int, None] = {}
        for memory in self._learner.memories().values():
            if memory.identified and len(memory):
                rows = torch.arange(max(0, len(memory) - _LAST), len(memory))
                stored = memory.gather(rows, (SAMPLE, "born"))
                order = stored["born"].cpu().argsort(stable=True)
                samples = stored[SAMPLE].cpu()[order].tolist()
                found |= dict.fromkeys(sample for sample in reversed(samples) if sample >= 0)
        return list(found)[:count]


class _Explainer:
    def __init__(
        self,
        learner: Learner | RecordLearner,
        seen: Seen,
        item: Item,
        source: ItemSource,
        top: int,
    ) -> None:
        self._learner = learner
        self._seen = seen
        self._item = item
        self._source = source
        self._top = top
        self._are_classes = isinstance(learner.task, Classes)
        self._notes: list[str] = []
        growth = seen.network.growth or seen.network.readout
        self._steps = 0 if growth is None else growth.steps
        network = seen.network.network
        self._layers: dict[str, Any] = {
            name: module for name, module in network.named_modules() if name in seen.queries
        }
        self._output = next(
            (
                name
                for name, layer in self._layers.items()
                if layer is getattr(network, "output", 0)
            ),
            None,
        )
        if isinstance(learner, RecordLearner) and len(learner.shares) > 1:
            self._note(
                f"the answer mixes {len(learner.shares)} networks; {100 * learner.shares[0]:.0f}% "
                "of it is that of the one explained here"
            )
        self._names = list(learner.classes)
        if not self._are_classes:
            width = seen.output.shape[-1]
            self._names = ["output"] if width == 1 else [f"output {i}" for i in range(width)]
        self._labels: Labels | None = None

    def told(self, run: str, step: int, asked: str, answers: Tensor) -> Explanation:
        """All of it."""
        item, names = self._item, self._names
        truth = item.truth
        if self._are_classes:
            best = int(answers[: len(names)].argmax())
            cases = [best] if truth in (None, best) else [best, truth]
            prediction, true = names[best], None if truth is None else names[truth]
        else:
            cases = list(range(len(names)))[:_OUTPUTS]
            prediction = _numbers(answers.tolist())
            true = None if truth is None else _numbers(truth)
        own = truth if truth is not None else cases[0]
        self._labels = self._found(None if self._are_classes else ())
        found = {name: self._attributed(name, cases) for name in self._layers}
        if not self._are_classes and self._labels is None:
            self._labels = self._found(_samples(found.values()))
        outputs = self._scaled(self._seen.output[0].double().cpu(), whole=True)
        explained = None if self._output is None else found[self._output]
        views = [self._view(name, found[name], own) for name in self._layers]
        told = Explanation(
            run=run,
            step=step,
            samples=self._learner.samples,
            asked=asked,
            truth=true,
            prediction=prediction,
            answers=dict(zip(names, answers.double().tolist(), strict=False)),
            outputs=dict(zip(names, outputs.tolist(), strict=False)),
            attributed=self._output,
            reason="" if explained is not None else (
                "the output layer is dense, a matrix of fixed size: its outputs are no sum over "
                "stored samples, so none of them can be attributed; hidden layers that grow attend "
                "to samples all the same"
            ),
            **self._checked(explained),
            cases=[] if explained is None else self._cases(explained, cases, outputs),
            layers=views,
            purity_of=names[own] if self._are_classes else "",
            labels=None if self._labels is None else self._labels.where,
            notes=self._notes,
            picture=item.picture,
        )  # fmt: skip
        shown = self._shown(told)
        told.texts.update(self._source.texts(shown))
        told.pictures.update(self._pictures(shown))
        for note in getattr(self._source, "notes", ()):
            self._note(note)
        return told

    # -- what is known of stored samples -----------------------------------------------------------

    def _found(self, samples: Sequence[int] | None) -> Labels | None:
        """Labels of stored tuples: kept beside them, or of the data by their samples."""
        memories: list[Memory] = [layer.memory for layer in self._layers.values()
                                  if hasattr(layer, "memory")]  # fmt: skip
        # A layer of second order has rows of its own, which are no other layer's.
        alike = not any(getattr(one, "second_order", False) for one in self._layers.values())
        for memory in memories[:1]:
            if alike and "target" in memory.columns():
                return NotedLabels(memory, self._seen.mean, self._seen.deviation)
        if not all(memory.identified for memory in memories):
            self._note(
                "this run began before tuples said which sample they are of, so samples and "
                "labels are not known"
            )
            return None
        if samples is not None and not samples:
            return None
        try:
            return self._source.labels(samples)
        except (StreamlearnError, OSError) as error:
            self._note(f"labels of stored samples are not known: {error}")
            return None

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _shown(self, told: Explanation) -> list[int]:
        """Every sample that is named."""
        witnesses = [w for case in told.cases for w in (*case.helpers, *case.hurters)]
        witnesses += [w for layer in told.layers for w in layer.attended]
        return sorted({w.sample for w in witnesses if w.sample is not None})

    def _pictures(self, samples: list[int]) -> Pictures:
        if self._item.picture is None or not samples:
            return {}
        try:
            return self._source.pictures(samples)
        except (StreamlearnError, OSError) as error:
            self._note(f"pictures of stored samples cannot be read: {error}")
            return {}

    # -- what layers say ---------------------------------------------------------------------------

    def _attributed(self, name: str, cases: list[int]) -> Attribution:
        layer: Attributable = self._layers[name]
        query = self._seen.queries[name]
        labels = self._labels
        of: Callable[[Tensor, Tensor], Tensor] | None = None
        if self._are_classes and labels is not None:
            of = labels.of
        return attribute(
            layer,
            query,
            outputs=torch.tensor([cases]) if name == self._output else None,
            top=max(self._top, FIRST + 1),
            group_of=of,
            groups=len(self._names),
            spans=SPANS,
            steps=self._steps,
            each=len(query),
            averaged=name == self._output,
        )

    def _scaled(self, values: Tensor, *, whole: bool = False) -> Tensor:
        """Contributions (C,) in the unit of the targets; `whole`: outputs, with the mean."""
        mean, deviation = self._seen.mean, self._seen.deviation
        if mean is None or deviation is None:
            return values
        return deviation * values + (mean if whole else 0.0)

    def _checked(self, found: Attribution | None) -> dict[str, Any]:
        """Whether contributions sum to what the network said, and what else is in it."""
        if found is None:
            return {"off": None, "tolerance": None, "sums": None, "starting": {}, "beside": {}}
        count = len(self._names)
        said = self._seen.output[0].double().to(found.output.device)
        off = float((found.output[0] - said).abs()[:count].max())
        tolerance = TOLERANCE * max(1.0, float(said[:count].abs().max()))
        memory = getattr(self._layers[self._output or ""], "memory", None)
        if memory is not None and memory.dtype == torch.bfloat16:
            tolerance = 2.0**-7 * float(found.size[0, :count].max())
            self._note("bfloat16 has three digits, so the answer itself is no more exact than that")
        starting = self._scaled(found.starting[0].cpu())
        beside = self._scaled(found.beside[0].cpu(), whole=True)
        return {
            "off": off,
            "tolerance": tolerance,
            "sums": off <= tolerance,
            "starting": dict(zip(self._names, starting.tolist(), strict=False)),
            "beside": dict(zip(self._names, beside.tolist(), strict=False)),
        }

    def _cases(self, found: Attribution, cases: list[int], outputs: Tensor) -> list[Case]:
        told = []
        for place, output in enumerate(cases):
            deviation = self._seen.deviation
            unit = 1.0 if deviation is None else float(deviation[output])
            helpers = self._witnesses(_at(found.helpers, 0, place), unit)
            hurters = self._witnesses(_at(found.hurters, 0, place), -unit)
            told.append(
                Case(
                    self._names[output],
                    float(outputs[output]),
                    [w for w in helpers if w.score > 0],
                    [w for w in hurters if w.score < 0],
                )
            )
        return told

    def _view(self, name: str, found: Attribution, own: Any) -> LayerView:
        attended = _at(found.attended, 0)
        pure = None
        if self._are_classes and self._labels is not None:
            itself = self._item.itself
            there = attended.there & (attended.sample != (-2 if itself is None else itself))
            first = Ranked(*(part[there][:FIRST][None] for part in attended))
            labels = self._labels.of(first.row[0].cpu(), first.sample[0].cpu())
            share = float(purity(first, labels[None].to(first.row.device), torch.tensor([own])))
            pure = share if share == share else None
        by_class = found.groups[0].tolist()[: len(self._names)]
        memory = getattr(self._layers[name], "memory", None)
        return LayerView(
            name,
            0 if memory is None else len(memory),
            float(found.effective[0]),
            self._witnesses(attended),
            pure,
            dict(zip(self._names, by_class, strict=False)),
            found.spans[0].tolist(),
            found.written.tolist(),
        )

    def _witnesses(self, ranked: Ranked, unit: float = 1.0) -> list[Witness]:
        """The first of a ranking (K,), as people want to know them."""
        there = ranked.there
        score, row, born, sample = (part[there][: self._top].cpu() for part in ranked)
        labels = None if self._labels is None else self._labels.of(row, sample)
        samples, itself = self._learner.samples, self._item.itself
        told = []
        for place in range(len(row)):
            number = int(sample[place])
            age = (self._steps - int(born[place])) * samples / max(self._steps, 1)
            told.append(
                Witness(
                    unit * float(score[place]),
                    number if number >= 0 else None,
                    None if labels is None else self._label(labels[place]),
                    round(age),
                    int(born[place]),
                    int(row[place]),
                    itself is not None and number == itself,
                )
            )
        return told

    def _label(self, target: Tensor) -> str | None:
        if self._are_classes:
            place = int(target)
            return self._names[place] if 0 <= place < len(self._names) else None
        return None if bool(target.isnan().any()) else _numbers(target.tolist())


def _at(ranked: Ranked, *place: int) -> Ranked:
    return Ranked(*(part[place] for part in ranked))


def _samples(found: Any) -> list[int]:
    """Every sample that may be named."""
    ranked = [one for each in found for one in (each.attended, each.helpers, each.hurters)]
    return sorted({int(s) for one in ranked for s in one.sample.flatten().tolist() if s >= 0})


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
