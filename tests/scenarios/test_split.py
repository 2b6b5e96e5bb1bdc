"""Runs whose classes come in turn, with rehearsal: stopped, resumed, paged, compacted and shown."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.cli.describe import summary
from streamlearn.cli.model import Model
from streamlearn.errors import ConfigError
from streamlearn.events import Event, ExperienceEnded, Finished, Progress, Testing
from streamlearn.scenarios.session import Session, evaluate
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify

from .running import columns

WORDS = [
    "data.order=classes", "data.experiences=5", "network.hidden=1", "learner.rehearsal=48",
    "encoder.fit=256", "memory.block_rows=512", "checkpoint.every_steps=7", "seed=3",
    "learner.dtype=float32",
]  # fmt: skip
SMALL = "memory.host_budget=1100KB"


def drive(session: Session, stop: int | None = None, *, testing: bool = False) -> list[Event]:
    """Run to the end, or stop at a step, or there at the first held-out samples of a matrix."""
    events = []
    with session:
        for event in session.events():
            events.append(event)
            here = session._loop.step == stop
            if here and isinstance(event, Testing if testing else Progress):
                session.request_stop("test")
    return events


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    folder = tmp_path_factory.mktemp("runs")
    words = [*WORDS, f"run.dir={folder}", "run.name=whole"]
    finished = drive(Session.start(resolve(words)))[-1]
    assert isinstance(finished, Finished)
    return folder / "whole", finished


def test_it_ends_with_the_same_bits_through_stops_and_little_room(
    whole: tuple[Path, Finished], tmp_path: Path
) -> None:
    run, expected = whole
    session = Session.start(resolve([*WORDS, SMALL, f"run.dir={tmp_path}", "run.name=a"]))
    ends = [e.stop for e in session._loop.stream.experiences]
    drive(session, 2)  # nothing is learnt yet
    session = Session.resume(tmp_path / "a")
    third = next(
        step for step in range(1, 90) if sum(-(-n // 16) for n in np.diff([0, *ends])[:3]) == step
    )
    events = drive(session, third, testing=True)  # in the middle of measuring
    assert sum(isinstance(event, ExperienceEnded) for event in events) == 2
    assert session._loop.learner.tiers.disk_bytes > 0
    found = drive(Session.resume(tmp_path / "a"))[-1]
    assert isinstance(found, Finished)
    assert found.continual == expected.continual
    assert found.test_accuracy == expected.test_accuracy
    assert found.prequential_accuracy == expected.prequential_accuracy
    wanted = columns(run)
    for name, rows in columns(tmp_path / "a").items():
        np.testing.assert_array_equal(rows, wanted[name], name)
    assert verify(tmp_path / "a").damage == ()
    *_, tested = evaluate(tmp_path / "a", [SMALL])
    assert tested.accuracy == expected.test_accuracy  # type: ignore[union-attr]


def test_draws_by_loss_end_with_the_same_bits_through_stops_and_little_room(tmp_path: Path) -> None:
    words = [*WORDS, "learner.rehearse=loss", f"run.dir={tmp_path}"]
    expected = drive(Session.start(resolve([*words, "run.name=whole"])))[-1]
    drive(Session.start(resolve([*words, SMALL, "run.name=a"])), 40)
    drive(Session.resume(tmp_path / "a"), 70)
    found = drive(Session.resume(tmp_path / "a"))[-1]
    assert isinstance(found, Finished)
    assert isinstance(expected, Finished)
    assert found.continual == expected.continual
    wanted = columns(tmp_path / "whole")
    for name, rows in columns(tmp_path / "a").items():
        np.testing.assert_array_equal(rows, wanted[name], name)
    assert (wanted["hidden.0/loss"][16:] > 0).all()
    assert verify(tmp_path / "a").damage == ()


def test_the_first_layers_tuples_have_their_targets_beside_them(
    whole: tuple[Path, Finished],
) -> None:
    manifest = RunReader(whole[0]).manifest()
    assert manifest is not None
    layers = manifest.layers
    assert [*layers["hidden.0"].columns] == [
        "key",
        "weight",
        "value",
        "born",
        "target",
        "scale",
        "sample",
    ]
    assert [*layers["output"].columns] == ["key", "weight", "value", "born", "sample"]
    assert layers["hidden.0"].rows == layers["output"].rows
    targets = columns(whole[0])["hidden.0/target"][16:]
    assert [sorted({int(t) // 2 for t in part}) for part in np.array_split(targets, 10)[::9]] == [
        [0],
        [4],
    ]


def test_the_matrix_is_in_events_summary_and_inspect(
    whole: tuple[Path, Finished], capsys: pytest.CaptureFixture[str]
) -> None:
    from streamlearn.cli.main import main

    run, finished = whole
    manifest = RunReader(run).manifest()
    assert manifest is not None
    continual = finished.continual
    assert continual is not None
    assert manifest.summary["matrix"] == continual["matrix"]
    assert manifest.summary["forgetting"] == continual["forgetting"]
    assert main(["inspect", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "accuracy of each experience after each:" in shown
    assert "backward transfer" in shown
    lines = summary(finished, str(run))
    assert len([line for line in lines if line.count("%") == 5]) == 5


def test_the_dashboard_has_a_line_for_each_experience() -> None:
    model = Model()
    event: Any = ExperienceEnded(
        step=7, samples=99, experience=2, experiences=5, classes=("cat", "dog"),
        accuracies=(0.5, 0.75, 0.0, 0.0, 0.0), average_accuracy=0.625, forgetting=0.25,
    )  # fmt: skip
    model.update(Testing(3, 9), 1.0)
    model.update(event, 2.0)
    assert model.testing is None
    assert model.phase == "learning"
    assert [line.text for line in model.lines] == [
        "experience 2 of 5 (cat, dog): 50.00%, 75.00%, average 62.50%, forgetting 25.00%"
    ]


def test_words_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"experiences=5 means nothing for data\.order=shuffled"):
        resolve(["data.experiences=5"])
    for name in ("split-cifar10", "split-cifar10-pixels", "split-fashion"):
        scenario = resolve([f"scenario={name}"])
        assert scenario.data.experiences == 5
        assert scenario.learner.rehearsal == 192  # type: ignore[union-attr]
