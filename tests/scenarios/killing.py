"""Kills a learning process again and again: `python -m tests.scenarios.killing FOLDER COUNT SEED`.

Processes are forked from this one, which has everything imported. One goes on with the run and says
which checkpoints it has acknowledged, until it is killed at a random moment; another looks at what
is left: whether it is whole, where it stands, and whether the next steps predict, to the bit, what
a run predicted that was never killed. One JSON line for each kill.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from streamlearn.blocks import SAMPLE, THUMBNAIL
from streamlearn.events import CheckpointSaved, Finished, Progress
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage.verify import verify
from streamlearn.streams import Stream
from streamlearn.thumbnails import of_samples

STEPS = 50
WORDS = (
    "learner.batch=2",
    "encoder.fit=64",
    "encoder.width=24",
    "network.hidden=1",
    "memory.block_rows=512",
    "memory.thumbnails=64",
    "checkpoint.every_steps=6",
    "checkpoint.keep=2",
    "evaluation.test=false",
    "seed=5",
)


def predictions(session: Session) -> Iterator[tuple[Any, str]]:
    """The events of a session, and after each step a digest of what it predicted."""
    said = hashlib.sha256()
    update = session._loop.evaluation.update

    def noted(probabilities: Any, *rest: Any) -> Any:
        said.update(probabilities.numpy().tobytes())
        return update(probabilities, *rest)

    session._loop.evaluation.update = noted  # type: ignore[method-assign, assignment]
    for event in session.events():
        digest = said.hexdigest()
        if isinstance(event, Progress):
            said = hashlib.sha256()
        yield event, digest


def forked(work: Callable[[int], None]) -> tuple[int, int]:
    """A process that does some work with a pipe to write to; its id and the pipe to read from."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 1
        try:
            work(writing)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    return child, reading


def learn(run: Path, pipe: int) -> None:
    """Go on with the run; say when learning begins, and each checkpoint that is acknowledged."""
    with Session.resume(run) as session:
        os.write(pipe, b"begun\n")
        for event in session.events():
            if isinstance(event, CheckpointSaved):
                os.write(pipe, f"{event.step}\n".encode())


def without_thumbnail(session: Session) -> int:
    """How many live tuples have no thumbnail, or another than their sample's picture."""
    stream, missing = session._loop.stream, 0
    assert isinstance(stream, Stream)
    for memory in session._loop.learner.memories().values():
        kept = memory.gather(torch.arange(len(memory)), (SAMPLE, THUMBNAIL))
        rows = kept[SAMPLE] >= 0
        samples = kept[SAMPLE][rows].numpy()
        pictures = torch.cat(
            [stream.dataset.read(samples[i : i + 1]).features for i in range(len(samples))]
        )
        missing += int((kept[THUMBNAIL][rows] != of_samples(pictures, 64)).any(-1).sum())
    return missing


def look(run: Path, copy: Path, pipe: int) -> None:
    """Say whether the run is whole, and what a copy of it goes on to predict."""
    damage = [damage.file for damage in verify(run).damage]
    shutil.copytree(run, copy)
    with Session.resume(copy) as session:
        missing = without_thumbnail(session)
        start, said = session._loop.step, {}
        for event, digest in predictions(session):
            if isinstance(event, Progress):
                said[event.step] = digest
            if session._loop.step >= start + STEPS or isinstance(event, Finished):
                break
    facts = {"damage": damage, "step": start, "said": said, "missing": missing}
    os.write(pipe, json.dumps(facts).encode())
    shutil.rmtree(copy)


def kill_once(run: Path, copy: Path, seconds: float) -> dict[str, Any]:
    """Let a process learn for a while, kill it, and say what is left."""
    child, pipe = forked(lambda writing: learn(run, writing))
    with os.fdopen(pipe) as told:
        begun = told.readline().strip() == "begun"
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        acknowledged = [int(line) for line in told.read().split()]
    _, status = os.waitpid(child, 0)
    checker, pipe = forked(lambda writing: look(run, copy, writing))
    with os.fdopen(pipe) as told:
        text = told.read()
    _, looked = os.waitpid(checker, 0)
    found = json.loads(text) if looked == 0 else {}
    return {
        "begun": begun,
        "killed": os.WIFSIGNALED(status),
        "acknowledged": max(acknowledged, default=0),
        **found,
    }


def main(folder: Path, count: int, seed: int) -> None:
    """Kill as often as is asked for; a run that comes near its end begins again."""
    with Session.start(resolve([*WORDS, f"run.dir={folder}", "run.name=whole"])) as session:
        expected = {
            event.step: digest
            for event, digest in predictions(session)
            if isinstance(event, Progress)
        }
    Session.start(resolve([*WORDS, f"run.dir={folder}", "run.name=first"])).close()
    last = max(expected)
    moments = random.Random(seed)
    run = folder / "run"
    shutil.copytree(folder / "first", run)
    for _ in range(count):
        facts = kill_once(run, folder / "copy", moments.random() * 0.25)
        said = {int(step): digest for step, digest in facts.pop("said", {}).items()}
        facts["steps"] = len(said)
        facts["same"] = all(expected[step] == digest for step, digest in said.items())
        print(json.dumps(facts), flush=True)
        if facts.get("step", last) > last - 2 * STEPS:
            shutil.rmtree(run)
            shutil.copytree(folder / "first", run)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
