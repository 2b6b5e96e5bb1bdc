"""The command line on a session that learns nothing, at a pace that a test can follow.

Run as a program. The words of `run` set it up: steps, pause (seconds a step), busy and saving
(rounds of a computation that no signal interrupts, in a step and in a commit), opening (seconds),
name, fails. `committed.txt` and `steps.txt` beside it tell what happened.
"""

import hashlib
import sys
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from streamlearn.cli.main import main
from streamlearn.errors import DataError
from streamlearn.events import (
    CheckpointSaved,
    Event,
    Finished,
    LayerStatus,
    Paused,
    Progress,
    Started,
    Stopped,
)
from streamlearn.storage import RunStore

DEFAULTS = {
    "steps": "1000",
    "pause": "0.01",
    "busy": "0",
    "saving": "0",
    "opening": "0",
    "name": "mine",
    "fails": "",
}


def compute(rounds: str) -> None:
    """Something long that lets other threads run but that no signal interrupts."""
    if int(rounds):
        hashlib.pbkdf2_hmac("sha256", b"word", b"salt", int(rounds))


class Session:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self._reason: str | None = None
        self._paused = False
        self._store = RunStore.create(
            Path("runs"), settings["name"], scenario={}, scenario_name="slow"
        )
        self.path = self._store.path

    @classmethod
    def start(cls, settings: dict[str, str]) -> Self:
        Path("opening.txt").write_text("")
        time.sleep(float(settings["opening"]))
        return cls(settings)

    def events(self) -> Iterator[Event]:
        steps = int(self._settings["steps"])
        yield Started(str(self.path), "slow", 0, 0, steps, 10, "cpu", "float32", 0)
        for step in range(1, steps + 1):
            Path("steps.txt").write_text(str(step))
            compute(self._settings["busy"])
            time.sleep(float(self._settings["pause"]))
            if self._settings["fails"] == "mistake":
                raise DataError("row 3 of 'x.csv'\nhas no label; give it one")
            if self._settings["fails"] == "fault":
                raise ZeroDivisionError("a fault of the program")
            layers = (LayerStatus("output", step, step * 100),)
            yield Progress(step, step, step, steps, 0, step * 0.01, 99.0, 0.5, 0.5, 0.6, layers)
            while self._paused and self._reason is None:
                time.sleep(0.01)
                yield Paused(step, step)
            if self._reason is not None:
                yield self._commit(step)
                yield Stopped(step, step, self._reason, "")
                return
        yield self._commit(steps)
        yield Finished(float("nan"), 0.5, steps, 0, 1.0, 1, steps, 100, str(self.path))

    def _commit(self, step: int) -> CheckpointSaved:
        Path("saving.txt").write_text("")
        compute(self._settings["saving"])
        Path("committed.txt").write_text(str(step))
        return CheckpointSaved(step, step, 1, 1, 0.0, time.time())

    def request_stop(self, reason: str) -> None:
        self._reason = reason

    def pause(self, paused: bool) -> None:
        self._paused = paused

    def request_checkpoint(self) -> None:
        Path("asked.txt").write_text("")

    def facts(self) -> dict[str, object]:
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._store.close()


def resolve(words: Sequence[str]) -> dict[str, str]:
    return DEFAULTS | dict(word.split("=", 1) for word in words)


def stand_in(name: str, **members: object) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


if __name__ == "__main__":
    stand_in("streamlearn.scenarios.session", Session=Session)
    stand_in("streamlearn.scenarios.words", resolve=resolve)
    sys.exit(main())
