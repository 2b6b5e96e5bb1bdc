"""The river adapter beside river's own learners, one recipe for all streams.

    python -m bench.streams [--samples N] [--streams NAME …] [--learners NAME …] [--json FILE]

Each stream is predicted, scored and learnt one sample after the other, once for each learner, in
this process. The table has the prequential accuracy, or for regressions the mean absolute error,
the mean rank over the streams, and samples a second of predicting and learning together. Generated
streams have --samples of them, bundled data sets all that they have, or fewer if asked for.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from river import datasets, dummy, forest, linear_model, neighbors, preprocessing, tree
from river.datasets import synth

from streamlearn.adapters.river import GrowingClassifier, GrowingRegressor

STREAMS: dict[str, Callable[[], Iterable[tuple[dict[Any, Any], Any]]]] = {
    "Phishing": datasets.Phishing,
    "Bananas": datasets.Bananas,
    "ImageSegments": datasets.ImageSegments,
    "SEA": lambda: synth.SEA(seed=1, noise=0.1),
    "Agrawal": lambda: synth.Agrawal(seed=1),
}
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "GrowingClassifier": GrowingClassifier,
    "KNNClassifier": neighbors.KNNClassifier,
    "scaled KNNClassifier": lambda: preprocessing.StandardScaler() | neighbors.KNNClassifier(),
    "HoeffdingTreeClassifier": tree.HoeffdingTreeClassifier,
    "NoChangeClassifier": dummy.NoChangeClassifier,
}
REGRESSIONS: dict[str, Callable[[], Iterable[tuple[dict[Any, Any], Any]]]] = {
    "TrumpApproval": datasets.TrumpApproval,
    "ChickWeights": datasets.ChickWeights,
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "GrowingRegressor": GrowingRegressor,
    "KNNRegressor": lambda: preprocessing.StandardScaler() | neighbors.KNNRegressor(),
    "HoeffdingTreeRegressor": lambda: (
        preprocessing.StandardScaler() | tree.HoeffdingTreeRegressor()
    ),
    "LinearRegression": lambda: (
        preprocessing.StandardScaler() | linear_model.LinearRegression(intercept_lr=0.1)
    ),
    "ARFRegressor": lambda: preprocessing.StandardScaler() | forest.ARFRegressor(seed=1),
    "StatisticRegressor": lambda: dummy.StatisticRegressor(_mean()),
}


def _mean() -> Any:
    from river import stats

    return stats.Mean()


def score(stream: Iterable[tuple[dict[Any, Any], Any]], model: Any, *, numbers: bool) -> Any:
    """Accuracy in percent or mean absolute error, and samples a second."""
    total, count, began = 0.0, 0, time.process_time()
    for x, y in stream:
        found = model.predict_one(x)
        # An abstention, before the first sample, counts as wrong.
        total += abs(found - y) if numbers else found is not None and found == y
        model.learn_one(x, y)
        count += 1
    rate = count / (time.process_time() - began)
    return (total if numbers else 100 * total) / count, rate


def ranks(scores: list[float], *, numbers: bool) -> list[float]:
    """The place of each score, 1 the best; equal ones share theirs."""
    signed = [s if numbers else -s for s in scores]
    return [
        1 + sum(o < s for o in signed) + 0.5 * (sum(o == s for o in signed) - 1) for s in signed
    ]


def table(
    streams: dict[str, Any], learners: dict[str, Any], samples: int, *, numbers: bool
) -> tuple[Table, dict[str, Any]]:
    """Every learner on every stream, as a table and as figures."""
    figures: dict[str, dict[str, Any]] = {}
    places: dict[str, list[float]] = {learner: [] for learner in learners}
    for name, stream in streams.items():
        found = {
            learner: score(itertools.islice(stream(), samples), make(), numbers=numbers)
            for learner, make in learners.items()
        }
        figures[name] = found
        order = ranks([value for value, _ in found.values()], numbers=numbers)
        for learner, place in zip(learners, order, strict=True):
            places[learner].append(place)
    head = Table(title="mean absolute error" if numbers else "prequential accuracy, %")
    for column in ("", *streams, "mean rank", "samples/s"):
        head.add_column(column, justify="right" if column else "left")
    for learner in learners:
        row = [f"{figures[name][learner][0]:.{2 if numbers else 1}f}" for name in streams]
        speed = statistics.harmonic_mean([figures[name][learner][1] for name in streams])
        place = statistics.mean(places[learner])
        head.add_row(learner, *row, f"{place:.1f}", f"{speed:,.0f}")
    return head, figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--streams", nargs="+", default=[*STREAMS, *REGRESSIONS])
    parser.add_argument("--learners", nargs="+", default=[*CLASSIFIERS, *REGRESSORS])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for streams, learners, numbers in (
        (STREAMS, CLASSIFIERS, False),
        (REGRESSIONS, REGRESSORS, True),
    ):
        chosen: Any = {name: make for name, make in streams.items() if name in options.streams}
        made: Any = {name: make for name, make in learners.items() if name in options.learners}
        if chosen and made:
            shown, found = table(chosen, made, options.samples, numbers=numbers)
            figures |= found
            Console(width=130).print(shown)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
