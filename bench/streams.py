"""The river adapter beside river's own learners, one recipe for all streams.

    python -m bench.streams run [--streams NAME …] [--learners NAME …] [--samples 50000]
    python -m bench.streams write

Each stream is predicted, scored and learnt one sample after the other, by each learner in a process
of its own. Generated streams have --samples of them, bundled data sets all that they have. What is
measured is appended to docs/results/streams/scores.jsonl, so a stopped run goes on where it was;
`write` makes docs/results/streams.md of it: prequential accuracy, or mean absolute error for
regressions, the mean rank over the streams, and samples a second of predicting and learning.

An abstention, before the first sample, counts as wrong. Nobody's settings are tuned to a stream:
river's learners have their defaults, those that measure distances behind a standardisation too.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from river import (
    datasets,
    dummy,
    ensemble,
    forest,
    linear_model,
    neighbors,
    preprocessing,
    stats,
    tree,
)
from river.datasets import synth

from bench.paper.trial import hardware_line
from streamlearn.adapters.river import GrowingClassifier, GrowingRegressor

RESULTS = Path(__file__).parents[1] / "docs" / "results"
Samples = Iterable[tuple[dict[Any, Any], Any]]


def _in_turn(concepts: list[Any], every: int, width: int) -> Any:
    """Concepts one after the other, each passing into the next over `width` samples."""
    stream = concepts[-1]
    for place in range(len(concepts) - 2, -1, -1):
        stream = synth.ConceptDriftStream(
            concepts[place], stream, position=every, width=width, seed=place + 1
        )
    return stream


STREAMS: dict[str, Callable[[], Samples]] = {
    "Bananas": datasets.Bananas,
    "Phishing": datasets.Phishing,
    "ImageSegments": datasets.ImageSegments,
    "Shuttle": datasets.Shuttle,
    "SEA": lambda: _in_turn(
        [synth.SEA(seed=seed, variant=seed, noise=0.1) for seed in range(4)], 12_500, 1000
    ),
    "Agrawal": lambda: _in_turn(
        [synth.Agrawal(seed=seed, classification_function=seed) for seed in (0, 2, 4, 6)],
        12_500,
        250,
    ),
    "RandomRBFDrift": lambda: synth.RandomRBFDrift(
        seed_model=1, seed_sample=1, n_classes=4, n_features=10, n_centroids=50,
        change_speed=0.0001, n_drift_centroids=50,
    ),
    "LEDDrift": lambda: synth.LEDDrift(
        seed=1, noise_percentage=0.1, irrelevant_features=True, n_drift_features=4
    ),
}  # fmt: skip
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "GrowingClassifier": GrowingClassifier,
    "KNN": neighbors.KNNClassifier,
    "scaled KNN": lambda: preprocessing.StandardScaler() | neighbors.KNNClassifier(),
    "ARF": lambda: forest.ARFClassifier(seed=1),
    "HoeffdingTree": tree.HoeffdingTreeClassifier,
    "AMF": lambda: forest.AMFClassifier(seed=1),
    "LeveragingBagging": lambda: ensemble.LeveragingBaggingClassifier(
        tree.HoeffdingTreeClassifier(), seed=1
    ),
    "no change": dummy.NoChangeClassifier,
}
REGRESSIONS: dict[str, Callable[[], Samples]] = {
    "TrumpApproval": datasets.TrumpApproval,
    "ChickWeights": datasets.ChickWeights,
}
_SCALED = preprocessing.StandardScaler
REGRESSORS: dict[str, Callable[[], Any]] = {
    "GrowingRegressor": GrowingRegressor,
    "KNN": lambda: _SCALED() | neighbors.KNNRegressor(),
    "ARF": lambda: _SCALED() | forest.ARFRegressor(seed=1),
    "HoeffdingTree": lambda: _SCALED() | tree.HoeffdingTreeRegressor(),
    "AMF": lambda: _SCALED() | forest.AMFRegressor(seed=1),
    "linear": lambda: _SCALED() | linear_model.LinearRegression(intercept_lr=0.1),
    "running mean": lambda: dummy.StatisticRegressor(stats.Mean()),
}


def score(stream: Samples, model: Any, *, numbers: bool) -> tuple[float, float]:
    """Accuracy in percent or mean absolute error, and samples a second of processor time."""
    total, count, began = 0.0, 0, time.process_time()
    for x, y in stream:
        found = model.predict_one(x)  # None, by some, before they have learnt anything
        total += abs((found or 0.0) - y) if numbers else found is not None and found == y
        model.learn_one(x, y)
        count += 1
    rate = count / (time.process_time() - began)
    return (total if numbers else 100 * total) / count, rate


def _measure(stream: str, learner: str, samples: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    numbers = stream in REGRESSIONS
    streams: dict[str, Any] = REGRESSIONS if numbers else STREAMS
    learners = REGRESSORS if numbers else CLASSIFIERS
    given = itertools.islice(streams[stream](), samples)
    value, rate = score(given, learners[learner](), numbers=numbers)
    return {"stream": stream, "learner": learner, "samples": samples, "value": value,
            "rate": rate, **hardware_line()}  # fmt: skip


def run(streams: list[str], learners: list[str], samples: int, path: Path) -> None:
    """Measure what is not recorded yet."""
    known = {(r["stream"], r["learner"], r["samples"]) for r in _records(path)}
    pairs = [(s, c) for s in STREAMS for c in CLASSIFIERS]
    pairs += [(s, c) for s in REGRESSIONS for c in REGRESSORS]
    context = multiprocessing.get_context("fork")
    for stream, learner in pairs:
        if stream not in streams or learner not in learners:
            continue
        if (stream, learner, samples) in known:
            continue
        with context.Pool(1) as pool:
            record = pool.apply(_measure, (stream, learner, samples))
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{stream}, {learner}: {record['value']:.2f}, {record['rate']:.0f} samples/s",
              file=sys.stderr, flush=True)  # fmt: skip


def _records(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def ranks(scores: list[float], *, numbers: bool) -> list[float]:
    """The place of each score, 1 the best; equal ones share theirs."""
    signed = [s if numbers else -s for s in scores]
    return [
        1 + sum(o < s for o in signed) + 0.5 * (sum(o == s for o in signed) - 1) for s in signed
    ]


def table(
    streams: Iterable[str], learners: Iterable[str], records: list[dict[str, Any]], *, numbers: bool
) -> list[str]:
    """Lines of a table of every learner on every stream that all of them went through."""
    found = {(r["stream"], r["learner"]): r for r in records}
    present = [c for c in learners if any((s, c) in found for s in streams)]
    # One more than are asked for: it stands in the table once it is through all of them.
    if any((s, "scaled KNN") not in found for s in streams):
        present = [c for c in present if c != "scaled KNN"]
    whole = [s for s in streams if present and all((s, c) in found for c in present)]
    if not whole:
        return []
    places = {c: [0.0] * 0 for c in present}
    for stream in whole:
        values = [found[stream, c]["value"] for c in present]
        for learner, place in zip(present, ranks(values, numbers=numbers), strict=True):
            places[learner].append(place)
    lines = [f"| | {' | '.join(whole)} | mean rank | samples/s |",
             "|---" * (len(whole) + 3) + "|"]  # fmt: skip
    for learner in sorted(present, key=lambda c: statistics.mean(places[c])):
        cells = []
        for stream in whole:
            value = found[stream, learner]["value"]
            best = ranks([found[stream, c]["value"] for c in present], numbers=numbers)
            text = f"{value:.3f}" if numbers else f"{value:.1f}"
            cells.append(f"**{text}**" if best[present.index(learner)] < 1.6 else text)
        speed = statistics.harmonic_mean([found[s, learner]["rate"] for s in whole])
        mean = statistics.mean(places[learner])
        lines.append(f"| {learner} | {' | '.join(cells)} | {mean:.2f} | {speed:,.0f} |")
    return lines


def write(path: Path, report: Path) -> None:
    """Make the report of what is recorded."""
    records = _records(path)
    hardware = sorted({f"{r['hardware']}, PyTorch {r['torch']}" for r in records})
    days = sorted({r["day"] for r in records})
    samples = sorted({r["samples"] for r in records})
    lines = [
        "# Streams of records, beside river's learners",
        "",
        "Made by `python -m bench.streams write` of [streams/scores.jsonl](streams/scores.jsonl), "
        f"recorded {' to '.join(dict.fromkeys((days[0], days[-1])))} by `python -m bench.streams "
        f"run`. Hardware: {'; '.join(hardware)}; one thread, other work beside it. Bundled data "
        f"sets are whole, generated streams have {', '.join(f'{n:,}' for n in samples)} samples; "
        "SEA and Agrawal go through four concepts, RandomRBFDrift moves all the time. One seed.",
        "",
        "Prequential accuracy in percent: each sample is predicted, scored, learnt. The settings "
        "of `GrowingClassifier` are its defaults, the same for all streams. They were chosen on "
        "the first 3,000 samples of these streams, and again once Agrawal had been seen at full "
        "length, so its figure flatters (docs/decisions/019); river's learners have theirs. "
        "Those of `GrowingRegressor` were chosen on these two sets, Friedman and Planes2D. Speed "
        "is the harmonic mean over the streams. A stream that not all learners have gone through "
        "yet is left out.",
        "",
        *table(STREAMS, CLASSIFIERS, records, numbers=False),
        "",
    ]
    regressions = table(REGRESSIONS, REGRESSORS, records, numbers=True)
    if len(regressions) > 2:
        lines += ["Mean absolute error of regressions:", "", *regressions]
    report.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Measure or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--streams", nargs="+", default=[*STREAMS, *REGRESSIONS])
    parser.add_argument("--learners", nargs="+", default=[*CLASSIFIERS, *REGRESSORS])
    parser.add_argument("--records", type=Path, default=RESULTS / "streams" / "scores.jsonl")
    options = parser.parse_args()
    if options.what == "run":
        run(options.streams, options.learners, options.samples, options.records)
    else:
        write(options.records, RESULTS / "streams.md")


if __name__ == "__main__":
    main()
