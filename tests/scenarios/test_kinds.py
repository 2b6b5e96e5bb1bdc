"""Runs of every kind of learner: stopped and resumed to the same bits, evaluated, described."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamlearn.errors import ConfigError
from streamlearn.events import Finished, Progress, Stopped, Tested
from streamlearn.scenarios.build import build_loop, open_splits
from streamlearn.scenarios.session import Session, evaluate
from streamlearn.scenarios.words import override, resolve
from streamlearn.state import flatten
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify

COMMON = ("data.limit=400", "encoder.fit=64", "encoder.width=16", "learner.dtype=float32",
          "learner.batch=16", "memory.block_rows=512")  # fmt: skip
MIXED = ("learner=parametric", "network.hidden=2", "network.width=20", "network.layers=mixed")
KINDS: dict[str, tuple[str, ...]] = {
    "growing": (),
    "muon": ("learner=parametric", "network.hidden=1", "network.width=20"),
    "cosine": ("learner=parametric", "learner.optimizer=adamw", "learner.schedule=cosine"),
    "mixed": (*MIXED, "learner.optimizer=foof"),
    "softmax": ("learner=parametric", "layer=parametric-softmax", "layer.width=30"),
    "reservoir": ("learner=parametric", "network.width=20", "learner.rehearsal=9",
                  "learner.reservoir=120"),
    "second order": ("network.output=least-squares", "least_squares.keys=90",
                     "network.hidden=1", "learner.rehearsal=8", "least_squares.again=0.5"),
    "knn": ("learner=knn", "learner.weighting=kernel"),
    "ridge": ("learner=ridge",),
    "discriminant": ("learner=discriminant",),
    "kernel": ("learner=kernel",),
    "features": ("learner=features", "learner.count=50"),
    "epochs": ("data.limit=150", "data.epochs=3", "network.hidden=1"),
    "update": ("data.limit=150", "data.epochs=3", "learner.revisit=update", "network.hidden=1"),
    "nystroem": ("learner=features", "learner.map=nystroem", "learner.count=50"),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def words(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return COMMON + KINDS[request.param]


def begin(runs: Path, name: str, words: tuple[str, ...]) -> Session:
    return Session.start(resolve([f"run.dir={runs}", f"run.name={name}", *words]))


def everything(run: Path) -> Iterator[tuple[str, Any]]:
    """All that a finished run knows, but for times and sizes of the process."""
    reader = RunReader(run)
    scenario = override(reader.scenario, [])
    loop = build_loop(scenario, open_splits(scenario)).loop
    loop.load_state_dict(reader.state()["loop"])
    for name, memory in loop.learner.memories().items():
        reader.load_memory(name, memory)
        for index in range(memory.block_count):
            for column, tensor in memory.host_tensors(index).items():
                yield f"{name}/{index}/{column}", tensor.to(torch.float64).numpy().tobytes()
    loop.seconds = 0.0
    tensors, tree = flatten(loop.state_dict())
    yield "tree", tree
    for name, tensor in tensors.items():
        yield name, tensor.to(torch.float64).numpy().tobytes()
    features = splits_probe(scenario)
    yield "answers", loop.learner.answer(features).numpy().tobytes()


def splits_probe(scenario: Any) -> torch.Tensor:
    test = open_splits(scenario).test
    assert test is not None
    return test.read(np.arange(20, dtype=np.int64)).features


def test_a_stopped_and_resumed_run_ends_with_the_same_bits(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    with begin(tmp_path, "whole", words) as session:
        whole = list(session.events())[-1]
    for step in (2, 9, 19):  # before the encoder's fit, and twice after it
        with (
            begin(tmp_path, "parts", words) if step == 2 else Session.resume(tmp_path / "parts")
        ) as session:
            for event in session.events():
                if isinstance(event, Progress) and event.step == step:
                    session.request_stop("SIGINT")
        assert isinstance(event, Stopped)
    with Session.resume(tmp_path / "parts") as session:
        parts = list(session.events())[-1]
    assert isinstance(whole, Finished)
    assert isinstance(parts, Finished)
    assert parts.test_accuracy == whole.test_accuracy
    assert parts.learner_bytes == whole.learner_bytes > 0
    assert dict(everything(tmp_path / "parts")) == dict(everything(tmp_path / "whole"))
    assert verify(tmp_path / "parts").damage == ()
    tested = list(evaluate(tmp_path / "parts"))[-1]
    assert isinstance(tested, Tested)
    assert tested.accuracy == whole.test_accuracy


def test_a_schedule_ends_with_the_stream(tmp_path: Path) -> None:
    with begin(tmp_path, "run", COMMON + KINDS["cosine"]) as session:
        list(session.events())
        settings = session._loop.learner.settings.learner
    assert settings.schedule_samples == 400


def test_a_stream_longer_than_a_kernel_machine_takes_is_refused_before_it_begins(
    tmp_path: Path,
) -> None:
    message = "the stream has 400 samples where learner.limit=300; set data.limit=300, or raise"
    with pytest.raises(ConfigError, match=message):
        begin(tmp_path, "run", (*COMMON, "learner=kernel", "learner.limit=300"))
    assert not (tmp_path / "run").exists()


def test_another_kind_of_learner_keeps_what_all_kinds_have() -> None:
    ridge = resolve(["scenario=cifar10-onepass-raw", "learner=ridge"]).learner
    assert (ridge.kind, ridge.batch) == ("ridge", 16)
    assert resolve(["learner=growing"]) == resolve([])
    plain = resolve(["scenario=cifar10-onepass-raw", "learner=parametric"])
    assert plain.grows() == ([False, False], False)


@pytest.mark.parametrize(("words", "message"), [
    (["learner=ridge", "layer.kappa=3"], "layer.kappa=3 means nothing for learner=ridge"),
    (["learner=knn", "network.hidden=2"], "network.hidden=2 means nothing for learner=knn"),
    (["optimizer.decay=0.1", "learner=kernel"], "optimizer.decay=0.1 means nothing for learner=k"),
    (["learner=parametic"], r"learner=parametic is not a kind of learner; did you mean parametric"),
    (["learner=ridge", "learner.refesh=3"], r"did you mean learner.refresh\?"),
    (["learner.k=3"], "learner.k is not a setting; known here: batch"),
])  # fmt: skip
def test_words_that_mean_nothing_for_a_kind_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(words)
    assert "\n" not in str(caught.value)


def test_a_finished_run_is_evaluated_linearised_too(tmp_path: Path) -> None:
    with begin(tmp_path, "run", COMMON) as session:
        list(session.events())
    plain = list(evaluate(tmp_path / "run"))[-1]
    other = list(evaluate(tmp_path / "run", ["evaluation.linearise=true"]))[-1]
    assert isinstance(plain, Tested)
    assert isinstance(other, Tested)
    assert other.accuracy is not None
    assert plain.accuracy is not None
    assert other.accuracy < plain.accuracy
    with begin(tmp_path, "second", (*COMMON, "evaluation.linearise=true")) as session:
        finished = list(session.events())[-1]
    assert isinstance(finished, Finished)
    assert finished.test_accuracy == other.accuracy


@pytest.mark.parametrize("kind", ["ridge", "parametric"])
def test_linearising_what_does_not_grow_is_refused_before_anything_is_learnt(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"evaluation.linearise=true means nothing for.*{kind}"):
        resolve([f"learner={kind}", "evaluation.linearise=true"])


def test_a_vision_transformer_without_pixels_is_refused_before_the_run_begins(
    tmp_path: Path,
) -> None:
    words = (*COMMON, "learner=parametric", "network=vit")
    with pytest.raises(
        ConfigError, match=r"needs the pixels of images, .* but samples of shape .* come otherwise"
    ):
        begin(tmp_path, "run", words)
    assert not (tmp_path / "run").exists()
