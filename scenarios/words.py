"""From the words of a command line, `scenario=NAME a.b=c …`, to a scenario."""

import copy
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streamlearn.errors import ConfigError
from streamlearn.kinds import COMMON, NETWORK_KINDS, NETWORK_SECTIONS
from streamlearn.sections import explain

from .catalogue import DEFAULT, RECORDS, catalogue, read_scenario_file
from .schema import RECORD_KINDS, Scenario

__all__ = ["RESUMABLE", "expanded", "load_tables", "override", "resolve", "scenario_from", "split"]

RESUMABLE = (
    "checkpoint.every_seconds",
    "checkpoint.every_steps",
    "checkpoint.keep",
    "data.download",
    "data.idle_seconds",
    "data.on_error",
    "data.path",
    "data.root",
    "encoder.weights",
    "evaluation.linearise",
    "evaluation.test",
    "learner.device",
    "memory.device_budget",
    "memory.host_budget",
    "stream.predictions",
)
"""What may be given again when a run is resumed: nothing that what was learnt depends on."""

STDIN = "-"

_SECTIONS_WITH_KINDS = ("data", "encoder", "layer", "learner", "network")


def resolve(words: Sequence[str], common: Sequence[str] = ()) -> Scenario:
    """The scenario that words name and change; without `scenario=` it is the default one.

    Args:
        words: KEY=VALUE, the later ones count.
        common: words before these, which may be about what this kind of learner does not have.

    Raises:
        ConfigError: an unknown scenario or key, with the nearest right one, or a value of the wrong
            type or range.
    """
    own = [split(word) for word in words]
    pairs = [*(split(word) for word in common), *own]
    chosen = [value for key, value in pairs if key == "scenario"]
    kinds = [value for key, value in pairs if _is_kind(key) and key.startswith("data")]
    default = RECORDS if kinds and kinds[-1] in RECORD_KINDS else DEFAULT
    tables = load_tables(chosen[-1] if chosen else default)
    _apply(tables, [pair for pair in pairs if pair[0] != "scenario"])
    scenario = scenario_from(tables)
    _refuse_unused(scenario, own)
    return _anchored(scenario)


def override(scenario: Mapping[str, Any], words: Sequence[str]) -> Scenario:
    """A stored scenario with the changes that are allowed when a run is resumed.

    Raises:
        ConfigError: a change that the result would depend on, or a wrong value.
    """
    pairs = [split(word) for word in words]
    for key, _ in pairs:
        if key not in RESUMABLE:
            raise ConfigError(
                f"{key} cannot change when a run is resumed, for its result depends on it; "
                f"start a new run, or change only {', '.join(RESUMABLE)}"
            )
    tables = copy.deepcopy(dict(scenario))
    _apply(tables, pairs)
    return _anchored(scenario_from(tables))


def scenario_from(tables: Mapping[str, Any]) -> Scenario:
    """Validate the tables of a scenario file.

    Raises:
        ConfigError: the first thing that is wrong, in one sentence.
    """
    try:
        return Scenario.model_validate(tables)
    except ValidationError as error:
        raise ConfigError(explain(error, Scenario)) from None


def split(word: str) -> tuple[str, str]:
    """The key and the value of a word.

    Raises:
        ConfigError: it is no key=value.
    """
    key, equals, value = word.partition("=")
    if not equals or not key:
        names = [entry.name for entry in catalogue()]
        if word in names:
            raise ConfigError(f"{word!r} is not key=value; did you mean scenario={word}?")
        raise ConfigError(
            f"{word!r} is not key=value; write overrides as in data.limit=2000 or seed=3"
        )
    return key.strip(), value


def load_tables(name: str) -> dict[str, Any]:
    """The tables of a built-in scenario by name, or of a file by path.

    Raises:
        ConfigError: there is neither, or the file cannot be read.
    """
    entries = {entry.name: entry for entry in catalogue()}
    if name in entries:
        return {**read_scenario_file(entries[name].path), "name": name}
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        tables = read_scenario_file(path)
        return {"name": path.stem, **tables}
    nearest = difflib.get_close_matches(name, list(entries), n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]}?" if nearest else "`streamlearn scenarios` lists them"
    raise ConfigError(f"scenario={name} is neither a built-in scenario nor a file; {hint}")


def _apply(tables: dict[str, Any], pairs: Sequence[tuple[str, str]]) -> None:
    # Kinds first, so that `layer.gamma=2 layer=rbf` means the same in either order.
    for key, value in sorted(pairs, key=lambda pair: not _is_kind(pair[0])):
        if _is_kind(key):
            section = key.removesuffix(".kind")
            present = tables.get(section)
            default = _default_section(section).get("kind")
            kind = present.get("kind", default) if isinstance(present, dict) else present or default
            if kind != value:  # another kind starts from its own defaults
                tables[section] = {"kind": value, **_kept(section, present)}
            continue
        _set(tables, key, value)


def _kept(section: str, present: Any) -> dict[str, Any]:
    """What a section keeps when its kind changes: a learner what all kinds of it have."""
    if section != "learner" or not isinstance(present, dict):
        return {}
    return {key: value for key, value in present.items() if key in COMMON}


def _refuse_unused(scenario: Scenario, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError for a word about a section that this kind of learner does not use."""
    kind = scenario.learner.kind
    if scenario.data.kind in RECORD_KINDS:
        _refuse_encoder(scenario, pairs)
    if kind in NETWORK_KINDS:
        _refuse_unused_layer(scenario, pairs)
        return
    for key, value in pairs:
        if key.partition(".")[0] in NETWORK_SECTIONS:
            raise ConfigError(
                f"{key}={value} means nothing for learner={kind}, which is no network; leave it "
                "out, or choose learner=growing or parametric"
            )


def _refuse_encoder(scenario: Scenario, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError for a word about the encoder that records do not have."""
    for key, value in pairs:
        if key.partition(".")[0] == "encoder" or key == "learner.cold_start":
            raise ConfigError(
                f"{key}={value} means nothing for data={scenario.data.kind}, whose records are "
                "standardised as they come; leave it out"
            )


def _refuse_unused_layer(scenario: Scenario, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise ConfigError for a word about layers that this network does not have."""
    for key, value in pairs:
        if key.partition(".")[0] == "least_squares" and not scenario.solves():
            raise ConfigError(
                f"{key}={value} is about an output layer that this network does not have; set "
                "network.output=least-squares, or leave it out"
            )
    if scenario.any_grows() or scenario.layer.kind == "parametric-softmax":
        return
    for key, value in pairs:
        if key.partition(".")[0] in ("layer", "optimizer"):
            raise ConfigError(
                f"{key}={value} is about growing layers, and this network has none; leave it out, "
                "or let layers grow by network.hidden, network.layers or network.output"
            )


def _is_kind(key: str) -> bool:
    return key.removesuffix(".kind") in _SECTIONS_WITH_KINDS


def _set(tables: dict[str, Any], key: str, value: str) -> None:
    *path, last = key.split(".")
    table = tables
    for part in path:
        inner = table.get(part)
        if isinstance(inner, str):
            inner = {"kind": inner}
        elif inner is None:
            inner = _default_section(part) if table is tables else {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{key} is not a setting; {part} is a single value")
        inner = dict(inner)
        table[part] = inner
        table = inner
    if isinstance(table.get(last), dict):
        raise ConfigError(
            f"{key}={value} cannot be used: {key} is a section; set one of its keys, "
            f"such as {key}.{next(iter(table[last]), 'key')}=…"
        )
    table[last] = value


def _default_section(name: str) -> dict[str, Any]:
    """The kind that a section has where the file does not say, for it must be named."""
    field = Scenario.model_fields.get(name)
    kind = getattr(field.default, "kind", None) if field is not None else None
    return {} if kind is None else {"kind": kind}


def expanded(path: Path) -> Path:
    """A path with `~` for a home folder; verbatim where it exists or there is no such user."""
    if path.exists():
        return path
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def _anchored(scenario: Scenario) -> Scenario:
    """The scenario with absolute paths, so that a run can be resumed from any folder."""
    data = scenario.data
    update = {
        name: expanded(place).absolute()
        for name in ("root", "path")
        if (place := getattr(data, name)) is not None and str(place) != STDIN
    }
    changes: dict[str, Any] = {"data": data.model_copy(update=update)}
    answers = scenario.stream.predictions
    if answers is not None:
        anchored = {"predictions": expanded(answers).absolute()}
        changes["stream"] = scenario.stream.model_copy(update=anchored)
    weights = getattr(scenario.encoder, "weights", None)
    if weights is not None:
        anchored = {"weights": expanded(weights).absolute()}
        changes["encoder"] = scenario.encoder.model_copy(update=anchored)
    return scenario.model_copy(update=changes)
