"""Lets a run be killed at every primitive in turn: `python -m tests.storage.killing RUN FOLDER`.

A rehearsal says which primitives there are. For each that `spread` chooses, of every kind in every
part of the story, a copy of the run is made, and a forked process goes on with it until it kills
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

from .story import PARTS, go_on
from .support import PRIMITIVES, Kinds, spread


def kill_at(number: int, note: Callable[[str], None]) -> None:
    """Let this process end at a call of a primitive; a write is half done then."""
    calls = itertools.count()
    kinds = Kinds()

    def wrap(name: str, primitive: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            note(kinds.kind(name, *arguments))
            if next(calls) != number:
                # A kill loses nothing that the system has, so syncs need not be made.
                done = None if name == "sync" else primitive(*arguments, **more)
                if name == "open_file":
                    kinds.opened(arguments[0], done)
                return done
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


def follow(original: Path, path: Path, number: int) -> tuple[list[tuple[int, str]], bool]:
    """Copy a run and let a process go on with it until it is killed at a primitive.

    Returns the kind of each of its calls, behind the part that it had acknowledged, and whether it
    was killed.
    """
    shutil.copytree(original, path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        tell(path, number, writing)
        os._exit(0)
    os.close(writing)
    part, calls = 0, []
    with os.fdopen(reading) as pipe:
        for line in pipe:
            if line.strip().isdecimal():
                part = int(line)
            else:
                calls.append((part, line.strip()))
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status:
        sys.exit(f"it ended with {status}")
    return calls, killed


def main(original: Path, folder: Path) -> None:
    """Kill one process after another; the last reaches the end."""
    calls, _ = follow(original, folder / "rehearsal", -1)
    for number in spread(calls):
        path = folder / str(number)
        seen, killed = follow(original, path, number)
        part, at = seen[-1]
        facts = {"path": str(path), "part": part if killed else PARTS - 1}
        print(json.dumps({**facts, "at": at if killed else None}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
