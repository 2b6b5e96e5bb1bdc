"""Rows by standard input and from a file, killed and resumed: none is lost, none learnt twice.

    python -m bench.records [--rows 100000] [--broken 0.01] [--kills 2] [--seed 0] [--folder FOLDER]

JSON lines are made, of which a share cannot be used, broken in eight ways; a class comes half-way.
Three runs learn them, each `streamlearn run data=jsonl` in a process of its own:

    whole   from the file, undisturbed
    file    from the file, killed by SIGKILL at random moments and resumed
    pipe    piped in, killed likewise and resumed by `streamlearn resume RUN < FILE`

Then it is checked that as many rows of each class were learnt as there are good ones, and that
means and deviations of all features, as the learner keeps them, are those of the file, so that no
row took the place of another; that the quarantine has the broken lines and no others; that `verify`
finds no damage; and that the first two runs hold the same tuples to the bit. A pipe hands rows on
as they come, so its batches, and bits, depend on time.
The exit status is 1 if anything is not so.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from streamlearn.errors import StreamlearnError
from streamlearn.storage import RunReader
from streamlearn.storage.verify import verify

COMMAND = [sys.executable, "-m", "streamlearn.cli"]
BROKEN = (
    b'{"x0": 1.5, "label"',
    b"2024-05-01 12:00:00 sensor restarted",
    b"[1, 2, 3]",
    b"",
    b'{"x0": 1.5, "x0": 2.5, "label": "a"}',
    b'{"x0": 1.5, "label": "\xff"}',
    b'{"x0": 1.5, "label": ["a"]}',
    b'{"x0": "\\ud800", "label": "a"}',
)
"""Cut off, no JSON, no object, blank, a name twice, no UTF-8, a list as label, half a character."""


@dataclass
class Made:
    """What the file holds: good rows of each class, their numbers, and which lines are broken."""

    classes: Counter[str] = field(default_factory=Counter)
    numbers: list[list[float]] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)


def write_rows(path: Path, rows: int, share: float, seed: int) -> Made:
    """Write the file."""
    source, made = random.Random(seed), Made()
    with path.open("wb") as file:
        for row in range(rows):
            if source.random() < share:
                made.broken.append(row + 1)
                file.write(source.choice(BROKEN) + b"\n")
                continue
            labels = ["a", "b"] if row < rows // 2 else ["a", "b", "late"]
            label = source.choice(labels)
            made.classes[label] += 1
            place = labels.index(label)
            record: dict[str, Any] = {
                f"x{i}": round(source.gauss(1.5 * (place == i), 1.0), 3) for i in range(6)
            }
            made.numbers.append(list(record.values()))
            record["site"] = source.choice(["north", "south"])
            file.write(json.dumps({**record, "label": label}).encode() + b"\n")
    return made


def words(runs: Path, name: str, path: str) -> list[str]:
    """What a run is told."""
    return [
        "run", "--plain", "data=jsonl", f"data.path={path}", "data.target=label",
        "network.hidden=0", "layer=rbf", "layer.lr_value=0.2", "learner.batch=64",
        "learner.dtype=float32", "checkpoint.every_seconds=1", f"run.dir={runs}",
        f"run.name={name}",
    ]  # fmt: skip


def position(run: Path) -> int:
    """Samples of the last commit, -1 before there is one."""
    try:
        manifest = RunReader(run).manifest()
    except StreamlearnError:
        return -1
    return -1 if manifest is None else manifest.samples


def go(
    command: list[str], run: Path, given: Path | None, *, piped: bool, kill_at: int | None
) -> None:
    """Run one process, and kill it once so many samples are committed, a moment later."""
    with ExitStack() as stack:
        stdin: Any = subprocess.DEVNULL
        if given is not None:
            stdin = stack.enter_context(given.open("rb"))
        if piped:
            cat = subprocess.Popen(["cat"], stdin=stdin, stdout=subprocess.PIPE)
            stack.callback(cat.wait)
            stdin = stack.enter_context(cat.stdout) if cat.stdout is not None else stdin
        process = subprocess.Popen(
            [*COMMAND, *command],
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if piped:
            stdin.close()  # cat ends with the process that reads it
        while kill_at is not None and process.poll() is None:
            if position(run) >= kill_at:
                time.sleep(random.random())
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.05)
        _, errors = process.communicate()
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"a run ended with {process.returncode}: {errors.decode()}")


def learn(runs: Path, name: str, path: Path, moments: list[int], *, piped: bool) -> int:
    """One run to its end; how often it was killed on the way."""
    run, killed = runs / name, 0
    command = words(runs, name, "-" if piped else str(path))
    given = path if piped else None
    for kill_at in [*moments, None]:
        go(command, run, given, piped=piped and not killed, kill_at=kill_at)
        manifest = RunReader(run).manifest()
        if manifest is not None and manifest.status == "finished":
            return killed
        killed += 1
        command = ["resume", "--plain", str(run)]
    return killed


def tuples(run: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All that the layers of a run hold."""
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    return {
        f"{name}/{column}": rows
        for name, entry in manifest.layers.items()
        for column, rows in reader.columns(name, 0, entry.rows).items()
    }


def quarantined(run: Path) -> Iterator[int]:
    """The line numbers that a run put aside."""
    path = run / "quarantine.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        yield int(json.loads(line)["item"].split()[1])


def _same_moments(encoder: dict[str, Any], made: Made) -> bool:
    """Whether the learner's means and sums of squared deviations are those of all good rows."""
    places = {name: place for place, (name, category) in enumerate(encoder["columns"])
              if category is None}  # fmt: skip
    numbers = np.array(made.numbers)
    wanted = [len(numbers) + 0 * numbers[0], numbers.mean(0), len(numbers) * numbers.var(0)]
    found = encoder["statistics"].numpy()[:, [places[f"x{i}"] for i in range(6)]]
    return bool(np.allclose(found, wanted, rtol=1e-9, atol=1e-12))


def checked(run: Path, made: Made, whole: Path | None) -> dict[str, tuple[str, bool]]:
    """What is to be so of a run, as it is and whether that is right."""
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    good, aside = sum(made.classes.values()), list(quarantined(run))
    rows = [entry.rows for entry in manifest.layers.values()]
    by_class = manifest.summary["by_class"]
    classes = dict(zip(by_class["class"], by_class["samples"], strict=True))
    moments = _same_moments(reader.state()["loop"]["learner"]["encoder"], made)
    damage = verify(run).damage
    found = {
        "samples": (f"{manifest.samples:,} of {good:,}", manifest.samples == good),
        "tuples": (f"{sum(rows):,}", rows == [good]),
        "classes": (
            ", ".join(f"{name} {count:,}" for name, count in sorted(classes.items())),
            classes == made.classes,
        ),
        "moments": ("those of the file" if moments else "other ones", moments),
        "quarantine": (f"{len(aside):,} of {len(made.broken):,} lines", aside == made.broken),
        "verify": ("clean" if not damage else damage[0], not damage),
    }
    if whole is not None:
        one, other = tuples(run), tuples(whole)
        same = one.keys() == other.keys() and all(
            np.array_equal(rows, other[name]) for name, rows in one.items()
        )
        found["bits"] = ("the same" if same else "other ones", same)
    return found


def main() -> int:
    """Make rows, learn them three times, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--broken", type=float, default=0.01)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="to keep rows and runs in")
    options = parser.parse_args()
    random.seed(options.seed)
    right = True
    columns = ("samples", "tuples", "classes", "moments", "quarantine", "verify", "bits")
    table = Table("run", "killed", *columns, "wall s")
    with tempfile.TemporaryDirectory() as scratch:
        runs = (options.folder or Path(scratch)).resolve()
        runs.mkdir(parents=True, exist_ok=True)
        path = runs / "rows.jsonl"
        made = write_rows(path, options.rows, options.broken, options.seed)
        for name in ("whole", "file", "pipe"):
            moments = sorted(random.randrange(options.rows) for _ in range(options.kills))
            began = time.perf_counter()
            killed = learn(
                runs, name, path, [] if name == "whole" else moments, piped=name == "pipe"
            )
            wall = time.perf_counter() - began
            found = checked(runs / name, made, runs / "whole" if name == "file" else None)
            right &= all(fine for _, fine in found.values())
            cells = [found.get(column, ("", True)) for column in columns]
            texts = [text if fine else f"[bold red]{text}" for text, fine in cells]
            table.add_row(name, str(killed), *texts, f"{wall:.0f}")
    Console(width=140).print(table)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
