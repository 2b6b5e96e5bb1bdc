"""The keys of a scenario, each with its meaning, unit, default, range, and what raising it does.

All of it is said by the settings themselves: descriptions, constraints and defaults of their
fields, and the first lines of their docstrings.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ByteSize
from pydantic.fields import FieldInfo

from streamlearn.errors import ConfigError
from streamlearn.kinds import NETWORK_KINDS, NETWORK_SECTIONS
from streamlearn.sections import about, variants

from .schema import RECORD_KINDS, Scenario, keys_of_data
from .words import RESUMABLE

__all__ = ["UNSET", "Key", "Section", "all_keys", "choices", "keys_of", "matching", "sections_of"]

UNSET = "(must be set)"
"""The default of a key that has none."""

_NAMING = frozenset({"name", "summary"})
"""Keys of a scenario that say what it is, not what it does."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section: what it is; the kinds that it may have, with what each is; the one it has here."""

    name: str
    meaning: str
    kinds: dict[str, str]
    kind: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """A setting.

    name: as it is written on a command line. kind: the kind of its section that has it, None where
    the section has no kinds. meaning, unit, more: see `about`. range: what it may be, in words.
    choices: all values there are, none of most. default, here: as they are written, "" where there
    is none; `here` is None where the scenario has no such key. resumable: may be given again when a
    run is resumed.
    """

    name: str
    kind: str | None
    meaning: str
    unit: str
    more: str
    range: str
    choices: tuple[str, ...]
    default: str
    here: str | None
    resumable: bool

    @property
    def section(self) -> str:
        """The part before the dot, "" where there is none."""
        return self.name.rpartition(".")[0]


def all_keys() -> list[Key]:
    """Every key of every kind, `here` unset; a key that several kinds have comes once for each."""
    found = []
    for name, field in _fields(Scenario):
        models = variants(field.annotation)
        if not models:
            found.append(_key(name, None, field))
        for model in models:
            kind = _kind(model) if len(models) > 1 else None
            found += [_key(f"{name}.{inner}", kind, inside) for inner, inside in _fields(model)]
    return found


def keys_of(scenario: Scenario) -> list[Key]:
    """The keys that mean something in this scenario, each with its value there."""
    found, unused = [], _unused(scenario)
    for name, field in _fields(Scenario):
        value = getattr(scenario, name)
        if not isinstance(value, BaseModel):
            found.append(_key(name, None, field, _written(field, value)))
            continue
        if name in unused:
            continue
        kind = _kind(type(value)) if len(variants(field.annotation)) > 1 else None
        found += [
            _key(f"{name}.{inner}", kind, inside, _written(inside, getattr(value, inner)))
            for inner, inside in _fields(type(value))
            if f"{name}.{inner}" not in unused
            and (name != "data" or inner in keys_of_data(scenario.data.kind))
        ]
    return found


def sections_of(scenario: Scenario | None = None) -> list[Section]:
    """All sections, or those that mean something in a scenario."""
    found = []
    for name, field in _fields(Scenario):
        models = variants(field.annotation)
        if not models or (scenario is not None and name in _unused(scenario)):
            continue
        if len(models) > 1:
            kinds = {str(_kind(model)): _first_line(model) for model in models}
            meaning = about(field.description).meaning
        elif "kind" in models[0].model_fields:
            kinds = dict.fromkeys(choices(models[0].model_fields["kind"].annotation), "")
            meaning = _first_line(models[0])
        else:
            kinds, meaning = {}, _first_line(models[0])
        section = getattr(scenario, name) if scenario is not None else None
        found.append(Section(name, meaning, kinds, getattr(section, "kind", None)))
    return found


def matching(scenario: Scenario, names: Sequence[str]) -> list[Key]:
    """The keys of these names and sections: the scenario's, or else those of other kinds.

    Raises:
        ConfigError: a name is no key and no section.
    """
    here, everywhere = keys_of(scenario), all_keys()
    found: list[Key] = []
    for name in names:
        inside = [key for key in here if name in (key.name, key.section)]
        inside = inside or [key for key in everywhere if name in (key.name, key.section)]
        if not inside:
            known = sorted({part for key in everywhere for part in (key.name, key.section) if part})
            nearest = [key for key in known if key.endswith(f".{name}")]
            nearest = nearest or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = (
                f"did you mean {' or '.join(nearest)}?"
                if nearest
                else "`streamlearn explain-config` lists them"
            )
            raise ConfigError(f"{name} is not a setting; {hint}")
        found += [key for key in inside if key not in found]
    return found


def choices(annotation: Any) -> tuple[str, ...]:
    """All values of an annotation that has few, as they are written; () of any other."""
    if annotation is bool:
        return ("true", "false")
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    parts = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    found = [choices(part) for part in parts if part is not NoneType]
    if not found or not all(found):
        return ()
    none = ("none",) if NoneType in parts else ()
    return (*(word for words in found for word in words), *none)


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """A model's fields, but for the one kind that it is of."""
    for name, field in model.model_fields.items():
        one_kind = name == "kind" and len(choices(field.annotation)) == 1
        if not one_kind and not (model is Scenario and name in _NAMING):
            yield name, field


def _key(name: str, kind: str | None, field: FieldInfo, here: str | None = None) -> Key:
    said = about(field.description)
    default = UNSET if field.is_required() else _written(field, field.get_default())
    return Key(
        name, kind, *said, range=_range(field), choices=choices(field.annotation), default=default,
        here=here,
        resumable=name in RESUMABLE,
    )  # fmt: skip


def _written(field: FieldInfo, value: Any) -> str:
    """A value as a word of the command line has it; "" where only leaving it out says it."""
    if value is None:
        return "none" if _takes_none(field) else ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).removesuffix(".0")


def _takes_none(field: FieldInfo) -> bool:
    """Whether the word none means "not set", and is no text or path of that name."""
    read = any(isinstance(part, BeforeValidator) for part in field.metadata)
    return read and NoneType in _types(field.annotation)


def _range(field: FieldInfo) -> str:
    """What a setting may be, in words."""
    allowed = choices(field.annotation)
    if allowed:
        return ", ".join(allowed)
    types = _types(field.annotation)
    limits = {
        name: getattr(part, name)
        for part in field.metadata
        for name in ("ge", "gt", "le", "lt", "multiple_of")
        if getattr(part, name, None) is not None
    }
    if ByteSize in types:
        text = "bytes, such as 400MB or 2GiB"
    elif Path in types or any("Path" in kind.__name__ for kind in types):
        text = "a path"
    elif types & {int, float}:
        text = ("whole numbers" if float not in types else "numbers") + _limits(limits)
        text += ", or bytes, such as 64MiB" if str in types else ""
    elif tuple in types:
        text = "names, separated by commas"
    else:
        text = "a text"
    return f"{text}; or none" if _takes_none(field) else text


def _limits(limits: dict[str, Any]) -> str:
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below", "multiple_of": "in steps of"}
    return "".join(
        f" {word} {limits[name]:,}" if limits[name] < 2**63 else f" {word} 2^63"
        for name, word in words.items()
        if name in limits
    )


def _types(annotation: Any) -> set[type]:
    """The plain types that an annotation is made of."""
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, tuple):
        return {tuple}
    if isinstance(annotation, type):
        return {annotation}
    return set().union(
        *(_types(part) for part in get_args(annotation) if not isinstance(part, str))
    )


def _kind(model: type[BaseModel]) -> str:
    return str(model.model_fields["kind"].default)


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").partition("\n")[0]


def _unused(scenario: Scenario) -> frozenset[str]:
    """Sections and keys that mean nothing for this learner and its data."""
    if scenario.learner.kind not in NETWORK_KINDS:
        unused = NETWORK_SECTIONS
    elif not scenario.any_grows() and scenario.layer.kind != "parametric-softmax":
        unused = frozenset({"layer", "optimizer"})
    else:
        unused = frozenset()
    if not scenario.solves():
        unused |= {"least_squares"}
    records = scenario.data.kind in RECORD_KINDS
    return unused | (frozenset({"encoder", "learner.cold_start"}) if records else frozenset())
