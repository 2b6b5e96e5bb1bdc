"""Runs on disk: the zarr memory, states, the event log, and commits that hold them together."""

from .documents import FORMAT_VERSION
from .layout import RunHeader, check_name, find_run, list_runs, resume_command
from .lock import Writer
from .manifest import ColumnEntry, Commit, Compaction, KeptCommit, LayerEntry, Manifest, Status
from .objects import ObjectPath, RunPath
from .pending import PendingCommit
from .reader import RunReader
from .writer import RunStore

__all__ = [
    "FORMAT_VERSION",
    "ColumnEntry",
    "Commit",
    "Compaction",
    "KeptCommit",
    "LayerEntry",
    "Manifest",
    "ObjectPath",
    "PendingCommit",
    "RunHeader",
    "RunPath",
    "RunReader",
    "RunStore",
    "Status",
    "Writer",
    "check_name",
    "find_run",
    "list_runs",
    "resume_command",
]
