"""JSON Lines: what is a row, what is a bad one, and what its values mean."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import ConfigError, DataError, DataNotFoundError
from streamlearn.streams.records import open_records
from streamlearn.streams.records.text import LONGEST_LINE

from .reading import Seen, read


def _seen(text: str | bytes, **settings: Any) -> Seen:
    data = text.encode() if isinstance(text, str) else text
    settings = {"target": "y", **settings}
    return read(open_records("jsonl", path="-", stdin=io.BytesIO(data), **settings))


def test_two_broken_rows_are_named_by_physical_lines_and_everything_else_comes_once() -> None:
    seen = _seen('{"a":1,"y":0}\n\n{"a":"x\u2028y","y":1}\n[]\n{"a":1\n{"a":3,"y":1}')
    assert [bad.item for bad in seen.skipped] == [
        "line 2 of standard input",
        "line 4 of standard input",
        "line 5 of standard input",
    ]
    assert [bad.raw for bad in seen.skipped] == ["", "[]", '{"a":1']
    assert seen.skipped[0].reason == "the line is blank"
    assert seen.skipped[1].reason == "it is a list, not an object"
    assert "it is no JSON" in seen.skipped[2].reason
    assert seen.features == [{"a": 1}, {"a": "x\u2028y"}, {"a": 3}]
    assert seen.targets == [0, 1, 1]
    assert seen.index == [0, 2, 5]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"a":1,"a":2,"y":0}', "it names 'a' twice"),
        ('{"a":{"b":1},"a.b":2,"y":0}', "it names 'a.b' twice"),
        ("null", "it is null, not an object"),
        ('{"a":"\\ud800","y":0}', "half of a surrogate pair"),
        ('{"a":1,"y":[1]}', "its target 'y' is a list"),
        ('{"a":1,"y":{"b":1}}', "its target 'y' is an object"),
        ('{"a":' + "[" * 100_000, "it is nested too deeply"),
        ('{"a":' + "9" * 5000 + ',"y":0}', "a number that cannot be read"),
    ],
)
def test_a_bad_row_says_why(row: str, reason: str) -> None:
    seen = _seen(f'{{"a":1,"y":0}}\n{row}\n{{"a":2,"y":1}}\n')
    assert [bad.raw for bad in seen.skipped] == [row]
    assert reason in seen.skipped[0].reason
    assert seen.targets == [0, 1]


def test_bytes_that_are_no_text_are_named_and_kept() -> None:
    seen = _seen(b'{"a":1,"y":0}\n{"a":"\xff","y":0}\n')
    assert seen.skipped[0].reason == "byte 7 of it is 0xff, which is no UTF-8"
    assert seen.skipped[0].raw == '{"a":"\\xff","y":0}'


def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_rows() -> None:
    seen = _seen(b'\xef\xbb\xbf{"a":1,"y":"u"}\r\n{"a":2,"y":"v"}\r\n')
    assert seen.targets == ["u", "v"]
    assert not seen.skipped


def test_labels_keep_their_types_and_all_their_digits() -> None:
    labels = [1, "1", True, 9007199254740992, 9007199254740993, 10**30, None]
    seen = _seen("\n".join(json.dumps({"a": 1, "y": label}) for label in labels))
    assert seen.targets == labels
    assert [type(label) for label in seen.targets] == [type(label) for label in labels]


def test_a_null_or_missing_target_is_a_sample_without_a_label() -> None:
    seen = _seen('{"a":1,"y":"u"}\n{"a":2,"y":null}\n{"a":3}\n{"a":4,"y":NaN}\n')
    assert seen.targets == ["u", None, None, None]
    assert not seen.skipped


def test_numbers_that_are_not_finite_are_missing() -> None:
    seen = _seen('{"a":NaN,"b":1,"y":0}\n{"a":-Infinity,"b":1e999,"y":1}\n{"a":1,"b":2,"y":1}\n')
    assert seen.features == [{"b": 1}, {}, {"a": 1, "b": 2}]


def test_nested_objects_are_columns_and_lists_are_left_out_with_a_notice() -> None:
    row = '{"a":{"b":{"c":1,"d":{"e":2}}},"l":[1],"y":"u"}\n'
    stream = open_records("jsonl", path="-", target="y", stdin=io.BytesIO(row.encode()))
    assert stream.schema.columns == {"a.b.c": "number", "a.b.d": "nested", "l": "nested"}
    assert "left out (lists, or objects nested too deeply): a.b.d, l" in stream.schema.text()
    assert read(stream).features == [{"a.b.c": 1}]


def test_a_column_that_comes_later_is_used_as_it_is() -> None:
    rows = [{"a": 1, "y": 0}] * 300 + [{"a": 1, "b": 2, "c": "red", "d": [1], "y": 0}]
    seen = _seen("\n".join(map(json.dumps, rows)))
    assert seen.features[-1] == {"a": 1, "b": 2, "c": "red"}


def test_a_line_without_an_end_in_sight_is_one_bad_row() -> None:
    data = b'{"a":1,"y":0}\n{"a":"' + b"x" * (LONGEST_LINE + 9) + b'","y":1}\n{"a":2,"y":1}'
    seen = _seen(data)
    assert [bad.item for bad in seen.skipped] == ["line 2 of standard input"]
    assert seen.skipped[0].reason == "the line is longer than 16 MiB"
    assert len(seen.skipped[0].raw) < 100_000
    assert seen.targets == [0, 1]


def test_the_first_bad_row_stops_a_stream_where_that_is_asked_for() -> None:
    data = b'{"a":1,"y":0}\n' * 5 + b"[]\n"
    stream = open_records("jsonl", path="-", target="y", stdin=io.BytesIO(data), on_error="stop")
    batches = stream.batches(4)
    next(batches)
    with pytest.raises(DataError, match=r"line 6 of standard input cannot be used: it is a list"):
        next(batches)
    assert stream.position == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "standard input holds no rows"),
        (b"[]\nx\n", r"none of the first 2 rows of standard input can be read \(line 1 of"),
        (b"\x1f\x8b\x08\n", "is compressed by gzip; unpack it"),
        ('{"a":1}\n'.encode("utf-16"), "is UTF-16; convert it"),
        (b"PAR1\n", "is a Parquet file; set data=parquet"),
    ],
)
def test_what_is_no_such_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        _seen(data)


def test_a_target_that_is_no_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'lable' is not known; did you mean 'label'\? .* a, la"):
        _seen('{"a":1,"label":2}', target="lable")
    with pytest.raises(ConfigError, match=r"needs data.target=COLUMN.* choose one of a, label"):
        _seen('{"a":1,"label":2}', target=None)


def test_files_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"there is no .*año/x\.jsonl; give data"):
        open_records("jsonl", path=str(tmp_path / "año" / "x.jsonl"), target="y")
    with pytest.raises(DataError, match=r"is a folder; give a file, or set data=watch"):
        open_records("jsonl", path=str(tmp_path), target="y")
    with pytest.raises(ConfigError, match=r"data=jsonl needs data.path=FILE"):
        open_records("jsonl", target="y")


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data 'json' is not known; did you mean 'jsonl'"):
        open_records("json")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"data.delimiter=';' means nothing for data=jsonl"):
        open_records("jsonl", path="-", delimiter=";")
    with pytest.raises(ConfigError, match=r"data.idle_seconds=1 means nothing for data=jsonl"):
        open_records("jsonl", path="-", idle_seconds=1)
    with pytest.raises(ConfigError, match=r"data.limit=0 must be at least 1"):
        _seen('{"a":1,"y":0}', limit=0)


def test_a_limit_ends_the_stream() -> None:
    stream = open_records(
        "jsonl", path="-", target="y", stdin=io.BytesIO(b'{"a":1,"y":0}\n' * 9), limit=7
    )
    assert stream.total == 7
    assert read(stream).sizes == [4, 3]
