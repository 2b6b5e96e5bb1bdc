"""The learners of a comparison, from words: common ones, and a text of words for each learner."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamlearn.errors import ConfigError

from .schema import Scenario
from .words import resolve

__all__ = ["Entrant", "entrants"]

_NAMED = re.compile(r"([^:=]*):(.*)", re.DOTALL)
"""`name: words`; in a word such as data.path=C:x the colon comes after an equals sign."""

_SHARED = (
    "data",
    "seed",
    "learner.batch",
    "evaluation.window",
    "evaluation.test",
)
"""What must be the same for all learners, or they would not be judged by the same samples."""

_KEEPS_NO_RUN = ("run", "checkpoint")


@dataclass(frozen=True, slots=True)
class Entrant:
    """One learner of a comparison: its name, the words that are its own, and what they make."""

    name: str
    words: tuple[str, ...]
    scenario: Scenario


def entrants(common: Sequence[str], learners: Sequence[str]) -> list[Entrant]:
    """The learners that texts such as "muon: learner=parametric learner.lr=0.02" describe.

    Args:
        common: words for all of them, `scenario=` among them.
        learners: a text for each: words that are laid over the common ones, `name:` before them if
            it shall not be called by its words. A word without `=` is the kind of learner.

    Raises:
        ConfigError: no learner, a wrong word, a name that is there twice, or something that may
            not differ within a comparison.
    """
    if not learners:
        raise ConfigError(
            "there is nothing to compare; name each learner, as in "
            "--learner growing --learner 'muon: learner=parametric learner.optimizer=muon'"
        )
    _refuse_runs(common)
    found = [_entrant(common, text) for text in learners]
    names = [entrant.name for entrant in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"two learners are called {name!r}; give one another name, as in "
                f"--learner 'other: {name}'"
            )
    places = (entrant.scenario.stream.predictions for entrant in found)
    answers = next((place for place in places if place is not None), None)
    if answers is not None:
        raise ConfigError(
            f"stream.predictions={answers} means nothing in a comparison, which keeps nothing; "
            "leave it out, or use `streamlearn run`"
        )
    for entrant in found[1:]:
        _refuse_difference(found[0], entrant)
    return found


def _entrant(common: Sequence[str], text: str) -> Entrant:
    named = _NAMED.fullmatch(text)
    name, rest = (named[1].strip(), named[2]) if named else (None, text)
    if name == "":
        raise ConfigError(
            f"--learner {text!r} has no name before the colon; write 'name: words', or words alone"
        )
    try:
        given = shlex.split(rest)
    except ValueError as error:
        raise ConfigError(
            f"--learner {text!r} cannot be read ({str(error).lower()}); close its quotes"
        ) from None
    if not given:
        raise ConfigError(
            f"--learner {text!r} is empty; write its words, such as growing, or learner=knn "
            "learner.k=5"
        )
    words = tuple(word if "=" in word else f"learner={word}" for word in given)
    name = name or _called(words)
    _refuse_runs(words)
    try:
        scenario = resolve(words, common)
    except ConfigError as error:
        raise ConfigError(f"learner {name!r}: {error}") from None
    return Entrant(name, words, scenario)


def _called(words: Sequence[str]) -> str:
    """What a learner is called by its words: `parametric optimizer=muon lr=0.02`."""
    return " ".join(word.removeprefix("learner=").removeprefix("learner.") for word in words)


def _refuse_runs(words: Sequence[str]) -> None:
    for word in words:
        if word.partition("=")[0].partition(".")[0] in _KEEPS_NO_RUN:
            raise ConfigError(
                f"{word} means nothing in a comparison, which keeps no run; leave it out, or "
                "use `streamlearn sweep`"
            )


def _refuse_difference(first: Entrant, other: Entrant) -> None:
    for key in _SHARED:
        for name, one, two in _differences(key, _at(first.scenario, key), _at(other.scenario, key)):
            raise ConfigError(
                f"{name} is {one} for learner {first.name!r} and {two} for {other.name!r}, but a "
                "comparison has one stream, in one order and the same batches; give it once, "
                "before the learners"
            )


def _at(scenario: Scenario, key: str) -> Any:
    value: Any = scenario
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _differences(key: str, one: Any, two: Any) -> list[tuple[str, Any, Any]]:
    if one == two:
        return []
    if key != "data":
        return [(key, one, two)]
    fields = type(one).model_fields
    return [
        (f"data.{name}", getattr(one, name), getattr(two, name))
        for name in fields
        if getattr(one, name) != getattr(two, name)
    ]
