"""Making a run: its first files, built where nobody looks for a run and then given their name."""

import os
from pathlib import Path
from typing import Any

from streamlearn.errors import RunExistsError

from . import documents, files
from .layers import write_group
from .layout import RUN_KIND, Layout
from .lock import RunLock
from .writing import Writing

__all__ = ["build_run", "make_directories", "run_exists"]


def build_run(layout: Layout, header: dict[str, Any], scenario: bytes) -> RunLock:
    """Make the files of a new run where nobody looks for one; the lock is held."""
    writing = Writing(layout.scratch)
    for path in (layout.path, layout.scratch, layout.states, layout.commits):
        writing.make_directory(path)
    lock = RunLock(layout.lock)
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


def run_exists(path: Path) -> RunExistsError:
    """The refusal of a name that is taken."""
    return RunExistsError(
        f"there is already a run {str(path)!r}; choose another run.name=, or go on with it by "
        "`streamlearn resume`"
    )
