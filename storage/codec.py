"""One shard to bytes and back: zarr's own format, as plain as it gets, so that rows need no copy.

zarr's own append rewrites a whole shard for every batch and moves the shape before the data, so it
is never used; shards are made here and go to their place by our own durable writes. What lies on
the disk is a zarr v3 shard that any zarr reads: four chunks of uncompressed little-endian numbers,
each followed by its CRC-32C, and the index at the end. Chunks that no row has reached are left out.

Nothing is compressed: float32 noise shrinks by a tenth at best, and decoding it is slower than a
disk reads. As it is, a shard is read by one system call straight to where it is computed with.
bfloat16, which zarr does not know, is stored as the uint16 of its bits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from google_crc32c import extend, value

if TYPE_CHECKING:  # zarr and numpy take a third of a second that no reader of manifests needs
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "ArrayMetadata",
    "ShardCodec",
    "array_metadata",
    "codec_for",
    "group_metadata",
    "rows_checksum",
]

ArrayMetadata: TypeAlias = "dict[str, Any]"
"""What a `zarr.json` of an array says."""

CHUNKS_PER_SHARD = 4
_METADATA_KEY = "zarr.json"
_CHECKSUM_BYTES = 4
_INDEX_BYTES = 16 * CHUNKS_PER_SHARD + _CHECKSUM_BYTES
_ABSENT = (1 << 64) - 1


def rows_checksum(rows: NDArray[Any], start: int = 0) -> int:
    """The CRC-32C of the numbers of rows in C order, continued from that of the rows before."""
    if not rows.size:
        return start
    checksum: int = extend(start, rows)  # of arrays and bytes, not of memory views
    return checksum


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
    from zarr.codecs import Crc32cCodec
    from zarr.storage import MemoryStore

    row = () if width is None else (width,)
    store: dict[str, Any] = {}
    zarr.create_array(
        store=MemoryStore(store),
        shape=(0, *row),
        shards=(rows, *row),
        chunks=(rows // CHUNKS_PER_SHARD, *row),
        dtype=dtype,
        compressors=[Crc32cCodec()],
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
    plain = ["bytes", "crc32c"]
    if found != ("sharding_indexed", chunk, plain, plain, "end", "little", "/"):
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
        """Where zarr looks for a shard below the array: "c/7/0" for the eighth."""
        return "/".join(["c", str(shard), *("0" for _ in self.shape[1:])])

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
        return chunks * (self.chunk_rows * self.row_bytes + _CHECKSUM_BYTES) + _INDEX_BYTES

    def encode(self, rows: NDArray[Any]) -> bytes:
        """The bytes of a shard whose first rows are these; the rest of their chunk is zero."""
        import numpy as np

        room = np.empty(self.size(len(rows)), np.uint8)
        return self.encode_into(rows, room).tobytes()

    def encode_into(self, rows: NDArray[Any], room: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Put the bytes of a shard into an array, and give the part of it that they take.

        Fresh memory costs more than the copying, so one array may serve shard after shard.

        Args:
            rows: the first rows of the shard.
            room: at least `size` of as many rows.
        """
        import numpy as np

        index = np.full((CHUNKS_PER_SHARD, 2), _ABSENT, np.dtype("<u8"))
        offset = 0
        little = np.ascontiguousarray(rows, np.dtype(self.dtype).newbyteorder("<"))
        flat = little.reshape(-1).view(np.uint8)
        whole = self.chunk_rows * self.row_bytes
        for number in range(-(-len(rows) // self.chunk_rows)):
            chunk = flat[number * whole : (number + 1) * whole]
            place = room[offset : offset + whole]
            place[: len(chunk)] = chunk
            place[len(chunk) :] = 0
            index[number] = offset, whole + _CHECKSUM_BYTES
            room[offset + whole : offset + whole + _CHECKSUM_BYTES] = _bytes(value(place))
            offset += whole + _CHECKSUM_BYTES
        text = index.reshape(-1).view(np.uint8)
        end = offset + _INDEX_BYTES
        room[offset : end - _CHECKSUM_BYTES] = text
        room[end - _CHECKSUM_BYTES : end] = _bytes(value(text))
        return room[:end]

    def decode(self, data: bytes, count: int) -> NDArray[Any]:
        """The first `count` rows of a shard, all of whose checksums are looked at.

        Raises:
            ValueError: the bytes are no whole shard of this kind, or it has fewer rows.
        """
        import numpy as np

        chunks, rest = divmod(
            len(data) - _INDEX_BYTES, self.chunk_rows * self.row_bytes + _CHECKSUM_BYTES
        )
        if rest or not 0 <= chunks <= CHUNKS_PER_SHARD or chunks * self.chunk_rows < count:
            raise ValueError(f"cannot be decoded: it has {len(data)} bytes")
        rows = np.empty((chunks * self.chunk_rows, *self.shape[1:]), self.dtype)
        view = np.frombuffer(data, np.uint8)
        index = np.full((CHUNKS_PER_SHARD, 2), _ABSENT, np.dtype("<u8"))
        size = self.chunk_rows * self.row_bytes
        for number in range(chunks):
            begin = number * (size + _CHECKSUM_BYTES)
            piece = view[begin : begin + size]
            checksum = view[begin + size : begin + size + _CHECKSUM_BYTES].tobytes()
            if _little(value(piece)) != checksum:
                raise ValueError(f"cannot be decoded: the checksum of chunk {number} does not fit")
            place = rows[number * self.chunk_rows : (number + 1) * self.chunk_rows]
            place.reshape(-1).view(np.uint8)[...] = piece
            index[number] = begin, size + _CHECKSUM_BYTES
        text = index.tobytes()
        if view[-_INDEX_BYTES:].tobytes() != text + _little(value(text)):
            raise ValueError("cannot be decoded: its index is not that of its chunks")
        return rows[:count]

    def places(self, rows: NDArray[Any]) -> list[Any]:
        """Buffers to read the start of a shard into, so that its first rows end up in `rows`.

        Args:
            rows: contiguous, of the shard's dtype and width, to be filled.
        """
        places: list[Any] = []
        for start in range(0, len(rows), self.chunk_rows):
            places += [rows[start : start + self.chunk_rows].data.cast("B"), bytearray(4)]
        return places[:-1]


def _bytes(checksum: int) -> list[int]:
    return list(_little(checksum))


def _little(checksum: int) -> bytes:
    return checksum.to_bytes(_CHECKSUM_BYTES, "little")
