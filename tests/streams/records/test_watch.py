"""A folder that is watched."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from streamlearn.errors import ConfigError, DataError, FormatError
from streamlearn.streams.records import RecordStream, open_records

from .reading import Seen, read


def _put(path: Path, rows: range, *, old: bool = True) -> None:
    text = "".join(f"{n},u\n" for n in rows)
    if path.suffix == ".jsonl":
        text = "".join(f'{{"a":{n},"y":"u"}}\n' for n in rows)
    elif path.suffix == ".csv":
        text = "a,y\n" + text
    path.write_text(text)
    if old:
        os.utime(path, (1e9, 1e9))


def _stream(folder: Path, idle: float | None = 0.0, **more: Any) -> RecordStream:
    return open_records("watch", path=str(folder), target="y", idle_seconds=idle, **more)


def _values(seen: Seen) -> list[int]:
    return [int(record["a"]) for record in seen.features]


def test_files_are_read_by_name_and_others_overlooked(tmp_path: Path) -> None:
    _put(tmp_path / "b.csv", range(3, 5))
    _put(tmp_path / "a.jsonl", range(3))
    _put(tmp_path / ".c.csv", range(9))
    _put(tmp_path / "d.csv.tmp", range(9))
    (tmp_path / "e.csv").mkdir()
    seen = read(_stream(tmp_path), 2)
    assert _values(seen) == [0, 1, 2, 3, 4]
    assert seen.index == [0, 1, 2, 3, 4]


def test_a_file_that_comes_later_is_read_once_it_is_written(tmp_path: Path) -> None:
    _put(tmp_path / "b.csv", range(2))

    def later() -> None:
        with open(tmp_path / "a.csv", "w") as file:
            file.write("a,y\n2,u\n3")
            file.flush()
            time.sleep(0.4)
            file.write(",u\n")

    thread = threading.Thread(target=later)
    stream = _stream(tmp_path, 60.0)
    seen = Seen()
    for batch in stream.batches(8):
        seen.take(batch.rows)
        if batch.position == 2 and thread.ident is None:
            thread.start()
        if batch.position == 4:
            break
    thread.join()
    stream.close()
    assert _values(seen) == [0, 1, 2, 3]
    assert 0 in seen.sizes  # while nothing came
    assert not seen.skipped


def test_a_file_that_cannot_be_read_is_one_bad_item(tmp_path: Path) -> None:
    _put(tmp_path / "a.csv", range(2))
    (tmp_path / "b.parquet").write_bytes(b"broken")
    (tmp_path / "c.csv").write_text("a,a\n1,2\n")
    (tmp_path / "d.csv").write_text("")
    for name in "bcd":
        os.utime(next(tmp_path.glob(f"{name}.*")), (1e9, 1e9))
    _put(tmp_path / "e.csv", range(2, 4))
    seen = read(_stream(tmp_path), 3)
    assert _values(seen) == [0, 1, 2, 3]
    assert [bad.item for bad in seen.skipped] == ["b.parquet", "c.csv"]
    assert "cannot be read as Parquet" in seen.skipped[0].reason
    assert "has the column 'a' twice" in seen.skipped[1].reason
    assert seen.index == [0, 1, 4, 5]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_stopped_after_any_batch_every_file_is_read_once(tmp_path: Path, size: int) -> None:
    for place, name in enumerate(["a.jsonl", "b.csv", "c.jsonl"]):
        _put(tmp_path / name, range(3 * place, 3 * place + 3))
    seen = Seen()
    stream = _stream(tmp_path)
    came = False
    while True:
        batch = next(stream.batches(size), None)
        if batch is None:
            break
        seen.take(batch.rows)
        state = stream.state_dict()
        stream.close()
        if not came and batch.position >= 4:
            came = True
            (tmp_path / "a.jsonl").unlink()  # it is done
            _put(tmp_path / "0.csv", range(9, 11))
        stream = _stream(tmp_path)
        stream.load_state_dict(state)
    stream.close()
    assert _values(seen) == list(range(11))
    assert seen.index == list(range(11))


def test_a_file_that_is_gone_half_read_is_named(tmp_path: Path) -> None:
    _put(tmp_path / "a.csv", range(5))
    stream = _stream(tmp_path)
    read(stream, 2, 1)
    state = stream.state_dict()
    stream.close()
    (tmp_path / "a.csv").unlink()
    stream = _stream(tmp_path)
    with pytest.raises(FormatError, match=r"a\.csv is gone, of which the run had learnt only a"):
        stream.load_state_dict(state)


def test_a_folder_where_nothing_comes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows"):
        read(_stream(tmp_path))
    (tmp_path / "f.csv").write_text("")
    with pytest.raises(DataError, match=r"is no folder; to learn one file set data=jsonl"):
        _stream(tmp_path / "f.csv")
    with pytest.raises(ConfigError, match=r"data.idle_seconds=-1 must be 0 or more"):
        _stream(tmp_path, -1)


def test_a_folder_that_is_waited_for_lets_others_work(tmp_path: Path) -> None:
    batches = _stream(tmp_path, None).batches(4)
    assert [next(batches).position for _ in range(2)] == [0, 0]
