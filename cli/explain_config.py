"""`explain-config`: the keys of a scenario in words, all said by the settings themselves."""

import dataclasses
import shutil
import textwrap
from collections.abc import Iterator, Sequence

from streamlearn.scenarios.catalogue import catalogue
from streamlearn.scenarios.keys import Key, Section, keys_of, matching, sections_of
from streamlearn.scenarios.schema import Scenario
from streamlearn.scenarios.words import resolve, split

from .format import clean
from .json_lines import to_json
from .output import Output

__all__ = ["changed", "explain_config"]

_WIDEST = 100


def explain_config(words: Sequence[str], output: Output, json: bool) -> None:
    """Print what the keys of a scenario mean, or those that are named.

    Args:
        words: KEY=VALUE as for `run`, and bare names of keys or sections.
        output: where to.
        json: one JSON object a key.

    Raises:
        ConfigError: a wrong word.
    """
    names = [word for word in words if "=" not in word]
    for name in names:
        if name in {entry.name for entry in catalogue()}:
            split(name)  # says that it wants scenario=NAME
    scenario = resolve([word for word in words if "=" in word])
    keys = matching(scenario, names) if names else keys_of(scenario)
    if json:
        for key in keys:
            output.line(to_json({"key": key.name, **_facts(key)}))
        return
    width = min(_WIDEST, shutil.get_terminal_size((80, 24)).columns)
    for line in _lines(scenario, keys, headings=not names, width=width):
        output.line(clean(line))


def changed(scenario: Scenario) -> list[tuple[str, str, str]]:
    """What a scenario sets to something else than its default: key, value, meaning in short.

    Kinds of sections come first.
    """
    usual = {section.name: section.kind for section in sections_of(Scenario())}
    kinds = [
        (section.name, section.kind, section.kinds[section.kind] or "what is learnt from")
        for section in sections_of(scenario)
        if section.kind is not None and section.kind != usual[section.name]
    ]
    keys = [
        (key.name, key.here or "", key.meaning.partition(";")[0])
        for key in keys_of(scenario)
        if key.here != key.default and key.name != "data.kind"
    ]
    return kinds + keys


def _facts(key: Key) -> dict[str, object]:
    facts = dataclasses.asdict(key)
    facts.pop("name")
    return {**facts, "choices": list(key.choices)}


def _lines(scenario: Scenario, keys: Sequence[Key], *, headings: bool, width: int) -> Iterator[str]:
    sections = {section.name: section for section in sections_of(scenario)}
    if headings:
        yield from textwrap.wrap(f"{scenario.name}: {scenario.summary}", width)
        yield from textwrap.wrap(
            "A key is set by a word, such as layer.kappa=4; layer=rbf chooses another kind.",
            width,
        )
    before = None
    for key in keys:
        if headings and key.section != before and key.section in sections:
            yield ""
            yield from _heading(sections[key.section], width)
        if not headings and before is not None:
            yield ""
        before = key.section
        yield from _key_lines(key, width)


def _heading(section: Section, width: int) -> Iterator[str]:
    kind = f"={section.kind}" if section.kind else ""
    what = section.kinds.get(section.kind or "") or section.meaning
    yield from textwrap.wrap(f"[{section.name}{kind}] {what}", width, subsequent_indent="  ")
    others = [name for name in section.kinds if name != section.kind]
    if others and section.name != "data":  # whose kinds are among its keys
        yield from textwrap.wrap(
            f"{section.meaning}; other kinds: {', '.join(others)}", width,
            initial_indent="  ", subsequent_indent="  ",
        )  # fmt: skip


def _key_lines(key: Key, width: int) -> Iterator[str]:
    facts = [f"unit: {key.unit}"] if key.unit else []
    facts += [f"default: {key.default or 'not set'}", key.range]
    if key.here is None:
        facts.append(
            f"of {key.section}={key.kind}, not in use here" if key.kind else "not in use here"
        )
    head = key.name if key.here is None else f"{key.name} = {key.here or '(not set)'}"
    yield from textwrap.wrap(f"{head}  [{'; '.join(facts)}]", width, subsequent_indent="    ")
    meaning = f"{key.meaning}; may change when a run is resumed" if key.resumable else key.meaning
    for text in [meaning, *([f"raising it: {key.more}"] if key.more else [])]:
        yield from textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
