"""`info`: the facts of a run for scripts, without loading anything of it."""

from collections.abc import Iterator
from typing import Any

from streamlearn.storage import RunPath, RunReader

from .format import clean
from .inspect import facts_of
from .json_lines import to_json
from .output import Output

__all__ = ["info"]


def info(path: RunPath, output: Output, json: bool) -> None:
    """Print the facts, as one JSON object or as `key=value` lines."""
    reader = RunReader(path)
    header = reader.header
    facts = facts_of(reader) | {
        "id": header.id,
        "created": header.created,
        "program": header.program,
        "format_version": header.version,
    }
    if json:
        output.line(to_json(facts))
        return
    for key, value in _flat("", facts):
        output.line(clean(f"{key}={'' if value is None else value}"))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for index, item in enumerate(value):
            yield from _flat(f"{prefix}.{index}", item)
    elif isinstance(value, list):
        yield prefix, ",".join(map(str, value))
    else:
        yield prefix, value
