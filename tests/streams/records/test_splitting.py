"""However bytes come, and wherever a stream is stopped: the same rows, each once."""

import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError, FormatError
from streamlearn.state import flatten, unflatten
from streamlearn.streams.records import RecordStream, open_records
from streamlearn.streams.records.formats import Delimited, JsonLines
from streamlearn.streams.records.text import TextReader

from .reading import Seen, read

_JSONL_PIECES = [
    b'{"a":1,"y":"u"}\n',
    b'{"a":2.5,"y":null}\r\n',
    b"\n",
    b"[]\n",
    b'{"a":1\n',
    '{"a":"é\u2028","y":1}\n'.encode(),
    b"\xff\xfe\n",
]
_CSV_PIECES = [
    b"1,x,u\n",
    b'2,"a\nb",v\r\n',
    b"3,x\n",
    b"\n",
    b'4,"",u\n',
    b'5,q"q,v\n',
    b'6,"o,u\n',
]


def _texts(kind: str) -> st.SearchStrategy[bytes]:
    pieces = _JSONL_PIECES if kind == "jsonl" else _CSV_PIECES
    first = pieces[0] if kind == "jsonl" else b"\xef\xbb\xbfa,t,y\n" + pieces[0]
    middle = st.lists(st.sampled_from(pieces), max_size=14).map(b"".join)
    return st.tuples(middle, st.booleans()).map(
        lambda found: (first + found[0])[: -1 if found[1] else None]
    )


def _reader(kind: str) -> TextReader:
    return TextReader(JsonLines("f") if kind == "jsonl" else Delimited("f", ","), "f")


@settings(deadline=None, max_examples=150)
@given(st.data(), st.sampled_from(["jsonl", "csv"]))
def test_any_split_of_the_bytes_gives_the_same_items(data: st.DataObject, kind: str) -> None:
    text = data.draw(_texts(kind))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    whole, parts = _reader(kind), _reader(kind)
    whole.feed(text)
    for start, stop in itertools.pairwise([0, *cuts, len(text)]):
        parts.feed(text[start:stop])
    whole.finish()
    parts.finish()
    assert list(parts.items) == list(whole.items)
    assert whole.items[-1].cursor.offset == len(text)
    for item in whole.items:
        assert parts.state(item.cursor) == whole.state(item.cursor)


def _opened(kind: Any, text: bytes) -> RecordStream:
    return open_records(kind, path="-", target="y", stdin=io.BytesIO(text))


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from(["jsonl", "csv"]), st.integers(1, 5), st.booleans())
def test_stopped_after_any_batch_no_row_is_lost_or_comes_twice(
    data: st.DataObject, kind: str, size: int, ahead: bool
) -> None:
    text = data.draw(_texts(kind))
    whole = read(_opened(kind, text), size)
    seen = Seen()
    stream = _opened(kind, text)
    while True:
        batches = stream.batches(size, ahead=ahead)
        batch = next(batches, None)
        batches.close()  # type: ignore[attr-defined]
        if batch is None:
            break
        seen.take(batch.rows)
        tensors, tree = flatten(stream.state_dict())
        state = unflatten(tensors, json.loads(json.dumps(tree)))
        stream = _opened(kind, text)
        stream.load_state_dict(state)
    assert seen == whole


def test_batches_of_files_are_full_whatever_is_in_them() -> None:
    text = b'{"a":1,"y":0}\n' * 10 + b"[]\n" * 5 + b'{"a":1,"y":0}\n' * 1000
    for ahead in (False, True):
        assert read(_opened("jsonl", text), 100, ahead=ahead).sizes == [100] * 10 + [15]


def test_the_cursor_may_be_set_back_to_where_the_last_batch_began() -> None:
    stream = _opened("jsonl", b"".join(b'{"a":%d,"y":0}\n' % n for n in range(9)))
    batches = stream.batches(2, ahead=True)
    next(batches)
    second = next(batches)
    state = stream.state_dict()
    stream.position = 2
    assert stream.state_dict()["source"]["offset"] < state["source"]["offset"]
    assert next(batches) == second
    assert stream.state_dict() == state
    assert next(batches).rows.index == [4, 5]
    with pytest.raises(ConfigError, match="can only be set back to 4, where the last batch began"):
        stream.position = 1


def _resume(path: Path, state: dict[str, Any]) -> RecordStream:
    stream = open_records("jsonl", path=str(path), target="y")
    try:
        stream.load_state_dict(state)
    except BaseException:
        stream.close()
        raise
    return stream


def test_a_file_that_grew_goes_on_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a":1,"y":0}\n{"a":2,"y":0}')
    stream = open_records("jsonl", path=str(path), target="y")
    assert read(stream).targets == [0, 0]
    state = stream.state_dict()
    with path.open("ab") as file:
        file.write(b'\n{"a":3,"y":1}\n')
    seen = read(_resume(path, state))
    assert (seen.targets, seen.index) == ([1], [2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":1,"y":0}\n', r"f\.jsonl has 14 bytes but 28 were read; give back the data"),
        (b'{"a":7,"y":0}\n{"a":2,"y":0}\n', "begins with other bytes than it did"),
        (b'{"a":1,"y":0}\n{"a":2,"y":1}\n', "begins with other bytes than it did"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a":1,"y":0}\n{"a":2,"y":0}\n')
    stream = open_records("jsonl", path=str(path), target="y")
    read(stream)
    path.write_bytes(text)
    with pytest.raises(FormatError, match=message):
        _resume(path, stream.state_dict())


def test_a_file_that_is_another_before_the_cursor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    rows = b"".join(b'{"a":%04d,"y":0}\n' % (1000 + n) for n in range(1000))
    path.write_bytes(rows)
    stream = open_records("jsonl", path=str(path), target="y")
    assert len(read(stream, 100, 8).targets) == 800
    state = stream.state_dict()
    stream.close()
    path.write_bytes(rows.replace(b"1799", b"1800"))
    with pytest.raises(FormatError, match=r"has other bytes before byte 13,600 than it had"):
        _resume(path, state)


def test_a_last_line_that_was_half_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a":1,"y":0}\n{"a":2')
    stream = open_records("jsonl", path=str(path), target="y")
    assert len(read(stream).skipped) == 1
    with path.open("ab") as file:
        file.write(b',"y":0}\n')
    with pytest.raises(FormatError, match="has had more written to line 2, its last"):
        _resume(path, stream.state_dict())


@pytest.mark.parametrize("state", [{}, {"position": 1, "source": {}, "schema": None}])
def test_a_damaged_state_is_named(tmp_path: Path, state: dict[str, Any]) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a":1,"y":0}\n')
    with pytest.raises(FormatError, match="fall back to an earlier commit"):
        _resume(path, state)


def test_another_target_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'{"a":1,"y":0,"z":1}\n')
    stream = open_records("jsonl", path=str(path), target="z")
    read(stream)
    with pytest.raises(FormatError, match=r"was learning 'z' but data\.target=y is asked for now"):
        _resume(path, stream.state_dict())
