"""`inspect`: what a run directory holds, read without touching it."""

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from streamlearn.errors import RunStateError
from streamlearn.storage import LayerEntry, RunPath, RunReader, resume_command

from .describe import CONTINUAL, ERRORS, drift_sizes, matrix_lines
from .format import (
    MISSING,
    clean,
    count,
    duration,
    figure,
    layer_title,
    number,
    percent,
    size,
    span,
)
from .inspect_layer import chosen, describe_layer, layer_lines
from .json_lines import to_json
from .output import Output
from .series import Series
from .status import run_status

__all__ = ["describe_run", "facts_of", "inspect"]

_FIGURES = {
    "kappa": "kappa",
    "kappa_t": "kappa_t",
    "kappa_m": "kappa_m",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "coverage": "coverage",
    "selective_accuracy": "selective accuracy",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
    "no_change_accuracy": "no-change accuracy",
    "majority_accuracy": "majority accuracy",
    "no_change_mae": "no-change mae",
    "running_mean_mae": "running-mean mae",
}
"""What has a table of its own, over the whole stream and of the test: titles by name."""

_IN_TABLE = frozenset(f"{part}_{name}" for part in ("prequential", "test") for name in _FIGURES)

_CLASSES, _DRIFTS = 30, 5
"""The most rows of their tables."""

_NAME = 36
"""The most letters of a class's name, so that its row fits a narrow terminal."""


_POINTS, _SPARK = 64, 12
"""Points of a curve of growth, and characters that it is drawn with."""


def inspect(path: RunPath, output: Output, json: bool, layers: Sequence[str] = ()) -> None:
    """Print what a run holds, as lines or as one JSON object.

    Args:
        path: of the run.
        output: where to.
        json: as one object.
        layers: those of which every row is read.

    Raises:
        StreamlearnError: the run cannot be read, or has no such layer.
    """
    reader = RunReader(path)
    facts = facts_of(reader)
    if layers:
        _add_layers(facts, reader, layers)
    if json:
        output.line(to_json(facts))
        return
    if layers:
        for place, layer in enumerate(facts["details"]):
            for line in [*([""] if place else []), *layer_lines(layer)]:
                output.line(line)
        return
    for line in _lines(facts):
        output.line(line)


def facts_of(reader: RunReader) -> dict[str, Any]:
    """All that `inspect` says of a run whose rows are not read."""
    facts = describe_run(reader, time.time())
    _add_history(facts, reader)
    return facts


def _add_layers(facts: dict[str, Any], reader: RunReader, names: Sequence[str]) -> None:
    """All that the rows of some layers say."""
    manifest = reader.manifest()
    if manifest is None:
        raise RunStateError(
            f"run {facts['name']!r} has no checkpoint yet, so no layer to look into; wait for its "
            "first"
        )
    facts["details"] = [describe_layer(reader, manifest, name) for name in chosen(manifest, names)]


def _add_history(facts: dict[str, Any], reader: RunReader) -> None:
    """How each layer grew, what was merged in it, and where bytes lay, as the log tells it."""
    growth: dict[str, Series] = {}
    merged: dict[str, int] = {}
    memory = None
    for event in reader.some_events(4 * _POINTS, '"pruned"'):
        if event.get("event") == "progress":
            memory = event.get("memory") or memory
            for layer in event.get("layers") or ():
                series = growth.setdefault(layer_title(layer["name"]), Series(_POINTS))
                series.cut(float(event["samples"]))  # a run that went back goes on from there
                series.add(float(event["samples"]), float(layer["tuples"]))
        for name, gone in (event.get("pruned") or {}).items():
            title = layer_title(name)
            merged[title] = merged.get(title, 0) + int(gone["merged"])
    facts["memory"] = memory
    for layer in facts.get("layers", ()):
        title = layer_title(layer["name"])
        series = growth.get(title, Series())
        layer["merged"] = merged.get(title, 0)
        layer["growth"] = [[int(samples), int(tuples)] for samples, tuples in series.points]


def describe_run(reader: RunReader, now: float) -> dict[str, Any]:
    """The facts of a run at its last commit, ready for JSON.

    Args:
        reader: the run.
        now: unix time, for the age of the last commit.
    """
    status = run_status(reader)
    manifest = status.manifest
    facts: dict[str, Any] = {
        "run": str(reader.path),
        "name": reader.header.name,
        "scenario": reader.header.scenario,
        "status": status.word,
        "pid": status.pid,
        "host": status.host,
    }
    if manifest is not None:
        most = manifest.summary.get("most_tuples")
        if most is None:  # a run of an older version, or one that has learnt nothing yet
            most = reader.scenario.get("memory", {}).get("rows")
        facts |= {
            "commit": manifest.commit,
            "step": manifest.step,
            "samples": manifest.samples,
            "time": manifest.time,
            # A clock that was set back makes no negative age.
            "age_seconds": max(0.0, now - manifest.time),
            "disk_bytes": manifest.disk_bytes,
            "steps": list(manifest.steps),
            "layers": [_layer(layer, most) for layer in manifest.layers.values()],
            "summary": manifest.summary,
        }
    open_end = status.word in ("stopped", "crashed")
    facts["resume"] = resume_command(reader.path) if open_end else None
    return facts


def _layer(layer: LayerEntry, most: int | None) -> dict[str, Any]:
    return {
        "name": layer.name,
        "tuples": layer.rows,
        "most": most,
        "dead": layer.rows - layer.live,
        "bytes": layer.nbytes,
        "dtype": layer.dtype,
        "keys": layer.columns["key"].dtype,
        "row_bytes": layer.row_bytes,
        "blocks": layer.shards,
        "block_rows": layer.block_rows,
        "shards": layer.shards * len(layer.columns),
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    status = facts["status"]
    if facts["pid"] is not None:
        status += f" (process {facts['pid']} on {facts['host']})"
    rows = [
        ("run", facts["run"]),
        ("scenario", facts["scenario"]),
        ("status", status),
    ]
    if "commit" in facts:
        rows += [
            ("samples", f"{count(facts['samples'])} in {count(facts['step'])} steps"),
            *((name.replace("_", " "), _value(name, value)) for name, value in _scalars(facts)),
            ("commit", f"{count(facts['commit'])}, {duration(facts['age_seconds'])} ago"),
            *([("kept steps", _steps(facts["steps"]))] if len(facts["steps"]) > 1 else []),
            ("on disk", size(facts["disk_bytes"])),
            *_tiers(facts.get("memory")),
        ]
    else:
        rows.append(("commit", "none yet"))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {clean(value)}" for name, value in rows]
    if facts.get("layers"):
        lines += ["", *_table(facts["layers"])]
    if facts.get("summary", {}).get("matrix"):
        lines += ["", *matrix_lines(facts["summary"])]
    noted = facts.get("summary", {})
    lines += _figure_lines(noted)
    if noted.get("by_class"):
        lines += ["", *_class_lines(noted["by_class"])]
    if noted.get("recent_drifts"):
        lines += ["", *_drift_lines(noted["recent_drifts"], noted["drifts"])]
    if facts["resume"]:
        lines += ["", f"resume with: {clean(facts['resume'])}"]
    return lines


def _tiers(memory: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Where tuples lay in the process that learnt, as it said last."""
    if not memory:
        return []
    device, host = size(memory["device_bytes"]), size(memory["host_bytes"])
    return [("tuples lay", f"{device} on the device, {host} in host memory, all on disk")]


def _steps(steps: list[int]) -> str:
    """The steps that can be gone back to, the oldest and the newest of many."""
    words = [count(step) for step in steps]
    return ", ".join(words if len(words) <= 8 else [*words[:3], "...", *words[-4:]])


def _scalars(facts: dict[str, Any]) -> list[tuple[str, Any]]:
    """What the session noted at the commit, as far as it fits on a line each."""
    shown = {"step", "samples", "position", *_IN_TABLE}
    if facts["summary"].get("matrix"):
        shown |= {key for _, key in CONTINUAL}  # they stand below it
    return [
        (name, value)
        for name, value in facts["summary"].items()
        if name not in shown and (value is None or isinstance(value, (bool, int, float, str)))
    ]


def _value(name: str, value: Any) -> str:
    if isinstance(value, (bool, str)):
        return str(value)
    if value is None:
        return number(None)
    if name.endswith(("accuracy", "_f1", "coverage")) or name in {key for _, key in CONTINUAL}:
        return percent(value)
    if name.endswith(ERRORS):
        return figure(value)
    if name.endswith("bytes"):
        return size(value)
    if name.endswith("seconds"):
        return span(value)
    return count(value) if isinstance(value, int) else number(value)


def _table(layers: list[dict[str, Any]]) -> list[str]:
    from .plot import sparkline

    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    merged = any(layer.get("merged") for layer in layers)
    head = ("layer", "tuples", "dead", *(["merged"] if merged else []), "bytes", "dtype",
            "a tuple", "blocks", "rows a block")  # fmt: skip
    rows = [
        (
            clean(layer_title(layer["name"])),
            count(layer["tuples"]) + (f" of {count(layer['most'])}" if layer["most"] else ""),
            count(layer["dead"]),
            *([count(layer["merged"])] if merged else []),
            size(layer["bytes"]),
            layer["dtype"] + (", int8 keys" if layer["keys"] == "int8" else ""),
            size(layer["row_bytes"]),
            count(layer["blocks"]),
            count(layer["block_rows"]),
        )
        for layer in layers
    ]
    lines = _columns(head, rows, left=("layer", "dtype"))
    room = min(_SPARK, shutil.get_terminal_size().columns - max(map(len, lines)) - 2)
    if room < len("growth") or not any(layer.get("growth") for layer in layers):
        return lines
    curves = ["growth"]
    for layer in layers:
        series = Series(2 * _POINTS)
        for samples, tuples in layer.get("growth", ()):
            series.add(samples, tuples)
        curves.append(sparkline(series, room, unicode=unicode))
    wide = max(map(len, lines)) + 2
    return [f"{line:<{wide}}{curve}" for line, curve in zip(lines, curves, strict=True)]


def _figure_lines(summary: dict[str, Any]) -> list[str]:
    """The figures that stand beside accuracies and errors, as far as there are any."""
    rows = [
        (
            title,
            *(_value(name, summary.get(f"{part}_{name}")) for part in ("prequential", "test")),
        )
        for name, title in _FIGURES.items()
        if f"prequential_{name}" in summary
    ]
    head = ("figure", "prequential", "test")
    return ["", *_columns(head, rows, left=("figure",))] if rows else []


def _class_lines(columns: dict[str, list[Any]]) -> list[str]:
    """Accuracy by class; of many classes the first ones."""
    names = [clean(name) for name in columns["class"]]
    rows = [
        (
            f"{name[: _NAME - 3]}..." if len(name) > _NAME else name,
            count(samples),
            percent(recall),
            count(first) if first else MISSING,
        )
        for name, samples, recall, first in zip(
            names, *(columns[key] for key in ("samples", "recall", "first_seen")), strict=True
        )
    ]
    head = ("class", "samples", "recall", "first at sample")
    lines = _columns(head, rows[:_CLASSES], left=("class",))
    if len(rows) > _CLASSES:
        lines.append(f"{count(len(rows) - _CLASSES)} more classes; --json has them all")
    return lines


def _drift_lines(drifts: list[dict[str, Any]], total: int) -> list[str]:
    """The last few drifts."""
    last = drifts[-_DRIFTS:]
    rows = [
        (
            count(drift["sample"]),
            drift_sizes(drift["before"], drift["after"]),
            count(drift["window"]),
        )
        for drift in last
    ]
    lines = _columns(("drift at sample", "mean error", "window"), rows)
    if total > len(last):
        lines.append(f"{count(total - len(last))} before these")
    return lines


def _columns(
    head: tuple[str, ...], rows: Sequence[tuple[str, ...]], left: Sequence[str] = ()
) -> list[str]:
    """Cells under their titles, those of the columns `left` begun at the left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if name in left else f"{cell:>{width}}"
            for name, cell, width in zip(head, row, widths, strict=True)
        ).rstrip()
        for row in (head, *rows)
    ]
