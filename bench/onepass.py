"""How far learning is from its floor: wall time as a multiple of the bare GEMMs it cannot avoid.

    python -m bench.onepass [data.root=FOLDER] [data.limit=N] [key=value …] [--threads N]

For `cifar10-onepass-pixels` and `cifar10-onepass` a real run (run directory, checkpoints, dashboard
drawn for a terminal of 120×40, into a buffer) learns the stream in this process, with timers
around its parts. Then, in the same process, GEMMs of the same shapes and dtype are timed over block
lists of several lengths and summed over the run by the trapezoid rule; the patch encoder is
compared with the bare convolution of its filters over the same number of images.
"""

import argparse
import io
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from streamlearn.blocks import TILE_ROWS, Block
from streamlearn.cli.live import Dashboard
from streamlearn.cli.model import Model
from streamlearn.encoders import Chain, PatchFeatures
from streamlearn.events import Finished
from streamlearn.layers import GrowingLayer
from streamlearn.learner import Learner
from streamlearn.networks import ResNetMLP
from streamlearn.optim import FunctionalSGD
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import PendingCommit

SCENARIOS = ("cifar10-onepass-pixels", "cifar10-onepass")


class Timers:
    """Wall time by part, gathered by wrapping methods for as long as the context is open."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, method: str, part: str) -> None:
        """Count the time in `owner.method` under `part`."""
        original = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - began

        setattr(owner, method, timed)
        self._undo.append(lambda: setattr(owner, method, original))

    def __enter__(self) -> "Timers":
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()


def learn(scenario: str, words: list[str]) -> tuple[dict[str, float], Finished, Learner]:
    """One whole run, and where its time went."""
    with tempfile.TemporaryDirectory() as folder, Timers() as timers:
        timers.wrap(Learner, "encode", "encoder")
        timers.wrap(ResNetMLP, "forward", "retrieval")
        timers.wrap(torch.Tensor, "backward", "retrieval")
        timers.wrap(FunctionalSGD, "step", "growth")
        timers.wrap(Session, "_begin", "checkpoint")  # the rest of it is a thread's
        timers.wrap(PendingCommit, "wait", "checkpoint")
        timers.wrap(Learner, "learn", "learn")
        settings = resolve(
            [f"scenario={scenario}", f"run.dir={folder}", "evaluation.test=false", *words]
        )
        console = Console(
            file=io.StringIO(), force_terminal=True, width=120, height=40, color_system="256"
        )
        dashboard = Dashboard(Model(), console)
        timers.wrap(dashboard, "show", "display")
        finished: Finished | None = None
        with Session.start(settings) as session:
            timers.wrap(session._loop.learner.encoder, "fit_encode", "fit")
            timers.wrap(session._loop.learner, "flush", "flush")
            began = time.perf_counter()
            dashboard.open()
            for event in session.events():
                dashboard.show(event)
                if isinstance(event, Finished):
                    finished = event
            dashboard.close()
            timers.seconds["whole"] = time.perf_counter() - began
            learner = session._loop.learner
        if finished is None:
            raise SystemExit("the run did not finish")
        return dict(timers.seconds), finished, learner


def bare_gemms(learner: Learner) -> float:
    """Seconds for the GEMMs of the whole pass: scores, outputs, and the gradient's two."""
    batch = learner.settings.learner.batch
    steps = -(-learner.samples // batch)
    layers = [m for m in learner.model.network.modules() if isinstance(m, GrowingLayer)]  # type: ignore[union-attr]
    points = (0.25, 0.5, 0.75, 1.0)
    total = 0.0
    for place, layer in enumerate(layers):
        memory = layer.memory
        query = torch.randn(batch, memory.key_width).to(memory.dtype)
        gradient = torch.randn(batch, memory.side_width).to(memory.dtype)
        scores = torch.empty(batch * TILE_ROWS, dtype=memory.dtype)
        times, grid = [0.0], [0.0]
        for point in points:
            tiles = [tile for block in memory.blocks for tile in block.tiles()]
            blocks = tiles[: max(1, round(point * len(tiles)))]
            grid.append(sum(block.count for block in blocks) / len(memory))

            # The first layer's query needs no gradient.
            sweep = partial(_gemms, blocks, query, gradient if place else None, scores)
            times.append(_median(sweep, 5))
        area = sum(
            0.5 * (times[i] + times[i + 1]) * (grid[i + 1] - grid[i]) for i in range(len(grid) - 1)
        )
        total += steps * area
    return total


def _gemms(blocks: list[Block], query: Tensor, gradient: Tensor | None, scores: Tensor) -> None:
    for block in blocks:
        out = scores[: len(query) * block.padded].view(len(query), block.padded)
        torch.mm(query, block.key[: block.padded].T, out=out)
        torch.mm(out, block.side[: block.padded])
    if gradient is not None:
        for block in blocks:
            out = scores[: len(query) * block.padded].view(len(query), block.padded)
            torch.mm(gradient, block.side[: block.padded].T, out=out)
            torch.mm(out, block.key[: block.padded])


def bare_convolution(learner: Learner, images: int) -> float | None:
    """Seconds to convolve that many images with the patch encoder's filters, and nothing else."""
    encoder = learner.encoder
    if not isinstance(encoder, Chain) or not isinstance(encoder.stages[0], PatchFeatures):
        return None
    patches = encoder.stages[0]
    shape = learner.input_shape or ()
    best = float("inf")
    for layout in (torch.contiguous_format, torch.channels_last):
        weight = patches.tensors["filters"].to(patches.dtype).to(memory_format=layout)
        for chunk in (4, 64):
            batch = torch.rand(chunk, *shape).to(patches.dtype).to(memory_format=layout)
            best = min(best, _median(lambda b=batch, w=weight: F.conv2d(b, w), 5) / chunk)  # type: ignore[misc]
    return best * images


def _median(action: Callable[[], Any], times: int) -> float:
    action()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[times // 2]


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("words", nargs="*", help="overrides of the scenarios, key=value")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table(title=f"one pass, PyTorch {torch.__version__}, {options.threads} threads")
    for column in ("", *SCENARIOS):
        table.add_column(column, justify="left" if not column else "right")
    columns = []
    for scenario in SCENARIOS:
        seconds, finished, learner = learn(scenario, options.words)
        learning = seconds["learn"] + seconds["flush"] - seconds["encoder"] - seconds["fit"]
        floor = bare_gemms(learner)
        bare = bare_convolution(learner, learner.samples)
        whole = seconds["whole"]
        columns.append(
            {
                "samples": f"{finished.samples:,}",
                "dtype": str(learner.hardware.dtype).removeprefix("torch."),
                "whole run": f"{whole:.1f} s",
                "learning": f"{learning:.1f} s",
                "bare GEMMs": f"{floor:.1f} s",
                "learning / bare GEMMs": f"{learning / floor:.2f}",
                "encoder": f"{seconds['encoder']:.1f} s",
                "bare convolution": "–" if bare is None else f"{bare:.1f} s",
                "encoder / bare convolution": (
                    "–" if bare is None else f"{seconds['encoder'] / bare:.2f}"
                ),
                "share of retrieval": f"{seconds['retrieval'] / whole:.1%}",
                "share of growth": f"{seconds['growth'] / whole:.1%}",
                "share of encoder": f"{seconds['encoder'] / whole:.1%}",
                "share of the encoder's fit": f"{seconds['fit'] / whole:.1%}",
                "share of checkpoint": f"{seconds['checkpoint'] / whole:.1%}",
                "share of display": f"{seconds['display'] / whole:.1%}",
                "prequential accuracy": f"{finished.prequential_accuracy or 0:.4f}",
                "tuples": f"{finished.tuples:,}, {finished.tuple_bytes / 2**20:,.0f} MiB",
            }
        )
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
