"""What share of a run the dashboard takes, view by view.

    python -m bench.dashboard [--seconds 120] [--size 120x40] [key=value …]

A real run (run directory, checkpoints) of `rbf-drift-endless`, or of the scenario that is named,
learns in this process with a timer around `Dashboard.show`, which is all that the dashboard costs
it: the model of the run, keys, and pictures, drawn into a buffer. The views take turns. The
share is one of CPU time, which other work on the machine does not change.
"""

import argparse
import io
import tempfile
import time
from collections import Counter

from rich.console import Console
from rich.table import Table

from streamlearn.cli.dashboard import VIEWS
from streamlearn.cli.live import Dashboard
from streamlearn.cli.model import Model
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve


def measure(
    words: list[str], seconds: float, width: int, height: int
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """By view: seconds of the clock, CPU seconds of the process, those in the dashboard."""
    whole: Counter[str] = Counter()
    used: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        settings = resolve([*words, f"run.dir={folder}"])
        with Session.start(settings) as session:
            screen = io.StringIO()
            console = Console(
                file=screen, force_terminal=True, width=width, height=height, color_system="256"
            )
            dashboard = Dashboard(Model(), console, controls=session)
            dashboard.open()
            began = last = time.perf_counter()
            used_before = time.process_time()
            for event in session.events():
                turn = int((time.perf_counter() - began) / seconds * len(VIEWS))
                dashboard.view = VIEWS[min(turn, len(VIEWS) - 1)]
                cpu = time.thread_time()
                dashboard.show(event)
                spent[dashboard.view] += time.thread_time() - cpu
                end, used_now = time.perf_counter(), time.process_time()
                used[dashboard.view] += used_now - used_before
                whole[dashboard.view] += end - last
                last, used_before = end, used_now
                if end - began > seconds:
                    session.request_stop("the time is over")
                screen.seek(0)
                screen.truncate()
            dashboard.close()
    return whole, used, spent


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--size", default="120x40")
    parser.add_argument("words", nargs="*", default=["scenario=rbf-drift-endless"])
    chosen = parser.parse_args()
    width, height = map(int, chosen.size.split("x"))
    whole, used, spent = measure(chosen.words, chosen.seconds, width, height)
    table = Table(title=f"the dashboard at {chosen.size}, share of the CPU time of a run")
    for column in ("view", "run, s", "CPU, s", "of the dashboard, s", "share"):
        table.add_column(column, justify="left" if column == "view" else "right")
    rows = [(view, whole[view], used[view], spent[view]) for view in VIEWS if used[view]]
    rows.append(("all", whole.total(), used.total(), spent.total()))
    for view, run, cpu, own in rows:
        table.add_row(view, f"{run:.1f}", f"{cpu:.2f}", f"{own:.2f}", f"{own / cpu:.2%}")
    Console().print(table)


if __name__ == "__main__":
    main()
