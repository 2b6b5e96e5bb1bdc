"""Making a run: its first files, built where nobody looks for a run and then given their name.

In an object store nothing is renamed, so there the objects are put in place and `run.json`, without
which they are no run, comes last.
"""

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from streamlearn.errors import RunExistsError, RunLockedError, StreamlearnError

from . import documents, files
from .layers import write_group
from .layout import RUN_KIND, Layout
from .lease import Lease
from .lock import HeldLock, RunLock
from .object_writing import ObjectWriting
from .objects import ObjectPath, RunPath, as_file, as_object
from .writing import Writing

__all__ = ["build_objects", "create_run", "delete_run"]


def create_run(runs: RunPath, header: dict[str, Any], scenario: bytes) -> tuple[Layout, HeldLock]:
    """Make a new run; the lock is held.

    Args:
        runs: the folder of runs, absolute, made if it is missing.
        header: of the run; it has its name.
        scenario: the bytes of the scenario's file.

    Raises:
        RunExistsError: a run, or something else, of this name is already there.
        RunLockedError: another process is making it this moment.
        StorageError: the system or the store refused; nothing of the run is left.
    """
    target = runs / header["name"]
    if isinstance(target, ObjectPath):
        return Layout(target), build_objects(target, header, scenario)
    if os.path.lexists(target):
        raise run_exists(target)
    make_directories(target.parent)
    made = target.parent / f".making-{uuid.uuid4().hex}"
    lock = None
    try:
        lock = build_run(Layout(made), header, scenario)
        with files.translated("write", target):
            try:
                files.rename(made, target)
            except OSError as error:
                if os.path.lexists(target):  # made by somebody else in the meantime
                    raise run_exists(target) from error
                raise
        made = target
        files.sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        if lock is not None:
            lock.release()
        raise
    return Layout(target), lock


def delete_run(path: RunPath) -> None:
    """Delete all of a run that nobody else writes to, as far as that can be done."""
    if not isinstance(path, ObjectPath):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(StreamlearnError):
        # It is no run any more without its header, and its name is free without its lock.
        layout = Layout(path)
        as_object(layout.header).remove()
        for found, _ in list(path.walk()):
            if found != layout.lock:
                found.remove()
        path.remove_tree()


def build_run(layout: Layout, header: dict[str, Any], scenario: bytes) -> RunLock:
    """Make the files of a new run where nobody looks for one; the lock is held."""
    writing = Writing(as_file(layout.scratch))
    for path in (layout.path, layout.scratch, layout.states, layout.commits):
        writing.make_directory(path)
    lock = RunLock(as_file(layout.lock))
    try:
        writing.replace(layout.events, b"")
        write_group(layout.group, {"format": RUN_KIND}, writing)
        write_group(layout.layers, {}, writing)
        writing.replace(layout.scenario, scenario)
        writing.replace(layout.header, documents.seal(RUN_KIND, header))
        writing.sync_directories()
    except BaseException:
        lock.release()
        raise
    return lock


def make_directories(path: Path) -> None:
    """Make a directory and those above it, each durable."""
    if os.path.isdir(path):
        return
    make_directories(path.parent)
    with files.translated("write", path):
        files.make_directory(path)
    files.sync_directory(path.parent)


def build_objects(root: ObjectPath, header: dict[str, Any], scenario: bytes) -> Lease:
    """Make a new run in an object store; the lock is held.

    What a creation that crashed left under the name is put away.

    Raises:
        RunExistsError: a run, or something else, of this name is already there.
        RunLockedError: another process is making it this moment.
        StorageError: the store refused; nothing of the run is left, as far as it lets us.
    """
    layout = Layout(root)
    first, lock = as_object(layout.header), as_object(layout.lock)
    # Objects without a lock among them are none that a run was being made of.
    if first.is_file() or (root.exists() and not lock.is_file()):
        raise run_exists(root)
    try:
        lease = Lease(lock)
    except RunLockedError as error:
        if first.is_file():
            raise run_exists(root) from error
        raise
    made = False
    try:
        lease.refresh()
        if lease.size_of(first):
            made = True
            raise run_exists(root)
        for path in lease.known_below(root):
            lease.remove(path)
        writing = ObjectWriting(lease)
        write_group(layout.group, {"format": RUN_KIND}, writing)
        write_group(layout.layers, {}, writing)
        writing.replace(layout.scenario, scenario)
        writing.replace(first, documents.seal(RUN_KIND, header))
    except BaseException:
        if not made:
            # In this order: the name is free only when nothing is left.
            with contextlib.suppress(StreamlearnError):
                for path in (*lease.known_below(root), lease.path):
                    path.remove()
        lease.release()
        raise
    return lease


def run_exists(path: RunPath) -> RunExistsError:
    """The refusal of a name that is taken."""
    return RunExistsError(
        f"there is already a run {str(path)!r}; choose another run.name=, or go on with it by "
        "`streamlearn resume`"
    )
