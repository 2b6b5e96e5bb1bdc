"""One writer: the lock names its process and goes with it, however it ends."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamlearn.errors import RunExistsError, RunLockedError
from streamlearn.storage import RunReader, RunStore, Writer
from streamlearn.storage.objects import as_file

from .support import commit, make_memory, make_store

HOLD = """
import sys, time
from pathlib import Path
from streamlearn.storage import RunStore
store = RunStore.open(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""

ASK = """
import sys
from pathlib import Path
from streamlearn.storage import RunReader
reader = RunReader(Path(sys.argv[1]))
print("asking", flush=True)
while True:
    reader.writer()
"""


@contextmanager
def process(script: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip() in ("held", "asking")
            yield child
        finally:
            child.kill()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with make_store(tmp_path) as store:
        commit(store, make_memory(), 0)
    return as_file(store.path)


def test_a_second_writer_is_refused_and_the_first_is_named(run: Path) -> None:
    with process(HOLD, run) as child:
        with pytest.raises(RunLockedError, match=rf"process {child.pid} on .*; stop that one"):
            RunStore.open(run)
        writer = RunReader(run).writer()
        assert writer == Writer(child.pid, socket.gethostname())


def test_the_lock_is_gone_after_sigkill(run: Path) -> None:
    with process(HOLD, run) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert RunReader(run).writer() is None
        with RunStore.open(run):
            assert RunReader(run).writer() == Writer(os.getpid(), socket.gethostname())
    assert RunReader(run).writer() is None


def test_a_second_writer_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        with pytest.raises(RunLockedError, match=f"process {os.getpid()} on"):
            RunStore.open(store.path)
        with pytest.raises(RunExistsError, match=r"already a run .*run\.name="):
            make_store(tmp_path)
    RunStore.open(store.path).close()


def test_readers_that_ask_all_the_time_do_not_keep_a_writer_out(run: Path) -> None:
    with process(ASK, run), process(ASK, run):
        for _ in range(30):
            RunStore.open(run).close()


def test_a_lock_that_was_not_signed_yet_is_still_a_lock(run: Path) -> None:
    with RunStore.open(run):
        (run / "lock").write_bytes(b"\0" * 40)
        assert RunReader(run).writer() == Writer(0, "unknown")
        with pytest.raises(RunLockedError, match="another process"):
            RunStore.open(run)


def test_a_run_without_a_lock_file_has_no_writer(run: Path) -> None:
    (run / "lock").unlink()
    assert RunReader(run).writer() is None
    RunStore.open(run).close()
    assert (run / "lock").exists()


def test_of_many_creators_one_makes_the_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        outcomes = pool.map(_try_to_create, [tmp_path] * 6)
    assert sorted(outcomes) == ["exists"] * 5 + ["made"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def _try_to_create(runs: Path) -> str:
    try:
        make_store(runs).close()
    except RunExistsError:
        return "exists"
    return "made"
