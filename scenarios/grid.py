"""From words with lists, `seed=0,1,2 layer.kappa=1,3`, to the cells of a grid."""

import hashlib
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from streamlearn.errors import ConfigError

from .catalogue import DEFAULT
from .schema import Scenario
from .words import STDIN, load_tables, resolve, split

__all__ = ["Cell", "Grid", "grid_of", "written"]

_MOST_CELLS = 10_000
_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "\"'"
_PATHS = ("data.path", "data.root", "encoder.weights", "scenario")
_KINDS = ("data", "encoder", "layer", "learner", "network")
_SLUG = re.compile(r"[^A-Za-z0-9.=+_-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a grid.

    name: of the run's folder. choices: by key the value that is this cell's. words: for `run`, all
    but where the run is kept.
    """

    name: str
    choices: Mapping[str, str]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """All cells, in the order of the words.

    scenario: its name. axes: by key the values. digest: the same for the same grid, however its
    words were ordered.
    """

    scenario: str
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
    digest: str


def grid_of(words: Sequence[str]) -> Grid:
    """The cartesian product over every word whose value is a list with commas.

    A value in quotes or brackets is one value, as is a path that there is.

    Raises:
        ConfigError: no word has a list, a list has an empty value or one twice, a key comes twice,
            there are too many cells, or a cell has a wrong word; nothing was read but files of
            scenarios.
    """
    fixed, axes = _sorted_out(words)
    if not axes:
        raise ConfigError(
            "no word has several values, so there is nothing to sweep; write one as in "
            "seed=0,1,2, or use `streamlearn run`"
        )
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > _MOST_CELLS:
        raise ConfigError(
            f"{written(axes)} makes {count:,} runs, and a sweep has at most {_MOST_CELLS:,}; "
            "give shorter lists"
        )
    plain = [f"{key}={value}" for key, value in fixed]
    cells = []
    name = ""
    for number, values in enumerate(itertools.product(*axes.values()), start=1):
        choices = dict(zip(axes, values, strict=True))
        chosen = [f"{key}={value}" for key, value in choices.items()]
        try:
            scenario = resolve([*plain, *chosen])
        except ConfigError as error:
            raise ConfigError(f"with {' '.join(chosen)}: {error}") from None
        _refuse_sharing(scenario)
        name = name or scenario.name
        cells.append(Cell(_folder(number, count, choices), choices, (*plain, *chosen)))
    return Grid(name, axes, tuple(cells), _digest(fixed, axes))


def _refuse_sharing(scenario: Scenario) -> None:
    answers = scenario.stream.predictions
    if answers is not None:
        raise ConfigError(
            f"stream.predictions={answers} means nothing in a sweep, whose runs would write to one "
            "file; leave it out, or use `streamlearn run`"
        )
    if str(scenario.data.path) == STDIN:
        raise ConfigError(
            "data.path=- means nothing in a sweep, each of whose runs reads all data; give a file"
        )


def written(axes: Mapping[str, Sequence[str]]) -> str:
    """Axes as words: `seed=0,1,2 layer.kappa=1,3`."""
    return " ".join(f"{key}={','.join(values)}" for key, values in axes.items())


def _sorted_out(
    words: Sequence[str],
) -> tuple[list[tuple[str, str]], dict[str, tuple[str, ...]]]:
    """The words with one value, and the axes."""
    fixed: list[tuple[str, str]] = []
    axes: dict[str, tuple[str, ...]] = {}
    for word in words:
        key, value = split(word)
        if key.partition(".")[0] == "run":
            raise ConfigError(
                f"{word} means nothing in a sweep, which names its runs; choose its folder with "
                "--dir"
            )
        values = _values(key, value)
        if len(values) == 1:
            fixed.append((key, values[0]))
            continue
        if "" in values:
            raise ConfigError(f"{word} has an empty value; leave out the comma too many")
        if len(set(values)) < len(values):
            twice = Counter(values).most_common(1)[0][0]
            raise ConfigError(f"{word} has {twice} twice; give each value once")
        if key in axes:
            raise ConfigError(f"{key} has two lists; put all of its values into one")
        axes[key] = tuple(values)
    for key, _ in fixed:
        if _section(key) in map(_section, axes):
            raise ConfigError(
                f"{key} has both one value and a list of values; leave one of the words out"
            )
    return fixed, axes


def _section(key: str) -> str:
    """`layer.kind` as `layer`, which means the same."""
    section = key.removesuffix(".kind")
    return section if section in _KINDS else key


def _values(key: str, value: str) -> list[str]:
    if "," not in value or (key in _PATHS and os.path.exists(os.path.expanduser(value))):
        return [value]
    return [_bare(part.strip()) for part in _parts(value)]


def _parts(value: str) -> Iterator[str]:
    """A list cut at its commas, but for those between quotes or brackets."""
    depth, quote, start = 0, "", 0
    for place, character in enumerate(value):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES and not value[start:place].strip():
            quote = character
        elif character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth = max(0, depth - 1)
        elif character == "," and depth == 0:
            yield value[start:place]
            start = place + 1
    yield value[start:]


def _bare(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES
    return value[1:-1] if quoted else value


def _folder(number: int, count: int, choices: Mapping[str, str]) -> str:
    """A folder's name that says which cell it is, as far as a name can."""
    said = "-".join(f"{key.rpartition('.')[2]}={value}" for key, value in choices.items())
    return f"{number:0{len(str(count))}d}-{_SLUG.sub('_', said)}"[:100]


def _digest(fixed: Sequence[tuple[str, str]], axes: Mapping[str, Sequence[str]]) -> str:
    named = axes.get("scenario") or [dict(fixed).get("scenario", DEFAULT)]
    said = {
        "scenarios": {name: load_tables(name) for name in sorted(named)},
        "fixed": dict(sorted(dict(fixed).items())),
        "axes": {key: sorted(axes[key]) for key in sorted(axes)},
    }
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
