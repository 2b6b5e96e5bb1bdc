"""Recall and time of approximate nearest keys against exact ones.

    python -m bench.nearest [--rows 100000 500000] [--width 64] [--queries 256]

Keys are drawn around a thousand centres, each half as far spread as the centres are, and have the
length √D, as in a network; queries are drawn alike. One thread. Times are CPU milliseconds a query,
of batches of 64.
"""

import argparse
import time

import torch
from torch import Tensor

from streamlearn.approximate import ApproximateNearest
from streamlearn.gates import ExactNearest, NearestKeys
from streamlearn.memory import Memory, Tuples

BATCH = 64


def drawn(count: int, centres: Tensor, generator: torch.Generator) -> Tensor:
    """Rows (count, D) of length √D."""
    which = torch.randint(len(centres), (count,), generator=generator)
    rows = centres[which] + 0.5 * torch.randn(count, centres.shape[1], generator=generator)
    return rows / rows.square().mean(-1, keepdim=True).sqrt()


def timed(keys: NearestKeys, query: Tensor) -> tuple[Tensor, float]:
    """Nearest rows (B,), and milliseconds a query."""
    began = time.process_time()
    rows = torch.cat([keys.nearest(part)[1][:, 0] for part in query.split(BATCH)])
    return rows, 1000 * (time.process_time() - began) / len(query)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 500_000])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--queries", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(1000, options.width, generator=generator)
    memory = Memory(options.width, 10)
    approximate = ApproximateNearest(memory)
    print("| keys | exact ms | approximate ms | times faster | recall@1 | ms to add a key |")
    print("|---|---|---|---|---|---|")
    for rows in sorted(options.rows):
        before, began = len(memory), time.process_time()
        key = drawn(rows - before, centres, generator)
        memory.append(Tuples(key, torch.ones(len(key)), torch.zeros(len(key), 10)), born=1)
        approximate.nearest(key[:1])  # the graph takes them in
        added = 1000 * (time.process_time() - began) / len(key)
        query = drawn(options.queries, centres, generator)
        expected, exact_ms = timed(ExactNearest(memory), query)
        found, near_ms = timed(approximate, query)
        recall = float((found == expected).double().mean())
        print(
            f"| {rows:,} | {exact_ms:.2f} | {near_ms:.2f} | {exact_ms / near_ms:.1f} "
            f"| {recall:.3f} | {added:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
