"""River's generators, which never end and may drift, and its bundled data sets, as records."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from streamlearn.errors import ConfigError, FormatError
from streamlearn.records import plain
from streamlearn.state import StateTree
from streamlearn.streams.splits import unknown_word

from .base import Cursor, Item

__all__ = ["TARGET", "RiverGenerator"]

TARGET = "target"

_TERM = re.compile(r"\s*([A-Za-z]\w*)\s*(\(.*\))?\s*", re.DOTALL)
_DRIFT = "ConceptDrift"
_SEEDS = ("seed", "seed_model", "seed_sample", "seed_tree")
_TASKS = ("Binary classification", "Multi-class classification", "Regression")
_STEEPEST = 700.0


class RiverGenerator:
    """A generator by its name, with keywords as river calls them.

        SEA    Agrawal(classification_function=2)    RandomRBFDrift(change_speed=0.01)
        SEA:variant=2:noise=0.1
        ConceptDrift:SEA(variant=0):SEA(variant=2):position=5000:width=1000
        Phishing

    Keywords stand in brackets, or each after a colon. ConceptDrift goes from the first generator to
    the second around item `position`, within `width` items. Values are numbers, texts, booleans or
    tuples of these, read and never run. The seed goes to each generator that takes one and was
    given none; the second one of a drift gets the seed after it.

    Generators have no state that could be saved: resuming makes the first items again and lets them
    go, which took 8 µs (SEA, Hyperplane, LEDDrift) to 0.4 ms (Agrawal, RandomRBFDrift) an item on
    two busy cores.

    Args:
        spec: as above.
        seed: what they are made by; the same seed gives the same items.

    Raises:
        ConfigError: no such generator or keyword, or one with several targets.
    """

    waits = False

    def __init__(self, spec: str, seed: int) -> None:
        self.name = spec
        self._spec = spec
        self._seed = seed
        self._data = _made(spec, seed)
        if self._data.task not in _TASKS:
            raise ConfigError(
                f"river's {spec} is for {self._data.task.lower()}, which has several targets; "
                f"choose one of {', '.join(_choices())}"
            )
        self.regression: bool | None = self._data.task == "Regression"
        self.count: int | None = getattr(self._data, "n_samples", None)
        if spec.startswith(_DRIFT):  # as many as the one that ends first allows
            self.count = None
        self.columns: tuple[str, ...] | None = None
        self.hints: dict[str, str] = {}
        base = importlib.import_module("river.datasets.base")
        if isinstance(self._data, base.FileDataset):
            self._data = list(self._data)  # river leaves the file open until it was read to its end
        self._rows: Iterator[tuple[dict[Any, Any], Any]] = iter(self._data)
        self._position = 0
        self._done = False

    @property
    def ended(self) -> bool:
        """Whether a data set was pulled to its end."""
        return self._done or self._position == self.count

    def pull(self, count: int, *, wait: bool = True) -> list[Item]:
        """The next items."""
        items = []
        for record, target in islice(self._rows, count):
            self._position += 1
            values = {str(name): plain(value) for name, value in record.items()}
            values[TARGET] = plain(target)
            where = f"item {self._position} of {self.name}"
            items.append(Item(values, where, "", None, self._position))
        self._done = len(items) < count
        return items

    def state(self, cursor: Cursor, position: int) -> StateTree:
        """What the items are made of, and how many were."""
        return {"generator": self._spec, "seed": self._seed, "items": cursor or 0}

    def restore(self, state: StateTree, position: int) -> Cursor:
        """Make the first items again, and let them go."""
        for key, here in (("generator", self._spec), ("seed", self._seed)):
            if state.get(key) != here:
                raise FormatError(
                    f"the run was learning a stream with {key} {state.get(key)!r} but the data now "
                    f"has {here!r}; give back the data that the run began with"
                )
        items = int(state["items"])
        fresh = self._data if isinstance(self._data, list) else _made(self._spec, self._seed)
        self._rows = iter(fresh)
        self._position = items
        self._done = False
        next(islice(self._rows, items, items), None)
        return items

    def close(self) -> None:
        """Nothing is held."""


def _made(spec: str, seed: int) -> Any:
    """The data set of river that a text describes."""
    first, *parts = _split(spec)
    if first == _DRIFT:
        terms = [part for part in parts if "=" not in part.split("(")[0]]
        if len(terms) != 2:
            raise ConfigError(
                f"data.name={spec} must name two generators, such as "
                f"{_DRIFT}:SEA(variant=0):SEA(variant=2):position=5000:width=1000"
            )
        words = [part for part in parts if part not in terms]
        before, after = (_term(term, [], seed + place) for place, term in enumerate(terms))
        keywords = {"position": 5000, "width": 1000, **_keywords(words, spec)}
        position, width = keywords["position"], keywords["width"]
        if not all(type(value) is int and value > 0 for value in (position, width)):
            raise ConfigError(f"data.name={spec}: position and width must be whole numbers above 0")
        if 4 * position / width > _STEEPEST:  # river takes e to this power
            least = -(-4 * position // int(_STEEPEST))
            raise ConfigError(f"data.name={spec}: give a width of at least {least}")
        if before.task != after.task:
            raise ConfigError(
                f"data.name={spec}: the first is for {before.task.lower()}, the second for "
                f"{after.task.lower()}; name two alike"
            )
        synth = importlib.import_module("river.datasets.synth")
        given = {"stream": before, "drift_stream": after, **keywords}
        return _called(synth.ConceptDriftStream, given, seed, spec)
    return _term(first, parts, seed)


def _split(spec: str) -> list[str]:
    """Parts between colons that are in no brackets."""
    parts, depth = [""], 0
    for character in spec:
        depth += (character == "(") - (character == ")")
        if character == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _term(text: str, words: list[str], seed: int) -> Any:
    found = _TERM.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"data.name={text!r} is no generator; write a name such as SEA, with keywords such as "
            "SEA(variant=2)"
        )
    name, brackets = found.groups()
    kinds = _kinds()
    exact = {known.casefold(): known for known in kinds}
    if name.casefold() not in exact:
        raise unknown_word("generator data.name:", name, _choices())
    kind = kinds[exact[name.casefold()]]
    base = importlib.import_module("river.datasets.base")
    if issubclass(kind, base.RemoteDataset):
        raise ConfigError(
            f"river's {name} is not bundled with the package but downloaded; choose one of "
            f"{', '.join(_choices())}"
        )
    keywords = _keywords(words, text)
    if brackets is not None:
        try:
            call = ast.parse(f"f{brackets}", mode="eval").body
        except (SyntaxError, ValueError):
            call = None
        if not isinstance(call, ast.Call) or call.args:
            raise ConfigError(
                f"data.name={text!r} cannot be read; write keywords such as {name}(key=1, other=2)"
            )
        keywords |= {str(word.arg): _literal(word.value, text) for word in call.keywords}
    return _called(kind, keywords, seed, text)


def _keywords(words: list[str], spec: str) -> dict[str, Any]:
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(f"data.name={spec}: {word!r} must be a keyword such as position=5000")
        found[key.strip()] = _literal(value.strip(), spec)
    return found


def _literal(value: str | ast.expr, spec: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, TypeError, RecursionError):
        said = value if isinstance(value, str) else ast.unparse(value)
        raise ConfigError(
            f"data.name={spec}: {said!r} is no value; write a number, 'text', True or False"
        ) from None


def _called(kind: Any, keywords: dict[str, Any], seed: int, spec: str) -> Any:
    takes = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    for key in keywords:
        if key not in takes:
            choices = [name for name in takes if name not in ("stream", "drift_stream")]
            raise unknown_word(f"data.name={spec}: the keyword", key, choices or ["none"])
    try:
        return kind(**{name: seed for name in _SEEDS if name in takes} | keywords)
    except Exception as error:
        # River checks little itself, so what comes of a wrong value may be any error.
        raise ConfigError(f"data.name={spec} is refused by river: {error}; change it") from error


def _kinds() -> dict[str, Any]:
    """Every data set of river by its name."""
    found: dict[str, Any] = {}
    for module in ("river.datasets", "river.datasets.synth"):
        members = importlib.import_module(module)
        found |= {
            name: kind
            for name in members.__all__
            if isinstance(kind := getattr(members, name), type) and name != "ConceptDriftStream"
        }
    return found


def _choices() -> list[str]:
    base = importlib.import_module("river.datasets.base")
    return [_DRIFT, *sorted(
        name
        for name, kind in _kinds().items()
        if not issubclass(kind, base.RemoteDataset) and kind().task in _TASKS
    )]  # fmt: skip
