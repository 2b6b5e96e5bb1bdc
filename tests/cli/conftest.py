"""What the tests of the command line share: events, a model, runs on disk, and a program to run."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import streamlearn
from streamlearn.cli.model import Model
from streamlearn.events import (
    CheckpointSaved,
    Event,
    Finished,
    LayerStatus,
    MemoryStatus,
    Progress,
    Started,
    Stopped,
    as_json,
)
from streamlearn.storage.objects import as_file

SLOW_SESSION = Path(__file__).with_name("slow_session.py")

MakeProgress = Callable[..., Progress]
Program = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def started() -> Started:
    return Started("runs/mine", "digits-onepass", 0, 0, 50_000, 10, "cpu", "float32", 3)


@pytest.fixture
def progress() -> MakeProgress:
    """Progress after a number of samples, with two layers; fields can be given otherwise."""

    def make(samples: int = 1_280, **changes: Any) -> Progress:
        facts: dict[str, Any] = {
            "step": samples // 128,
            "samples": samples,
            "position": samples,
            "total_samples": 50_000,
            "skipped": 2,
            "seconds": samples / 1_000,
            "rate": 1_310.4,
            "loss": 0.912,
            "accuracy": 0.6821,
            "windowed_accuracy": 0.7314,
            "layers": (
                LayerStatus("hidden.0", 6 * samples, 6 * samples * 2_056),
                LayerStatus("output", samples, samples * 2_056),
            ),
            "memory": MemoryStatus(0, 7 * samples * 2_056, 1_200_000_000, 7 * samples * 2_100),
        }
        return Progress(**(facts | changes))

    return make


@pytest.fixture
def finished() -> Finished:
    return Finished(0.7412, 0.6934, 50_000, 2, 61.5, 3 * 1024**3, 350_000, 719_600_000, "runs/mine")


@pytest.fixture
def stopped() -> Stopped:
    return Stopped(12, 1_536, "SIGINT", "streamlearn resume runs/mine")


@pytest.fixture
def checkpoint() -> CheckpointSaved:
    return CheckpointSaved(12, 1_536, 12_345_678, 23_456_789, 0.14, 1_700_000_000.0)


@pytest.fixture
def model(started: Started, progress: MakeProgress, checkpoint: CheckpointSaved) -> Model:
    """A run in full flow, at 26,112 of 50,000 samples."""
    model = Model()
    model.update(started, 1_700_000_000.0)
    for samples in range(128, 26_113, 128):
        share = samples / 50_000
        model.update(
            progress(samples, accuracy=0.3 + share * 0.7, windowed_accuracy=0.4 + share * 0.65),
            1_700_000_000.0 + samples / 1_000,
        )
    model.update(checkpoint, 1_700_000_024.0)
    return model


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a real run with these events in its log and, if a status is given, one commit."""

    def write(events: Sequence[Event], status: str | None = "stopped", name: str = "mine") -> Path:
        import torch

        from streamlearn.memory import Memory, Tuples
        from streamlearn.storage import RunStore

        memory = Memory(4, 3, block_rows=512)
        memory.append(Tuples(torch.ones(600, 4), torch.ones(600), torch.ones(600, 3)), 0)
        with RunStore.create(
            tmp_path / "runs", name, scenario={"seed": 3}, scenario_name="digits-onepass"
        ) as store:
            for event in events:
                store.log(as_json(event))
            if status is not None:
                store.commit(
                    step=12,
                    samples=1_536,
                    status=status,  # type: ignore[arg-type]
                    state={},
                    memories={"output": memory},
                    summary={"prequential_accuracy": 0.6934, "test_accuracy": None},
                )
            return as_file(store.path)

    return write


@pytest.fixture
def environment() -> dict[str, str]:
    """An environment in which a child finds the package wherever it lies."""
    root = Path(streamlearn.__file__).parent.parent
    others = ("NO_COLOR", "COLUMNS", "LINES")  # readline sets the last two where a test imports it
    kept = {key: value for key, value in os.environ.items() if key not in others}
    path = os.pathsep.join(filter(None, [str(root), kept.get("PYTHONPATH", "")]))
    return kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def program(tmp_path: Path, environment: dict[str, str]) -> Iterator[Program]:
    """Starts the command line on a session that learns nothing, slowly; ends it after the test."""
    import signal

    children: list[subprocess.Popen[bytes]] = []

    def start(
        *words: str,
        env: Mapping[str, str] | None = None,
        ignored: Sequence[signal.Signals] = (),
        closed: Sequence[int] = (),
        **settings: Any,
    ) -> "subprocess.Popen[bytes]":
        def prepare() -> None:
            # Whoever runs the tests may ignore a signal, and children inherit that.
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            for descriptor in closed:
                os.close(descriptor)

        settings.setdefault("stdout", subprocess.PIPE)
        settings.setdefault("stderr", subprocess.PIPE)
        child = subprocess.Popen(
            [sys.executable, str(SLOW_SESSION), *words],
            cwd=tmp_path,
            env=environment | dict(env or {}),
            preexec_fn=prepare,
            **settings,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for something that another process does."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail("the other process did not get there within a minute")
            time.sleep(0.02)

    return wait
