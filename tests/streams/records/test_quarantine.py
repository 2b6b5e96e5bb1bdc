"""The file of bad rows."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import FormatError, StorageError
from streamlearn.streams.records import Quarantine, Quarantined, open_records


def test_rows_are_json_lines_as_they_were_read(tmp_path: Path) -> None:
    file = Quarantine(tmp_path / "bad.jsonl")
    file.append([])
    assert not file.path.exists()
    rows = [Quarantined("line 1 of é", "why", 'raw "x"\u2028'), Quarantined("2", "", "\\xff\ud800")]
    file.append(rows)
    file.sync()
    lines = file.path.read_bytes().split(b"\n")
    assert [Quarantined(**json.loads(line)) for line in lines[:-1]] == rows
    assert file.size == file.path.stat().st_size
    file.close()


def test_a_cut_forgets_what_was_not_committed(tmp_path: Path) -> None:
    file = Quarantine(tmp_path / "bad.jsonl")
    file.append([Quarantined("1", "a", "b")])
    committed = file.size
    whole = file.path.read_bytes()
    file.append([Quarantined("2", "a", "b")])
    file.close()
    again = Quarantine(tmp_path / "bad.jsonl")
    again.cut(committed)
    assert again.path.read_bytes() == whole
    again.append([Quarantined("3", "a", "b")])
    assert again.path.read_bytes() == whole + whole.replace(b'"1"', b'"3"')
    with pytest.raises(FormatError, match=r"bad\.jsonl has \d+ bytes but the run had written 999"):
        again.cut(999)
    again.close()
    Quarantine(tmp_path / "none.jsonl").cut(0)
    assert not (tmp_path / "none.jsonl").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"bad rows cannot be written to .*no/bad\.jsonl"):
        Quarantine(tmp_path / "no" / "bad.jsonl").append([Quarantined("1", "a", "b")])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 9))
def test_after_a_kill_and_a_resume_the_file_is_exact(
    tmp_path_factory: pytest.TempPathFactory, good: list[bool], size: int, late: int
) -> None:
    """Commits come every other batch; the kill comes after some batch."""
    rows = [b'{"a":%d,"y":0}\n' % n if ok else b"bad %d\n" % n for n, ok in enumerate(good)]
    data = b'{"a":1,"y":0}\n' + b"".join(rows)
    folder = tmp_path_factory.mktemp("quarantine")

    def run(name: str, batches: int | None, state: dict[str, object] | None) -> dict[str, object]:
        stream = open_records("jsonl", path="-", target="y", stdin=io.BytesIO(data))
        file = Quarantine(folder / name)
        committed = state or {"stream": stream.state_dict(), "size": 0}
        if state is not None:
            stream.load_state_dict(state["stream"])  # type: ignore[arg-type]
        file.cut(committed["size"])  # type: ignore[arg-type]
        for number, batch in enumerate(stream.batches(size)):
            file.append(batch.rows.skipped)
            if number % 2:
                committed = {"stream": stream.state_dict(), "size": file.size}
            if number == batches:
                break
        file.close()
        stream.close()
        return committed

    run("whole", None, None)
    run("killed", None, run("killed", late, None))
    whole, killed = folder / "whole", folder / "killed"
    assert whole.exists() == killed.exists() == (not all(good))
    if whole.exists():
        assert whole.read_bytes() == killed.read_bytes()
        assert whole.read_bytes().count(b"\n") == good.count(False)
