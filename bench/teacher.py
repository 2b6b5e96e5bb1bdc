"""A teacher's function learnt online: test error against samples, growing beside parametric.

    python -m bench.teacher [--samples N] [--seeds 1 2 3 4 5] [--sides NAME …] [--trials FILE]
                            [--json FILE] [--png FILE]

The scenario `teacher-student` in one pass. The growing layer, the parametric softmax of equal width
(as many keys as the growing layer has tuples at the end), and a residual MLP like the teacher but
wider get 16 trials of settings each, ridge and kernel ridge 4: on the stream of a teacher of its
own (seed 100), by the test error at the end. The best settings then learn the streams of the other
seeds, each of another teacher. The values that are tried were chosen by looking at seed 0, of all
sides, which is why it is not among them. Every trial is in the JSON, and a line of the output as
soon as it is known; --trials takes such lines of a run with as many samples, and does not run them
again.
"""

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from streamlearn.errors import StreamlearnError
from streamlearn.events import Progress, Tested
from streamlearn.loop import held_out
from streamlearn.scenarios.build import build_loop, open_splits
from streamlearn.scenarios.words import resolve

VALIDATION_SEED = 100
GROWING, PARAMETRIC = "growing softmax", "parametric softmax"

Grid = dict[str, list[Any]]


def sides(samples: int) -> dict[str, tuple[list[str], Grid]]:
    """What learns: the words that all trials of a side share, and the values that are tried."""
    batches = [16, 64]
    trained = ["learner=parametric", "learner.optimizer=adam"]
    return {
        GROWING: (
            ["layer=softmax"],
            {"learner.batch": batches, "layer.kappa": [5, 6], "layer.lr_value": [0.05, 0.1],
             "layer.lr_weight": [0.0005, 0.001]},
        ),
        PARAMETRIC: (
            [*trained, "layer=parametric-softmax", f"layer.width={samples}",
             "layer.weighted=false"],
            {"learner.batch": batches, "layer.kappa": [6, 8],
             "learner.lr": [0.03, 0.05, 0.1, 0.2]},
        ),
        "MLP, 2 blocks": (
            [*trained, "network.layers=dense", "network.hidden=2", "network.activation=relu"],
            {"learner.batch": batches, "network.width": [128, 512],
             "learner.lr": [0.0003, 0.001, 0.003, 0.01]},
        ),
        "ridge": (["learner=ridge"], {"learner.regularisation": [0.1, 1, 10, 100]}),
        "kernel ridge": (
            ["learner=kernel", f"learner.limit={samples}"],
            {"learner.regularisation": [0.01, 0.1], "learner.scale": [1, 2]},
        ),
    }  # fmt: skip


def marks(samples: int) -> list[int]:
    """Numbers of samples at which the test is scored: doubling up to all of them."""
    return sorted({samples >> shift for shift in range(5)})


def curve(words: list[str], samples: int, seed: int, at: list[int]) -> dict[str, Any]:
    """One pass: the test's mean squared error after so many samples, and the seconds it took."""
    scenario = resolve(
        ["scenario=teacher-student", f"data.limit={samples}", f"seed={seed}", *words]
    )
    loop, test, _ = build_loop(scenario, open_splits(scenario))
    if test is None:
        raise SystemExit("the scenario has no test")
    found: dict[int, float] = {}
    r2: float | None = None
    for event in loop.events():
        due = [mark for mark in at if mark <= loop.evaluation.samples and mark not in found]
        if not isinstance(event, Progress) or not due or not loop.learner.fitted:
            continue
        *_, tested = held_out(loop.learner, test)
        if isinstance(tested, Tested):
            found[due[-1]] = float(tested.metrics["rmse"] or 0.0) ** 2
            r2 = tested.metrics["r2"]
    return {"mse": found, "r2": r2, "seconds": loop.seconds, "bytes": loop.learner.nbytes}


def tune(
    name: str, base: list[str], grid: Grid, samples: int, known: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Every trial of a side, the best first."""
    trials = []
    for values in itertools.product(*grid.values()):
        words = [f"{key}={value}" for key, value in zip(grid, values, strict=True)]
        trial: dict[str, Any] = {"side": name, "words": words}
        earlier = [one for one in known if (one["side"], one["words"]) == (name, words)]
        if earlier:
            trials.append(earlier[0])
            continue
        try:
            trial["mse"] = curve([*base, *words], samples, VALIDATION_SEED, [samples])["mse"][
                samples
            ]
        except StreamlearnError as error:  # rates that are too high
            trial |= {"mse": None, "error": str(error)}
        trials.append(trial)
        print(json.dumps(trial), flush=True)
    return sorted(trials, key=lambda trial: float("inf") if trial["mse"] is None else trial["mse"])


def spread(values: list[float]) -> str:
    """Mean ± standard deviation (n − 1)."""
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.4f}"


def draw(results: dict[str, Any], at: list[int], path: Path) -> None:
    """The mean curves as a picture."""
    from matplotlib.figure import Figure  # wanted only here

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, result in results.items():
        runs = [run["mse"] for run in result["runs"]]
        shown = [mark for mark in at if all(mark in run for run in runs)]
        means = [statistics.mean(run[mark] for run in runs) for mark in shown]
        axes.plot(shown, means, marker="o", label=name)
    axes.set(xlabel="samples", ylabel="test mean squared error", xscale="log", yscale="log")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Tune, learn and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--sides", nargs="+", choices=list(sides(1)), default=list(sides(1)))
    parser.add_argument("--trials", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args()
    samples, at = options.samples, marks(options.samples)
    began = time.perf_counter()
    results: dict[str, Any] = {}
    lines = options.trials.read_text().splitlines() if options.trials else []
    known = [json.loads(line) for line in lines if line.startswith("{")]
    for name in options.sides:
        base, grid = sides(samples)[name]
        trials = tune(name, base, grid, samples, known)
        words = [*base, *trials[0]["words"]]
        runs = [curve(words, samples, seed, at) for seed in options.seeds]
        results[name] = {"words": words, "trials": trials, "runs": runs}
    table = Table("samples", *results)
    for mark in at:
        cells = [[run["mse"].get(mark) for run in result["runs"]] for result in results.values()]
        table.add_row(f"{mark:,}", *("-" if None in cell else spread(cell) for cell in cells))
    for label, key in (("R² at the end", "r2"), ("seconds", "seconds")):
        values = ([run[key] for run in result["runs"]] for result in results.values())
        table.add_row(label, *(f"{statistics.mean(cell):.3f}" for cell in values))
    table.add_row("learner, MB", *(f"{result['runs'][0]['bytes'] / 1e6:.2f}"
                                   for result in results.values()))  # fmt: skip
    console = Console(width=120)
    console.print(table)
    for name, result in results.items():
        print(f"{name}: {' '.join(result['words'])} ({len(result['trials'])} trials)")
    wins = None
    if GROWING in results and PARAMETRIC in results:
        pairs = zip(results[GROWING]["runs"], results[PARAMETRIC]["runs"], strict=True)
        wins = sum(ours["mse"][samples] < theirs["mse"][samples] for ours, theirs in pairs)
        print(f"growing below parametric at the end: {wins} of {len(options.seeds)} seeds")
    facts = {
        "samples": samples,
        "seeds": options.seeds,
        "validation_seed": VALIDATION_SEED,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "seconds": time.perf_counter() - began,
        "growing_below_parametric": wins,
        "sides": results,
    }
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    if options.png:
        draw(results, at, options.png)


if __name__ == "__main__":
    main()
