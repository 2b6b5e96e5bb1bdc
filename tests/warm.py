"""A process with everything imported, which forks those that run a command line.

An interpreter that imports torch takes seconds to start, a fork of one that has it milliseconds. It
runs the same `streamlearn.cli`, ends as an interpreter does, and is as real to signals.
`python -m tests.warm` serves: a line of JSON on its input asks, a line on its output answers.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Started", "Warm"]


class Warm:
    """Starts commands.

    Args:
        environment: theirs.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm"],
            cwd=Path(__file__).parents[1],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, words: list[str], errors: Path) -> "Started":
        """Run `streamlearn` with some words, in a process whose stderr is a file."""
        return Started(self, self.ask(start=words, errors=str(errors)), errors)

    def ask(self, **question: Any) -> Any:
        """The answer to a question."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def close(self) -> None:
        """Let it end; whatever it started has."""
        self._server.communicate(timeout=60)


class Started:
    """A command in a process of its own.

    Attributes:
        pid: the process.
        returncode: what it ended with, negative for a signal; None as long as that is not known.
    """

    def __init__(self, warm: Warm, pid: int, errors: Path) -> None:
        self._warm = warm
        self._errors = errors
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """What it ended with, if it has."""
        return self._ended(os.WNOHANG)

    def wait(self) -> int | None:
        """What it ended with, once it has."""
        return self._ended(0)

    def errors(self) -> str:
        """What it has said on stderr."""
        return self._errors.read_text(encoding="utf-8")

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            self.returncode = self._warm.ask(wait=self.pid, options=options)
        return self.returncode


def serve() -> list[str] | None:
    """Answer until the input ends; gives the words to run in each process that is forked."""
    for line in iter(sys.stdin.readline, ""):
        question = json.loads(line)
        if "wait" in question:
            # Until it is waited for, no other process has its number.
            pid, status = os.waitpid(question["wait"], question["options"])
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _become(question["errors"])
                return question["start"]  # type: ignore[no-any-return]
        print(json.dumps(answer), flush=True)
    return None


def _become(errors: str) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    said = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor, target in ((nothing, 0), (nothing, 1), (said, 2)):
        os.dup2(descriptor, target)
    # A shell starts background jobs with SIGINT ignored, and so would everything below them be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    # What a run imports, before the first fork.
    for name in ("streamlearn.cli.app", "streamlearn.scenarios.session", "zarr"):
        importlib.import_module(name)
    from streamlearn.cli.main import main

    words = serve()
    if words is not None:
        sys.argv = ["streamlearn", *words]
        sys.exit(main())
