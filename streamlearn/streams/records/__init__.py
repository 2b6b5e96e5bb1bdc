"""Streams of records: dictionaries of features by name, from files, pipes, folders, generators."""

from .base import BadRow, Quarantined, RecordBatch, RecordRows
from .formats import JsonLines
from .opening import RECORD_KINDS, RecordKind, open_records
from .quarantine import Quarantine
from .schema import Schema, TaskName
from .stream import RecordStream

__all__ = [
    "RECORD_KINDS",
    "BadRow",
    "JsonLines",
    "Quarantine",
    "Quarantined",
    "RecordBatch",
    "RecordKind",
    "RecordRows",
    "RecordStream",
    "Schema",
    "TaskName",
    "open_records",
]
