"""Parquet files, written by pyarrow."""

import datetime
import decimal
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamlearn.errors import ConfigError, DataError, FormatError
from streamlearn.streams.records import RecordStream, open_records

from .reading import Seen, read

_WHEN = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))


def _write(path: Path, columns: dict[str, Any], **more: Any) -> Path:
    pq.write_table(pa.table(columns), path, **more)
    return path


def _stream(path: Path, **more: Any) -> RecordStream:
    return open_records("parquet", path=str(path), target="y", **more)


def test_two_files_of_different_types_mean_the_same(tmp_path: Path) -> None:
    when = _WHEN.astimezone(datetime.UTC)
    _write(
        tmp_path / "part-1.parquet",
        {
            "when": pa.array([when], pa.timestamp("us", tz="Europe/Madrid")),
            "price": pa.array([decimal.Decimal("1.50")], pa.decimal128(9, 2)),
            "colour": pa.array(["red"]).dictionary_encode(),
            "ok": pa.array([None], pa.bool_()),
            "tags": pa.array([["a"]]),
            "day": pa.array([datetime.date(1970, 1, 2)]),
            "y": ["u"],
        },
    )
    _write(
        tmp_path / "part-2.parquet",
        {
            "y": ["v", None],
            "ok": pa.array([True, False]),
            "colour": pa.DictionaryArray.from_arrays([1, 0], ["blue", "red"]),
            "price": pa.array([decimal.Decimal("1.5000"), None], pa.decimal256(40, 4)),
            "when": pa.array([when, None], pa.timestamp("ns", tz="UTC")),
            "more": pa.array([7, 8]),
        },
    )
    stream = _stream(tmp_path)
    assert stream.total == 3
    assert stream.schema.columns == {
        "when": "time",
        "price": "number",
        "colour": "category",
        "ok": "boolean",
        "tags": "nested",
        "day": "time",
        "more": "number",
    }
    assert "left out (lists, or objects nested too deeply): tags" in stream.schema.text()
    seen = read(stream)
    seconds = _WHEN.timestamp()
    assert seen.features == [
        {"when": seconds, "price": 1.5, "colour": "red", "day": 86400.0},
        {"when": seconds, "price": 1.5, "colour": "red", "ok": True, "more": 7},
        {"colour": "blue", "ok": False, "more": 8},
    ]
    assert seen.targets == ["u", "v", None]


def test_whole_numbers_keep_their_digits_as_labels(tmp_path: Path) -> None:
    labels = [9007199254740992, 9007199254740993]
    path = _write(tmp_path / "f.parquet", {"a": [1.0, float("nan")], "y": labels})
    seen = read(_stream(path))
    assert seen.targets == labels
    assert seen.features == [{"a": 1.0}, {}]


def _all(path: Path, size: int) -> Seen:
    return read(_stream(path), size)


@pytest.mark.parametrize("size", [1, 7, 50])
def test_stopped_after_any_batch_no_row_is_lost_or_comes_twice(tmp_path: Path, size: int) -> None:
    for part in range(2):
        numbers = list(range(30 * part, 30 * part + 30))
        _write(tmp_path / f"{part}.parquet", {"a": numbers, "y": numbers}, row_group_size=8)
    whole = _all(tmp_path, size)
    assert whole.targets == list(range(60))
    seen = Seen()
    stream = _stream(tmp_path)
    while (batch := next(stream.batches(size), None)) is not None:
        seen.take(batch.rows)
        state = json.loads(json.dumps(stream.state_dict()))
        stream.close()
        stream = _stream(tmp_path)
        stream.load_state_dict(state)
    stream.close()
    assert seen == whole


def test_a_bad_row_is_shown_as_json(tmp_path: Path) -> None:
    path = _write(tmp_path / "f.parquet", {"a": ["x", "é"], "y": ["1.5", "no"]})
    seen = read(_stream(path, task="numbers"))
    assert seen.targets == [1.5]
    assert [(bad.item, bad.raw) for bad in seen.skipped] == [
        ("row 2 of f.parquet", '{"a": "é", "y": "no"}')
    ]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "f.parquet", {"a": [1, 2, 3], "y": [0, 1, 0]})
    stream = _stream(path)
    read(stream, 2, 1)
    state = stream.state_dict()
    stream.close()
    _write(path, {"a": [1, 2, 4], "y": [0, 1, 0]})
    with pytest.raises(FormatError, match=r"f\.parquet has other data up to f\.parquet than"):
        _stream(path).load_state_dict(state)


def test_what_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_bytes(b"PAR1 broken")
    with pytest.raises(DataError, match=r"f\.parquet cannot be read as Parquet \(.*\); write it"):
        _stream(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"there are no \.parquet files in .*empty; give a folder"):
        _stream(tmp_path / "empty")
    path = _write(tmp_path / "none.parquet", {"a": pa.array([], pa.int64()), "y": pa.array([])})
    with pytest.raises(DataError, match=r"none\.parquet holds no rows"):
        _stream(path)


def test_without_pyarrow_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "f.parquet", {"a": [1], "y": [0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamlearn\[parquet\]'"):
        _stream(path)


def test_other_types_are_seconds_or_left_out(tmp_path: Path) -> None:
    columns = {
        "time": pa.array([datetime.time(1, 0, 0, 500_000)], pa.time32("ms")),
        "span": pa.array([datetime.timedelta(minutes=2)], pa.duration("us")),
        "bytes": pa.array([b"\xff"]),
        "map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
        "y": ["u"],
    }
    stream = _stream(_write(tmp_path / "f.parquet", columns))
    kinds = stream.schema.columns
    assert kinds == {
        "time": "time", "span": "time", "bytes": "nested", "map": "nested"
    }  # fmt: skip
    assert read(stream).features == [{"time": 3600.5, "span": 120.0}]
