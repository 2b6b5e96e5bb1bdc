"""Pruning a run that is not running: what would go and what it would cost, or a commit of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from streamlearn.errors import ConfigError, RunStateError
from streamlearn.events import Tested
from streamlearn.layers import GrowingLayer
from streamlearn.learner import Learner
from streamlearn.loop import Loop, held_out
from streamlearn.models import NetworkModel, ScaledModel
from streamlearn.pruning import prune
from streamlearn.settings import LearnerSettings
from streamlearn.storage import RunPath, RunReader, RunStore
from streamlearn.streams.splits import Splits

from .build import build_loop, open_splits
from .schema import Scenario
from .words import override

__all__ = ["LayerPruned", "Result", "Wanted", "prune_run"]


class Wanted(NamedTuple):
    """What is to go, see `pruning.prune`, and whether it is only to be told."""

    below: float | None
    distance: float | None
    dry: bool
    similarity: float | None = None

    @property
    def merges(self) -> str:
        """The option that merges, if one was given."""
        if self.similarity is not None:
            return f"--merge-near {self.similarity:g}"
        return "" if self.distance is None else f"--merge {self.distance:g}"


class LayerPruned(NamedTuple):
    """One layer: its name, its live tuples before, and what went or would go."""

    name: str
    tuples: int
    faded: int
    merged: int
    bytes: int


class Result(NamedTuple):
    """What went or would go.

    commit: its number, None of a dry run, and where nothing went. before, after: the held-out test
    of a dry run, where the data have one.
    """

    layers: tuple[LayerPruned, ...]
    commit: int | None
    before: Tested | None = None
    after: Tested | None = None
    compacts: bool = True

    @property
    def tuples(self) -> int:
        """That went, of all layers."""
        return sum(layer.faded + layer.merged for layer in self.layers)


def prune_run(path: RunPath, wanted: Wanted, words: Sequence[str] = ()) -> Result:
    """Prune every growing layer of first order of a run's last commit.

    A new commit follows the last one, of the same step: a crash leaves the one or the other.

    Args:
        path: of the run.
        wanted: what is to go.
        words: changes that the result does not depend on, as for `resume`.

    Raises:
        StreamlearnError: the run is running, was never committed, or has no such layer; its data
            cannot be read; or numbers are out of range. The run is as it was.
    """
    if wanted.below is None and not wanted.merges:
        raise ConfigError(
            "nothing is to go; give --below EPS, --merge DISTANCE or --merge-near SIMILARITY"
        )
    if wanted.distance is not None and wanted.similarity is not None:
        raise ConfigError(
            f"--merge {wanted.distance:g} and --merge-near {wanted.similarity:g} are two ways to "
            "merge; give one of them"
        )
    reader = RunReader(path)
    if reader.manifest() is None:
        raise RunStateError(f"run {str(path)!r} was never committed, so it has nothing to prune")
    scenario = override(reader.scenario, words)
    _check(scenario, wanted)
    if wanted.dry:
        return _told(reader, scenario, wanted)
    with RunStore.open(path) as store:
        reader = store.read()
        manifest = reader.manifest()
        if manifest is None:
            raise RunStateError(f"run {str(path)!r} has nothing to prune any more")
        state = reader.state()
        loop = _loop(scenario, open_splits(scenario), state)
        memories = loop.learner.memories()
        for name, memory in memories.items():
            store.open_memory(name, memory)
        layers = _prune(loop.learner, wanted)
        gone = sum(layer.faded + layer.merged for layer in layers)
        compacts = scenario.memory.rows is None and scenario.memory.budget is None
        if not gone:
            return Result(layers, None, compacts=compacts)
        summary = dict(manifest.summary)
        summary["pruned_tuples"] = int(summary.get("pruned_tuples", 0)) + gone
        by_layer = {layer.name: {"faded": layer.faded, "merged": layer.merged} for layer in layers}
        text = f"pruned: {gone} tuples are dead now"
        store.log({"event": "notice", "text": text, "pruned": by_layer})
        store.commit(
            step=manifest.step,
            samples=manifest.samples,
            status=manifest.status,
            state=state,
            memories=memories,
            summary=summary,
            keep=scenario.checkpoint.keep,
        )
        return Result(layers, manifest.commit + 1, compacts=compacts)


def _check(scenario: Scenario, wanted: Wanted) -> None:
    learner = scenario.learner
    if getattr(learner, "revisit", "append") == "update":
        raise ConfigError(
            "the run has learner.revisit=update, which needs the tuple of every sample; it cannot "
            "be pruned"
        )
    settings = scenario.learner_settings()
    hidden, output = settings.grows()
    if wanted.merges and _needs_alike(settings) and sum([*hidden, output]) > 1:
        raise ConfigError(
            f"{wanted.merges} would let other samples go in each layer, and the run "
            "rehearses or has a memory.policy, which needs the same ones in all; give --below alone"
        )


def _loop(scenario: Scenario, splits: Splits, state: dict[str, Any]) -> Loop[Learner]:
    loop: Loop[Learner] = build_loop(scenario, splits).loop
    loop.load_state_dict(state["loop"])
    return loop


def _told(reader: RunReader, scenario: Scenario, wanted: Wanted) -> Result:
    """What would go, with the test before and after."""
    splits = open_splits(scenario)
    loop = _loop(scenario, splits, reader.state())
    learner = loop.learner
    for name, memory in learner.memories().items():
        reader.load_memory(name, memory)
    before = _tested(learner, splits)
    layers = _prune(learner, wanted)
    after = _tested(learner, splits)
    compacts = scenario.memory.rows is None and scenario.memory.budget is None
    return Result(layers, None, before, after, compacts)


def _tested(learner: Learner, splits: Splits) -> Tested | None:
    if splits.test is None:
        return None
    *_, tested = held_out(learner, splits.test)
    return tested if isinstance(tested, Tested) else None


def _prune(learner: Learner, wanted: Wanted) -> tuple[LayerPruned, ...]:
    """Prune the layers of a learner."""
    model = learner.model.model if isinstance(learner.model, ScaledModel) else learner.model
    layers: dict[str, GrowingLayer] = {}
    if isinstance(model, NetworkModel):
        layers = {
            name: module
            for name, module in model.network.named_modules()
            if isinstance(module, GrowingLayer) and not module.second_order
        }
    if not layers:
        raise ConfigError(
            f"learner={learner.settings.learner.kind} has no tuples that fade or merge; only "
            "growing layers of first order can be pruned"
        )
    live = {name: layer.memory.live for name, layer in layers.items()}
    found = prune(
        list(layers.values()),
        below=wanted.below,
        distance=wanted.distance,
        similarity=wanted.similarity,
        alike=_needs_alike(learner.settings),
    )
    return tuple(
        LayerPruned(name, live[name], *one) for name, one in zip(layers, found, strict=True)
    )


def _needs_alike(settings: LearnerSettings) -> bool:
    """Whether a row is to stand for the same sample in all layers."""
    learner = settings.learner
    rehearses = getattr(learner, "rehearsal", 0) and getattr(learner, "reservoir", None) is None
    return bool(rehearses) or settings.memory.policy != "oldest"
