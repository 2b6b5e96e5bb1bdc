"""What the tests of runs in object stores share: states of a store, and kills in its requests.

As a program, `python -m tests.storage.remote RUN FOLDER` lets processes be killed. For some numbers
a copy of the run is made below the folder, and a forked process goes on with it until it kills
itself in its request of that number that changes something. Then a process learns in the folder,
and is killed and begun again, each time at a random moment. One JSON line for each says how far it
came.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from streamlearn.events import CheckpointSaved
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import ObjectPath, RunStore

from .story import go_on

CHANGES = ("_put", "_remove", "copy_to")
"""The methods of an `ObjectPath` that change the store."""

KILLED_IN = (67, 130)
KILLED_LEARNING = 2

WORDS = (
    "data.limit=1250",
    "learner.batch=16",
    "learner.dtype=float32",  # as processors without fast bfloat16 choose, for budgets in bytes
    "encoder.fit=64",
    "encoder.width=24",
    "network.hidden=1",
    "memory.block_rows=512",
    "checkpoint.every_steps=12",
    "checkpoint.keep=3",
    "seed=5",
)
"""Of the runs that sessions learn."""

State = dict[str, bytes]


def state_of(path: ObjectPath) -> State:
    """Every object below, by its name there."""
    return {str(found.relative_to(path)): found.read_bytes() for found, _ in path.walk()}


def put_state(path: ObjectPath, state: State) -> ObjectPath:
    for name, data in state.items():
        (path / name).put(data)
    return path


class Requests:
    """Lets what is wanted happen before each request that changes the store, and counts them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self.before: Callable[[int], None] = lambda number: None
        for name in CHANGES:
            patch.setattr(ObjectPath, name, self._wrap(getattr(ObjectPath, name)))

    def _wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: ObjectPath, *arguments: Any, **more: Any) -> Any:
            number, self.number = self.number, self.number + 1
            self.before(number)
            return method(path, *arguments, **more)

        return call


def _tell(original: ObjectPath, path: ObjectPath, number: int, pipe: int) -> None:
    put_state(path, state_of(original))
    with pytest.MonkeyPatch.context() as patch:
        requests = Requests(patch)

        def before(now: int) -> None:
            if now == number:
                os.kill(os.getpid(), signal.SIGKILL)

        requests.before = before
        with RunStore.open(path) as store:
            for part in go_on(store, 0):
                os.write(pipe, f"{part}\n".encode())


def kill_in_requests(original: ObjectPath, folder: ObjectPath) -> None:
    """Kill one process after another; none of the store's library is used in this one."""
    for number in KILLED_IN:
        path = folder / f"killed-{number}"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _tell(original, path, number, writing)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            parts = [int(word) for word in pipe.read().split()]
        _, status = os.waitpid(child, 0)
        number = os.WTERMSIG(status)
        facts = {"path": str(path), "signal": number, "part": max(parts, default=0)}
        print(json.dumps(facts), flush=True)


def kill_learning(runs: ObjectPath) -> None:
    """Kill a process that learns, again and again, each a moment after it saved a checkpoint."""
    moments = random.Random(7)
    acknowledged = 0
    for number in range(KILLED_LEARNING):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with _session(runs, number) as session:
                for event in session.events():
                    if isinstance(event, CheckpointSaved):
                        os.write(writing, f"{event.step}\n".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            acknowledged = int(pipe.readline())
            time.sleep(moments.random() * 0.2)
            os.kill(child, signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, pipe.read().split())])
        _, status = os.waitpid(child, 0)
        facts = {"signal": os.WTERMSIG(status), "acknowledged": acknowledged}
        print(json.dumps(facts), flush=True)


def _session(runs: ObjectPath, number: int) -> Session:
    if number:
        return Session.resume(runs / "run")
    return Session.start(resolve([*WORDS, f"run.dir={runs}", "run.name=run"]))


def place(url: str) -> ObjectPath:
    """The path of a URL, without a look at the library."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return ObjectPath(scheme, bucket, key)


if __name__ == "__main__":
    kill_in_requests(place(sys.argv[1]), place(sys.argv[2]))
    kill_learning(place(sys.argv[2]))
