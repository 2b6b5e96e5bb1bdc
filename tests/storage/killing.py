"""Lets a run be killed at every primitive in turn: `python -m tests.storage.killing RUN FOLDER`.

For each primitive a copy of the run is made, and a forked process goes on with it until it kills
itself in the middle of that primitive. One JSON line for each says which it was, and which part of
the story the process had acknowledged.
"""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamlearn.storage import RunStore, files

from .story import go_on
from .support import PRIMITIVES


def kill_at(number: int, note: Callable[[str], None]) -> None:
    """Let this process end at a call of a primitive; a write is half done then."""
    calls = itertools.count()

    def wrap(name: str, primitive: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if next(calls) != number:
                # A kill loses nothing that the system has, so syncs need not be made.
                return None if name == "sync" else primitive(*arguments, **more)
            note(name)
            if name == "write_all":
                descriptor, data, *rest = arguments
                primitive(descriptor, data[: len(data) // 2], *rest)
            os.kill(os.getpid(), signal.SIGKILL)
            return None

        return call

    for name in PRIMITIVES:
        setattr(files, name, wrap(name, getattr(files, name)))


def tell(path: Path, number: int, pipe: int) -> None:
    """Go on with a run until the kill."""

    def note(word: object) -> None:
        os.write(pipe, f"{word}\n".encode())

    kill_at(number, note)
    with RunStore.open(path) as store:
        for part in go_on(store, 0):
            note(part)


def main(original: Path, folder: Path) -> None:
    """Kill one process after another, until one reaches the end."""
    for number in itertools.count():
        path = Path(shutil.copytree(original, folder / str(number)))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            tell(path, number, writing)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read().split()
        _, status = os.waitpid(child, 0)
        parts = [int(word) for word in said if word.isdecimal()]
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        facts = {"path": str(path), "killed": killed, "part": max(parts, default=0)}
        print(json.dumps({**facts, "at": said[-1] if killed else None}), flush=True)
        if not killed:
            sys.exit(status)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
