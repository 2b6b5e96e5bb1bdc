"""The README's table: every scenario asked for, several seeds, as a person runs them.

    python -m bench.results [--seeds 0 1 2] [--runs FOLDER] SCENARIO[:key=value[:key=value]] …

Each run is `streamlearn run scenario=… seed=… --json` in a process of its own. The table has mean
and standard deviation (n − 1) of test and prequential accuracy over the seeds, wall time from the
shell with imports, and peak memory. Runs are deleted unless --runs names a folder to keep them in.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def run(words: list[str]) -> dict[str, Any]:
    """One run; its last event, with the wall time of the process."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "streamlearn.cli", "run", "--json", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    last["wall"] = time.perf_counter() - began
    return last


def spread(values: list[float]) -> str:
    """Mean ± standard deviation, in percent."""
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def main() -> None:
    """Run and print, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenarios", nargs="+", metavar="SCENARIO[:key=value…]")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    table = Table("scenario", "test %", "prequential %", "samples", "tuples", "wall s", "peak RSS")
    with tempfile.TemporaryDirectory() as scratch:
        runs = options.runs or Path(scratch)
        for scenario in options.scenarios:
            name, *words = scenario.split(":")
            results = []
            for seed in options.seeds:
                words_of_run = [f"scenario={name}", f"seed={seed}", f"run.dir={runs}", *words]
                results.append(run(words_of_run))
                print(json.dumps({"scenario": name, "seed": seed, **results[-1]}), file=sys.stderr)
            first = results[0]
            table.add_row(
                scenario,
                spread([result["test_accuracy"] for result in results]),
                spread([result["prequential_accuracy"] for result in results]),
                f"{first['samples']:,}",
                f"{first['tuples']:,} ({first['tuple_bytes'] / 2**20:,.0f} MiB)",
                f"{statistics.median(result['wall'] for result in results):.0f}",
                f"{max(result['peak_rss_bytes'] for result in results) / 2**20:,.0f} MiB",
            )
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
