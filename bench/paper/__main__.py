"""The paper's whole family, side by side.

    python -m bench.paper sweep [ROW …] --data FOLDER [--threads N]
    python -m bench.paper run   [ROW …] --data FOLDER [--threads N] [--seeds 0 1 2]
    python -m bench.paper write
    python -m bench.paper list

`sweep` makes the same number of trials for every row on a validation split of the training set,
`run` learns the whole stream with what was chosen and scores the test set, `write` makes
docs/results/paper.md and its plots of what these recorded. ROW is a row's name or a part of it.

Every finished measurement is appended to docs/results/paper/, so a stopped one goes on where it
was. While the file that the environment variable PAPER_PAUSE names exists, the next one waits.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from . import records
from .report import write
from .rows import Row, rows
from .sweep import run_words, sweep
from .trial import measure

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def main() -> None:
    """Measure or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("sweep", "run", "write", "list"))
    parser.add_argument("rows", nargs="*", metavar="ROW", help="all rows if none is named")
    parser.add_argument("--data", type=Path, help="folder of the data set's files")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path(tempfile.gettempdir()) / "streamlearn-paper",
        help="folder for encoded streams; it may be deleted",
    )
    options = parser.parse_args()
    if options.what == "write":
        write(options.results)
        return
    known = rows()
    chosen = {key: row for key, row in known.items() if _named(key, options.rows)}
    if options.what == "list":
        print("\n".join(f"{key}: {' '.join(row.words)}" for key, row in chosen.items()))
        return
    data = [] if options.data is None else [f"data.root={options.data}"]
    for key, row in chosen.items():
        if options.what == "sweep" and row.axes:
            _say(f"{key}: {row.trials} trials")
            sweep(key, row, options.results / "paper" / "trials.jsonl",
                  data, options.threads, options.scratch, before=_wait)  # fmt: skip
        if options.what == "run":
            for seed in options.seeds:
                _run(key, known, seed, data, options)


def _run(
    key: str, known: dict[str, Row], seed: int, data: list[str], options: argparse.Namespace
) -> None:
    folder = options.results / "paper"
    words = run_words(key, known, records.read(folder / "trials.jsonl"))
    if words is None:
        _say(f"{key}: its sweep is not complete, left out")
        return
    if seed:
        words = (*words, f"seed={seed}")
    runs = folder / "runs.jsonl"
    if records.find(records.read(runs), key, words, seed) is not None:
        return
    _wait()
    _say(f"{key}, seed {seed}: {' '.join(words)}")
    record = {"row": key, **measure(words, data, options.threads, options.scratch)}
    record.setdefault("seed", seed)
    records.append(runs, record)
    _say(f"  {record.get('accuracy')} in {record.get('seconds')} s {record.get('error', '')}")


def _named(key: str, names: list[str]) -> bool:
    return not names or any(name.casefold() in key.casefold() for name in names)


def _wait() -> None:
    """Hold the next measurement back while the file of PAPER_PAUSE exists."""
    pause = os.environ.get("PAPER_PAUSE")
    while pause and Path(pause).exists():
        time.sleep(1)


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
