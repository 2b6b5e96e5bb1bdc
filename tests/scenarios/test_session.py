"""Sessions: what a run says, what it leaves on disk, and what it refuses."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from streamlearn.errors import (
    ConfigError,
    DataError,
    DataNotFoundError,
    FormatError,
    NotFiniteError,
    RunExistsError,
    RunLockedError,
    RunStateError,
    StorageError,
    StreamlearnError,
)
from streamlearn.events import (
    CheckpointSaved,
    EncoderFitted,
    Finished,
    Progress,
    Skipped,
    Stopped,
    Tested,
)
from streamlearn.learner import Learner, Scores
from streamlearn.scenarios.build import open_splits
from streamlearn.scenarios.session import Session, evaluate
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader, RunStore


def start(runs: Path, *words: str, name: str = "run") -> Session:
    return Session.start(resolve([f"run.dir={runs}", f"run.name={name}", *words]))


def table(path: Path, rows: int = 300, **changes: Any) -> Path:
    random = np.random.default_rng(3)
    y = random.integers(0, 3, rows)
    x = (random.normal(size=(rows, 5)) + y[:, None]).astype(np.float32)
    arrays: dict[str, Any] = {"x": x, "y": y, **changes}
    np.savez(path, **arrays)
    return path


def test_a_run_scores_every_sample_and_finishes_with_what_it_promises(tmp_path: Path) -> None:
    with start(tmp_path, "data.limit=600", "encoder.fit=100") as session:
        events = list(session.events())
    assert [type(event).__name__ for event in events[:1]] == ["Started"]
    fitted = next(event for event in events if isinstance(event, EncoderFitted))
    assert fitted.samples == 112
    last = [event for event in events if isinstance(event, Progress)][-1]
    assert last.samples == 600
    assert {layer.tuples for layer in last.layers} == {616}  # 16 to start from
    finished = events[-1]
    assert isinstance(finished, Finished)
    tested = next(event for event in events if isinstance(event, Tested))
    assert tested.accuracy is not None
    assert finished.test_accuracy == tested.accuracy
    assert tested.accuracy > 0.9
    assert finished.prequential_accuracy == last.accuracy
    assert finished.samples == 600
    assert finished.tuples == 616
    assert finished.tuple_bytes > 0
    assert finished.run == str(tmp_path / "run")
    scored = list(evaluate(tmp_path / "run"))[-1]
    assert isinstance(scored, Tested)
    assert scored.accuracy == tested.accuracy


@pytest.mark.parametrize("rows", [5, 129, 300])
def test_a_stream_shorter_than_the_encoders_fit_is_scored_and_learnt_whole(
    tmp_path: Path, rows: int
) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)
    x[:, 2] = 7.0  # a constant column
    path = table(tmp_path / "t.npz", x=x, y=np.arange(rows) % 2)
    words = ("data=npz", f"data.path={path}", "data.holdout=0", "encoder=standardise")
    with start(tmp_path, *words, "learner.batch=128") as session:
        finished = list(session.events())[-1]
        loop = session._loop
    assert isinstance(finished, Finished)
    assert finished.samples == rows
    assert finished.test_accuracy is None
    assert loop.learner.samples == rows
    assert np.isfinite(loop.evaluation.loss)


def test_at_every_commit_plain_zarr_reads_the_memory_and_no_row_too_many(tmp_path: Path) -> None:
    checked = 0
    words = (
        "data.limit=500",
        "encoder.fit=64",
        "checkpoint.every_steps=3",
        "memory.block_rows=512",
    )
    with start(tmp_path, *words) as session:
        for event in session.events():
            if not isinstance(event, (CheckpointSaved, Progress)):
                continue
            pending = session._checkpoints._pending
            if pending is not None and session._loop.step % 2:
                pending.wait()  # or a slow disk would leave little to look at
            before = RunReader(session.path).manifest()
            assert before is not None
            group = zarr.open_group(session.path / "memory.zarr", mode="r")
            for name, entry in before.layers.items():
                memory = session._loop.learner.memories()[name]
                for column in ("key", "weight", "value", "born"):
                    array = group[f"layers/{name}/{column}"]
                    assert isinstance(array, zarr.Array)
                    after = RunReader(session.path).manifest()  # a thread may be committing
                    assert after is not None
                    shown = array.shape[0]
                    assert shown <= after.layers[name].rows
                    if isinstance(event, CheckpointSaved):
                        assert shown == entry.rows
                    whole = np.concatenate([block[column] for block in memory.host_blocks()])
                    np.testing.assert_array_equal(np.asarray(array[:]), whole[:shown])
                    checked += 1
    assert checked > 100


def test_an_unusable_row_stops_the_run_or_is_named_counted_and_skipped(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(200, 5)).astype(np.float32)
    x[[17, 90], [2, 0]] = [np.nan, np.inf]
    path = table(tmp_path / "t.npz", x=x, y=np.arange(200) % 3)
    words = ("data=npz", f"data.path={path}", "data.holdout=0", "encoder=standardise")
    with start(tmp_path, *words, "data.on_error=skip", name="skip") as session:
        events = list(session.events())
        expected = session._loop
    named = [event for event in events if isinstance(event, Skipped)]
    assert len(named) == 2
    assert any("17" in event.item for event in named)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert (finished.samples, finished.skipped) == (198, 2)
    # The default stops at the row, with all before it saved; resumed to skip it, the bits agree.
    with start(tmp_path, *words, name="stop") as session:
        with pytest.raises(DataError, match=r"row.*resume.*stop"):
            list(session.events())
        step = session._loop.step
    manifest = RunReader(tmp_path / "stop").manifest()
    assert manifest is not None
    assert (manifest.status, manifest.step) == ("stopped", step)
    with Session.resume(tmp_path / "stop", ["data.on_error=skip"]) as session:
        list(session.events())
        found = session._loop
    assert found.evaluation.state_dict()["confusion"].equal(
        expected.evaluation.state_dict()["confusion"]
    )
    for name, memory in expected.learner.memories().items():
        for block, other in zip(memory.blocks, found.learner.memories()[name].blocks, strict=True):
            assert block.side.equal(other.side)


def test_a_feature_too_large_to_be_squared_is_named_and_skipped(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(200, 5)).astype(np.float32)
    x[100, 3] = 3e19
    path = table(tmp_path / "t.npz", x=x, y=np.arange(200) % 3)
    words = ("data=npz", f"data.path={path}", "data.holdout=0", "encoder=pca")
    with start(tmp_path, *words, "data.on_error=skip") as session:
        events = list(session.events())
    named = [event for event in events if isinstance(event, Skipped)]
    assert [("row 100" in event.item, "beyond 1e+15" in event.reason) for event in named] == [
        (True, True)
    ]
    assert isinstance(events[-1], Finished)


def test_what_cannot_be_learnt_leaves_the_run_before_that_batch_and_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("data.limit=300", "encoder.fit=64")
    with start(tmp_path, *words, name="whole") as session:
        list(session.events())
        expected = session._loop
    real, calls = Learner.learn, 0

    def fails_once(self: Learner, *args: Any, **options: Any) -> Scores:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise NotFiniteError("made up")
        return real(self, *args, **options)

    monkeypatch.setattr(Learner, "learn", fails_once)
    with start(tmp_path, *words) as session, pytest.raises(NotFiniteError, match="resume"):
        list(session.events())
    with Session.resume(tmp_path / "run") as session:
        assert session._loop.step == 8
        list(session.events())
    assert session._loop.evaluation.state_dict()["confusion"].equal(
        expected.evaluation.state_dict()["confusion"]
    )
    assert session._loop.learner.samples == expected.learner.samples == 300


@pytest.mark.parametrize("moment", [1, 2, 3, 5, 9])
def test_a_stop_during_the_encoders_fit_undoes_it_and_the_resumed_run_has_the_same_bits(
    tmp_path: Path, moment: int
) -> None:
    words = ("data.limit=300", "encoder.fit=128")
    with start(tmp_path, *words, name="whole") as session:
        list(session.events())
        expected = session._loop
    with start(tmp_path, *words) as session:
        asked = 0

        def stop_at_that_moment() -> bool:
            nonlocal asked
            asked += 1
            if asked == moment:
                session.request_stop("test")
            return asked >= moment

        session._loop.should_stop = stop_at_that_moment
        events = list(session.events())
    assert isinstance(events[-1], Stopped)
    assert session._loop.learner.held == 128
    assert not session._loop.learner.fitted
    with Session.resume(tmp_path / "run") as session:
        list(session.events())
    found = session._loop
    assert found.evaluation.state_dict()["confusion"].equal(
        expected.evaluation.state_dict()["confusion"]
    )
    for name, memory in expected.learner.memories().items():
        for block, other in zip(memory.blocks, found.learner.memories()[name].blocks, strict=True):
            assert block.key.equal(other.key)
            assert block.side.equal(other.side)


def test_a_disk_that_is_full_from_the_start_leaves_no_run_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("cannot write: no space left on device; free space")

    monkeypatch.setattr(RunStore, "begin", full)
    with pytest.raises(StorageError, match="space"):
        start(tmp_path, "data.limit=50")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_exists_is_refused_and_the_run_is_untouched(tmp_path: Path) -> None:
    with start(tmp_path, "data.limit=50"):
        pass
    before = (tmp_path / "run" / "manifest.json").read_bytes()
    with pytest.raises(RunExistsError, match="resume"):
        start(tmp_path, "data.limit=50")
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("name", ["../out", "a/b", "..", ".", "", "/abs", "x" * 300])
def test_a_name_that_leaves_the_runs_folder_is_refused(tmp_path: Path, name: str) -> None:
    runs = tmp_path / "runs"
    with pytest.raises((ConfigError, RunExistsError)):
        start(runs, "data.limit=50", name=name)
    assert not runs.exists() or not list(runs.iterdir())


def test_data_that_cannot_be_used_leaves_no_run_behind(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with pytest.raises(DataNotFoundError, match=r"nowhere\.npz"):
        start(runs, "data=npz", f"data.path={tmp_path / 'nowhere.npz'}")
    with pytest.raises(DataNotFoundError, match="digits-onepass"):
        start(runs, "data=cifar10", f"data.root={tmp_path}", "data.download=false")
    empty = table(tmp_path / "empty.npz", x=np.zeros((0, 3), np.float32), y=np.zeros(0, np.int64))
    with pytest.raises(DataError):
        start(runs, "data=npz", f"data.path={empty}")
    assert not runs.exists() or not list(runs.iterdir())


def test_a_finished_run_cannot_be_resumed(tmp_path: Path) -> None:
    with start(tmp_path, "data.limit=50") as session:
        list(session.events())
    with pytest.raises(RunStateError, match="finished"):
        Session.resume(tmp_path / "run")


def test_a_running_run_cannot_be_resumed_but_can_be_evaluated(tmp_path: Path) -> None:
    with start(tmp_path, "data.limit=50"):
        with pytest.raises(RunLockedError, match=str(os.getpid())):
            Session.resume(tmp_path / "run")
        assert isinstance(list(evaluate(tmp_path / "run"))[-1], Tested)


def test_foreign_and_newer_directories_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    with pytest.raises(StreamlearnError, match="foreign"):
        Session.resume(foreign)
    with start(tmp_path, "data.limit=50"):
        pass
    header = tmp_path / "run" / "run.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "version": 99}))
    with pytest.raises(FormatError, match="99"):
        Session.resume(tmp_path / "run")


def test_other_data_at_resume_is_refused_and_the_run_stays_resumable(tmp_path: Path) -> None:
    path = table(tmp_path / "t.npz", 300)
    words = ("data=npz", f"data.path={path}", "data.holdout=0", "encoder.fit=50")
    with start(tmp_path, *words) as session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == 5:
                session.request_stop("test")
    other = table(tmp_path / "other.npz", 200)
    with pytest.raises(FormatError, match="300"):
        Session.resume(tmp_path / "run", [f"data.path={other}"])
    moved = path.rename(tmp_path / "moved.npz")
    with pytest.raises(DataNotFoundError, match=r"data\.path"):
        Session.resume(tmp_path / "run")
    with Session.resume(tmp_path / "run", [f"data.path={moved}"]) as session:
        finished = list(session.events())[-1]
    assert isinstance(finished, Finished)
    assert finished.samples == 300


def test_a_full_disk_ends_the_run_in_one_sentence_and_the_last_commit_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start(tmp_path, "data.limit=400", "encoder.fit=64", "checkpoint.every_steps=4")
    real = os.fsync
    left = 40

    def full(descriptor: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with session, pytest.raises(StorageError, match="space"):
        list(session.events())
    monkeypatch.undo()
    with Session.resume(tmp_path / "run") as again:
        finished = list(again.events())[-1]
    assert isinstance(finished, Finished)
    assert finished.samples == 400


def test_the_clock_may_jump_back_between_stop_and_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(tmp_path, "data.limit=200", "encoder.fit=64") as session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == 6:
                session.request_stop("test")
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    with Session.resume(tmp_path / "run") as session:
        finished = list(session.events())[-1]
    assert isinstance(finished, Finished)
    assert finished.seconds > 0
    manifest = RunReader(tmp_path / "run").manifest()
    assert manifest is not None
    assert manifest.status == "finished"


def test_a_validation_split_is_scored_in_place_of_the_test_set_and_not_learnt(
    tmp_path: Path,
) -> None:
    path = table(tmp_path / "table.npz", rows=500)
    words = ("data=npz", f"data.path={path}", "encoder=standardise", "encoder.fit=50")
    whole = open_splits(resolve([*words, "data.holdout=0.2"]))
    split = open_splits(resolve([*words, "data.holdout=0.2", "data.validation=0.25"]))
    assert (len(whole.train), len(split.train)) == (400, 300)
    assert split.test is not None
    assert whole.test is not None
    rows = [
        {tuple(row) for row in part.read(np.arange(len(part))).features.tolist()}
        for part in (split.train, split.test, whole.test)
    ]
    assert [len(part) for part in rows] == [300, 100, 100]
    assert not rows[0] & rows[1]
    assert not (rows[0] | rows[1]) & rows[2]
    with start(tmp_path, *words, "data.validation=0.25") as session:
        tested = [event for event in session.events() if isinstance(event, Tested)]
    assert tested[-1].samples == 100
