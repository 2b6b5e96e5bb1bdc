"""When a run is committed, and what became of the commit that a thread is making."""

import time
from dataclasses import dataclass
from typing import Any

from streamlearn.events import CheckpointSaved
from streamlearn.memory import Memory
from streamlearn.state import StateTree
from streamlearn.storage import PendingCommit, RunStore, Status

from .schema import CheckpointSettings

__all__ = ["Checkpoints", "Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A run as it stands between two steps, see `RunStore.begin`.

    widens: whether a network that was made wider may have other layers than the last commit.
    """

    step: int
    samples: int
    status: Status
    state: StateTree
    memories: dict[str, Memory]
    summary: dict[str, Any]
    widens: bool


class Checkpoints:
    """The commits of a session, of which one at a time is under way.

    Args:
        store: the run directory, locked for writing.
        settings: when commits are due, and how many are kept.

    Attributes:
        step: of the last commit that was begun; -1 before the first, and after one that failed.
        disk_bytes: of the run, at the last commit.
        wanted: whether one is asked for now.
    """

    def __init__(self, store: RunStore, settings: CheckpointSettings) -> None:
        self.step = -1
        self.disk_bytes = 0
        self.wanted = False
        self._store = store
        self._settings = settings
        self._at = time.monotonic()
        self._pending: PendingCommit | None = None
        self._of = 0, 0  # its step and samples
        self._waited = 0.0  # seconds that it has cost learning so far

    def restart_clock(self) -> None:
        """Count the time between commits from now."""
        self._at = time.monotonic()

    @property
    def under_way(self) -> bool:
        """Whether one was begun whose end was not looked at."""
        return self._pending is not None

    @property
    def done(self) -> bool:
        """Whether that one is at its end."""
        return self._pending is not None and self._pending.done

    def due(self, step: int) -> bool:
        """Whether one is to be begun at this step."""
        steps = step - self.step
        if steps <= 0:
            self.wanted = False  # everything is saved already
            return False
        every, seconds = self._settings.every_steps, time.monotonic() - self._at
        return (
            self.wanted
            or seconds >= self._settings.every_seconds
            or (every is not None and steps >= every)
        )

    def begin(self, part: "Standing", began: float) -> None:
        """Begin one; a thread makes it while learning goes on.

        Args:
            part: what is committed.
            began: when its making began, by `time.perf_counter`.
        """
        step, samples = part.step, part.samples
        manifest = self._store.manifest
        committed = manifest.layers if manifest else {}
        self._pending = self._store.begin(
            step=step,
            samples=samples,
            status=part.status,
            state=part.state,
            memories=part.memories,
            retired=set(committed) - set(part.memories) if part.widens else (),
            summary=part.summary,
            keep=self._settings.keep,
        )
        self._of = step, samples
        self.step = step
        self.wanted = False
        self._at = time.monotonic()
        self._waited = time.perf_counter() - began

    def end(self) -> CheckpointSaved | None:
        """Wait for the one that was begun; None if none was.

        Raises:
            StorageError: it could not be made.
        """
        if self._pending is None:
            return None
        began = time.perf_counter()
        pending, self._pending = self._pending, None
        try:
            commit = pending.result()
        except BaseException:
            self.step = -1
            raise
        self.disk_bytes = commit.disk_bytes
        blocked, self._store.waited = self._store.waited, 0.0
        step, samples = self._of
        return CheckpointSaved(
            step=step,
            samples=samples,
            bytes_written=commit.bytes_written,
            disk_bytes=commit.disk_bytes,
            seconds=commit.seconds,
            waited=self._waited + blocked + time.perf_counter() - began,
            time=commit.time,
        )
