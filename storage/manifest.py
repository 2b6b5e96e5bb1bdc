"""The manifest: the one file that says what a run has committed.

Whatever it names was durable before it appeared, and it appears in one step. Rows past its counts
and files that it does not name do not exist, whatever lies on the disk.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from streamlearn.errors import ConfigError, FormatError

from . import documents
from .documents import FORMAT_VERSION
from .layout import check_name

__all__ = [
    "FORMAT_VERSION",
    "ColumnEntry",
    "Commit",
    "KeptCommit",
    "LayerEntry",
    "Manifest",
    "Status",
]

Status = Literal["running", "stopped", "finished"]
"""Still learning (or crashed while learning), stopped on purpose, or at the end of its stream."""

_KIND = "streamlearn-manifest"
_STATE_FILE = re.compile(r"state/[\w-]+\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class ColumnEntry:
    """One column of a layer's tuples.

    width: of a row, None for one number a row. dtype: of the stored numbers, by numpy's name.
    checksums: for each shard the CRC-32 of its committed rows (their numbers, not the file, whose
    last shard may already hold rows of a commit that was never finished).
    """

    width: int | None
    dtype: str
    checksums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One layer's committed tuples.

    row_bytes: what one tuple takes in memory. block_rows: rows in a shard. dtype: of keys and
    values in memory, by torch's name ("bfloat16" is stored as the float32 that equals it).
    """

    name: str
    rows: int
    row_bytes: int
    block_rows: int
    dtype: str
    columns: Mapping[str, ColumnEntry]

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

    commit, step, state_file: as in its manifest. checksum: the CRC-32 of the file that holds it.
    """

    commit: int
    step: int
    state_file: str
    checksum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit: what a run knew at a step.

    commit: 1 for the first. samples: scored so far. time: of the commit, seconds since 1970.
    state_file: below the run. event_bytes: of the event log that belong to the commit, and
    event_checksum their CRC-32. summary: what the session wants to be shown. disk_bytes: of the
    whole run. kept: the older commits that are kept, oldest first.
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

    def to_bytes(self) -> bytes:
        """The text of the file."""
        fields = dataclasses.asdict(self)
        for layer in fields["layers"].values():
            for column in layer["columns"].values():
                column["checksums"] = " ".join(column["checksums"])
        return documents.seal(_KIND, fields)

    @classmethod
    def from_bytes(cls, path: Path, data: bytes) -> "Manifest":
        """The manifest in a file's bytes.

        Args:
            path: of the file, for the messages.
            data: its bytes.

        Raises:
            FormatError: it is damaged or of a newer version; names the file.
        """
        found = documents.unseal(_KIND, path, data)
        try:
            layers = {
                name: LayerEntry(
                    name=name,
                    rows=int(layer["rows"]),
                    row_bytes=int(layer["row_bytes"]),
                    block_rows=int(layer["block_rows"]),
                    dtype=str(layer["dtype"]),
                    columns={
                        key: ColumnEntry(
                            column["width"], column["dtype"], tuple(column["checksums"].split())
                        )
                        for key, column in layer["columns"].items()
                    },
                )
                for name, layer in found["layers"].items()
            }
            for name in layers:
                check_name(name, "layer")
            kept = tuple(
                KeptCommit(
                    int(older["commit"]),
                    int(older["step"]),
                    older["state_file"],
                    str(older["checksum"]),
                )
                for older in found["kept"]
            )
            for state_file in (found["state_file"], *(older.state_file for older in kept)):
                if not _STATE_FILE.fullmatch(state_file):
                    raise ValueError(f"state_file={state_file!r}")
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
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"{str(path)!r} is damaged (its fields do not make a commit: {error!r}); "
                "put back a copy of this file"
            ) from error


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit took: bytes written, bytes of the run now, seconds, and when it was."""

    bytes_written: int
    disk_bytes: int
    seconds: float
    time: float
