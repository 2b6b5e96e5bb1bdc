"""A disk that is full, or fails, while a run goes on: the run stops, says so, and goes on later."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from streamlearn.cli.main import main
from streamlearn.errors import StorageError
from streamlearn.events import Finished
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader, files
from streamlearn.storage.verify import verify

WORDS = ["data.limit=600", "encoder.fit=64", "memory.block_rows=512", "checkpoint.every_steps=5"]


def refuse_from(monkeypatch: pytest.MonkeyPatch, name: str, call: int, number: int) -> None:
    """Let a primitive fail from its n-th call on, as a full disk does."""
    primitive = getattr(files, name)
    calls = 0

    def wrapped(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > call:
            raise OSError(number, os.strerror(number))
        return primitive(*arguments, **more)

    monkeypatch.setattr(files, name, wrapped)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("name", "call"),
    [("write_all", 1), ("write_all", 30), ("write_all", 61), ("sync", 40), ("rename", 33)],
)
def test_a_refusal_stops_the_run_whose_last_commit_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: int, number: int
) -> None:
    with Session.start(resolve([*WORDS, f"run.dir={tmp_path}", "run.name=a"])) as session:
        with monkeypatch.context() as patch:
            refuse_from(patch, name, call, number)
            with pytest.raises(StorageError) as refused:
                list(session.events())
        assert refused.value.errno == number
    run = tmp_path / "a"
    assert verify(run).damage == ()
    assert RunReader(run).manifest() is not None
    with Session.resume(run) as session:
        *_, finished = session.events()
    assert isinstance(finished, Finished)
    assert finished.samples == 600
    assert verify(run).damage == ()


def test_the_command_says_what_to_do_and_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, f"run.dir={tmp_path}", "run.name=a"]
    with monkeypatch.context() as patch:
        refuse_from(patch, "write_all", 60, errno.ENOSPC)
        assert main(["run", *words, "--plain"]) == 2
    said = capfd.readouterr().err
    assert "no space left on device" in said
    assert "Traceback" not in said
    assert f"streamlearn resume {tmp_path / 'a'}" in said
    assert main(["resume", str(tmp_path / "a"), "--quiet"]) == 0
