"""Two million samples of a drifting stream under a budget in bytes: nothing grows but the count.

    python -m bench.budgeted [--samples 2000000] [--budget 64MiB] [--batch 256] [WORD …]
    python -m bench.budgeted --budget none --samples 100000

32 centres of four classes move on closed curves in 8 dimensions, each by about half its range in
250,000 samples; samples are normal around a centre, mapped linearly to D features and blurred by
noise. The keys are these features, standardised: D numbers, so that 64 MiB hold about 16,000 tuples
of D = 1,023, and a sample costs 2 · 16,000 · 1,024 FLOPs for its scores, whatever D is.

A row each 100,000 samples (a twentieth if there are fewer): prequential accuracy in that part, CPU
time a sample and that of making the stream left out, resident memory, and the most bytes of the
budget that were in use after any step. At the end slopes over the parts after the first tenth, with
standard errors. A step after which the budget is exceeded ends the run. WORDs are settings of the
learner, such as memory.policy=least.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from bench.endless import slope
from streamlearn import Learner
from streamlearn.settings import settings_of

CENTRES, LATENT, CLASSES = 32, 8, 4
PERIOD = 500_000
SPREAD, NOISE = 0.4, 0.3
Array = NDArray[np.float32]


class Drifting:
    """The stream, from its beginning on.

    Args:
        width: D, features.
        seed: of everything.
    """

    def __init__(self, width: int, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        draw = self._draw
        self._phase = draw.uniform(0, 2 * np.pi, (CENTRES, LATENT))
        self._speed = 2 * np.pi / PERIOD * draw.uniform(0.5, 1.5, (CENTRES, LATENT))
        self._map = draw.standard_normal((LATENT, width), np.float32) / np.float32(LATENT**0.5)
        self._width = width
        self.seen = 0

    def next(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Features (count, D) and classes (count,)."""
        draw, which = self._draw, self._draw.integers(CENTRES, size=count)
        at = self.seen + np.arange(count)
        centre = np.sqrt(2) * np.sin(self._phase[which] + self._speed[which] * at[:, None])
        latent = centre + SPREAD * draw.standard_normal((count, LATENT))
        rows: Array = latent.astype(np.float32) @ self._map
        rows += np.float32(NOISE) * draw.standard_normal((count, self._width), np.float32)
        self.seen += count
        return torch.from_numpy(rows), torch.from_numpy(which % CLASSES)


class Part(NamedTuple):
    """What was measured of samples up to a number."""

    samples: int
    accuracy: float
    microseconds: float
    rss: int
    used: int
    left: int


def parts(
    learner: Learner, stream: Drifting, samples: int, batch: int, each: int
) -> Iterator[Part]:
    """Learn so many samples; a part after each so many of them.

    Raises:
        RuntimeError: the budget was exceeded after a step.
    """
    process = psutil.Process()
    right = count = used = 0
    spent = 0.0
    while stream.seen < samples:
        size = min(batch, samples - stream.seen, each - stream.seen % each)
        features, targets = stream.next(size)
        began = time.process_time()
        answers, _ = learner.learn(features, targets)
        spent += time.process_time() - began
        right += int((answers.argmax(1) == targets).sum())
        count += size
        bounds = learner.bounds()
        now = bounds.get("used", learner.nbytes)
        if "budget" in bounds and now > bounds["budget"]:
            raise RuntimeError(f"{now} bytes of {bounds['budget']} after {stream.seen} samples")
        used = max(used, now)
        if stream.seen % each == 0 or stream.seen == samples:
            rss = process.memory_info().rss
            yield Part(
                stream.seen, right / count, 1e6 * spent / count, rss, used, bounds.get("left", 0)
            )
            right = count = used = 0
            spent = 0.0


def main() -> None:
    """Learn, and print a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", metavar="WORD", help="settings: section.name=value")
    parser.add_argument("--samples", type=int, default=2_000_000)
    parser.add_argument("--budget", default="64MiB", help="bytes, or none")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=1023)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sections: dict[str, dict[str, object]] = {
        "encoder": {"kind": "standardise", "per": "feature", "fit": 1000},
        "network": {"hidden": 0},
        "layer": {"kind": "rbf", "gamma": 10.0, "lr_value": 0.2},
        "learner": {"kind": "growing", "batch": options.batch, "dtype": "float32"},
        "memory": {"budget": None if options.budget == "none" else options.budget},
    }
    for word in options.words:
        name, value = word.split("=", 1)
        section, key = name.split(".")
        sections[section][key] = value
    given = {**sections, "seed": options.seed}
    learner = Learner(CLASSES, settings_of(given))
    each = min(100_000, -(-options.samples // 20))
    heads = ("samples", "accuracy %", "µs a sample", "RSS MiB", "used MiB", "left")
    print("  ".join(f"{head:>11}" for head in heads), flush=True)
    found = []
    stream = Drifting(options.width, options.seed)
    for part in parts(learner, stream, options.samples, options.batch, each):
        found.append(part)
        cells = (f"{part.samples:,}", f"{100 * part.accuracy:.2f}", f"{part.microseconds:.0f}",
                 f"{part.rss / 2**20:.2f}", f"{part.used / 2**20:.3f}",
                 f"{part.left:,}")  # fmt: skip
        print("  ".join(f"{cell:>11}" for cell in cells), flush=True)
    flat = [part for part in found if part.samples > 0.1 * options.samples]
    at = [part.samples / 1e6 for part in flat]
    for what, values in (
        ("µs a sample", [part.microseconds for part in flat]),
        ("MiB of RSS", [part.rss / 2**20 for part in flat]),
        ("points of accuracy", [100 * part.accuracy for part in flat]),
    ):
        rise, error = slope(at, values)
        print(f"slope over the last 90%: {rise:+.2f} ± {error:.2f} {what} a million samples; "
              f"mean {np.mean(values):.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
