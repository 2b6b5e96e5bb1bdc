"""A sweep on disk: a folder of runs, what they are, and what came of each.

    SWEEP/sweep.json        format, version, grid, cells; written once
          lock              held by the one process that runs it
          runs/<cell>/      a run each
          failed/<cell>.json  why a run failed, until it is tried again
          logs/<cell>.txt   what its process wrote to stderr at the last try

The runs' own manifests say how far they are, so nothing else could disagree with them.
"""

import math
import os
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias

from streamlearn.errors import (
    ConfigError,
    RunLockedError,
    RunNotFoundError,
    StreamlearnError,
)
from streamlearn.storage import ObjectPath, RunReader, Writer, documents, files
from streamlearn.storage.layout import is_run
from streamlearn.storage.lock import RunLock, current_writer
from streamlearn.storage.objects import resolve as resolve_path
from streamlearn.storage.signatures import who

from .grid import Cell, Grid, written
from .metrics import METRICS, Metric, first_there, metric_named
from .words import expanded

__all__ = ["CellState", "Group", "Row", "Sweep", "default_folder", "find_sweep"]

_KIND = "streamlearn-sweep"
_FAILURE = "streamlearn-failure"

CellState: TypeAlias = Literal["finished", "running", "stopped", "failed", "waiting"]
_ORDER: tuple[CellState, ...] = ("finished", "running", "stopped", "failed", "waiting")

SEED = "seed"


@dataclass(frozen=True, slots=True)
class Row:
    """One cell of a sweep and what came of it.

    values: the figures of its last commit by name. seconds: learnt and tested so far.
    """

    event: ClassVar[str] = "row"
    cell: str
    choices: Mapping[str, str]
    state: CellState
    values: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    total_samples: int | None = None
    seconds: float | None = None
    learner_bytes: int | None = None
    reason: str | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The finished cells that differ in their seed alone.

    runs: how many are finished. mean, deviation: by figure; the deviation is that of a sample
    (n − 1), None of a single run.
    """

    event: ClassVar[str] = "group"
    choices: Mapping[str, str]
    runs: int
    mean: dict[str, float]
    deviation: dict[str, float | None]


def default_folder(grid: Grid) -> Path:
    """The folder of a grid that has none: the same for the same words."""
    stem = "".join(
        letter if letter.isalnum() or letter in "._-" else "_" for letter in grid.scenario
    )
    return Path("sweeps") / f"{stem[:60]}-{grid.digest[:8]}"


def find_sweep(word: str) -> Path:
    """The folder of a sweep, by its path or its name in the folder `sweeps`.

    Raises:
        RunNotFoundError: there is none; names what was tried.
    """
    tried = [Path(word), Path("sweeps") / word] if word.strip() else []
    for path in tried:
        if (path / "sweep.json").is_file():
            return path
    places = " and ".join(repr(str(path)) for path in tried) or "the empty name"
    raise RunNotFoundError(
        f"there is no sweep {word!r} (looked at {places}); to begin one give words with lists, "
        "such as scenario=digits-onepass seed=0,1,2"
    )


class Sweep:
    """The folder of a sweep.

    Args:
        path: of the folder, which is one.

    Attributes:
        path: the same, absolute.
        scenario: the name of its first cell's scenario.
        axes: by key the values.
        cells: in the order of the grid.
        digest: of the grid.

    Raises:
        RunNotFoundError: it is none.
        FormatError: its file is damaged or of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        file = self.path / "sweep.json"
        try:
            found = documents.unseal(_KIND, file, files.read_bytes(file))
        except FileNotFoundError:
            raise RunNotFoundError(
                f"{str(path)!r} is no sweep; give the folder of one, or words that begin one"
            ) from None
        self.scenario = str(found["scenario"])
        self.digest = str(found["digest"])
        self.axes: dict[str, tuple[str, ...]] = {
            key: tuple(values) for key, values in found["axes"]
        }
        self.cells = tuple(
            Cell(cell["name"], dict(cell["choices"]), tuple(cell["words"]))
            for cell in found["cells"]
        )
        self._lock: RunLock | None = None

    @classmethod
    def begin(cls, grid: Grid, folder: str | None) -> Self:
        """The sweep of a grid, made if it is not there; its lock is held.

        Args:
            grid: what is to be run.
            folder: where, None for the default.

        Raises:
            ConfigError: another grid, or something else, is in the folder.
            RunLockedError: it is being run.
            StorageError: the system refused.
        """
        place = default_folder(grid) if folder is None else resolve_path(folder)
        if isinstance(place, ObjectPath):
            raise ConfigError(f"--dir {folder} is no folder; a sweep lies on a disk")
        path = expanded(place).absolute()
        file = path / "sweep.json"
        if not file.is_file():
            _make(path)
        lock = _locked(path)
        try:
            if not file.is_file():
                files.write_whole(file, _document(grid))
            sweep = cls(path)
            if sweep.digest != grid.digest:
                raise ConfigError(
                    f"{str(path)!r} holds a sweep of {sweep.scenario} over {written(sweep.axes)}, "
                    "whose words or scenario file were others; give those again, or another --dir"
                )
            for name in ("runs", "failed", "logs"):
                with files.translated("write", path / name):
                    files.make_directory(path / name)
        except BaseException:
            lock.release()
            raise
        sweep._lock = lock
        return sweep

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- its cells -----------------------------------------------------------------------------

    @property
    def runs(self) -> Path:
        """The folder of runs."""
        return self.path / "runs"

    def run_of(self, cell: Cell) -> Path:
        """The run of a cell, which may not be there yet."""
        return self.runs / cell.name

    def log_of(self, cell: Cell) -> Path:
        """Where its process writes what goes wrong."""
        return self.path / "logs" / f"{cell.name}.txt"

    def words_of(self, cell: Cell) -> list[str]:
        """The words of the command line that begin, or go on with, a cell."""
        run = self.run_of(cell)
        if is_run(run):
            return ["resume", str(run)]
        return ["run", *cell.words, f"run.dir={self.runs}", f"run.name={cell.name}"]

    def writer(self, cell: Cell) -> Writer | None:
        """The process that writes to the run of a cell now."""
        return current_writer(self.run_of(cell) / "lock")

    def fail(self, cell: Cell, reason: str) -> None:
        """Note why a cell failed.

        Raises:
            StorageError: the system refused.
        """
        files.write_whole(self._failure(cell), documents.seal(_FAILURE, {"reason": reason}))

    def forgive(self, cell: Cell) -> None:
        """Forget that a cell failed.

        Raises:
            StorageError: the system refused.
        """
        with files.translated("delete", self._failure(cell)):
            files.remove(self._failure(cell))

    def row(self, cell: Cell) -> Row:
        """What came of a cell so far, as its run and its failure say; nothing is changed."""
        run = self.run_of(cell)
        reason = self._reason(cell)
        state: CellState = "failed" if reason is not None else "waiting"
        if not is_run(run):
            return Row(cell.name, cell.choices, state, reason=reason, run=str(run))
        try:
            reader = RunReader(run)
            manifest = reader.manifest()
            running = self.writer(cell) is not None
        except StreamlearnError as error:
            return Row(cell.name, cell.choices, "failed", reason=str(error), run=str(run))
        summary: dict[str, Any] = {} if manifest is None else dict(manifest.summary)
        if manifest is not None and manifest.status == "finished":
            state, reason = "finished", None
        elif running:
            state = "running"
        elif reason is None:
            state = "stopped"
        return Row(
            cell.name,
            cell.choices,
            state,
            values={
                name: float(summary[name]) for name in METRICS if summary.get(name) is not None
            },
            samples=0 if manifest is None else manifest.samples,
            total_samples=summary.get("total_samples"),
            seconds=summary.get("seconds"),
            learner_bytes=summary.get("learner_bytes"),
            reason=reason,
            run=str(run),
        )

    def rows(self, metric: str | None = None) -> tuple[list[Row], Metric]:
        """All cells, the finished ones first and the best of these at the top, and by what.

        Args:
            metric: the name of the figure; None for the first that any cell has.

        Raises:
            ConfigError: no such metric.
        """
        rows = [self.row(cell) for cell in self.cells]
        if metric is not None:
            judge = metric_named(metric)
        else:
            finished = [row.values for row in rows if row.state == "finished"]
            judge = first_there(finished or [row.values for row in rows])

        def place(row: Row) -> tuple[Any, ...]:
            return _ORDER.index(row.state), judge.sort_key(row.values.get(judge.name)), row.cell

        return sorted(rows, key=place), judge

    def groups(self, rows: Sequence[Row], judge: Metric) -> list[Group]:
        """Mean and deviation over the seeds, best first; nothing unless the seed is an axis."""
        if SEED not in self.axes:
            return []
        found: dict[tuple[tuple[str, str], ...], list[Row]] = {}
        for row in rows:
            rest = tuple((key, value) for key, value in row.choices.items() if key != SEED)
            found.setdefault(rest, []).append(row)
        groups = [_group(dict(rest), members) for rest, members in found.items()]
        return sorted(groups, key=lambda group: judge.sort_key(group.mean.get(judge.name)))

    def _failure(self, cell: Cell) -> Path:
        return self.path / "failed" / f"{cell.name}.json"

    def _reason(self, cell: Cell) -> str | None:
        file = self._failure(cell)
        try:
            return str(documents.unseal(_FAILURE, file, files.read_bytes(file))["reason"])
        except FileNotFoundError:
            return None
        except StreamlearnError:
            return "its reason cannot be read any more"


def _group(choices: dict[str, str], members: Sequence[Row]) -> Group:
    finished = [row for row in members if row.state == "finished"]
    mean: dict[str, float] = {}
    deviation: dict[str, float | None] = {}
    for name in METRICS:
        values = [row.values[name] for row in finished if name in row.values]
        if values and all(map(math.isfinite, values)):
            mean[name] = statistics.fmean(values)
            deviation[name] = statistics.stdev(values) if len(values) > 1 else None
    return Group(choices, len(finished), mean, deviation)


def _make(path: Path) -> None:
    """Make the folder of a sweep; one that is there already must be empty.

    Raises:
        ConfigError: something else is in it.
        StorageError: the system refused.
    """
    if path.is_file():
        raise ConfigError(f"--dir {shlex.quote(str(path))} is a file; name a folder")
    with files.translated("write", path):
        path.mkdir(parents=True, exist_ok=True)
        found = sorted(set(os.listdir(path)) - {"lock"})
    found = [name for name in found if not name.startswith(".sweep.json")]
    if found:
        raise ConfigError(
            f"--dir {shlex.quote(str(path))} has something else in it ({found[0]!r}); choose a "
            "folder that is empty, or not there yet"
        )


def _locked(path: Path) -> RunLock:
    try:
        return RunLock(path / "lock")
    except RunLockedError:
        by = who(current_writer(path / "lock"))
        raise RunLockedError(
            f"the sweep {str(path)!r} is being run by {by}; wait for that one or stop it, and see "
            f"it with `streamlearn sweep {shlex.quote(str(path))}`"
        ) from None


def _document(grid: Grid) -> bytes:
    return documents.seal(
        _KIND,
        documents.plain(
            {
                "scenario": grid.scenario,
                "digest": grid.digest,
                "axes": [[key, list(values)] for key, values in grid.axes.items()],
                "cells": [asdict(cell) for cell in grid.cells],
            }
        ),
    )
