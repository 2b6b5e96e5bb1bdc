"""One shard to bytes and back: zarr's own format, as plain as it gets, so that rows need no copy.

zarr's own append rewrites a whole shard for every batch and moves the shape before the data, so it
is never used; shards are made here and go to their place by our own durable writes. What lies on
the disk is a zarr v3 shard that any zarr reads: four chunks of uncompressed little-endian numbers,
then the CRC-32 of all of them, which zarr passes over, and the index at the end. Chunks that no row
has reached are left out.

Nothing is compressed: float32 noise shrinks by a tenth at best, and decoding it is slower than a
disk reads. As it is, a shard is read by one system call straight to where it is computed with, and
written from where it was, with one pass for its checksum: that of zlib, which lets other threads
go on meanwhile. bfloat16, which zarr does not know, is stored as the uint16 of its bits.
"""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from google_crc32c import value

from . import files

if TYPE_CHECKING:  # zarr and numpy take a third of a second that no reader of manifests needs
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

__all__ = [
    "ArrayMetadata",
    "ShardCodec",
    "Summing",
    "array_metadata",
    "codec_for",
    "group_metadata",
    "rows_checksum",
]

ArrayMetadata: TypeAlias = "dict[str, Any]"
"""What a `zarr.json` of an array says."""

CHUNKS_PER_SHARD = 4
_METADATA_KEY = "zarr.json"
_SEPARATOR = "."  # a slash would make a directory for each shard
_CHECKSUM_BYTES = 4
_INDEX_BYTES = 16 * CHUNKS_PER_SHARD + _CHECKSUM_BYTES
_ABSENT = (1 << 64) - 1
_WORTH_A_THREAD = 1 << 20  # bytes


def rows_checksum(rows: NDArray[Any], start: int = 0) -> int:
    """The CRC-32 of the numbers of rows in C order, continued from that of the rows before."""
    return files.checksum(rows.data, start) if rows.size else start


class Summing:
    """The `rows_checksum` of rows, made in a thread of its own where there are many.

    Meanwhile the system takes the rows, so that a file costs the longer of both.
    """

    def __init__(self, rows: NDArray[Any], start: int) -> None:
        self._rows = rows
        self._start = start
        self._total: int | None = None
        self._thread: threading.Thread | None = None
        if rows.nbytes >= _WORTH_A_THREAD:
            thread = threading.Thread(target=self._make, name="streamlearn-checksum", daemon=True)
            with contextlib.suppress(RuntimeError):  # the system has no more threads
                thread.start()
                self._thread = thread

    def _make(self) -> int:
        self._total = total = rows_checksum(self._rows, self._start)
        return total

    def result(self) -> int:
        """The checksum, once it is made."""
        if self._thread is not None:
            self._thread.join()
        return self._make() if self._total is None else self._total


def array_metadata(
    dtype: str, rows: int, width: int | None, attributes: Mapping[str, Any]
) -> ArrayMetadata:
    """The metadata of a new array without rows, as zarr makes it.

    Args:
        dtype: numpy's name of it.
        rows: of a shard; a multiple of four.
        width: of a row, None for one number a row.
        attributes: to be kept with the array.
    """
    import zarr
    from zarr.storage import MemoryStore

    row = () if width is None else (width,)
    store: dict[str, Any] = {}
    zarr.create_array(
        store=MemoryStore(store),
        shape=(0, *row),
        shards=(rows, *row),
        chunks=(rows // CHUNKS_PER_SHARD, *row),
        dtype=dtype,
        compressors=None,
        chunk_key_encoding={"name": "default", "separator": _SEPARATOR},
        fill_value=0,
        attributes=dict(attributes),
        zarr_format=3,
    )
    metadata: ArrayMetadata = json.loads(store[_METADATA_KEY].to_bytes())
    return metadata


def group_metadata(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a group, as zarr makes it."""
    import zarr
    from zarr.storage import MemoryStore

    store: dict[str, Any] = {}
    zarr.create_group(store=MemoryStore(store), attributes=dict(attributes), zarr_format=3)
    metadata: dict[str, Any] = json.loads(store[_METADATA_KEY].to_bytes())
    return metadata


def codec_for(metadata: ArrayMetadata) -> ShardCodec:
    """The codec of an array.

    Raises:
        ValueError: the metadata is not that of an array as `array_metadata` makes it.
    """
    try:
        shape = tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"])
        (sharding,) = metadata["codecs"]
        inner = sharding["configuration"]
        found = (
            sharding["name"],
            inner["chunk_shape"],
            [codec["name"] for codec in inner["codecs"]],
            [codec["name"] for codec in inner["index_codecs"]],
            inner.get("index_location", "end"),
            inner["codecs"][0].get("configuration", {}).get("endian", "little"),
            metadata["chunk_key_encoding"]["configuration"]["separator"],
        )
        dtype = str(metadata["data_type"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"it is not the metadata of an array: {error!r}") from error
    chunk = [shape[0] // CHUNKS_PER_SHARD, *shape[1:]]
    wanted = ("sharding_indexed", chunk, ["bytes"], ["bytes", "crc32c"], "end", "little")
    if found != (*wanted, _SEPARATOR):
        raise ValueError("its codecs are not those of a run")
    return ShardCodec(shape, dtype)


@dataclass(frozen=True, slots=True)
class ShardCodec:
    """Encodes and decodes the shards of one kind of array.

    shape: of a shard. dtype: of its numbers, by numpy's name.
    """

    shape: tuple[int, ...]
    dtype: str

    def name(self, shard: int) -> str:
        """Where zarr looks for a shard of the array: "c.7.0" for the eighth."""
        return _SEPARATOR.join(["c", str(shard), *("0" for _ in self.shape[1:])])

    def shard(self, name: str) -> int | None:
        """Which shard a file of the array is, None if it is another file."""
        start, _, rest = name.partition(_SEPARATOR)
        number = rest.partition(_SEPARATOR)[0]
        return int(number) if start == "c" and number.isdecimal() else None

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        return self.shape[0] // CHUNKS_PER_SHARD

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        import numpy as np

        return int(prod(self.shape[1:])) * np.dtype(self.dtype).itemsize

    def size(self, rows: int) -> int:
        """The bytes of a shard that has these many rows."""
        chunks = -(-rows // self.chunk_rows)
        return chunks * self.chunk_rows * self.row_bytes + _CHECKSUM_BYTES + _INDEX_BYTES

    def encode(
        self, rows: NDArray[Any], checksum: Callable[[], int] | None = None
    ) -> Iterator[bytes | memoryview]:
        """The bytes of a shard whose first rows are these, in pieces; the rest of a chunk is zero.

        Args:
            rows: the first rows of the shard; not copied if they lie one after the other.
            checksum: says the `rows_checksum` of these; asked once they were taken.
        """
        import numpy as np

        little = np.ascontiguousarray(rows, np.dtype(self.dtype).newbyteorder("<"))
        if little.size:
            yield little.data.cast("B")
        total = rows_checksum(little) if checksum is None else checksum()
        chunks = -(-len(rows) // self.chunk_rows)
        padding = bytes((chunks * self.chunk_rows - len(rows)) * self.row_bytes)
        total = files.checksum(padding, total)
        yield padding + _little(total) + self._index(chunks)

    def _index(self, chunks: int) -> bytes:
        import numpy as np

        size = self.chunk_rows * self.row_bytes
        index = np.full((CHUNKS_PER_SHARD, 2), _ABSENT, np.dtype("<u8"))
        index[:chunks, 0] = size * np.arange(chunks)
        index[:chunks, 1] = size
        text = index.tobytes()
        return text + _little(value(text))

    def decode(self, data: bytes, count: int) -> NDArray[Any]:
        """The first `count` rows of a shard, all of whose checksums are looked at.

        Raises:
            ValueError: the bytes are no whole shard of this kind, or it has fewer rows.
        """
        import numpy as np

        end = len(data) - _CHECKSUM_BYTES - _INDEX_BYTES
        chunks, rest = divmod(end, self.chunk_rows * self.row_bytes)
        if rest or not 0 <= chunks <= CHUNKS_PER_SHARD or chunks * self.chunk_rows < count:
            raise ValueError(f"cannot be decoded: it has {len(data)} bytes")
        view = memoryview(data)
        if bytes(view[end:]) != _little(files.checksum(view[:end])) + self._index(chunks):
            raise ValueError("cannot be decoded: its checksum or its index does not fit")
        stored = np.frombuffer(view[:end], np.dtype(self.dtype).newbyteorder("<"))
        rows = stored.reshape(-1, *self.shape[1:])[:count]
        return rows.astype(self.dtype)  # a copy of its own, aligned and writable


def _little(checksum: int) -> bytes:
    return checksum.to_bytes(_CHECKSUM_BYTES, "little")
