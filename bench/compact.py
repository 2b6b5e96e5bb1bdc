"""Accuracy, bytes and speed of float32, bfloat16, int8 and narrower keys: docs/results/compact.md.

    python -m bench.compact run --data FOLDER --scratch FOLDER [--limit N] [--only ROW…]
    python -m bench.compact write

The same stream and seed for all, each in a process of its own, one after the other. What is
measured is kept in docs/results/compact/runs.jsonl, so that a run that was stopped goes on.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from bench.paper.records import Record, append, find, read
from bench.paper.trial import measure
from streamlearn.blocks import Layout
from streamlearn.scenarios.words import resolve

RESULTS = Path(__file__).parents[1] / "docs" / "results"
RECORDS = RESULTS / "compact" / "runs.jsonl"
SCENARIO = "cifar10-onepass-pixels"
MIB = 2**20


class Row(NamedTuple):
    """A way to keep tuples: the dtype of values and of arithmetic, and how keys are kept.

    width: of codes, and so of keys; None: the scenario's.
    """

    dtype: str
    keys: str
    width: int | None = None

    @property
    def name(self) -> str:
        """In words."""
        name = f"{self.dtype}, int8 keys" if self.keys == "int8" else self.dtype
        return name if self.width is None else f"{name}, {self.width} wide"


ROWS = [
    *(Row(dtype, keys) for keys in ("plain", "int8") for dtype in ("float32", "bfloat16")),
    *(Row("float32", keys, width) for width in (128, 64) for keys in ("plain", "int8")),
]


def _words(row: Row, limit: int) -> list[str]:
    words = [f"scenario={SCENARIO}", f"learner.dtype={row.dtype}", f"memory.keys={row.keys}"]
    words += [] if row.width is None else [f"encoder.width={row.width}"]
    return [*words, f"data.limit={limit}"] if limit else words


def _key_bytes(row: Row) -> int:
    """Of the keys of one tuple; both layers have keys of the encoder's width."""
    width: int = getattr(resolve(_words(row, 0)).encoder, "width", 0)
    return Layout(1, width, 1, getattr(torch, row.dtype), quantised=row.keys == "int8").key_bytes


def table(limit: int) -> str:
    """The rows that were measured, as Markdown."""
    found = [(row, find(read(RECORDS), row.name, _words(row, limit), 0)) for row in ROWS]
    measured = [(row, record) for row, record in found if record is not None]
    plain: Record | None = next((r for row, r in measured if row == ROWS[0]), None)
    lines = [
        "| tuples | test % | against float32 | prequential % | keys MiB | tuples MiB | samples "
        "a CPU second | of float32 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, record in measured:
        speed = record["samples"] / record["cpu_seconds"]
        against = ratio = ""
        if plain is not None:
            against = f"{100 * (record['accuracy'] - plain['accuracy']):+.2f}"
            ratio = f"{speed / (plain['samples'] / plain['cpu_seconds']):.2f}"
        lines.append(
            f"| {row.name} | {100 * record['accuracy']:.2f} | {against} "
            f"| {100 * record['prequential']:.2f} "
            f"| {record['tuples'] * _key_bytes(row) / MIB:.1f} | {record['tuple_bytes'] / MIB:.1f} "
            f"| {speed:.0f} | {ratio} |"
        )
    return "\n".join(lines)


_HEAD = """# int8 and narrower keys against float32 and bfloat16

Made by `python -m bench.compact`: `scenario={scenario}`, one seed, the same stream for all, one
thread, scored on the 10,000 test images. CIFAR-10 here is a copy whose images were re-encoded as
JPEG. {hardware}. The dtype is that of values and of arithmetic. Speed is in CPU seconds of learning
without encoding, for the machine had other work. Where a CPU has no bfloat16 units, its bfloat16
GEMMs are slow, and int8 keys in front of float32 arithmetic are the way to short keys. The bytes of
tuples count their values and notes too. Keys are 256 wide unless a row says otherwise.
"""


def write() -> None:
    """The report, from records alone."""
    records = read(RECORDS)
    hardware = sorted({f"{r['hardware']}, PyTorch {r['torch']}, {r['day']}" for r in records})
    parts = [_HEAD.format(scenario=SCENARIO, hardware="; ".join(hardware))]
    for limit in sorted({_limit(record) for record in records}, key=lambda n: n or sys.maxsize):
        what = f"{limit:,} samples" if limit else "The whole stream, 50,000 samples"
        parts.append(f"## {what}\n\n{table(limit)}\n")
    (RESULTS / "compact.md").write_text("\n".join(parts), encoding="utf-8")


def _limit(record: Record) -> int:
    given = [word.partition("=")[2] for word in record["words"] if word.startswith("data.limit=")]
    return int(given[0]) if given else 0


def main() -> None:
    """Measure or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("run", "write"))
    every = [row.name for row in ROWS]
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--scratch", type=Path, help="folder for encoded streams")
    parser.add_argument("--limit", type=int, default=0, help="samples; 0: all")
    options = parser.parse_args()
    if options.what == "run":
        if options.data is None or options.scratch is None:
            parser.error("run needs --data and --scratch")
        for row in (row for row in ROWS if row.name in options.only):
            words = _words(row, options.limit)
            if find(read(RECORDS), row.name, words, 0) is None:
                record = measure(
                    words, [f"data.root={options.data}"], 1, options.scratch, whole=False
                )
                append(RECORDS, record | {"row": row.name})
    write()
    print((RESULTS / "compact.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
