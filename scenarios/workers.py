"""Running a sweep: a process for each cell, some at a time, told what to stop and how it went.

A process ends with this one: asked to by SIGTERM, or, where this one was killed, by a pipe that
nobody reads any more; in both cases it commits before it goes. So whatever happens here, the runs
can be resumed, and the folder says which.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeAlias

from streamlearn.storage import files

from .grid import Cell
from .metrics import METRICS
from .sweep import CellState, Sweep

__all__ = [
    "CellEnded",
    "CellProgress",
    "CellStarted",
    "SweepEnded",
    "SweepEvent",
    "SweepStarted",
    "Sweeping",
    "sweep_json",
]

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TICK = 0.1
_PATIENCE = 60.0
_STOPS = {
    number
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGPIPE")
    for number in (-getattr(signal, name), 128 + getattr(signal, name))
}
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class SweepStarted:
    """The cells that are to be run. threads: of each process, None if it may choose."""

    event: ClassVar[str] = "sweep_started"
    sweep: str
    scenario: str
    axes: Mapping[str, Sequence[str]]
    cells: int
    finished: int
    failed: int
    jobs: int
    threads: int | None


@dataclass(frozen=True, slots=True)
class CellStarted:
    """A process begins with a cell, or goes on with it."""

    event: ClassVar[str] = "cell_started"
    cell: str
    resumed: bool


@dataclass(frozen=True, slots=True)
class CellProgress:
    """How far a cell is."""

    event: ClassVar[str] = "cell_progress"
    cell: str
    position: int
    total_samples: int | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CellEnded:
    """The process of a cell is gone. done: cells that need not be run any more."""

    event: ClassVar[str] = "cell_ended"
    cell: str
    state: CellState
    values: Mapping[str, float]
    seconds: float | None
    reason: str | None
    done: int


@dataclass(frozen=True, slots=True)
class SweepEnded:
    """Nothing is running any more; stopped: why, if that was before the end."""

    event: ClassVar[str] = "sweep_ended"
    finished: int
    failed: int
    open: int
    seconds: float
    stopped: str | None


SweepEvent: TypeAlias = SweepStarted | CellStarted | CellProgress | CellEnded | SweepEnded


def sweep_json(event: Any) -> dict[str, Any]:
    """An event, row or group as a dictionary for JSON, its name first."""
    return {"event": event.event, **asdict(event)}


@dataclass(slots=True)
class _Worker:
    """The process of a cell, and the thread that reads what it says."""

    cell: Cell
    process: "subprocess.Popen[bytes]"
    error: str | None = None
    threads: list[threading.Thread] = field(default_factory=list)


class Sweeping:
    """Runs what is left of a sweep.

    Args:
        sweep: its lock is held.
        program: the words before those of the command line, `[python, …]`.
        jobs: processes at a time.
        retry: run cells again that failed.
    """

    def __init__(
        self, sweep: Sweep, program: Sequence[str], *, jobs: int = 1, retry: bool = False
    ) -> None:
        self.sweep = sweep
        self._program = list(program)
        self._jobs = jobs
        self._retry = retry
        self._reason: str | None = None
        self._said: queue.SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._waiting: deque[Cell] = deque()
        self._held: dict[str, float] = {}
        self._done = 0

    def request_stop(self, reason: str) -> None:
        """Let every process save and end, and begin no more; safe from a signal handler."""
        self._reason = reason

    def events(self) -> Iterator[SweepEvent]:
        """Run; the last event is `SweepEnded`.

        Raises:
            StorageError: the folder of the sweep cannot be written; every process has ended.
        """
        began = time.perf_counter()
        states = {cell.name: self.sweep.row(cell).state for cell in self.sweep.cells}
        finished = [cell for cell in self.sweep.cells if states[cell.name] == "finished"]
        failed = [cell for cell in self.sweep.cells if states[cell.name] == "failed"]
        left_out = {cell.name for cell in finished}
        if not self._retry:
            left_out |= {cell.name for cell in failed}
        self._waiting.extend(cell for cell in self.sweep.cells if cell.name not in left_out)
        self._done = len(left_out)
        yield SweepStarted(
            sweep=str(self.sweep.path),
            scenario=self.sweep.scenario,
            axes=dict(self.sweep.axes),
            cells=len(self.sweep.cells),
            finished=len(finished),
            failed=len(failed),
            jobs=self._jobs,
            threads=_threads(self._jobs),
        )
        try:
            yield from self._running()
        finally:
            self._end_all()
        rows = [self.sweep.row(cell).state for cell in self.sweep.cells]
        yield SweepEnded(
            finished=rows.count("finished"),
            failed=rows.count("failed"),
            open=len(rows) - rows.count("finished") - rows.count("failed"),
            seconds=time.perf_counter() - began,
            stopped=self._reason,
        )

    def _running(self) -> Iterator[SweepEvent]:
        asked = False
        while self._workers or (self._waiting and self._reason is None):
            if self._reason is None:
                yield from self._fill()
            elif not asked:
                asked = True
                for worker in self._workers:
                    _terminate(worker)
            try:
                worker, said = self._said.get(timeout=_TICK)
            except queue.Empty:
                continue
            if said is None:
                yield self._ended(worker)
            elif said.get("event") == "progress":
                yield _progress(worker.cell, said)

    # -- beginning -----------------------------------------------------------------------------

    def _fill(self) -> Iterator[SweepEvent]:
        """Start processes until there are as many as may be, or no cell can be begun now."""
        for _ in range(len(self._waiting)):
            if len(self._workers) >= self._jobs:
                return
            cell = self._waiting.popleft()
            writer = self.sweep.writer(cell)
            if writer is None:
                yield self._start(cell)
                continue
            # What is left of a sweep that was killed saves and ends by itself.
            since = self._held.setdefault(cell.name, time.monotonic())
            if time.monotonic() - since < _PATIENCE:
                self._waiting.append(cell)
                continue
            self._done += 1
            reason = f"its run is being written by process {writer.pid} on {writer.host}"
            self.sweep.fail(cell, reason)
            yield CellEnded(cell.name, "failed", {}, None, reason, self._done)

    def _start(self, cell: Cell) -> CellStarted:
        self.sweep.forgive(cell)
        words = self.sweep.words_of(cell)
        environment = dict(os.environ)
        threads = _threads(self._jobs)
        if threads is not None:
            environment |= dict.fromkeys(_THREADS, str(threads))
        path = self.sweep.log_of(cell)
        with files.translated("write", path), path.open("wb") as log:
            process = subprocess.Popen(
                [*self._program, *words, "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                # A Ctrl-C reaches this process alone, which asks the others once.
                start_new_session=True,
            )
        worker = _Worker(cell, process)
        self._workers.append(worker)
        reader = threading.Thread(target=self._read, args=(worker,), daemon=True)
        worker.threads.append(reader)
        reader.start()
        return CellStarted(cell.name, words[0] == "resume")

    def _read(self, worker: _Worker) -> None:
        stream = worker.process.stdout
        if stream is not None:
            for line in stream:
                with contextlib.suppress(ValueError):
                    said = json.loads(line)
                    if isinstance(said, dict):
                        if said.get("event") == "error":
                            worker.error = str(said.get("message"))
                        self._said.put((worker, said))
        worker.process.wait()
        self._said.put((worker, None))

    # -- ending --------------------------------------------------------------------------------

    def _ended(self, worker: _Worker) -> CellEnded:
        self._forget(worker)
        cell, code = worker.cell, worker.process.returncode
        row = self.sweep.row(cell)
        state, reason = row.state, row.reason
        if state != "finished":
            told = self._reason is not None and code < 0 and worker.error is None
            if code in _STOPS or told:
                state, reason = "stopped", self._reason or "its process was told to stop"
            else:
                state, reason = "failed", self._why(worker)
                self.sweep.fail(cell, reason)
        if state != "stopped":
            self._done += 1
        return CellEnded(cell.name, state, row.values, row.seconds, reason, self._done)

    def _why(self, worker: _Worker) -> str:
        """What a process said before it ended, or how it ended."""
        code = worker.process.returncode
        if worker.error:
            return worker.error[:_LONGEST_REASON]
        if code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        log = self.sweep.log_of(worker.cell)
        lines = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
        last = lines[-1][:_LONGEST_REASON] if lines else f"its process ended with code {code}"
        return f"{last} (see {str(log)!r})" if len(lines) > 1 else last

    def _forget(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        for thread in worker.threads:
            thread.join()
        if worker.process.stdout is not None:
            worker.process.stdout.close()

    def _end_all(self) -> None:
        """Whatever went wrong here: no process stays behind."""
        for worker in self._workers:
            _terminate(worker)
        for worker in list(self._workers):
            self._forget(worker)


def _terminate(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.process.terminate()


def _progress(cell: Cell, said: Mapping[str, Any]) -> CellProgress:
    values = {
        metric.name: float(said[metric.field])
        for metric in METRICS.values()
        if metric.source == "progress" and isinstance(said.get(metric.field), (int, float))
    }
    return CellProgress(cell.name, int(said["position"]), said.get("total_samples"), values)


def _threads(jobs: int) -> int | None:
    """The share of the processors that each of several processes gets; None for a single one."""
    if jobs == 1:
        return None
    available = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    share = max(1, available // jobs)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(asked)) if asked.isdecimal() and int(asked) > 0 else share
