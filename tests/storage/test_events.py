"""The event log: whole lines for every reader, cut to the last commit when a run is opened."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from streamlearn.errors import FormatError
from streamlearn.storage import RunReader, RunStore
from streamlearn.storage.objects import as_file

from .support import commit, make_memory, make_store


def steps(store: RunStore | RunReader, offset: int = 0) -> list[int]:
    reader = store.read() if isinstance(store, RunStore) else store
    return [event["step"] for event in reader.events(offset)[0]]


def test_readers_see_an_event_at_once_and_go_on_from_an_offset(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        reader = RunReader(store.path)
        assert reader.events() == ([], 0)
        store.log({"event": "progress", "step": 1})
        events, offset = reader.events()
        assert [(event["event"], event["step"]) for event in events] == [("progress", 1)]
        assert events[0]["time"] > 0
        assert reader.events(offset) == ([], offset)
        store.log({"event": "progress", "step": 2})
        assert steps(reader, offset) == [2]


def test_a_torn_last_line_is_left_for_later(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.log({"step": 1})
    store.close()
    path = as_file(store.path) / "events.jsonl"
    reader = RunReader(store.path)
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'{"step": ')
    assert reader.events()[1] == whole
    assert steps(reader) == [1]
    with path.open("ab") as file:
        file.write(b'2}\n{"st')
    assert steps(reader, whole) == [2]


def test_opening_cuts_the_log_to_the_last_commit(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.log({"step": 1})
        commit(store, make_memory(), 1)
        store.log({"step": 2})
        store.log({"step": 3})
    with (as_file(store.path) / "events.jsonl").open("ab") as file:
        file.write(b'{"torn')
    assert steps(RunReader(store.path)) == [1, 2, 3]
    with RunStore.open(store.path) as store:
        assert steps(store) == [1]
        store.log({"step": 2})
        assert steps(store) == [1, 2]


def test_a_reader_starts_over_when_the_log_was_cut(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.log({"step": 1})
        commit(store, make_memory(), 1)
        store.log({"step": 2})
        offset = store.read().events()[1]
    with RunStore.open(store.path) as store:
        assert steps(store, offset) == [1]
        # The offset now lies within a line of a log that is longer again.
        store.log({"step": 3, "text": "x" * 500})
        assert steps(store, offset) == [1, 3]


def test_a_log_that_lost_committed_lines_says_so(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.log({"step": 1})
        store.log({"step": 2})
        commit(store, make_memory(), 1)
    path = as_file(store.path) / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with RunStore.open(store.path) as store:
        first, second = store.read().events()[0]
        assert first["step"] == 1
        assert second["event"] == "notice"
        assert "lost" in second["text"]
        commit(store, make_memory(), 2)
    path.unlink()
    assert RunReader(store.path).events(50) == ([], 0)
    with RunStore.open(store.path) as store:
        assert len(store.read().events()[0]) == 1


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.close()
    path = as_file(store.path) / "events.jsonl"
    path.write_bytes(b'{"step": 1}\n\n[]\n{"a":1\n\0\0\xff\n{"step": 2, "text": "\xe2\x80\xa8"}\n')
    assert steps(RunReader(store.path)) == [1, 2]


def test_a_line_is_strict_json_in_ascii(tmp_path: Path) -> None:
    record = {
        "loss": math.nan,
        "rates": (math.inf, np.float32(0.5), np.int64(3)),
        "text": "ñ\u2028\n\ud800",
        "path": Path("a") / "b",
        "time": 5,
    }
    with make_store(tmp_path) as store:
        store.log(record)
        with pytest.raises(FormatError, match=r"a set .* cannot be written as JSON"):
            store.log({"set": {1}})
        with pytest.raises(FormatError, match=r"a ndarray .* cannot be written as JSON"):
            store.log({"array": np.zeros(3)})
    line = (as_file(store.path) / "events.jsonl").read_text(encoding="ascii")
    assert line.count("\n") == 1

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(line, parse_constant=refuse) == {
        "time": 5,
        "loss": None,
        "rates": [None, 0.5, 3],
        "text": "ñ\u2028\n\ud800",
        "path": "a/b",
    }


def test_some_events_of_a_long_log_are_spread_over_it_and_none_with_the_word_is_missed(
    tmp_path: Path,
) -> None:
    with make_store(tmp_path) as store:
        for step in range(9_000):
            store.log({"event": "progress", "step": step, "text": "x" * 100})
            if step in (17, 4_321):
                store.log({"event": "notice", "step": step, "pruned": {}})
        events = store.read().some_events(50, '"pruned"')
    told = [event["step"] for event in events]
    assert 50 <= len(told) < 60
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0, 8_999)
    assert [event["step"] for event in events if "pruned" in event] == [17, 4_321]
