"""How soon a command answers: `--help`, and `inspect` of a run with a million tuples.

    python -m bench.startup [--tuples 1000000] [--rounds 7] [--folder FOLDER]

Each command is a process of its own, imports included; they take turns, and the best and the median
of the rounds are shown, also as ratios to `python -c "import typer, rich"`, which says how fast the
machine is. The run is made through the storage API: two layers of narrow tuples, in commits of
100,000, as a long run would have left it.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from streamlearn.memory import Memory, Tuples
from streamlearn.storage import RunStore

FLOOR = "import typer, rich"
TARGETS = {"streamlearn --help": 0.35, "inspect": 2.0}
"""Seconds that are aimed at, imports included."""

_PROGRAM = [sys.executable, "-m", "streamlearn.cli"]
_CHUNK = 100_000


def make_run(folder: Path, tuples: int, width: int = 4, outputs: int = 3) -> Path:
    """A run of two layers that hold this many tuples together."""
    draw = torch.Generator().manual_seed(0)
    memories = {name: Memory(width, outputs) for name in ("hidden.0", "output")}
    with RunStore.create(folder, "million", scenario={"seed": 0}, scenario_name="made") as store:
        for step, start in enumerate(range(0, tuples // 2, _CHUNK), 1):
            rows = min(_CHUNK, tuples // 2 - start)
            for memory in memories.values():
                keys = torch.randn(rows, width, generator=draw)
                values = torch.randn(rows, outputs, generator=draw)
                memory.append(Tuples(keys, torch.ones(rows), values), step)
            store.commit(
                step=step, samples=start + rows, status="running", state={},
                memories=memories, summary={"prequential_accuracy": 0.5},
            )  # fmt: skip
        return Path(str(store.path))


def seconds(command: Sequence[str]) -> float:
    """Wall time of a process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def measure(run: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each command in each round, the first of which, with cold files, is left out."""
    commands = {
        f'python -c "{FLOOR}"': [sys.executable, "-c", FLOOR],
        "streamlearn --help": [*_PROGRAM, "--help"],
        "inspect": [*_PROGRAM, "inspect", str(run)],
    }
    found: dict[str, list[float]] = {name: [] for name in commands}
    for index in range(rounds + 1):
        for name, command in commands.items():
            took = seconds(command)
            if index:
                found[name].append(took)
    return found


def table(found: dict[str, list[float]], tuples: int) -> Table:
    """What came of it."""
    shown = Table(title=f"seconds until a command is done; a run of {tuples:,} tuples")
    for column in ("command", "best", "median", "of the floor", "aim"):
        shown.add_column(column, justify="left" if column == "command" else "right")
    floor, *_ = (min(times) for times in found.values())
    for name, times in found.items():
        aim = f"{TARGETS[name]:.2f}" if name in TARGETS else ""
        best, middle = min(times), statistics.median(times)
        shown.add_row(name, f"{best:.2f}", f"{middle:.2f}", f"{best / floor:.2f}×", aim)
    return shown


def main() -> None:
    """Make the run, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tuples", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        found = measure(make_run(Path(folder), chosen.tuples), chosen.rounds)
    Console().print(table(found, chosen.tuples))


if __name__ == "__main__":
    main()
