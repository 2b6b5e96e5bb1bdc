"""Runs whose domains come in turn, or whose classes are rare: resumed, measured and shown."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamlearn.cli.main import main
from streamlearn.errors import ConfigError
from streamlearn.events import Event, ExperienceEnded, Finished, as_json
from streamlearn.scenarios.build import open_splits
from streamlearn.scenarios.session import Session, evaluate
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader
from streamlearn.streams import InDomains

from .running import columns
from .test_split import drive

COMMON = ["encoder.fit=64", "learner.dtype=float32", "memory.block_rows=512",
          "checkpoint.every_steps=7", "learner.batch=16", "seed=3"]  # fmt: skip


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 8×8 images: where it is bright."""
    random = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for name, count in (("", 420), ("_test", 90)):
        y = random.integers(0, 3, count)
        x = random.integers(0, 90, (count, 1, 8, 8))
        for row, label in enumerate(y):
            x[row, 0, 2 * label : 2 * label + 3, 1:4] += 140
        parts |= {f"x{name}": x.astype(np.uint8), f"y{name}": y}
    path = tmp_path_factory.mktemp("images") / "a.npz"
    np.savez(path, **parts)
    return path


def ended(events: list[Event]) -> list[ExperienceEnded]:
    return [event for event in events if isinstance(event, ExperienceEnded)]


@pytest.mark.parametrize("kind", ["permute", "rotate", "brightness", "noise"])
def test_domains_in_turn_end_with_the_same_bits_and_are_told_by_name(
    kind: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*COMMON, "data=npz", f"data.path={images}", "data.order=domains", "data.imbalance=0.4",
             "data.experiences=3", f"data.domain={kind}", "learner.rehearsal=8",
             f"run.dir={tmp_path}"]  # fmt: skip
    scenario = resolve([*words, "run.name=whole"])
    events = drive(Session.start(scenario))
    expected = events[-1]
    drive(Session.start(resolve([*words, "run.name=a"])), 2)
    first = drive(Session.resume(tmp_path / "a"), 11)
    rest = drive(Session.resume(tmp_path / "a"))
    found = rest[-1]
    assert isinstance(found, Finished)
    assert isinstance(expected, Finished)
    assert found.continual == expected.continual
    assert found.test_accuracy == expected.test_accuracy
    wanted = columns(tmp_path / "whole")
    for name, rows in columns(tmp_path / "a").items():
        np.testing.assert_array_equal(rows, wanted[name], name)
    assert [event.classes for event in ended(first) + ended(rest)] == [
        event.classes for event in ended(events)
    ]

    test = open_splits(scenario).test
    assert isinstance(test, InDomains)
    names = test.domains.names
    assert [event.classes for event in ended(events)] == [(name,) for name in names]
    assert as_json(ended(events)[1])["classes"] == (names[1],)
    assert expected.continual is not None
    assert expected.continual["domains"] == list(names)
    assert np.shape(expected.continual["matrix"]) == (3, 3)
    *_, tested = evaluate(tmp_path / "a")
    assert tested.accuracy == expected.test_accuracy  # type: ignore[union-attr]

    manifest = RunReader(tmp_path / "a").manifest()
    assert manifest is not None
    assert manifest.summary["domains"] == list(names)
    assert main(["inspect", str(tmp_path / "a")]) == 0
    assert f"in turn: {'; '.join(names)}" in capsys.readouterr().out


def test_the_matrix_scores_held_out_items_in_each_domain(images: Path, tmp_path: Path) -> None:
    words = [*COMMON, "data=npz", f"data.path={images}", "data.order=domains", "data.experiences=3",
             "data.domain=permute", f"run.dir={tmp_path}",
             "evaluation.matrix_samples=none"]  # fmt: skip
    session = Session.start(resolve(words))
    test = session._test
    assert isinstance(test, InDomains)
    seen = 0
    with session:
        for event in session.events():
            if isinstance(event, ExperienceEnded):
                rows = []
                for number in range(3):
                    part = test.read_in(number, np.arange(90))
                    hits = session._loop.learner.predict(part.features) == part.targets
                    rows.append(float(hits.double().mean()))
                assert event.accuracies == pytest.approx(rows)
                seen += 1
    assert seen == 3
    assert isinstance(event, Finished)
    assert rows[2] > 0.9
    assert event.test_accuracy == pytest.approx(sum(rows) / 3, abs=0.12)


def test_a_long_tailed_run_learns_fewer_and_tests_all(images: Path, tmp_path: Path) -> None:
    words = [
        *COMMON,
        "data=npz",
        f"data.path={images}",
        "data.imbalance=0.1",
        f"run.dir={tmp_path}",
    ]
    finished = drive(Session.start(resolve([*words, "run.name=a"])))[-1]
    assert isinstance(finished, Finished)
    assert 0.40 * 420 < finished.samples < 0.52 * 420  # 1 + √0.1 + 0.1 of three
    splits = open_splits(resolve(words))
    assert splits.test is not None
    assert len(splits.test) == 90


def test_words_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    for words, message in (
        (["data.domain=noise"], r"domain=noise means nothing for data\.order=shuffled; set data"),
        (["data.order=domains"], r"order=domains needs to know which and how many; set data\.exp"),
        (["data.order=domains", "data.experiences=3"], r"and data\.domain=permute, rotate"),
        (["data.imbalance=0"], r"imbalance=0 cannot be used"),
        (["data.imbalance=1.5"], r"imbalance=1\.5 cannot be used"),
        (["data.order=domains", "data.experiences=3", "data.domain=blur"], r"domain=blur cannot"),
        (["data=teacher", "data.imbalance=0.5"], r"imbalance means nothing for data=teacher"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve(words)
    turned = ["data.order=domains", "data.experiences=3", "data.domain=rotate"]
    with pytest.raises(ConfigError, match=r"domain=rotate needs images"):
        Session.start(resolve([*turned, f"run.dir={tmp_path}"]))
    assert not [*tmp_path.iterdir()]
