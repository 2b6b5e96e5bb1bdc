"""Shards: what zarr makes of a block in memory is what zarr reads from a file."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from streamlearn.storage import documents, files
from streamlearn.storage.codec import ShardCodec, array_metadata, codec_for, rows_checksum


def encoded(codec: ShardCodec, rows: NDArray[Any]) -> bytes:
    return b"".join(codec.encode(rows))


KINDS = [("float32", 5), ("float64", 3), ("uint16", 4), ("int64", None), ("float32", None)]


@pytest.mark.parametrize(("dtype", "width"), KINDS)
@pytest.mark.parametrize("rows", [1, 127, 128, 512])
def test_plain_zarr_reads_an_encoded_shard_from_its_file(
    tmp_path: Path, dtype: str, width: int | None, rows: int
) -> None:
    metadata = array_metadata(dtype, 512, width, {"note": "añ"})
    codec = codec_for(metadata)
    row = () if width is None else (width,)
    data = np.random.default_rng(rows).normal(0, 9, (rows, *row)).astype(dtype)
    for shard in range(2):
        path = tmp_path / codec.name(shard)
        path.write_bytes(encoded(codec, data))
    shape = [512 + rows, *row]
    (tmp_path / "zarr.json").write_bytes(documents.encode({**metadata, "shape": shape}))
    array = zarr.open_array(tmp_path, mode="r")
    assert array.attrs["note"] == "añ"
    found = np.asarray(array[...])
    assert found[:rows].tobytes() == data.tobytes()
    assert not found[rows:512].any()
    assert found[512:].tobytes() == data.tobytes()


@pytest.mark.parametrize(("dtype", "width"), KINDS)
def test_a_shard_decodes_to_the_bit(dtype: str, width: int | None) -> None:
    codec = codec_for(array_metadata(dtype, 512, width, {}))
    row = () if width is None else (width,)
    rows = np.random.default_rng(0).integers(-9, 9, (300, *row)).astype(dtype)
    assert codec.decode(encoded(codec, rows), 300).tobytes() == rows.tobytes()
    assert codec.decode(encoded(codec, rows), 7).tobytes() == rows[:7].tobytes()


@pytest.mark.parametrize("rows", [3, 512])
def test_the_sign_of_zero_survives(rows: int) -> None:
    codec = codec_for(array_metadata("float32", 512, 4, {}))
    decoded = codec.decode(encoded(codec, np.full((rows, 4), -0.0, np.float32)), rows)
    assert np.signbit(decoded).all()


def test_every_flipped_byte_of_a_shard_is_noticed() -> None:
    codec = codec_for(array_metadata("int64", 512, None, {}))
    data = encoded(codec, np.arange(400))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises(ValueError, match="cannot be decoded"):
            codec.decode(bytes(damaged), 400)


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_truncated_shard_is_noticed(length: int) -> None:
    codec = codec_for(array_metadata("float32", 512, 2, {}))
    data = encoded(codec, np.ones((9, 2), np.float32))
    for count in (9, 512):
        with pytest.raises(ValueError, match="cannot be decoded"):
            codec.decode(data[:length], count)


def test_a_shard_takes_what_its_begun_chunks_take() -> None:
    codec = codec_for(array_metadata("float32", 512, 6, {}))
    for rows, chunks in ((0, 0), (1, 1), (128, 1), (129, 2), (512, 4)):
        data = encoded(codec, np.ones((rows, 6), np.float32))
        assert len(data) == codec.size(rows) == chunks * 128 * 24 + 4 + 68


@pytest.mark.parametrize("rows", [1, 128, 300, 512])
def test_rows_are_read_straight_to_their_place(tmp_path: Path, rows: int) -> None:
    codec = codec_for(array_metadata("float32", 512, 6, {}))
    data = np.random.default_rng(0).standard_normal((rows, 6), np.float32)
    path = tmp_path / "shard"
    path.write_bytes(encoded(codec, data))
    out = np.full_like(data, np.nan)
    files.read_into(path, [out.data.cast("B")])
    assert out.tobytes() == data.tobytes()
    path.write_bytes(encoded(codec, data)[: rows * 24 // 2])
    with pytest.raises(ValueError, match="it ends after"):
        files.read_into(path, [out.data.cast("B")])


def test_a_shard_is_what_zarr_writes_and_a_checksum(tmp_path: Path) -> None:
    metadata = array_metadata("float32", 512, 6, {})
    (tmp_path / "zarr.json").write_bytes(documents.encode({**metadata, "shape": [512, 6]}))
    data = np.random.default_rng(0).standard_normal((512, 6), np.float32)
    zarr.open_array(tmp_path, mode="r+")[...] = data
    codec = codec_for(metadata)
    ours, size = encoded(codec, data), data.nbytes
    assert (tmp_path / codec.name(0)).read_bytes() == ours[:size] + ours[size + 4 :]
    assert int.from_bytes(ours[size : size + 4], "little") == zlib.crc32(ours[:size])


def test_rows_are_not_copied_to_be_written() -> None:
    codec = codec_for(array_metadata("float32", 512, 6, {}))
    data = np.ones((130, 6), np.float32)
    first, rest = codec.encode(data)
    assert np.shares_memory(np.asarray(first), data)
    assert len(first) + len(rest) == codec.size(130)


def test_the_file_of_a_shard_is_known_by_its_name() -> None:
    codec = codec_for(array_metadata("float32", 512, 6, {}))
    assert [codec.shard(codec.name(number)) for number in (0, 7, 123)] == [0, 7, 123]
    for name in ("zarr.json", "c", "c.x.0", "7.0", ""):
        assert codec.shard(name) is None


def test_a_checksum_goes_on_from_the_rows_before() -> None:
    rows = np.random.default_rng(0).standard_normal((300, 6), np.float32)
    assert rows_checksum(rows[100:], rows_checksum(rows[:100])) == rows_checksum(rows)
    assert rows_checksum(rows[:0], 7) == 7


def test_metadata_that_is_no_array_is_refused() -> None:
    with pytest.raises(ValueError, match="not the metadata of an array"):
        codec_for({"zarr_format": 3})
    metadata = array_metadata("float32", 512, 6, {})
    metadata["codecs"][0]["configuration"]["index_codecs"].pop()
    with pytest.raises(ValueError, match="not those of a run"):
        codec_for(metadata)
