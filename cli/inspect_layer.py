"""`inspect --layer`: every row of a layer, read a shard at a time: ages, weights, checksums."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamlearn.errors import ConfigError, FormatError
from streamlearn.storage import LayerEntry, Manifest, ObjectPath, RunReader

from .format import MISSING, clean, count, figure, layer_title, percent

if TYPE_CHECKING:  # numpy takes a tenth of a second that no look at a whole run needs
    from numpy.typing import NDArray

__all__ = ["QUANTILES", "chosen", "describe_layer", "layer_lines"]

PRIOR, DEAD = -1, -2
"""Birth steps of starting and of dropped rows; those of `streamlearn.memory`, which needs torch."""

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Of weights and of norms of values: least, …, median, …, largest."""

_MOST = 1 << 20
"""Rows whose median and quantiles are taken; of longer layers every k-th row."""

_MOST_JOINED = 1 << 24
"""Rows of the output layer that say which class a sample has, at most."""

_MAP, _CLASSES = 60, 10
"""Shards on a line of the map; classes in the lines."""

_MARKS = {"whole": "#", "rewritten": "r", "damaged": "X", "missing": "-"}
_WORST = ("missing", "damaged", "rewritten", "whole")


def chosen(manifest: Manifest, names: Sequence[str]) -> list[str]:
    """The layers that are asked for by name or title; `all` is each of them.

    Raises:
        ConfigError: there is no such layer.
    """
    found: list[str] = []
    for name in names:
        alike = [one for one in manifest.layers if name in (one, layer_title(one), "all")]
        if not alike:
            there = ", ".join(map(repr, manifest.layers)) or "none"
            raise ConfigError(f"--layer {name!r} is no layer of the run; it has {there}")
        found += alike
    return list(dict.fromkeys(found))


def describe_layer(reader: RunReader, manifest: Manifest, name: str) -> dict[str, Any]:
    """What all rows of a layer are, ready for JSON.

    Reads each shard once, a column at a time, and compares it with its checksum; a shard that is
    damaged is named and left out of the figures.

    Returns:
        rows, starting (rows that were there before the first sample), read; age in samples of the
        oldest, the median and the newest tuple; weight and value_norm: their quantiles by share,
        zero weights; effective: (Σ|w|)²/Σw², as many tuples of one weight would be as uneven;
        classes: tuples by class, or None and classes_from says why; tier: where shards lie;
        shards: rows, version and checksum of each column, and their state.

    Raises:
        StreamlearnError: the run cannot be read.
    """
    entry = reader.entry(name)
    rows = _Rows(entry)
    labels = _Labels(reader, manifest, entry)
    shards = [_shard(reader, entry, shard, rows, labels) for shard in range(entry.shards)]
    return {
        "name": name,
        "rows": entry.rows,
        **rows.facts(manifest),
        "classes": labels.counts(),
        "classes_from": labels.where,
        "tier": "object store" if isinstance(reader.path, ObjectPath) else "disk",
        "shards": shards,
    }


def _shard(
    reader: RunReader, entry: LayerEntry, shard: int, rows: "_Rows", labels: "_Labels"
) -> dict[str, Any]:
    """One shard: its columns compared with their checksums, and counted."""
    import numpy as np

    columns: dict[str, dict[str, Any]] = {}
    found: dict[str, NDArray[Any]] = {}
    for column in entry.columns:
        version = reader.version(entry.name, column, shard)
        state, problem = "whole" if not version.version else "rewritten", None
        try:
            read = reader.shard(entry.name, column, shard)
            if column == "value":
                found["norm"] = np.sqrt(np.square(read, dtype=np.float64).sum(1))
                found["right"] = _only_positive(read)
            elif column != "key":  # these are the wide ones, and nothing more is asked of them
                found[column] = read
        except FormatError as error:
            problem = str(error)
            state = "missing" if "is missing" in problem else "damaged"
        columns[column] = {
            "version": version.version,
            "checksum": version.checksum,
            "state": state,
            **({} if problem is None else {"problem": problem}),
        }
    if {"norm", "weight", "born"} <= found.keys():
        rows.add(found)
        labels.add(found)
    states = {one["state"] for one in columns.values()}
    state = next(state for state in _WORST if state in states)
    return {"shard": shard, "rows": entry.rows_in(shard), "state": state, "columns": columns}


def _only_positive(values: "NDArray[Any]") -> "NDArray[Any]":
    """The place of the only positive value of each row (n, C), -1 where there is not one alone.

    A tuple that cross-entropy wrote at the output holds η(y − p), which is positive at the true
    class and nowhere else.
    """
    import numpy as np

    positive = values > 0
    return np.where(positive.sum(1) == 1, positive.argmax(1), -1)


class _Rows:
    """Sums over all rows, and every k-th of them for quantiles."""

    def __init__(self, entry: LayerEntry) -> None:
        self._every = max(1, -(-entry.rows // _MOST))
        self._read = self._starting = self._zeros = 0
        self._sum = self._squares = 0.0
        self._first, self._last = math.inf, -math.inf
        self._kept: dict[str, list[NDArray[Any]]] = {"weight": [], "norm": [], "born": []}

    def add(self, found: "dict[str, NDArray[Any]]") -> None:
        """The rows of a shard."""
        import numpy as np

        born = found["born"]
        alive = born != DEAD
        weight = found["weight"][alive].astype(np.float64)
        written = born[born > PRIOR]
        self._read += int(alive.sum())
        self._starting += int((born == PRIOR).sum())
        self._zeros += int((weight == 0).sum())
        self._sum += float(np.abs(weight).sum())
        self._squares += float(np.square(weight).sum())
        if written.size:
            self._first = min(self._first, int(written.min()))
            self._last = max(self._last, int(written.max()))
        self._kept["born"].append(written[:: self._every])
        self._kept["weight"].append(weight[:: self._every])
        self._kept["norm"].append(found["norm"][alive][:: self._every])

    def facts(self, manifest: Manifest) -> dict[str, Any]:
        """See `describe_layer`."""
        import numpy as np

        steps = max(manifest.step, 1)
        middle = self._kept["born"] and np.concatenate(self._kept["born"])
        age: dict[str, int | None] = dict.fromkeys(("oldest", "median", "newest"))
        if self._last >= 0:
            births = self._first, float(np.median(middle)), self._last
            passed = (max(0.0, manifest.step - born) * manifest.samples / steps for born in births)
            age = dict(zip(age, (round(one) for one in passed), strict=True))
        return {
            "read": self._read,
            "starting": self._starting,
            "age_samples": age,
            "weight": _quantiles(self._kept["weight"]),
            "zero_weights": self._zeros,
            "value_norm": _quantiles(self._kept["norm"]),
            "effective": self._sum**2 / self._squares if self._squares else None,
        }


def _quantiles(parts: "list[NDArray[Any]]") -> dict[str, float] | None:
    import numpy as np

    values = np.concatenate(parts) if parts else np.empty(0)
    if not values.size:
        return None
    found = np.quantile(values, QUANTILES)
    return {f"{share:g}": float(one) for share, one in zip(QUANTILES, found, strict=True)}


class _Labels:
    """How many tuples are of each class, as far as the stored rows themselves say it."""

    def __init__(self, reader: RunReader, manifest: Manifest, entry: LayerEntry) -> None:
        table = manifest.summary.get("by_class") or {}
        self._names = [str(name) for name in table.get("class", ())]
        self._counts: list[int] = [0] * len(self._names)
        self._unknown = self._tuples = 0
        self._of_samples: tuple[NDArray[Any], NDArray[Any]] | None = None
        self.where = "no classes are known of this run"
        target = entry.columns.get("target")
        self._column = ""
        if not self._names:
            return
        if target is not None and target.dtype.startswith("int"):
            self._column, self.where = "target", "as kept beside the tuples"
        elif layer_title(entry.name) == "output":
            self._column, self.where = "right", "by the only positive value of each tuple"
        else:
            self._join(reader, manifest, entry)

    def _join(self, reader: RunReader, manifest: Manifest, entry: LayerEntry) -> None:
        """Let samples say their classes, by the tuples that the output layer has of them."""
        import numpy as np

        outputs = [
            one for one in manifest.layers.values()
            if layer_title(one.name) == "output" and "sample" in one.columns
        ]  # fmt: skip
        self.where = "the output layer keeps no tuples that say the class of a sample"
        if not outputs or "sample" not in entry.columns:
            return
        output = outputs[-1]
        if output.rows > _MOST_JOINED:
            self.where = f"the output layer has more than {_MOST_JOINED:,} tuples to look through"
            return
        try:
            parts = [
                (
                    reader.shard(output.name, "sample", shard),
                    _only_positive(reader.shard(output.name, "value", shard)),
                )
                for shard in range(output.shards)
            ]
        except FormatError:
            self.where = "the output layer is damaged"
            return
        if not parts:
            return
        samples, places = (np.concatenate(part) for part in zip(*parts, strict=True))
        known = (samples >= 0) & (places >= 0)
        order = np.argsort(samples[known], kind="stable")
        self._of_samples = samples[known][order], places[known][order]
        self._column, self.where = "sample", "by what the output layer has of the same samples"

    def add(self, found: "dict[str, NDArray[Any]]") -> None:
        """The rows of a shard, starting and dead ones left out."""
        import numpy as np

        if self._column not in found:
            return
        of = found[self._column][found["born"] > PRIOR]
        if self._of_samples is not None:
            samples, places = self._of_samples
            at = np.searchsorted(samples, of).clip(max=max(0, len(samples) - 1))
            there = samples[at] == of if len(samples) else np.zeros(len(of), bool)
            of = np.where(there, places[at] if len(samples) else -1, -1)
        inside = (of >= 0) & (of < len(self._names))
        self._tuples += len(of)
        self._unknown += int((~inside).sum())
        more = np.bincount(of[inside].astype(np.int64), minlength=len(self._names))
        self._counts = [have + int(one) for have, one in zip(self._counts, more, strict=True)]

    def counts(self) -> dict[str, int] | None:
        """By class, the most first; None where rows do not say it."""
        if not self._column or 2 * self._unknown > self._tuples:
            if self._column:
                self.where = "most tuples hold no sign of one class alone"
            return None
        named = dict(zip(self._names, self._counts, strict=True))
        found = dict(sorted(named.items(), key=lambda item: -item[1]))
        return found | ({"unknown": self._unknown} if self._unknown else {})


# -- lines -----------------------------------------------------------------------------------------


def layer_lines(facts: dict[str, Any], most: int = _CLASSES) -> list[str]:
    """A layer's facts for people."""
    age = facts["age_samples"]
    starting = f", {count(facts['starting'])} of them there before any sample"
    effective = facts["effective"]
    share = f" of {count(facts['read'])}, (sum |w|)^2 / sum w^2"
    rows = [
        ("tuples", count(facts["read"]) + (starting if facts["starting"] else "")),
        ("age", _age(age)),
        ("weight", _spread(facts["weight"])),
        ("", f"{count(facts['zero_weights'])} are 0" if facts["zero_weights"] else ""),
        ("value norm", _spread(facts["value_norm"])),
        ("effective", MISSING if effective is None else count(round(effective)) + share),
        ("", "so many tuples of equal weight would share it as evenly" if effective else ""),
        ("class mix", _mix(facts, most)),
        ("shards", _states(facts["shards"], facts["tier"])),
    ]
    lines = [f"layer {clean(facts['name'])}"]
    lines += [f"  {title:<10}  {clean(text)}" for title, text in rows if text]
    lines += _map(facts["shards"])
    problems = [
        column["problem"]
        for shard in facts["shards"]
        for column in shard["columns"].values()
        if "problem" in column
    ]
    return [*lines, *(f"  ! {clean(problem)}" for problem in problems)]


def _age(age: dict[str, int | None]) -> str:
    if age["oldest"] is None:
        return "no sample has been stored yet"
    told = (f"{what} {count(age[what])}" for what in ("oldest", "median", "newest"))
    return f"{', '.join(told)} samples"


def _spread(quantiles: dict[str, float] | None) -> str:
    if quantiles is None:
        return MISSING
    titles = ("least", "5%", "25%", "median", "75%", "95%", "most")
    values = zip(titles, quantiles.values(), strict=True)
    return ", ".join(f"{title} {figure(value)}" for title, value in values)


def _mix(facts: dict[str, Any], most: int) -> str:
    classes = facts["classes"]
    if classes is None:
        return f"not known: {facts['classes_from']}"
    total = max(1, sum(classes.values()))
    shown = [
        f"{name} {percent(tuples / total, 1)}" for name, tuples in list(classes.items())[:most]
    ]
    rest = len(classes) - most
    more = f", {count(rest)} more" if rest > 0 else ""
    return f"{', '.join(shown)}{more} ({facts['classes_from']})"


def _states(shards: Sequence[dict[str, Any]], tier: str) -> str:
    columns = [column["state"] for shard in shards for column in shard["columns"].values()]
    if not columns:
        return "none yet"
    bad = sum(state in ("missing", "damaged") for state in columns)
    blocks = "1 block" if len(shards) == 1 else f"{count(len(shards))} blocks"
    files = f"{blocks} in {count(len(columns))} files, {tier}"
    if bad:
        return f"{files}: {count(bad)} do NOT have the rows that were committed; verify --repair"
    return f"{files}, all checksums fit"


def _map(shards: Sequence[dict[str, Any]]) -> list[str]:
    """A character a block, the first block first."""
    if not shards:
        return []
    marks = "".join(_MARKS[shard["state"]] for shard in shards)
    lines = [f"  {'':<10}  {marks[at : at + _MAP]}" for at in range(0, len(marks), _MAP)]
    meaning = {"whole": "as first written", "rewritten": "rows changed since"}
    told = [
        f"{_MARKS[state]} {meaning.get(state, state)}"
        for state in _MARKS
        if any(shard["state"] == state for shard in shards)
    ]
    return [*lines, f"  {'':<10}  {', '.join(told)}"]
