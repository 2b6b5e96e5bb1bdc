"""CSV: the header, quotes over lines, separators, and what its text means."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError, DataError
from streamlearn.streams.records import RecordStream, open_records

from .reading import read


def _stream(text: str | bytes, **more: Any) -> RecordStream:
    data = text.encode() if isinstance(text, str) else text
    more = {"target": "y", **more}
    return open_records("csv", path="-", stdin=io.BytesIO(data), **more)


def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_the_target() -> None:
    seen = read(_stream(b"\xef\xbb\xbfy,a\r\nu,1\r\nv,2\r\n"))
    assert seen.targets == ["u", "v"]
    assert seen.features == [{"a": 1.0}, {"a": 2.0}]


def test_a_quoted_header_with_a_byte_order_mark_is_read() -> None:
    seen = read(_stream(b'\xef\xbb\xbf"y";"a, b"\nu;1\n'))
    assert seen.features == [{"a, b": 1.0}]


def test_a_column_name_twice_is_named() -> None:
    with pytest.raises(DataError, match=r"standard input has the column 'a' twice; give each"):
        _stream("a,b,a,y\n1,2,3,u\n")


@pytest.mark.parametrize("text", ["", "a,y\n", "a,y"])
def test_a_header_and_no_rows_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="standard input holds no rows"):
        _stream(text)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_in_the_header(delimiter: str) -> None:
    rows = [["a b", "y", "c"], ["1", "u,v", "x"]]
    text = "\n".join(delimiter.join(f'"{field}"' for field in row) for row in rows)
    seen = read(_stream(text))
    assert seen.features == [{"a b": 1.0, "c": "x"}]
    assert seen.targets == ["u,v"]


def test_a_delimiter_may_be_given() -> None:
    assert read(_stream("a:y\n1:u\n", delimiter=":")).targets == ["u"]
    assert read(_stream("a\ty\n1\tu\n", delimiter="\\t")).targets == ["u"]
    with pytest.raises(ConfigError, match=r"data.delimiter='::' must be one character"):
        _stream("a::y\n", delimiter="::")


def test_one_column_is_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match=r"has 1 column, 'a:y', .* name the separator by data.del"):
        _stream("a:y\n1:u\n")


def test_quotes_may_hold_lines_and_lines_are_counted_as_they_stand() -> None:
    text = 'a,t,y\n1,"two\nlines, ""so""\n",u\n2,x\n3,z,v\n'
    seen = read(_stream(text))
    assert seen.features[0] == {"a": 1.0, "t": 'two\nlines, "so"\n'}
    assert [(bad.item, bad.raw) for bad in seen.skipped] == [("line 5 of standard input", "2,x")]
    assert seen.skipped[0].reason == "it has 2 fields, the header 3"
    assert seen.targets == ["u", "v"]


def test_a_quote_that_is_not_closed_costs_one_line() -> None:
    seen = read(_stream('a,t,y\n1,"open,u\n2,x,v\n3,z,w'))
    assert [bad.raw for bad in seen.skipped] == ['1,"open,u']
    assert seen.skipped[0].reason == "a quote that it opens is not closed"
    assert seen.targets == ["v", "w"]


def test_a_quote_that_stays_open_for_long_costs_one_line() -> None:
    rows = "".join(f"{n},x,v\n" for n in range(30_000))
    seen = read(_stream('a,t,y\n1,"open,u\n' + rows), 5000)
    assert [bad.item for bad in seen.skipped] == ["line 2 of standard input"]
    assert "not closed within 128 KiB" in seen.skipped[0].reason
    assert len(seen.targets) == 30_000


def test_blank_lines_are_bad_rows() -> None:
    seen = read(_stream("a,y\n1,u\n\n2,v\n"))
    assert [bad.reason for bad in seen.skipped] == ["the line is blank"]


def test_labels_are_text_as_it_stands_and_empty_ones_are_none() -> None:
    seen = read(_stream("a,y\n1,007\n2,9007199254740993\n3,\n4,1\n"))
    assert seen.targets == ["007", "9007199254740993", None, "1"]


def test_targets_are_numbers_where_one_has_a_fraction() -> None:
    assert read(_stream("a,y\n1,2\n2,2.5\n3,\n4,x\n5,NA\n6,1e999\n")).targets == [
        "2",
        "2.5",
        None,
        "x",
        "NA",
        "1e999",
    ]
    stream = _stream("a,y\n1,2\n2,2.5\n3,\n")
    assert stream.schema.regression
    assert read(stream).targets == [2.0, 2.5, None]


def test_a_target_that_is_no_number_is_a_bad_row() -> None:
    seen = read(_stream("a,y\n1,2\n2,x\n3,4\n", task="numbers"))
    assert seen.targets == [2.0, 4.0]
    assert seen.skipped[0].reason == "its target 'y' is 'x', which is no number to learn"
    assert seen.skipped[0].raw == "2,x"
    assert read(_stream("a,y\n1,2.5\n", task="classes")).targets == ["2.5"]


def test_missing_numbers_are_left_out_and_text_among_them_is_kept() -> None:
    rows = "".join(f"{n},u\n" for n in range(300))
    seen = read(_stream("a,y\n" + rows + ",u\nNA,u\n?,u\nbroken,u\n1_0,u\n 7 ,u\n1e999,u\n"))
    assert seen.features[300:] == [{}, {}, {}, {"a": "broken"}, {"a": "1_0"}, {"a": 7.0}, {}]


def test_old_line_ends_are_named() -> None:
    with pytest.raises(DataError, match="its lines end with carriage returns; convert it by tr"):
        _stream("a,y\r1,u\r")


def test_a_path_is_taken_verbatim(tmp_path: Path) -> None:
    path = tmp_path / "año=2024, lote [3]" / "m.csv"
    path.parent.mkdir()
    path.write_text("a,y\n1,u\n")
    stream = open_records("csv", path=str(path), target="y")
    assert stream.name == "m.csv"
    assert read(stream).targets == ["u"]


_FIELD = st.text(st.sampled_from('ab ,;"\n\r1é\u2028'), max_size=6)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(_FIELD, _FIELD, st.sampled_from("uv")), min_size=1, max_size=12))
def test_what_the_csv_module_writes_is_what_is_read(rows: list[tuple[str, str, str]]) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerows([("a", "b", "y"), *rows])
    seen = read(_stream(file.getvalue(), delimiter=","))
    assert seen.targets == [row[2] for row in rows]
    assert not seen.skipped
