"""Standard input from real processes: slow writers, halves of rows, and a reader that waits."""

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from streamlearn.errors import ConfigError, DataError, FormatError
from streamlearn.streams.records import RecordStream, open_records

from .reading import Seen, read


@contextmanager
def _written_by(code: str) -> Iterator[BinaryIO]:
    """What a process writes: `w(bytes)` writes at once, `s(seconds)` sleeps."""
    head = "import os, time\nw = lambda b: os.write(1, b)\ns = time.sleep\n"
    process = subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout:
            yield process.stdout  # type: ignore[misc]
    finally:
        process.kill()
        process.wait()


def _stream(stdin: BinaryIO, kind: Any = "jsonl", **more: Any) -> RecordStream:
    return open_records(kind, path="-", target="y", stdin=stdin, **more)


@contextmanager
def _pipe() -> Iterator[tuple[BinaryIO, int]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file:
        yield file, writing


def test_halves_of_rows_are_joined_and_the_last_needs_no_line_end() -> None:
    code = """
w(b'{"a":1,"y":')
s(.3)
w(b'0}\\n{"a":"x\\xe2\\x80'); s(.1); w(b'\\xa8","y":1}\\n\\n[]\\n{"a":3,"y":1}')
"""
    with _written_by(code) as stdin:
        seen = read(_stream(stdin))
    assert seen.targets == [0, 1, 1]
    assert seen.features[1] == {"a": "x\u2028"}
    assert [bad.item for bad in seen.skipped] == [
        "line 3 of standard input",
        "line 4 of standard input",
    ]


def test_a_slow_writer_gets_small_batches_and_silence_gives_empty_ones() -> None:
    with _pipe() as (stdin, writing):
        stream = _stream(stdin)
        os.write(writing, b'{"a":1,"y":0}\n{"a":2,"y":0}\n')
        batches = stream.batches(100)
        began = time.monotonic()
        assert next(batches).rows.targets == [0, 0]
        assert time.monotonic() - began < 3
        began = time.monotonic()
        empty = next(batches)
        assert (empty.rows.targets, empty.position) == ([], 2)
        assert 0.5 < time.monotonic() - began < 3
        os.write(writing, b'{"a":3,"y":1}\n{"a"')
        assert next(batches).rows.targets == [1]
        os.close(writing)
        assert [bad.raw for bad in next(batches).rows.skipped] == ['{"a"']
        assert next(batches, None) is None
        assert stream.total == 4
        stream.close()


def test_whoever_reads_may_stop_before_anything_came() -> None:
    with _pipe() as (stdin, writing):
        stream = _stream(stdin)
        assert not stream.settle()
        batch = next(stream.batches(4))
        assert (batch.rows.targets, batch.position) == ([], 0)
        os.close(writing)
        with pytest.raises(DataError, match="standard input holds no rows"):
            stream.settle()
        stream.close()


def test_a_writer_that_is_too_fast_has_to_wait() -> None:
    row = b'{"a":"' + b"x" * 1000 + b'","y":0}\n'
    written = 0

    def write(writing: int) -> None:
        nonlocal written
        for _ in range(4000):
            written += os.write(writing, row)
        os.close(writing)

    with _pipe() as (stdin, writing):
        stream = _stream(stdin)
        thread = threading.Thread(target=write, args=(writing,))
        thread.start()
        batches = stream.batches(32)
        next(batches)
        time.sleep(0.5)
        held = written
        # What the reader holds, and the pipe itself.
        assert held < 2 * 1024 * 1024
        rest = Seen()
        for batch in batches:
            rest.take(batch.rows)
        thread.join()
        assert len(rest.targets) == 4000 - 32
        assert not rest.skipped
        stream.close()


def test_a_redirected_file_is_read_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b"".join(b'{"a":%d,"y":0}\n' % n for n in range(10)))
    with open(path, "rb") as stdin:
        stream = _stream(stdin)
        assert not stream.waits
        assert read(stream, 4, 1).index == [0, 1, 2, 3]
        state = stream.state_dict()
    with open(path, "rb") as stdin:
        stream = _stream(stdin)
        stream.load_state_dict(state)
        assert read(stream).index == [4, 5, 6, 7, 8, 9]
        assert not stdin.closed


def test_a_run_that_read_a_pipe_resumes_from_a_file_where_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"\xef\xbb\xbfa,y\r\n" + b"".join(b"%d,u\r\n" % n for n in range(5000)))
    with _written_by(f"w(open({str(path)!r}, 'rb').read())") as stdin:
        stream = _stream(stdin, "csv")
        first = read(stream, 100, 7)
        state = stream.state_dict()
        stream.close()
    with open(path, "rb") as stdin:
        stream = _stream(stdin, "csv")
        stream.load_state_dict(state)
        rest = read(stream, 1000)
    values = [record["a"] for record in first.features + rest.features]
    assert values == list(range(5000))
    assert rest.index[0] == 700
    path.write_bytes(b"a,y\n1,u\n")
    with open(path, "rb") as stdin, pytest.raises(FormatError, match="or pipe other rows into it"):
        _stream(stdin, "csv").load_state_dict(state)


def test_a_pipe_goes_on_with_what_comes() -> None:
    with _written_by(r"w(b'a,y\n1,2.5\n2,3\n')") as stdin:
        stream = _stream(stdin, "csv")
        read(stream)
        state = stream.state_dict()
    with _written_by(r"w(b'y,a\n4,3\n5,4\n')") as stdin:  # a header again, in another order
        stream = _stream(stdin, "csv")
        stream.load_state_dict(state)
        assert stream.state_dict() == state
        seen = read(stream)
        assert stream.state_dict()["source"]["offset"] == 12
    assert seen.features == [{"a": 3.0}, {"a": 4.0}]
    assert seen.targets == [4.0, 5.0]
    assert seen.index == [2, 3]
    with _written_by(r"w(b'3,4\n4,5\n')") as stdin:  # none
        stream = _stream(stdin, "csv")
        stream.load_state_dict(state)
        assert read(stream).features == [{"a": 3.0}, {"a": 4.0}]


def test_a_batch_of_a_pipe_may_be_asked_for_again() -> None:
    with _written_by("""w(b'{"a":1,"y":0}\\n' * 5)""") as stdin:
        stream = _stream(stdin)
        batches = stream.batches(2)
        next(batches)
        second = next(batches)
        stream.position = 2
        assert next(batches) == second
        assert next(batches).rows.index == [4]
        stream.close()


def test_a_named_pipe_is_read_as_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    stream = open_records("jsonl", path=str(path), target="y")
    assert stream.waits
    with open(path, "wb") as file:
        file.write(b'{"a":1,"y":0}\n')
    assert read(stream).targets == [0]


def test_the_process_own_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with _written_by(r"w(b'a,y\n' + b'1,u\n' * 20)") as stdin:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        assert len(read(open_records("csv", path="-", target="y")).targets) == 20


def test_parquet_does_not_come_by_pipes() -> None:
    with pytest.raises(ConfigError, match="cannot be read from standard input"):
        open_records("parquet", path="-", target="y")
