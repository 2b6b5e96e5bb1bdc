"""What columns mean, by the first rows."""

import datetime
import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError, FormatError
from streamlearn.streams.records import RecordStream, Schema, open_records
from streamlearn.streams.records.values import number, seconds

from .reading import read


def _stream(rows: list[dict[str, Any]], **more: Any) -> RecordStream:
    text = "\n".join(json.dumps(row) for row in rows).encode()
    return open_records("jsonl", path="-", target="y", stdin=io.BytesIO(text), **more)


def test_the_schema_says_what_each_column_is() -> None:
    rows = [
        {
            "x": n / 2,
            "said": str(n),
            "colour": "red" if n % 2 else "blue",
            "ok": n % 3 == 0,
            "at": f"2024-05-{n % 28 + 1:02}T10:00:00+02:00",
            "id": f"row-{n}",
            "both": n if n % 2 else "none",
            "never": None,
            "same": 1,
            "meta": {"source": "s", "n": n},
            "y": n % 3,
        }
        for n in range(100)
    ]
    stream = _stream(rows, ignore=("meta",))
    assert stream.schema.columns == {
        "x": "number",
        "said": "number",
        "colour": "category",
        "ok": "boolean",
        "at": "time",
        "id": "text",
        "both": "mixed",
        "never": "empty",
        "same": "number",
        "meta.source": "ignored",
        "meta.n": "ignored",
    }
    assert not stream.schema.regression
    assert stream.schema.text() == (
        "standard input: learns 'y' (classes such as 0, 1, 2), by the first 100 rows\n"
        "  numbers: x, said, same\n"
        "  booleans: ok\n"
        "  categories: colour\n"
        "  numbers and text: both\n"
        "  times, as seconds since 1970: at\n"
        "  nothing yet: never\n"
        "  left out (free text or identifiers, nearly every value is another): id\n"
        "  left out (as data.ignore says): meta.source, meta.n\n"
        "  constant so far: same"
    )
    first = read(stream).features[0]
    when = datetime.datetime(2024, 5, 1, 8, tzinfo=datetime.UTC).timestamp()
    assert first == {
        "x": 0.0, "said": 0.0, "colour": "blue", "ok": True, "at": when, "both": "none", "same": 1
    }  # fmt: skip


def test_a_schema_comes_back_from_its_state() -> None:
    schema = _stream([{"a": 1, "$tensor": "x", "y": 0.5}]).schema
    assert schema.regression
    assert Schema.of_state(json.loads(json.dumps(schema.state_dict()))) == schema
    with pytest.raises(FormatError, match="the schema of the stream is damaged"):
        Schema.of_state({"columns": [1]})


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ([1, 2.5, None], True),
        ([1.0, 2.0], False),
        ([1, 2], False),
        ([0.5, "x"], False),
        ([0.5, True], False),
        ([None, None], False),
    ],
)
def test_targets_are_numbers_if_all_are_and_one_is_no_integer(
    labels: list[Any], numbers: bool
) -> None:
    assert _stream([{"a": 1, "y": label} for label in labels]).schema.regression is numbers


def test_columns_to_leave_out_must_be_some() -> None:
    with pytest.raises(ConfigError, match=r"data.ignore names the target 'y'"):
        _stream([{"a": 1, "y": 0}], ignore=("y",))
    with pytest.raises(ConfigError, match=r"data.ignore: in standard input the column 'aa' is not"):
        open_records(
            "csv", path="-", target="y", ignore=("aa",), stdin=io.BytesIO(b"a,b,y\n1,2,u\n")
        )
    # Rows of JSON may bring it later.
    assert read(_stream([{"a": 1, "y": 0}], ignore=("b",))).features == [{"a": 1}]


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_python_writes_is_read(value: float) -> None:
    assert number(repr(value)) == value
    assert number(f" {value / 10:.3e} ") == float(f"{value / 10:.3e}")


@pytest.mark.parametrize("text", ["", "nan", "inf", "1_0", "１", "0x1", "1,5", "--1", "e5", "."])
def test_what_is_no_number_is_none(text: str) -> None:
    assert number(text) is None


@settings(deadline=None)
@given(st.datetimes(timezones=st.just(datetime.UTC)))
def test_every_time_is_read_as_seconds(when: datetime.datetime) -> None:
    expected = pytest.approx(when.timestamp(), abs=1e-4)
    assert seconds(when.isoformat()) == expected
    assert seconds(when.isoformat(" ").replace("+00:00", "Z")) == expected
    assert seconds(when.replace(tzinfo=None).isoformat()) == expected


@pytest.mark.parametrize("text", ["", "20240101", "2024-13-01", "2024-01-01Tnoon", "12:00"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert seconds(text) is None
