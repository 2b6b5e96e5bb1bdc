"""A stream of records: mini-batches of dictionaries, what they mean, and a cursor."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from streamlearn.errors import ConfigError, DataError, FormatError
from streamlearn.state import StateTree
from streamlearn.streams.base import OnError, SkippedItem
from streamlearn.streams.experiences import Experience
from streamlearn.streams.splits import refuse

from .base import BadRow, Cursor, Item, Quarantined, RecordBatch, RecordRows, Source
from .parquet import row_as_json
from .schema import Schema, Targets, infer

__all__ = ["RecordStream"]

SCHEMA_ROWS = 256
SCHEMA_SECONDS = 1.0
_SLICE_SECONDS = 1.0
_NOTHING = RecordRows([], [], [])


class RecordStream:
    """Items of a source in their order, in mini-batches of records.

    Where all items are there (files, generators), each mini-batch is full but the last, so it
    depends on the data alone. Where they come in time (pipes, a watched folder), a mini-batch is
    handed out when it is full or its first item has waited for half a second, and an empty one when
    nothing has come for a second, so that whoever reads can stop or save in between.

    The cursor counts items that were handed out, bad ones too. It moves when a batch is handed out,
    so a state saved between two batches resumes with the next one; it may be set back to where the
    last batch began, which is then the next one again.

    Args:
        source: where items come from.
        asked: the target, what it is, and columns to leave out.
        limit: stop after this many items.
        on_error: "skip" names bad rows in `RecordRows.skipped`, "stop" raises at the first.

    Attributes:
        name: for people.
        experiences: none.
    """

    experiences: tuple[Experience, ...] = ()

    def __init__(
        self,
        source: Source,
        asked: Targets,
        *,
        limit: int | None = None,
        on_error: OnError = "skip",
    ) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"data.limit={limit} must be at least 1; leave it out for all items")
        self.name = source.name
        self._source = source
        self._asked = asked
        self._limit = limit
        self._on_error: OnError = on_error
        self._schema: Schema | None = None
        self._ahead: deque[Item] = deque()  # pulled, not handed out
        self._position = 0
        self._cursor: Cursor = None
        self._last: tuple[int, Cursor, list[Item]] = (0, None, [])
        self._first_at: float | None = None

    @property
    def waits(self) -> bool:
        """Whether items come in time, so that batches may be small or empty."""
        return self._source.waits

    @property
    def total(self) -> int | None:
        """How many items there are, the limit at most; None where that is not known yet."""
        count = self._source.count
        if self._source.ended:
            count = self._position + len(self._ahead)
        known = [number for number in (count, self._limit) if number is not None]
        return min(known, default=None)

    @property
    def position(self) -> int:
        """Items that were handed out."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        start, cursor, items = self._last
        if position == self._position:
            return
        if position != start:
            raise ConfigError(
                f"the cursor of {self.name} stands at {self._position} and can only be set back to "
                f"{start}, where the last batch began; not to {position}"
            )
        self._ahead.extendleft(reversed(items))
        self._position, self._cursor = start, cursor
        self._last = (start, cursor, [])

    # -- the schema ------------------------------------------------------------------------------

    @property
    def schema(self) -> Schema:
        """What columns mean, by the first rows; waits until some have come.

        Raises:
            ConfigError, DataError: as `settle`.
        """
        while self._schema is None:
            self.settle()
        return self._schema

    def settle(self) -> bool:
        """Whether the schema is known; waits for up to a second for the first rows.

        It is made of the first 256 rows, or of those that came within a second of the first.

        Raises:
            ConfigError: the target is none of the columns.
            DataError: the input ended without a row, or no row can be read.
        """
        if self._schema is not None:
            return True
        until = time.monotonic() + _SLICE_SECONDS
        wanted = SCHEMA_ROWS if self._limit is None else min(SCHEMA_ROWS, self._limit)
        while len(self._ahead) < wanted and not self._source.ended:
            self._ahead += self._source.pull(wanted - len(self._ahead))
            now = time.monotonic()
            if self._ahead and self._first_at is None:
                self._first_at = now
            if not self._source.waits:
                continue
            if self._first_at is None and now >= until:
                return False
            if self._first_at is not None and now >= self._first_at + SCHEMA_SECONDS:
                break
        rows = [item.values for item in self._ahead if item.values is not None and not item.reason]
        if not rows:
            self._refuse_emptiness()
        self._schema = infer(
            self.name,
            rows,
            self._asked,
            known=self._source.columns,
            hints=self._source.hints,
            regression=self._source.regression,
        )
        return True

    def _refuse_emptiness(self) -> None:
        if not self._ahead:
            raise DataError(f"{self.name} holds no rows; give data with at least one")
        first = self._ahead[0]
        raise DataError(
            f"none of the first {len(self._ahead)} rows of {self.name} can be read ({first.where}: "
            f"{first.reason}); look at the data, or at the kind that data=… says"
        )

    # -- batches ---------------------------------------------------------------------------------

    def batches(self, size: int, *, ahead: bool = False) -> Iterator[RecordBatch]:
        """The remaining mini-batches, from the cursor on.

        A batch holds fewer rows where items were bad, and none where none came in time.

        Args:
            size: of a mini-batch, in items.
            ahead: read the next mini-batch in a thread while this one is used, where items need not
                be waited for; pipes are read ahead in any case.

        Raises:
            ConfigError: such a size is not possible, or as `settle`.
            DataError: a bad row where `on_error` is "stop", or a source that cannot be read.
        """
        if size < 1:
            raise ConfigError(f"a batch size of {size} is not possible; it must be at least 1")
        if not ahead or self._source.waits:
            yield from self._hand_out(size, self._fill)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
            pending: Future[None] | None = None

            def fill(count: int) -> None:
                nonlocal pending
                if pending is not None:
                    pending.result()
                self._fill(count)
                # What is handed out now, and the next batch.
                pending = pool.submit(self._fill, 2 * size)

            yield from self._hand_out(size, fill)

    def _fill(self, count: int) -> None:
        """Have so many items ahead, if there are as many."""
        wait = not self._ahead
        while (missing := count - len(self._ahead)) > 0 and not self._source.ended:
            items = self._source.pull(missing, wait=wait)
            self._ahead += items
            if self._source.waits and not items:
                break
            wait = False

    def _hand_out(self, size: int, fill: Callable[[int], None]) -> Iterator[RecordBatch]:
        while True:
            count = size if self._limit is None else min(size, self._limit - self._position)
            if count <= 0:
                return
            if not self.settle():
                yield RecordBatch(_NOTHING, self._position)
                continue
            fill(count)
            items = [self._ahead[place] for place in range(min(count, len(self._ahead)))]
            if not items and self._source.ended:
                return
            rows = self._rows(items)
            # A thread may add to the other end meanwhile.
            for _ in items:
                self._ahead.popleft()
            if items:
                self._last = (self._position, self._cursor, items)
                self._position += len(items)
                self._cursor = items[-1].cursor
            yield RecordBatch(rows, self._position)

    def _rows(self, items: list[Item]) -> RecordRows:
        """Records of items.

        Raises:
            DataError: one is bad, and that is not to be.
        """
        features, targets, index, skipped = [], [], [], []
        schema = self.schema
        for place, item in enumerate(items, start=self._position):
            reason = item.reason
            if item.values is not None and not reason:
                try:
                    record, target = schema.row(item.values)
                except BadRow as error:
                    reason = str(error)
                else:
                    features.append(record)
                    targets.append(target)
                    index.append(place)
                    continue
            raw = item.raw
            text = row_as_json(item.values or {}) if raw is None else _text(raw)
            skipped.append(Quarantined(item.where, reason, text))
        if skipped:
            refuse([SkippedItem(bad.item, bad.reason) for bad in skipped], self._on_error)
        return RecordRows(features, targets, index, tuple(skipped))

    # -- state -----------------------------------------------------------------------------------

    def state_dict(self) -> StateTree:
        """The cursor, the schema, and what must agree for both to mean the same.

        Of a pipe the place is kept as well, so that a run that read one may be resumed from a file
        with the same bytes; see `TextPipe`.
        """
        return {
            "position": self._position,
            "source": self._source.state(self._cursor, self._position),
            "schema": None if self._schema is None else self._schema.state_dict(),
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Put the cursor back, and know the schema of the run.

        Raises:
            FormatError: the data is not that of the state any more.
        """
        try:
            position, source, schema = int(state["position"]), state["source"], state["schema"]
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"the state of the stream has no {error}; it is damaged, fall back to an earlier "
                "commit"
            ) from error
        cursor = self._source.restore(source, position)
        if cursor is not None:
            self._ahead.clear()
        if schema is not None:
            known = Schema.of_state(schema)
            if self._asked.target not in (None, known.target):
                raise FormatError(
                    f"the run was learning {known.target!r} but data.target={self._asked.target} "
                    "is asked for now; leave it as it was"
                )
            self._schema = known
        self._position, self._cursor = position, cursor
        self._last = (position, cursor, [])

    def close(self) -> None:
        """Give back files and threads."""
        self._source.close()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
