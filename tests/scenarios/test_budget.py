"""A run whose memory has no room in RAM ends with the same bits as one that has all of it there."""

from pathlib import Path

import numpy as np
import pytest

from streamlearn.errors import ConfigError
from streamlearn.events import Finished, Progress
from streamlearn.scenarios.session import Session, evaluate
from streamlearn.scenarios.words import resolve
from streamlearn.storage.verify import verify
from tests.scenarios.running import columns

# Budgets are in bytes, and processors with fast bfloat16 would choose that.
WORDS = [
    "network.hidden=1",
    "memory.block_rows=512",
    "checkpoint.every_steps=20",
    "learner.dtype=float32",
    "seed=2",
]
SMALL = "memory.host_budget=1100KB"


def finish(session: Session) -> tuple[Finished, int]:
    """Run a session to its end; also the most bytes that were only on the disk."""
    away = 0
    with session:
        for event in session.events():
            if isinstance(event, Progress):
                away = max(away, session._loop.learner.tiers.disk_bytes)
    assert isinstance(event, Finished)
    return event, away


@pytest.mark.parametrize("layer", ["softmax", "rbf"])
def test_a_budget_changes_no_bit_also_across_stop_and_resume(tmp_path: Path, layer: str) -> None:
    words = [*WORDS, f"layer={layer}", f"run.dir={tmp_path}"]
    whole, away = finish(Session.start(resolve([*words, "run.name=whole"])))
    assert away == 0
    small = Session.start(resolve([*words, "run.name=small", SMALL]))
    with small:
        for event in small.events():
            if isinstance(event, Progress) and event.step == 55:
                small.request_stop("test")
    assert small._loop.learner.tiers.disk_bytes > 0
    found, away = finish(Session.resume(tmp_path / "small"))
    assert away > 100_000
    assert found.test_accuracy == whole.test_accuracy
    assert found.prequential_accuracy == whole.prequential_accuracy
    expected = columns(tmp_path / "whole")
    for name, rows in columns(tmp_path / "small").items():
        np.testing.assert_array_equal(rows, expected[name], name)
    assert verify(tmp_path / "small").damage == ()
    *_, tested = evaluate(tmp_path / "small", [SMALL])
    assert tested.accuracy == whole.test_accuracy  # type: ignore[union-attr]


def test_the_budget_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    words = [*WORDS, f"run.dir={tmp_path}", "run.name=a"]
    with Session.start(resolve(words)) as session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == 70:
                session.request_stop("test")
    resumed = Session.resume(tmp_path / "a", [SMALL])
    assert resumed._loop.learner.tiers.disk_bytes > 0
    finish(resumed)
    assert verify(tmp_path / "a").damage == ()


def test_a_budget_that_is_too_small_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    words = [*WORDS, f"run.dir={tmp_path}", "run.name=a"]
    with (
        Session.start(resolve([*words, "memory.host_budget=100KB"])) as session,
        pytest.raises(ConfigError, match=r"memory\.host_budget=100000 is less than the \d+ bytes"),
    ):
        for _ in session.events():
            pass
    finish(Session.resume(tmp_path / "a", ["memory.host_budget=none"]))
