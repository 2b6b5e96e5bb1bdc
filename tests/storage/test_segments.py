"""The event log of a run in an object store: whole lines, cut to the last commit, few objects."""

from collections.abc import Iterator
from typing import Any

import pytest

from streamlearn.errors import RunStateError
from streamlearn.storage import files
from streamlearn.storage import segments as pieces
from streamlearn.storage.events import read_events
from streamlearn.storage.lease import Lease
from streamlearn.storage.objects import ObjectPath
from streamlearn.storage.segments import SegmentLog, segments


@pytest.fixture
def lease(bucket: ObjectPath) -> Iterator[Lease]:
    lease = Lease(bucket / "runs" / "digits" / "lock")
    yield lease
    lease.release()


def open_log(lease: Lease, size: int = 0, checksum: int = 0) -> SegmentLog:
    lease.refresh()
    return SegmentLog(lease.root / "events.jsonl", size, checksum, lease)


def line(step: int, **more: Any) -> dict[str, Any]:
    return {"time": 5, "step": step, **more}


def steps(log: SegmentLog, offset: int = 0) -> list[int]:
    return [record["step"] for record in read_events(log.path, offset)[0]]


def objects(log: SegmentLog) -> dict[str, int]:
    folder = log.path.parent / "events"
    return {path.name: stat.st_size for path, stat in folder.walk()}


def stored(log: SegmentLog) -> bytes:
    return b"".join(segments(log.path.parent / "events"))


def test_readers_see_lines_from_the_next_commit_on_and_go_on_from_an_offset(lease: Lease) -> None:
    log = open_log(lease)
    assert read_events(log.path) == ([], 0)
    log.append({"step": 1})
    assert read_events(log.path) == ([], 0)
    log.sync()
    events, offset = read_events(log.path)
    assert [event["step"] for event in events] == [1]
    assert events[0]["time"] > 0
    assert offset == log.size
    log.append(line(2))
    log.sync()
    log.sync()
    assert steps(log, offset) == [2]
    assert read_events(log.path, log.size) == ([], log.size)
    assert log.checksum == files.checksum(stored(log))
    assert list(objects(log)) == ["0000000000000000.jsonl"]


def test_a_piece_that_is_full_is_never_touched_again(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SEGMENT_BYTES", 200)
    log = open_log(lease)
    full: dict[str, bytes] = {}
    for step in range(30):
        log.append(line(step))
        log.sync()
        for path, stat in (log.path.parent / "events").walk():
            if stat.st_size >= 200:
                assert full.setdefault(path.name, path.read_bytes()) == path.read_bytes()
    sizes = objects(log)
    assert len(sizes) == len(full) == 3
    assert sum(sizes.values()) == log.size
    assert steps(log) == list(range(30))
    # From any line on, whichever piece it lies in.
    offset, seen = 0, []
    for data in stored(log).splitlines(keepends=True):
        seen.append(steps(log, offset))
        offset += len(data)
    assert [len(found) for found in seen] == list(range(30, 0, -1))


@pytest.mark.parametrize("full", [40, 200, 1 << 18])
def test_opening_cuts_the_log_to_any_commit(
    lease: Lease, full: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SEGMENT_BYTES", full)
    log = open_log(lease)
    commits = [(0, 0)]
    for step in range(9):
        log.append(line(step))
        log.append(line(step))
        log.sync()
        commits.append((log.size, log.checksum))
    log.append(line(99))
    log.close()
    with pytest.raises(RunStateError, match="is closed; open it again"):
        log.append(line(100))
    for index in (9, 8, 5, 4, 0):
        log = open_log(lease, *commits[index])
        expected = [step for step in range(index) for _ in range(2)]
        assert steps(log) == expected
        assert (log.size, log.checksum) == commits[index]
        assert sum(objects(log).values()) == log.size
        log.append(line(50))
        log.sync()
        assert steps(log) == [*expected, 50]
        assert log.checksum == files.checksum(stored(log))
        log.close()


def test_a_reader_starts_over_when_the_log_was_cut(lease: Lease) -> None:
    log = open_log(lease)
    log.append(line(1))
    log.sync()
    size, checksum = log.size, log.checksum
    log.append(line(2))
    log.sync()
    offset = log.size
    log.cut(size, checksum)
    assert steps(log, offset) == [1]
    log.append(line(3, text="x" * 500))
    log.sync()
    assert steps(log, offset) == [1, 3]


@pytest.mark.parametrize("torn", [False, True])
def test_a_log_that_lost_committed_lines_says_so(
    lease: Lease, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SEGMENT_BYTES", 40)
    log = open_log(lease)
    for step in range(6):
        log.append(line(step))
        log.sync()
    names = sorted(objects(log))
    assert len(names) == 3
    middle = log.path.parent / "events" / names[1]
    if torn:
        middle.put(middle.read_bytes()[:-5])
    else:
        middle.remove()
    log = open_log(lease, log.size, log.checksum)
    log.sync()
    records = read_events(log.path)[0]
    notice = records.pop()
    assert [record["step"] for record in records] == ([0, 1, 2] if torn else [0, 1])
    assert notice["event"] == "notice"
    assert "lost" in notice["text"]
    assert log.checksum == files.checksum(stored(log))
    assert log.size == len(stored(log))
    log.append(line(7))
    log.sync()
    assert read_events(log.path)[0][-1]["step"] == 7


def test_a_log_that_is_cut_while_it_is_read_ends_where_it_is_cut(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SEGMENT_BYTES", 10)
    log = open_log(lease)
    for step in range(3):
        log.append(line(step))
        log.sync()
    found = segments(log.path.parent / "events")
    first = next(found)
    log.cut(len(first), files.checksum(first))
    assert list(found) == []
    assert steps(log) == [0]
