"""What the shell offers after a Tab: scenarios, settings, runs; imports nothing heavy.

Settings come from `keys.json`, which `python -m streamlearn.cli.reference` writes, because their
models import torch. A setting of any number is offered with its default, so that what is completed
is a word that can be used.

bash ends a word at `=`: of `layer=rb` it asks for `rb` alone, after the words `layer` and `=`, and
puts what it is offered behind the `=`.
"""

import json
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "KEYS",
    "complete_key_or_word",
    "complete_resumable",
    "complete_run",
    "complete_word",
]

KEYS = Path(__file__).with_name("keys.json")
"""Every setting: its values, or its default; its meaning; whether a resume may have it."""

_RUNS = Path("runs")

Candidates = list[tuple[str, str]]


class _Offer(NamedTuple):
    """A setting as it is offered: `key=value` words and what each is."""

    key: str
    words: list[str]
    meaning: str
    resumable: bool


def complete_word(incomplete: str) -> Candidates:
    """Words of a scenario that begin like this; of an empty one, scenarios and kinds."""
    return _with_equals(incomplete, _words)


def complete_resumable(incomplete: str) -> Candidates:
    """Words that may be given when a run is resumed."""

    def matching(begun: str) -> Candidates:
        return _beginning(begun, (offer for offer in _offers() if offer.resumable))

    return _with_equals(incomplete, matching)


def complete_key_or_word(incomplete: str) -> Candidates:
    """Names of settings and sections, and words of a scenario."""

    def matching(begun: str) -> Candidates:
        if "=" in begun:
            return _words(begun)
        names = {offer.key: offer.meaning for offer in _offers()}
        sections = {name.partition(".")[0]: "a section" for name in names if "." in name}
        found = {**sections, **names, **dict(_scenarios())}
        return [(name, meaning) for name, meaning in found.items() if name.startswith(begun)]

    return _with_equals(incomplete, matching)


def complete_run(incomplete: str) -> Candidates:
    """Names of the runs in the runs folder that begin like this, or paths of runs."""
    parent, slash, _ = incomplete.rpartition("/")
    folder = Path(parent or "/") if slash else _RUNS
    try:
        found = sorted(path.parent.name for path in folder.glob("*/run.json"))
    except OSError:
        return []
    names = [f"{parent}/{name}" if slash else name for name in found]
    return [(name, "a run") for name in names if name.startswith(incomplete)]


def _words(begun: str) -> Candidates:
    offers = _offers() if begun else [offer for offer in _offers() if "." not in offer.key]
    found = [(word, summary) for word, summary in _scenarios() if word.startswith(begun)]
    return found + _beginning(begun, offers)


def _beginning(begun: str, offers: Iterable[_Offer]) -> Candidates:
    return [
        (word, offer.meaning) for offer in offers for word in offer.words if word.startswith(begun)
    ]


def _with_equals(incomplete: str, matching: Callable[[str], Candidates]) -> Candidates:
    """Candidates for a word that bash may have split at its `=`."""
    text = os.environ.get("COMP_WORDS", "")
    words = text.split("\n") if "\n" in text else text.split()
    place = int(os.environ.get("COMP_CWORD", "0"))
    before = words[:place]
    if words[place : place + 1] == ["="]:
        key = before[-1]
    elif len(before) > 1 and before[-1] == "=":
        key = before[-2]
    else:
        return matching(incomplete)
    skip = len(key) + 1
    return [(word[skip:], meaning) for word, meaning in matching(f"{key}={incomplete}")]


def _scenarios() -> Candidates:
    from streamlearn.scenarios.catalogue import catalogue

    return [(f"scenario={entry.name}", entry.summary) for entry in catalogue()]


@cache
def _offers() -> list[_Offer]:
    try:
        known = json.loads(KEYS.read_text(encoding="utf-8"))
    except OSError:
        return []
    return [
        _Offer(
            one["key"], [f"{one['key']}={value}" for value in one["values"]],
            one["meaning"], one["resumable"],
        )
        for one in known
    ]  # fmt: skip
