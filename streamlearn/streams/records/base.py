"""What a stream of records hands out, and what each kind of source of them promises."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from streamlearn.state import StateTree

__all__ = ["BadRow", "Cursor", "Item", "Quarantined", "RecordBatch", "RecordRows", "Source"]

Cursor: TypeAlias = Any
"""Where a source stands after an item; only that source knows what is in it."""


class BadRow(Exception):
    """A row that cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    r"""A row that could not be used: where it stands, why, and what it says.

    item: such as "line 17 of events.jsonl" or "row 5 of part-1.parquet", both counted from 1.
    raw: the line as it was read, bytes that are no UTF-8 as `\xff`; or the row as JSON.
    """

    item: str
    reason: str
    raw: str


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Records read from a stream, the bad ones left out and named.

    features: one record a sample without the target: numbers, booleans and strings; what is missing
        is not in it.
    targets: the labels as the source has them, numbers where those are learnt; None: no label.
    index: each sample's place in the stream, counted from 0, bad ones included.
    skipped: the bad rows among the items of this batch.
    """

    features: list[dict[str, Any]]
    targets: list[Any]
    index: list[int]
    skipped: tuple[Quarantined, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One mini-batch of records, and how far the cursor has moved past it."""

    rows: RecordRows
    position: int

    @property
    def places(self) -> list[int]:
        """Of the rows in the stream, counted from 0."""
        return self.rows.index


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a source.

    values: by column, the target too; None where there was nothing to make them of.
    where: as in `Quarantined.item`.
    reason: why it is bad, empty if it is not.
    raw: the line, None where it is to be made of the values.
    cursor: after this item.
    """

    values: dict[str, Any] | None
    where: str
    reason: str
    raw: bytes | None
    cursor: Cursor


class Source(Protocol):
    """Where items come from, one after the other.

    name: for people. waits: whether items may come later, so that how many there are depends on the
    time. count: of all items, None where it is not known. hints: kinds of columns that need not be
    guessed. regression: None where it has to be guessed.
    """

    name: str
    waits: bool
    count: int | None
    hints: dict[str, str]
    regression: bool | None

    @property
    def columns(self) -> tuple[str, ...] | None:
        """All that there are, None where a row may bring new ones."""
        ...

    @property
    def ended(self) -> bool:
        """Whether all items were pulled."""
        ...

    def pull(self, count: int, *, wait: bool = True) -> list[Item]:
        """The next items: exactly so many until the end where `waits` is False.

        Else so many, or fewer after half a second, or none after a second; without `wait` those
        that are there.
        """
        ...

    def state(self, cursor: Cursor, position: int) -> StateTree:
        """What finds this place again, and knows whether it is the same data."""
        ...

    def restore(self, state: StateTree, position: int) -> Cursor:
        """Stand there, and return that place.

        Raises:
            FormatError: it is other data.
        """
        ...

    def close(self) -> None:
        """Give back files and threads."""
        ...
