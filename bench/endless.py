"""An endless drifting stream under a bound for memories: time, memory and disk stay flat.

    python -m bench.endless [--samples 1000000] [--rows 4096] [--batch 32] [WORD …]

The scenario rbf-drift-endless is run with `memory.rows` by a real session, checkpoints and all. A
row each 5%: time a sample in that part, of the process and by the clock, what it takes in memory,
tuples, accuracy of the last samples, and bytes on disk, of which the event log grows by some lines
a second. Then the slopes of time a sample and of memory over the last 90%, with their standard
errors, and how many samples it takes after an abrupt drift until the windowed accuracy is back
within two points of what it was before. WORDs are settings, laid over all runs.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from streamlearn.events import Finished, Progress
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve

PARTS = 20
FLAT_FROM = 0.1
LEVEL_SAMPLES = 5000
WINDOW = 1000
"""Samples of the windowed accuracy by which recovery is judged."""

WITHIN = 0.02
CENTROIDS = "n_classes=4,n_features=10,n_centroids=25"
DRIFTS = {
    "RandomRBF, another model": (f"RandomRBF({CENTROIDS},seed_model=1)",
                                 f"RandomRBF({CENTROIDS},seed_model=2)"),
    "SEA, another threshold": ("SEA(variant=0,noise=0.1)", "SEA(variant=3,noise=0.1)"),
    "Hyperplane, another plane": ("Hyperplane(n_features=10,n_drift_features=0,seed=1)",
                                  "Hyperplane(n_features=10,n_drift_features=0,seed=2)"),
    "Agrawal, another function": ("Agrawal(classification_function=0)",
                                  "Agrawal(classification_function=2)"),
}  # fmt: skip
"""Pairs of concepts, one after the other."""


class Part(NamedTuple):
    """What was measured until a number of samples; times since the row before, microseconds."""

    samples: int
    process: float
    wall: float
    rss: int
    tuples: int
    accuracy: float
    disk: int
    log: int


def words(folder: Path, name: str, rows: int, batch: int, more: Sequence[str]) -> list[str]:
    """The settings of a run."""
    return [
        "scenario=rbf-drift-endless", f"memory.rows={rows}", f"learner.batch={batch}",
        f"run.dir={folder}", f"run.name={name}", *more,
    ]  # fmt: skip


def endless(given: Sequence[str], samples: int) -> Iterator[Part]:
    """Learn so many samples; a part each time that a twentieth of them was."""
    with Session.start(resolve([*given, f"data.limit={samples}"])) as session:
        path = Path(str(session.path))
        done, process, wall = 0, time.process_time(), time.perf_counter()
        for event in session.events():
            if not isinstance(event, Progress) or event.memory is None:
                continue
            if event.samples * PARTS < samples * (done * PARTS // samples + 1):
                continue
            now = time.process_time(), time.perf_counter()
            count = event.samples - done
            yield Part(
                event.samples,
                1e6 * (now[0] - process) / count,
                1e6 * (now[1] - wall) / count,
                event.memory.rss_bytes,
                sum(layer.tuples for layer in event.layers),
                event.windowed_accuracy or 0.0,
                event.memory.disk_bytes,
                (path / "events.jsonl").stat().st_size,
            )
            done, (process, wall) = event.samples, now


def slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope of the least-squares line and its standard error; NaN where it has none."""
    if len(x) < 3:
        return math.nan, math.nan
    at, of = np.array(x) - np.mean(x), np.array(y) - np.mean(y)
    found = float(at @ of / (at @ at))
    rest = of - found * at
    return found, float(np.sqrt(rest @ rest / (len(x) - 2) / (at @ at)))


def recovery(
    curve: Sequence[tuple[int, float]], drift: int, within: float = WITHIN
) -> tuple[float, float, int | None]:
    """The level before a drift, the lowest accuracy soon after, and the samples until it is back.

    Args:
        curve: samples and windowed accuracy.
        drift: samples before it.
        within: how far below the level counts as back.

    Returns:
        The level is the mean of the last 5,000 samples before, the lowest that of the first two
        windows after. None: not back within the curve; 0: the accuracy never fell so far.
    """
    level = float(np.mean([a for at, a in curve if drift - LEVEL_SAMPLES <= at <= drift]))
    after = [(at, a) for at, a in curve if at > drift]
    fall = [place for place, (at, _) in enumerate(after) if at <= drift + 2 * WINDOW]
    lowest = min(fall, key=lambda place: after[place][1])  # later dips are chance
    if after[lowest][1] >= level - within:
        return level, after[lowest][1], 0
    back = next((at for at, a in after[lowest:] if a >= level - within), None)
    return level, after[lowest][1], None if back is None else back - drift


def abrupt(given: Sequence[str], concepts: tuple[str, str], drift: int, after: int) -> list[
    tuple[int, float]
]:  # fmt: skip
    """Learn one concept, then at once another; the curve of the windowed accuracy."""
    # River's transition is a sigmoid that cannot be steeper than this.
    width = -(-4 * drift // 700)
    name = f"ConceptDrift:{concepts[0]}:{concepts[1]}:position={drift}:width={width}"
    settings = [*given, f"data.name={name}", f"data.limit={drift + after}",
                f"evaluation.window={WINDOW}"]  # fmt: skip
    curve = []
    with Session.start(resolve(settings)) as session:
        for event in session.events():
            if isinstance(event, Progress) and event.windowed_accuracy is not None:
                curve.append((event.samples, event.windowed_accuracy))
            if isinstance(event, Finished):
                break
    return curve


def main() -> None:
    """Learn, and print a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", metavar="WORD", help="settings, such as layer.gamma=5")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--drift", type=int, default=20_000, help="samples before an abrupt drift")
    parser.add_argument("--after", type=int, default=10_000, help="samples after it")
    parser.add_argument("--folder", type=Path, help="to keep the runs in")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        given = [options.rows, options.batch, options.words]
        heads = ("samples", "µs, process", "µs, clock", "RSS MiB", "tuples", "windowed %",
                 "disk MiB", "log MiB")  # fmt: skip
        print("  ".join(f"{head:>11}" for head in heads), flush=True)
        parts = []
        for part in endless(words(folder, "endless", *given), options.samples):
            parts.append(part)
            cells = (f"{part.samples:,}", f"{part.process:.0f}", f"{part.wall:.0f}",
                     f"{part.rss / 2**20:.1f}", f"{part.tuples:,}", f"{100 * part.accuracy:.1f}",
                     f"{part.disk / 2**20:.2f}", f"{part.log / 2**20:.2f}")  # fmt: skip
            print("  ".join(f"{cell:>11}" for cell in cells), flush=True)
        flat = [part for part in parts if part.samples > FLAT_FROM * options.samples]
        at = [part.samples / 1e6 for part in flat]
        for what, values in (
            ("µs a sample (process)", [part.process for part in flat]),
            ("µs a sample (clock)", [part.wall for part in flat]),
            ("MiB of RSS", [part.rss / 2**20 for part in flat]),
        ):
            found, error = slope(at, values)
            print(f"slope over the last 90%: {found:+.2f} ± {error:.2f} {what} a million samples; "
                  f"mean {np.mean(values):.1f}", flush=True)  # fmt: skip
        table = Table(
            "abrupt drift", "level before %", "lowest %", "last %", "back within 2 points"
        )
        for number, (name, concepts) in enumerate(DRIFTS.items(), start=1):
            own = words(folder, f"drift-{number}", *given)
            curve = abrupt(own, concepts, options.drift, options.after)
            level, lowest, back = recovery(curve, options.drift)
            table.add_row(
                name,
                f"{100 * level:.1f}",
                f"{100 * lowest:.1f}",
                f"{100 * curve[-1][1]:.1f}",
                f"after {back:,} samples" if back is not None else f"not in {options.after:,}",
            )
        Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
