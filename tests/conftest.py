"""Where the tests put their files, and which of them begin first."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long drawing takes is the machine's affair.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes that have to be free there; the tests take a hundred megabytes."""

# Files are real ones, and no test can tell whether a sync reached a disk (tests/storage/power.py
# follows the calls): in memory a sync takes a microsecond, on a disk five thousand. For a disk:
# `TMPDIR=/tmp pytest`.
if (
    "TMPDIR" not in os.environ
    and os.access(_MEMORY, os.W_OK | os.X_OK)
    and shutil.disk_usage(_MEMORY).free > _ROOM
):
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with a time limit of their own first: a long test that begins last is waited for."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
