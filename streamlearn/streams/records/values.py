"""Values of records: text that says numbers or times, and nested objects as dotted names."""

import datetime
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from .base import BadRow

__all__ = ["MISSING", "flat", "number", "plain_number", "seconds", "truth"]

DEPTH = 3
"""Names that are joined by dots; what is nested more deeply is left out."""

MISSING = frozenset({"", "?", "-", "NA", "N/A", "n/a", "nan", "NaN", "NAN", "null", "NULL", "None"})
"""What stands for a missing number in text."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}.*)?", re.ASCII)
_TRUTHS = {"true": True, "false": False}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def number(text: str) -> float | None:
    """The number that a text says, NaN if it is beyond float64, None if the text says none.

    Unlike `float`, it takes no words (infinity), underscores or digits of other scripts.
    """
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped) is None:
        return None
    value = float(stripped)
    return value if math.isfinite(value) else math.nan


def truth(text: str) -> bool | None:
    """True or false in any case, else None."""
    return _TRUTHS.get(text.strip().lower())


def seconds(value: Any) -> float | None:
    """Seconds since 1970-01-01 UTC of an ISO 8601 text or of a date or time, None if it is none.

    Times without a zone count as UTC.
    """
    if isinstance(value, str):
        if _TIME.fullmatch(value.strip()) is None:
            return None
        try:
            value = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.UTC)
        return float((value - _EPOCH).total_seconds())
    if isinstance(value, datetime.date):
        return (value - _EPOCH.date()).total_seconds()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.time):
        return value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6
    return None


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose nested objects are columns of dotted names, lists as they are.

    {"a": {"b": 1}} becomes {"a.b": 1}, down to three names.

    Raises:
        BadRow: two columns come out with the same name.
    """
    if not any(isinstance(value, dict) for value in record.values()):
        return dict(record)
    columns: dict[str, Any] = {}

    def walk(inner: Mapping[str, Any], prefix: str, depth: int) -> None:
        for key, value in inner.items():
            name = prefix + key
            if isinstance(value, dict) and depth < DEPTH:
                walk(value, name + ".", depth + 1)
            elif name in columns:
                raise BadRow(f"it names {name!r} twice")
            else:
                columns[name] = value

    walk(record, "", 1)
    return columns


def plain_number(value: Any) -> float | int | bool | None:
    """A finite number as it is, None for any other and for what is no number."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, (int, float)) and (isinstance(value, int) or math.isfinite(value)):
        return value
    return None
