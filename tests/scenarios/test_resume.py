"""A run that is stopped and resumed ends with the same bits as one that never was."""

import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from streamlearn.errors import StreamlearnError
from streamlearn.events import Progress, Stopped
from streamlearn.scenarios.build import build_loop, open_splits
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import override, resolve
from streamlearn.storage import RunReader
from tests.warm import Warm

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
STOPS = 10


def images(path: Path, count: int) -> Path:
    """Noisy images of ten made-up shapes, as an .npz file."""
    random_ = np.random.default_rng(7)
    shapes = random_.integers(0, 256, (10, 3, 12, 12))
    labels = random_.integers(0, 10, count)
    noisy = shapes[labels] + random_.normal(0, 90, (count, 3, 12, 12))
    np.savez(path, x=np.clip(noisy, 0, 255).astype(np.uint8), y=labels)
    return path


@pytest.fixture(scope="module", params=["digits", "images"])
def words(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if request.param == "digits":
        return [
            "data.limit=900",
            "learner.batch=1",
            "encoder.fit=100",
            "checkpoint.every_steps=9",
            "seed=5",
        ]
    path = images(tmp_path_factory.mktemp("data") / "images.npz", 4200)
    return [
        "data=npz",
        f"data.path={path}",
        "encoder=patch",
        "encoder.fit=500",
        "encoder.filters=12",
        "encoder.patch=4",
        "encoder.pool=2",
        "encoder.width=24",
        "layer=softmax",
        "learner.batch=8",
        "memory.block_rows=1024",
        "checkpoint.every_steps=13",
        "optimizer.momentum=0.3",
        "optimizer.decay=0.0005",
        "seed=5",
    ]


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    warm = Warm(ENVIRONMENT)
    yield warm
    warm.close()


def committed_step(run: Path) -> int:
    try:
        manifest = RunReader(run).manifest()
    except StreamlearnError:
        return -1
    return -1 if manifest is None else manifest.step


def stop_at_random_moments(run: Path, words: list[str], seed: int, warm: Warm) -> int:
    """Run to the end through ten stops; how many of them hit the run while it was learning."""
    moments = random.Random(seed)
    signals = itertools.cycle([signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
    errors = run.parent / "errors"
    command = ["run", f"run.dir={run.parent}", f"run.name={run.name}", *words]
    hit = 0
    for _ in range(STOPS):
        process = warm.start([*command, "--json"], errors)
        begin = committed_step(run)
        target = begin + moments.randint(1, 16)
        while process.poll() is None and committed_step(run) <= target:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.05)
        if process.poll() is not None:
            break
        os.kill(process.pid, next(signals))
        process.wait()
        assert "Traceback" not in process.errors()
        hit += 1
        manifest = RunReader(run).manifest()
        if manifest is not None and manifest.status == "finished":
            return hit
        command = ["resume", str(run)]
    process = warm.start([*command, "--json"], errors)
    assert process.wait() == 0, process.errors()
    return hit


def everything(run: Path) -> Iterator[tuple[str, Any]]:
    """All that a finished run says, but for times and sizes of the process."""
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    assert manifest.status == "finished"
    summary = {key: value for key, value in manifest.summary.items() if key != "seconds"}
    yield "summary", json.dumps(summary, sort_keys=True)
    group = zarr.open_group(run / "memory.zarr", mode="r")
    for layer in sorted(manifest.layers):
        for column in ("key", "weight", "value", "born"):
            array = group[f"layers/{layer}/{column}"]
            assert isinstance(array, zarr.Array)
            yield f"{layer}/{column}", np.asarray(array[:])
    scenario = override(reader.scenario, [])
    splits = open_splits(scenario)
    loop = build_loop(scenario, splits).loop
    loop.load_state_dict(reader.state()["loop"])
    for name, memory in loop.learner.memories().items():
        reader.load_memory(name, memory)
    assert splits.test is not None
    rows = splits.test.read(np.arange(64, dtype=np.int64))
    yield "predictions", loop.learner.predict_proba(rows.features).numpy()
    yield "confusion", loop.evaluation.state_dict()["confusion"].numpy()
    yield "cursor", json.dumps(loop.stream.state_dict())


@pytest.mark.timeout(900)  # a dozen processes, each of which learns
def test_stopped_ten_times_and_resumed_ends_with_the_same_bits(
    words: list[str], warm: Warm, tmp_path: Path
) -> None:
    command = ["run", f"run.dir={tmp_path}", "run.name=whole", *words, "--json"]
    whole = warm.start(command, tmp_path / "errors")
    assert whole.wait() == 0, whole.errors()
    hit = stop_at_random_moments(tmp_path / "stopped", words, 11, warm)
    assert hit == STOPS
    expected, found = everything(tmp_path / "whole"), everything(tmp_path / "stopped")
    for (name, left), (other, right) in zip(expected, found, strict=True):
        assert name == other
        if isinstance(left, str):
            assert left == right, name
        else:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.parametrize("layer", ["softmax", "gauge", "rbf", "linear"])
def test_every_layer_resumes_to_the_bit_before_and_after_the_encoder_is_fitted(
    layer: str, tmp_path: Path
) -> None:
    words = [f"layer={layer}", f"run.dir={tmp_path}", "data.limit=400", "encoder.fit=128"]
    with Session.start(resolve([*words, "run.name=whole"])) as session:
        list(session.events())
        expected = session._loop
    path = tmp_path / "stopped"
    with Session.start(resolve([*words, "run.name=stopped"])) as session:
        found = run_until_stopped(session)
    for _ in range(30):
        manifest = RunReader(path).manifest()
        if manifest is not None and manifest.status == "finished":
            break
        with Session.resume(path) as session:
            found = run_until_stopped(session)
    assert found.evaluation.state_dict()["confusion"].equal(
        expected.evaluation.state_dict()["confusion"]
    )
    for name, memory in expected.learner.memories().items():
        other = found.learner.memories()[name]
        assert len(memory) == len(other)
        for block, same in zip(memory.blocks, other.blocks, strict=True):
            assert torch.equal(block.key, same.key)
            assert torch.equal(block.side, same.side)
            assert torch.equal(block.born, same.born)
            assert torch.equal(block.key_square, same.key_square)


def run_until_stopped(session: Session) -> Any:
    """Go on for three batches, then stop."""
    steps = 0
    for event in session.events():
        if isinstance(event, Progress):
            steps += 1
            if steps == 3:
                session.request_stop("test")
        if isinstance(event, Stopped):
            assert event.step == session._loop.step
    return session._loop
