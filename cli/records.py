"""Records of the event log back into events: the inverse of `streamlearn.events.as_json`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

from streamlearn.events import Event, LayerStatus, MemoryStatus

__all__ = ["to_event"]

_KINDS: dict[str, Any] = {kind.event: kind for kind in get_args(Event)}


def to_event(record: Mapping[str, Any]) -> Event | None:
    """The event that a record of the log stands for.

    None for an event that this version does not know and for a record that lacks something: a log
    written by a newer version is still shown as far as it is understood.
    """
    kind = _KINDS.get(str(record.get("event")))
    if kind is None:
        return None
    names = {field.name for field in dataclasses.fields(kind)}
    known = {name: value for name, value in record.items() if name in names}
    try:
        if "layers" in known:
            known["layers"] = tuple(LayerStatus(**layer) for layer in known["layers"])
        if known.get("memory") is not None:
            known["memory"] = MemoryStatus(**known["memory"])
        event: Event = kind(**known)
    except TypeError:
        return None
    return event
