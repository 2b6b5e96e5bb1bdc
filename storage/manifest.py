"""The manifest: the one file that says what a run has committed.

Whatever it names was durable before it appeared, and it appears in one step. Rows past its counts
and files that it does not name do not exist, whatever lies on the disk.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from streamlearn.errors import ConfigError, FormatError

from . import documents
from .documents import FORMAT_VERSION
from .layout import check_name
from .objects import RunPath

__all__ = [
    "FORMAT_VERSION",
    "ColumnEntry",
    "Commit",
    "Compaction",
    "KeptCommit",
    "LayerEntry",
    "Manifest",
    "ShardVersion",
    "Status",
    "TableEntry",
    "is_no_commit",
    "no_commit",
]

Status = Literal["running", "stopped", "finished"]
"""Still learning (or crashed while learning), stopped on purpose, or at the end of its stream."""

_KIND = "streamlearn-manifest"
_NO_COMMIT = "streamlearn-no-commit"
_STATE_FILE = re.compile(r"state/[\w-]+\.safetensors", re.ASCII)
_TABLE_FILE = re.compile(r"shards/[\w-]+\.table", re.ASCII)


@dataclass(frozen=True, slots=True)
class ColumnEntry:
    """One column of a layer's tuples.

    width: of a row, None for one number a row. dtype: of the numbers in memory, by torch's name;
    a bfloat16 is stored as the uint16 of its bits.
    """

    width: int | None
    dtype: str

    @property
    def stored(self) -> str:
        """The dtype of the stored numbers, by numpy's name."""
        return "uint16" if self.dtype == "bfloat16" else self.dtype


@dataclass(frozen=True, slots=True)
class ShardVersion:
    """A file of a shard.

    version: 0 as it was first written; another one each time that rows of it were changed.
    checksum: the CRC-32C of its rows, as far as they are known (their numbers, not the file, whose
    last rows may be of a commit that was never finished).
    """

    version: int
    checksum: str


@dataclass(frozen=True, slots=True)
class TableEntry:
    """The file that says what a layer's full shards hold.

    file: its name below the run, "" while no shard is full. records: how many of it are committed.
    checksum: the CRC-32 of these.
    """

    file: str = ""
    records: int = 0
    checksum: str = "00000000"


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One layer's committed tuples.

    live: rows that are not dead. row_bytes: what one tuple takes in memory. block_rows: rows in a
    shard. max_key_square: the largest ‖k‖² that there ever was. first_version: of new shards, 0
    until the layer was compacted. tail: by column what the last, partly filled shard holds.
    """

    name: str
    rows: int
    live: int
    row_bytes: int
    block_rows: int
    dtype: str
    max_key_square: float
    columns: Mapping[str, ColumnEntry]
    first_version: int = 0
    table: TableEntry = TableEntry()
    tail: Mapping[str, ShardVersion] = field(default_factory=dict)

    @property
    def widths(self) -> dict[str, int | None]:
        """The columns in order, with the width of each."""
        return {name: column.width for name, column in self.columns.items()}

    @property
    def nbytes(self) -> int:
        """What the tuples take in memory."""
        return self.rows * self.row_bytes

    @property
    def shards(self) -> int:
        """How many shards hold the rows; all but the last are full."""
        return -(-self.rows // self.block_rows)

    def rows_in(self, shard: int) -> int:
        """How many committed rows a shard holds; 0 for one that is not there yet."""
        return max(0, min(self.rows - shard * self.block_rows, self.block_rows))


@dataclass(frozen=True, slots=True)
class KeptCommit:
    """An older commit that can still be gone back to.

    commit, step, state_file: as in its manifest. tables: the files of its layers' tables.
    checksum: the CRC-32 of the file that holds it.
    """

    commit: int
    step: int
    state_file: str
    tables: tuple[str, ...]
    checksum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit: what a run knew at a step.

    commit: 1 for the first. samples: scored so far. time: of the commit, seconds since 1970.
    state_file: below the run. event_bytes: of the event log that belong to the commit, and
    event_checksum their CRC-32. summary: what the session wants to be shown. disk_bytes: of the
    whole run. kept: the older commits that are kept, oldest first. writer: in an object store a
    word of its own of whoever wrote it, so that each writer's manifest has bytes of its own.
    """

    commit: int
    step: int
    samples: int
    status: Status
    time: float
    state_file: str
    state_checksum: str
    event_bytes: int
    event_checksum: str
    layers: Mapping[str, LayerEntry]
    summary: Mapping[str, Any] = field(default_factory=dict)
    disk_bytes: int = 0
    kept: tuple[KeptCommit, ...] = ()
    writer: str = ""
    version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.status not in get_args(Status):
            raise ConfigError(
                f"status={self.status!r} is unknown; use {' or '.join(get_args(Status))}"
            )
        if self.step < 0 or self.samples < 0:
            raise ConfigError(
                f"step={self.step} and samples={self.samples} must not be negative; "
                "count both from 0"
            )

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that can be gone back to, this commit's own among them."""
        return tuple(sorted({self.step, *(kept.step for kept in self.kept)}))

    @property
    def state_files(self) -> frozenset[str]:
        """The state files of this commit and of those that are kept."""
        return frozenset({self.state_file, *(kept.state_file for kept in self.kept)})

    @property
    def tables(self) -> tuple[str, ...]:
        """The files of the layers' tables."""
        return tuple(entry.table.file for entry in self.layers.values() if entry.table.file)

    @property
    def named_files(self) -> frozenset[str]:
        """The states and tables of this commit and of those that are kept, below the run."""
        return self.state_files.union(self.tables, *(kept.tables for kept in self.kept))

    def to_bytes(self) -> bytes:
        """The text of the file."""
        fields = dataclasses.asdict(self)
        if not self.writer:
            del fields["writer"]
        return documents.seal(_KIND, fields)

    @classmethod
    def from_bytes(cls, path: RunPath, data: bytes) -> "Manifest":
        """The manifest in a file's bytes.

        Args:
            path: of the file, for the messages.
            data: its bytes.

        Raises:
            FormatError: it is damaged or of a newer version; names the file.
        """
        found = documents.unseal(_KIND, path, data)
        try:
            layers = {name: _layer(name, layer) for name, layer in found["layers"].items()}
            for name in layers:
                check_name(name, "layer")
            kept = tuple(
                KeptCommit(
                    int(older["commit"]),
                    int(older["step"]),
                    older["state_file"],
                    tuple(older["tables"]),
                    str(older["checksum"]),
                )
                for older in found["kept"]
            )
            for state_file in (found["state_file"], *(older.state_file for older in kept)):
                if not _STATE_FILE.fullmatch(state_file):
                    raise ValueError(f"state_file={state_file!r}")
            tables = [entry.table.file for entry in layers.values()]
            for table in (*tables, *(name for older in kept for name in older.tables)):
                if table and not _TABLE_FILE.fullmatch(table):
                    raise ValueError(f"table={table!r}")
            return cls(
                commit=int(found["commit"]),
                step=int(found["step"]),
                samples=int(found["samples"]),
                status=cast(Status, found["status"]),
                time=float(found["time"]),
                state_file=found["state_file"],
                state_checksum=str(found["state_checksum"]),
                event_bytes=int(found["event_bytes"]),
                event_checksum=str(found["event_checksum"]),
                layers=layers,
                summary=dict(found["summary"]),
                disk_bytes=int(found["disk_bytes"]),
                kept=kept,
                writer=str(found.get("writer", "")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"{str(path)!r} is damaged (its fields do not make a commit: {error!r}); "
                "put back a copy of this file"
            ) from error


def no_commit(writer: str) -> bytes:
    """What stands for the manifest of a run in an object store that has never committed.

    It is there only where a writer has taken the run over from another, whose first commit must
    not come any more.
    """
    return documents.seal(_NO_COMMIT, {"writer": writer})


def is_no_commit(path: RunPath, data: bytes) -> bool:
    """Whether a manifest's file holds what `no_commit` gave.

    Raises:
        FormatError: it does, but is damaged; names the file.
    """
    if _NO_COMMIT.encode("ascii") not in data[:64]:
        return False
    documents.unseal(_NO_COMMIT, path, data)
    return True


def _layer(name: str, found: dict[str, Any]) -> LayerEntry:
    return LayerEntry(
        name=name,
        rows=int(found["rows"]),
        live=int(found["live"]),
        row_bytes=int(found["row_bytes"]),
        block_rows=int(found["block_rows"]),
        dtype=str(found["dtype"]),
        max_key_square=float(found["max_key_square"]),
        columns={
            column: ColumnEntry(facts["width"], facts["dtype"])
            for column, facts in found["columns"].items()
        },
        first_version=int(found["first_version"]),
        table=TableEntry(
            str(found["table"]["file"]),
            int(found["table"]["records"]),
            str(found["table"]["checksum"]),
        ),
        tail={
            column: ShardVersion(int(tail["version"]), str(tail["checksum"]))
            for column, tail in found["tail"].items()
        },
    )


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit took: bytes written, bytes of the run now, seconds, and when it was."""

    bytes_written: int
    disk_bytes: int
    seconds: float
    time: float


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction left (tuples) and left out (dead), and the run's bytes before and after.

    kept: older commits that can still be gone back to, which may need the old shards.
    """

    tuples: int
    dead: int
    bytes_before: int
    bytes_after: int
    kept: int
