"""`prune`: tuples of a run that have faded, or whose keys are near others."""

import shlex
from collections.abc import Sequence
from typing import Any

from streamlearn.events import Tested
from streamlearn.scenarios.prune import Result, Wanted, prune_run
from streamlearn.storage import RunPath

from .describe import are_numbers
from .format import clean, count, figure, layer_title, percent, size
from .json_lines import to_json
from .output import Output

__all__ = ["prune"]


def prune(
    path: RunPath, wanted: Wanted, words: Sequence[str], output: Output, *, json: bool
) -> None:
    """Prune, or say what that would do, as lines or as one JSON object."""
    found = prune_run(path, wanted, words)
    if json:
        output.line(to_json(_facts(path, wanted, found)))
        return
    for layer in found.layers:
        gone = layer.faded + layer.merged
        share = percent(gone / layer.tuples if layer.tuples else 0.0)
        what = f"{count(layer.faded)} faded, {count(layer.merged)} merged"
        output.line(
            clean(
                f"{layer_title(layer.name)}: {count(gone)} of {count(layer.tuples)} tuples "
                f"({share}), {size(layer.bytes)}: {what}"
            )
        )
    output.line(clean(_said(path, wanted, found)))


def _said(path: RunPath, wanted: Wanted, found: Result) -> str:
    """What was done, or what it would cost, and what frees the bytes."""
    if wanted.dry:
        if found.before is None or found.after is None:
            return "nothing was changed; the data have no held-out test (data.holdout=0)"
        tests = (found.before, found.after)
        name, (before, after) = "accuracy", [percent(one.accuracy) for one in tests]
        if are_numbers(found.before.metrics):
            name, (before, after) = "mae", [figure(one.metrics["mae"]) for one in tests]
        return (
            f"nothing was changed; held-out {name} {before} before and {after} after, of "
            f"{count(found.before.samples)} samples"
        )
    if found.commit is None:
        return f"{path}: nothing goes, and nothing was changed"
    rows = "new tuples take their rows"
    if found.compacts:
        rows = f"free their bytes with: streamlearn compact {shlex.quote(str(path))}"
    return f"{path}: {count(found.tuples)} tuples are dead since commit {found.commit}; {rows}"


def _facts(path: RunPath, wanted: Wanted, found: Result) -> dict[str, Any]:
    return {
        "run": str(path),
        "dry_run": wanted.dry,
        "below": wanted.below,
        "merge": wanted.distance,
        "merge_near": wanted.similarity,
        "layers": [layer._asdict() for layer in found.layers],
        "tuples": found.tuples,
        "bytes": sum(layer.bytes for layer in found.layers),
        "commit": found.commit,
        "before": _test(found.before),
        "after": _test(found.after),
    }


def _test(tested: Tested | None) -> dict[str, Any] | None:
    if tested is None:
        return None
    return {"accuracy": tested.accuracy, "loss": tested.loss, "metrics": dict(tested.metrics)}
