"""One shard to bytes and back, through zarr, in memory.

zarr's own append rewrites a whole shard for every batch and moves the shape before the data, so it
is never used. Instead an array of exactly one shard lives in a dictionary: zarr encodes into it and
decodes out of it, and the bytes go to their place by our own durable writes. What lies on the disk
is therefore what zarr would have written, and any zarr reads it.

An array's `zarr.json` decides how its shards are encoded, so a run keeps the codecs that it began
with. New arrays: a shard is one block, in four chunks; bit planes together, then lz4, then a
checksum for each chunk (a float32 that holds a bfloat16 has sixteen empty planes, which cost
nothing). All-zero chunks are written too: to leave them out would lose the sign of -0.0.
"""

from __future__ import annotations

import copy
import json
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # zarr and numpy take a third of a second that no reader of manifests needs
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ArrayMetadata", "ShardCodec", "array_metadata", "codec_for", "group_metadata"]

ArrayMetadata: TypeAlias = "dict[str, Any]"
"""What a `zarr.json` of an array says."""

_CHUNKS_PER_SHARD = 4
_METADATA_KEY = "zarr.json"


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
    from zarr.codecs import BloscCodec, Crc32cCodec
    from zarr.storage import MemoryStore

    row = () if width is None else (width,)
    store: dict[str, Any] = {}
    zarr.create_array(
        store=MemoryStore(store),
        shape=(0, *row),
        shards=(rows, *row),
        chunks=(rows // _CHUNKS_PER_SHARD, *row),
        dtype=dtype,
        compressors=[BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle"), Crc32cCodec()],
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
    """The codec of an array; one for all arrays that differ only in rows and attributes.

    Raises:
        ValueError: zarr cannot make an array of this metadata.
    """
    template = copy.deepcopy(metadata)
    try:
        template["shape"] = template["chunk_grid"]["configuration"]["chunk_shape"]
        template["attributes"] = {}
        return _codec(json.dumps(template, sort_keys=True))
    except Exception as error:  # whatever zarr raises on metadata that is damaged
        raise ValueError(f"zarr cannot make an array of it: {error!r}") from error


@lru_cache(maxsize=64)
def _codec(template: str) -> ShardCodec:
    return ShardCodec(template)


class ShardCodec:
    """Encodes and decodes whole shards of one kind of array; threads may share it.

    Args:
        template: the JSON of a `zarr.json` whose shape is that of one shard.

    Attributes:
        shape: of a shard.
        dtype: of its numbers.
        name: of a shard's file below the array: "c/7/0" for the eighth, by `name.format(7)`.
    """

    def __init__(self, template: str) -> None:
        import zarr
        from zarr.buffer.cpu import Buffer
        from zarr.storage import MemoryStore

        self._buffer = Buffer
        self._store: dict[str, Any] = {_METADATA_KEY: Buffer.from_bytes(template.encode())}
        array = zarr.open_array(MemoryStore(self._store), mode="r+")
        self._array = array.with_config({"write_empty_chunks": True})
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = array.dtype
        self.name = "/".join(["c", "{}", *("0" for _ in self.shape[1:])])
        self._key = self.name.format(0)
        self._turn = threading.Lock()  # there is one place for a shard

    def encode(self, rows: NDArray[Any]) -> bytes:
        """The bytes of a shard whose first rows are these and whose others are zero."""
        import numpy as np

        whole = rows
        if len(rows) < self.shape[0]:
            whole = np.zeros(self.shape, self.dtype)
            whole[: len(rows)] = rows
        with self._turn:
            self._array[...] = whole
            data: bytes = self._store.pop(self._key).to_bytes()
        return data

    def decode(self, data: bytes, count: int) -> NDArray[Any]:
        """The first `count` rows of a shard; all of it is decoded, so that all of it is checked.

        Raises:
            ValueError: the bytes are no whole shard of this kind.
        """
        if not data:  # zarr takes an empty file for one that is not there, and that for zeros
            raise ValueError("cannot be decoded: it is empty")
        with self._turn:
            self._store[self._key] = self._buffer.from_bytes(data)
            try:
                rows: NDArray[Any] = self._array[...]  # type: ignore[assignment]
            except Exception as error:  # whatever the codecs raise on bytes that are damaged
                raise ValueError(f"cannot be decoded: {error}") from error
            finally:
                del self._store[self._key]
        return rows[:count]
