"""What attention is worth: label purity layer by layer, and accuracy with the top K tuples alone.

    python -m bench.explain [data.root=FOLDER] [key=value …] [--samples N] [--run RUN]

Learns `cifar10-onepass` (or takes a run that there is, with `--run`), and asks it about samples of
the held-out test. Purity is the share of the 50 most attended samples of a layer whose label is the
test sample's. With the top K, each growing layer answers a query by the K tuples alone that it
attends to most, beside its starting rows.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from streamlearn.attribution import Attributable, answer_of_top, attribute, purity
from streamlearn.scenarios.build import open_splits
from streamlearn.scenarios.explain import FIRST, TOLERANCE, restored
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import find_run
from streamlearn.storage.objects import as_file
from streamlearn.streams.experiences import labels_of

KEPT = (1, 5, 20, 50, 200, 1000, 5000)
ROWS = 64


@contextlib.contextmanager
def top_alone(layers: dict[str, nn.Module], count: int) -> Iterator[None]:
    """Let layers answer by the tuples alone that a query attends to most."""

    def answered(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        query = given[0].reshape(-1, given[0].shape[-1])
        assert isinstance(module, Attributable)
        return answer_of_top(module, query, count).to(output.dtype).reshape(output.shape)

    hooks = [layer.register_forward_hook(answered) for layer in layers.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def measure(run: str, words: list[str], samples: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Purity by layer; and accuracy by K, the largest gap between sums and logits, seconds."""
    _, scenario, learner, _ = restored(find_run(run), words)
    splits = open_splits(scenario)
    if splits.test is None:
        raise SystemExit("the data has no test set")
    labels = torch.from_numpy(labels_of(splits.train))
    chosen = np.sort(np.random.default_rng(0).permutation(len(splits.test))[:samples])
    pure: dict[str, list[Tensor]] = {}
    right: dict[str, int] = {}
    off, began = 0.0, time.perf_counter()
    for start in range(0, len(chosen), ROWS):
        rows = splits.test.read(chosen[start : start + ROWS])
        seen = learner.see(rows.features)
        if seen is None or not seen.queries:
            raise SystemExit("the run keeps no tuples")
        network = seen.network.network
        layers = {n: m for n, m in network.named_modules() if n in seen.queries}
        for name, layer in layers.items():
            assert isinstance(layer, Attributable)
            query = seen.queries[name]
            each = len(query) // len(rows.targets)
            found = attribute(layer, query, top=FIRST, each=each, averaged=layer is network.output)
            groups = labels[found.attended.sample.clamp_min(0).cpu()]
            known = found.attended.sample.cpu() >= 0
            share = purity(found.attended, torch.where(known, groups, -1), rows.targets)
            pure.setdefault(name, []).append(share)
            if layer is network.output:
                off = max(off, float((found.output - seen.output.double()).abs().max()))
        for count in (*KEPT, None):
            for which, chosen_layers in (("all layers", layers),
                                         ("output", {"output": network.output})):  # fmt: skip
                kept = contextlib.nullcontext() if count is None else top_alone(
                    {n: m for n, m in chosen_layers.items() if n in layers}, count
                )  # fmt: skip
                with kept:
                    said = learner.answer(rows.features).argmax(-1)
                key = f"{'all' if count is None else count} {which}"
                right[key] = right.get(key, 0) + int((said == rows.targets).sum())
    accuracy = {key: hits / len(chosen) for key, hits in right.items()}
    seconds = time.perf_counter() - began
    tuples = max(len(memory) for memory in learner.memories().values())
    facts = {"accuracy": accuracy, "off": off, "seconds": seconds, "tuples": tuples}
    return {name: float(torch.cat(parts).mean()) for name, parts in pure.items()}, facts


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="key=value")
    parser.add_argument("--samples", type=int, default=1000, help="of the test")
    parser.add_argument("--run", help="a run that there is, instead of a new one")
    parser.add_argument("--threads", type=int)
    given = parser.parse_intermixed_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        run, words = given.run, list(given.words)
        if run is None:
            asked = ["scenario=cifar10-onepass", f"run.dir={folder}", "run.name=run",
                     "evaluation.test=false", *words]  # fmt: skip
            with Session.start(resolve(asked)) as session:
                for _ in session.events():
                    pass
                run = str(as_file(session.path))
            words = []
        pure, facts = measure(str(Path(run)), words, given.samples)
    console = Console(width=100)
    table = Table(title=f"label purity of the first {FIRST} by attention")
    table.add_column("layer")
    table.add_column("purity", justify="right")
    for name, value in pure.items():
        table.add_row(name, f"{value:.1%}")
    console.print(table)
    table = Table(title=f"accuracy on {given.samples} test samples")
    for name in ("tuples kept of a layer", "in all layers", "in the output layer alone"):
        table.add_column(name, justify="right")
    for count in (*KEPT, None):
        key = "all" if count is None else str(count)
        accuracy = facts["accuracy"]
        title = f"all {facts['tuples']:,}" if count is None else f"{count:,}"
        table.add_row(title, f"{accuracy[f'{key} all layers']:.1%}",
                      f"{accuracy[f'{key} output']:.1%}")  # fmt: skip
    console.print(table)
    verdict = "within" if facts["off"] <= TOLERANCE else "NOT within"
    console.print(
        f"contributions sum to the logits of all {given.samples} samples {verdict} "
        f"{TOLERANCE:.0e}: off by {facts['off']:.1e} at most; {facts['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
