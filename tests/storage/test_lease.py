"""The one writer of a run in an object store; one that lost its lock can do nothing any more."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streamlearn.errors import RunExistsError, RunLockedError, StorageError
from streamlearn.storage import lease as leases
from streamlearn.storage.creation import build_objects
from streamlearn.storage.lease import Lease
from streamlearn.storage.lock import Writer, current_writer, is_lock_text, take_lock
from streamlearn.storage.object_writing import ObjectWriting
from streamlearn.storage.objects import ObjectPath

HOLD = """
import sys, time
from streamlearn.storage.lock import take_lock
from streamlearn.storage.objects import resolve
lock = take_lock(resolve(sys.argv[1]) / "lock")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(bucket: ObjectPath) -> ObjectPath:
    return bucket / "runs" / "digits"


def elsewhere(patch: pytest.MonkeyPatch, lease: Lease) -> None:
    """Let a lock look as if a process of another machine held it, which we cannot see end."""
    owner = json.loads(lease.path.read_bytes())
    patch.setattr(leases, "_machine", lambda: "another")
    assert owner["machine"] != "another"


def lapse(patch: pytest.MonkeyPatch) -> None:
    """Let every lease have run out for others; its holder has not noticed."""
    patch.setattr(leases, "TAKEOVER", -1.0)


def take_over(patch: pytest.MonkeyPatch, lease: Lease) -> Lease:
    with patch.context() as inner:
        elsewhere(inner, lease)
        lapse(inner)
        other = Lease(lease.path)
    assert other.taken_over
    return other


def test_a_second_writer_is_refused_and_the_first_is_named(run: ObjectPath) -> None:
    lock = take_lock(run / "lock")
    me = Writer(os.getpid(), socket.gethostname())
    assert current_writer(run / "lock") == me
    with pytest.raises(
        RunLockedError,
        match=rf"run '{run}' is being written by process {me.pid} on {me.host}; stop that one "
        r"first, .* its lock runs out in \d+ s",
    ):
        take_lock(run / "lock")
    assert is_lock_text((run / "lock").read_bytes())
    lock.release()
    lock.release()
    assert current_writer(run / "lock") is None
    assert is_lock_text((run / "lock").read_bytes())
    again = Lease(run / "lock")
    assert not again.taken_over
    again.release()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to see it in")
def test_the_lock_of_a_process_killed_on_this_machine_is_free_at_once(run: ObjectPath) -> None:
    command = [sys.executable, "-c", HOLD, str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "held\n"
            assert current_writer(run / "lock") == Writer(child.pid, socket.gethostname())
            with pytest.raises(RunLockedError, match=f"process {child.pid} on"):
                Lease(run / "lock")
        finally:
            child.kill()
        child.wait()
        assert current_writer(run / "lock") is None
        lease = Lease(run / "lock")
    assert lease.taken_over
    lease.release()


def test_a_lock_of_another_machine_is_taken_over_when_its_lease_has_run_out(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Lease(run / "lock")
    with monkeypatch.context() as patch:
        elsewhere(patch, first)
        with pytest.raises(RunLockedError, match="runs out in"):
            Lease(run / "lock")
    second = take_over(monkeypatch, first)
    with pytest.raises(RunLockedError, match=r"taken over by another process.*open the run again"):
        first.confirm()
    with pytest.raises(RunLockedError, match="taken over"):
        first.check()
    first.release()
    second.confirm()
    assert current_writer(run / "lock") == Writer(os.getpid(), socket.gethostname())
    second.release()
    # Looking at the store's clock leaves nothing behind.
    assert list(run.iterdir()) == [run / "lock"]


def test_signs_of_life_come_by_themselves(run: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEWAL", 0.01)
    lease = Lease(run / "lock")
    renewals: set[int] = set()
    while len(renewals) < 3:
        renewals.add(json.loads((run / "lock").read_bytes())["renewals"])
    lease.release()
    assert json.loads((run / "lock").read_bytes())["released"] is True


def test_a_writer_that_overslept_asks_before_it_writes(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Lease(run / "lock")
    second = take_over(monkeypatch, first)
    monkeypatch.setattr(leases, "LEASE", -1.0)
    with pytest.raises(RunLockedError, match="taken over"):
        first.put(run / "a", b"1")
    with pytest.raises(RunLockedError, match="taken over"):
        first.remove(run / "b")
    assert not (run / "a").exists()
    second.release()


def test_a_store_that_is_away_keeps_the_lock(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(run / "lock")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(StorageError, match="cannot be reached"):
            lease.confirm()
        with pytest.raises(StorageError, match="cannot be reached"):
            lease.put(run / "a", b"1")
    lease.put(run / "a", b"1")
    assert (run / "a").read_bytes() == b"1"
    lease.release()


def test_no_commit_is_overwritten_by_a_writer_that_lost_its_lock(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Lease(run / "lock")
    first.put(run / "manifest.json", b"commit 1", final=True)
    first.put(run / "c" / "0", b"rows 1")
    second = take_over(monkeypatch, first)
    second.refresh()
    second.put(run / "manifest.json", b"commit 1, now of the second", final=True)
    second.put(run / "c" / "0", b"rows 1, 2 of the second")
    # It does not know yet. Neither the rows of the other nor its commits can it touch.
    with pytest.raises(RunLockedError, match="taken over"):
        first.put(run / "c" / "0", b"rows 1, 2 of the first")
    first._lost = False  # the moment before it found out
    with pytest.raises(RunLockedError, match="taken over"):
        first.put(run / "manifest.json", b"commit 2 of the first", final=True)
    second.put(run / "manifest.json", b"commit 2 of the second", final=True)
    assert (run / "manifest.json").read_bytes() == b"commit 2 of the second"
    assert (run / "c" / "0").read_bytes() == b"rows 1, 2 of the second"
    second.release()


def test_what_a_lost_writer_left_does_not_stop_the_one_that_holds_the_lock(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Lease(run / "lock")
    second = take_over(monkeypatch, first)
    second.refresh()
    first.put(run / "c" / "1", b"rows of the first")
    second.put(run / "c" / "1", b"rows of the second")
    assert (run / "c" / "1").read_bytes() == b"rows of the second"
    (run / "c" / "1").remove()
    second.put(run / "c" / "1", b"more")
    assert (run / "c" / "1").read_bytes() == b"more"
    second.release()


def test_writing_counts_what_it_writes(run: ObjectPath) -> None:
    (run / "old").put(b"12345")
    lease = Lease(run / "lock")
    assert lease.refresh() == {run / "old": 5}
    writing = ObjectWriting(lease)
    writing.make_directory(run / "state")
    writing.replace(run / "state" / "1", b"123")
    writing.replace(run / "old", b"1")
    writing.replace(run / "manifest.json", b"12")
    writing.sync_directories()
    assert (writing.bytes_written, writing.bytes_grown) == (6, 1)
    writing.remove(run / "state" / "1")
    assert writing.bytes_grown == -2
    assert lease.known_below(run) == [run / "manifest.json", run / "old"]
    assert sum(lease.refresh().values()) == 3
    lease.release()


# -- creation ------------------------------------------------------------------------------------


def test_a_run_is_one_when_its_header_is_there_and_not_before(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    put = ObjectPath._put

    def note(path: ObjectPath, data: bytes, mode: object) -> object:
        order.append(str(path.relative_to(run)))
        return put(path, data, mode)

    monkeypatch.setattr(ObjectPath, "_put", note)
    lease = build_objects(run, {"id": "0", "name": "digits"}, b"{}\n")
    assert order[0] == "lock"
    assert order[-1] == "run.json"
    assert sorted(order[1:-1]) == [
        "memory.zarr/layers/zarr.json",
        "memory.zarr/zarr.json",
        "scenario.json",
    ]
    lease.confirm()
    lease.release()


def test_a_name_that_is_taken_is_refused(run: ObjectPath) -> None:
    build_objects(run, {"id": "0"}, b"{}\n").release()
    lease = build_objects(run.with_name("held"), {"id": "0"}, b"{}\n")
    (run.with_name("folder") / "notes.txt").put(b"mine")
    run.with_name("file").put(b"mine")
    for name in ("digits", "held", "folder", "file"):
        with pytest.raises(RunExistsError, match=f"already a run 's3://.*/{name}'; choose another"):
            build_objects(run.with_name(name), {"id": "1"}, b"{}\n")
    assert (run.with_name("folder") / "notes.txt").read_bytes() == b"mine"
    lease.release()


def test_a_creation_that_fails_leaves_nothing_and_one_that_crashed_is_put_away(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = ObjectPath._put

    def refuse(path: ObjectPath, data: bytes, mode: object) -> object:
        if path.name == "run.json":
            raise StorageError("no")
        return put(path, data, mode)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectPath, "_put", refuse)
        with pytest.raises(StorageError, match="no"):
            build_objects(run, {"id": "0"}, b"{}\n")
    assert not run.exists()
    crashed = Lease(run / "lock")
    crashed.put(run / "scenario.json", b"{")
    crashed.put(run / "odd", b"")
    with pytest.raises(RunLockedError, match="is being written by process"):
        build_objects(run, {"id": "0"}, b"{}\n")
    crashed.release()
    build_objects(run, {"id": "0"}, b"{}\n").release()
    assert (run / "scenario.json").read_bytes() == b"{}\n"
    assert not (run / "odd").exists()


def test_of_two_creators_at_once_one_makes_the_run(
    run: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other comes between the question whether there is a run and the lock.
    exists = ObjectPath.exists

    def meanwhile(path: ObjectPath) -> bool:
        found = exists(path)
        monkeypatch.setattr(ObjectPath, "exists", exists)
        build_objects(run, {"id": "other"}, b"{}\n").release()
        return found

    monkeypatch.setattr(ObjectPath, "exists", meanwhile)
    with pytest.raises(RunExistsError, match="already a run"):
        build_objects(run, {"id": "mine"}, b"{}\n")
    assert b'"other"' in (run / "run.json").read_bytes()
    assert current_writer(run / "lock") is None
