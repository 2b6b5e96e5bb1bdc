"""What the columns of a stream of records mean, found out from its first rows."""

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from streamlearn.errors import ConfigError, FormatError
from streamlearn.state import StateTree
from streamlearn.streams.splits import unknown_word

from .base import BadRow
from .values import MISSING, number, plain_number, seconds, truth

__all__ = ["Schema", "Targets", "TaskName", "infer"]

TaskName = Literal["auto", "classes", "numbers"]

_LEFT_OUT = {
    "text": "free text or identifiers, nearly every value is another",
    "nested": "lists, or objects nested too deeply",
    "ignored": "as data.ignore says",
}
_HEADINGS = {
    "number": "numbers",
    "boolean": "booleans",
    "category": "categories",
    "mixed": "numbers and text",
    "time": "times, as seconds since 1970",
    "empty": "nothing yet",
}
_TEXT_ROWS = 20
_TEXT_SHARE = 0.8
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Targets:
    """What is asked of a stream: its target, what that is, and columns to leave out."""

    target: str | None
    task: TaskName = "auto"
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """Columns by kind, and how a row of raw values becomes a record of features.

    A column that was not among the first rows is taken as it comes: numbers and texts of numbers as
    numbers, other text as categories, lists left out.

    columns: the kind of each: "number", "boolean", "category", "mixed" (numbers and text), "time"
        (ISO 8601 text or timestamps, as seconds), "empty" (no value among the first rows, taken as
        it comes); "text", "nested" and "ignored" are left out.
    target: the column that is learnt.
    regression: whether it holds numbers to be learnt as such.
    constant: columns that had one value in all of the first rows; they are used all the same.
    rows: how many rows were looked at.
    labels: the first labels that came, for people.
    """

    name: str
    columns: dict[str, str]
    target: str
    regression: bool
    constant: tuple[str, ...] = ()
    rows: int = 0
    labels: tuple[str, ...] = ()
    ignore: tuple[str, ...] = field(default=())

    def row(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Features and target of a row.

        Raises:
            BadRow: its target cannot be one.
        """
        record: dict[str, Any] = {}
        for column, value in values.items():
            if value is None or column == self.target:
                continue
            kind = self.columns.get(column)
            if kind is None and _ignored(column, self.ignore):
                continue
            value = _feature(kind, value)
            if value is not None:
                record[column] = value
        return record, self._label(values.get(self.target), values)

    def _label(self, value: Any, values: Mapping[str, Any]) -> Any:
        if value is None:
            if any(column.startswith(self.target + ".") for column in values):
                raise BadRow(f"its target {self.target!r} is an object")
            return None
        if not isinstance(value, (str, int, float)):
            raise BadRow(f"its target {self.target!r} is a {type(value).__name__}")
        if isinstance(value, float) and plain_number(value) is None:
            return None
        if not self.regression:
            return value
        found = plain_number(value)
        if isinstance(value, str):
            found = number(value)
            if value.strip() in MISSING or (found is not None and found != found):
                return None
        try:
            if found is None or isinstance(found, bool):
                raise OverflowError
            return float(found)
        except OverflowError:
            raise BadRow(
                f"its target {self.target!r} is {_short(value)}, which is no number to learn"
            ) from None

    def text(self) -> str:
        """A few lines to be shown once: the target, columns by kind, and what is left out."""
        what = "numbers" if self.regression else "classes"
        if self.labels and not self.regression:
            what += f" such as {_listed(self.labels, 6)}"
        lines = [f"{self.name}: learns {self.target!r} ({what}), by the first {self.rows:,} rows"]
        for kind, heading in _HEADINGS.items():
            if found := [column for column, other in self.columns.items() if other == kind]:
                lines.append(f"  {heading}: {_listed(found)}")
        for kind, reason in _LEFT_OUT.items():
            if found := [column for column, other in self.columns.items() if other == kind]:
                lines.append(f"  left out ({reason}): {_listed(found)}")
        if self.constant:
            lines.append(f"  constant so far: {_listed(self.constant)}")
        return "\n".join(lines)

    def state_dict(self) -> StateTree:
        """All of it, as lists, since names of columns may be any text."""
        return {
            "name": self.name,
            "columns": [[column, kind] for column, kind in self.columns.items()],
            "target": self.target,
            "regression": self.regression,
            "constant": list(self.constant),
            "rows": self.rows,
            "labels": list(self.labels),
            "ignore": list(self.ignore),
        }

    @classmethod
    def of_state(cls, state: StateTree) -> "Schema":
        """The schema that `state_dict` described.

        Raises:
            FormatError: it is damaged.
        """
        try:
            return cls(
                name=str(state["name"]),
                columns={str(column): str(kind) for column, kind in state["columns"]},
                target=str(state["target"]),
                regression=bool(state["regression"]),
                constant=tuple(state["constant"]),
                rows=int(state["rows"]),
                labels=tuple(state["labels"]),
                ignore=tuple(state.get("ignore", ())),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"the schema of the stream is damaged ({error}); fall back to an earlier commit"
            ) from error


def infer(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    asked: Targets,
    *,
    known: tuple[str, ...] | None = None,
    hints: Mapping[str, str] | None = None,
    regression: bool | None = None,
) -> Schema:
    """The schema of a stream by its first rows.

    Args:
        name: of the stream, for people.
        rows: raw values by column.
        asked: the target, what it is, and what to leave out.
        known: all columns, where rows cannot bring others.
        hints: kinds that need not be guessed.
        regression: what the target is, where that need not be guessed.

    Raises:
        ConfigError: no target, a column that is none, or a target without any number where numbers
            are asked for.
    """
    columns = list(
        dict.fromkeys([*(known or ()), *(hints or ()), *(name for row in rows for name in row)])
    )
    target = asked.target
    if target is None:
        raise ConfigError(
            f"{name} needs data.target=COLUMN, the column to learn; choose one of "
            f"{_listed(columns)}"
        )
    if target not in columns:
        if len(columns) > _SHOWN:
            near = difflib.get_close_matches(target, columns, n=3, cutoff=0.4)
            columns = [*near, *(column for column in columns if column not in near)][:_SHOWN]
        raise unknown_word(f"data.target: in {name} the column", target, columns)
    features = [column for column in columns if column != target]
    for column in asked.ignore:
        if column == target:
            raise ConfigError(f"data.ignore names the target {target!r}; leave it out there")
        if known is not None and not any(_ignored(other, (column,)) for other in features):
            raise unknown_word(f"data.ignore: in {name} the column", column, features)
    kinds: dict[str, str] = {}
    constant = []
    for column in features:
        values = [row[column] for row in rows if row.get(column) is not None]
        if _ignored(column, asked.ignore):
            kinds[column] = "ignored"
            continue
        kinds[column] = (hints or {}).get(column) or _kind(values)
        if len(rows) > 1 and kinds[column] not in _LEFT_OUT and _all_alike(values):
            constant.append(column)
    labels = [row[target] for row in rows if row.get(target) is not None]
    if asked.task != "auto":
        regression = asked.task == "numbers"
        if regression and labels and not any(_is_number(label) for label in labels):
            raise ConfigError(
                f"data.task=numbers does not fit {name}, whose column {target!r} has "
                f"{_short(labels[0])} and no number in the first {len(rows):,} rows; set "
                "data.task=classes, or another data.target"
            )
    elif regression is None:
        regression = _are_numbers(labels)
    return Schema(
        name=name,
        columns=kinds,
        target=target,
        regression=regression,
        constant=tuple(constant),
        rows=len(rows),
        labels=tuple(dict.fromkeys(_short(label) for label in labels))[:_SHOWN],
        ignore=asked.ignore,
    )


def _ignored(column: str, ignore: tuple[str, ...]) -> bool:
    return any(column == name or column.startswith(name + ".") for name in ignore)


def _feature(kind: str | None, value: Any) -> Any:
    """A raw value as a feature, None where it is missing or left out."""
    if kind in _LEFT_OUT:
        return None
    if isinstance(value, str):
        if kind in ("category", "mixed"):
            return value
        if kind == "time":
            return seconds(value)
        if kind == "boolean" and (said := truth(value)) is not None:
            return said
        if (found := number(value)) is not None:
            return plain_number(found)
        return None if value.strip() in MISSING else value
    plain = plain_number(value)
    return seconds(value) if plain is None else plain


def _kind(values: Sequence[Any]) -> str:
    if not values:
        return "empty"
    if any(isinstance(value, (list, dict, bytes)) for value in values):
        return "nested"
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        if all(isinstance(value, bool) for value in values):
            return "boolean"
        return "time" if seconds(values[0]) is not None else "number"
    said = [text for text in texts if text.strip() not in MISSING]
    if all(number(text) is not None for text in said):
        return "number" if said or len(texts) < len(values) else "empty"
    if len(texts) < len(values):
        return "mixed"
    if all(truth(text) is not None for text in said):
        return "boolean"
    if all(seconds(text) is not None for text in said):
        return "time"
    if len(texts) >= _TEXT_ROWS and len(set(texts)) >= _TEXT_SHARE * len(texts):
        return "text"
    return "category"


def _are_numbers(labels: Iterable[Any]) -> bool:
    """Whether all that are not missing are numbers and at least one is no integer."""
    fraction = False
    for label in labels:
        if isinstance(label, str) and label.strip() in MISSING:
            continue
        value = number(label) if isinstance(label, str) else label
        if isinstance(value, Decimal):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        fraction |= isinstance(value, float) and math.isfinite(value) and not value.is_integer()
    return fraction


def _is_number(label: Any) -> bool:
    if isinstance(label, str):
        return number(label) is not None
    return isinstance(label, (int, float, Decimal)) and not isinstance(label, bool)


def _all_alike(values: Sequence[Any]) -> bool:
    return bool(values) and all(value == values[0] for value in values)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


def _listed(words: Sequence[str], most: int = _SHOWN) -> str:
    text = ", ".join(words[:most])
    return text + (f" and {len(words) - most} more" if len(words) > most else "")
