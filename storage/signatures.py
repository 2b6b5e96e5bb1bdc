"""Who holds the lock of a run, as the text of it says, with a checksum."""

import json
from dataclasses import dataclass
from typing import Any

from . import files

__all__ = ["TEXT_BYTES", "Writer", "is_lock_text", "signed", "who"]

TEXT_BYTES = 512
"""Of a lock file: always as many, so that no reader meets half of another text."""


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that is writing to a run."""

    pid: int
    host: str


def signed(owner: dict[str, Any]) -> bytes:
    """The text of a lock: who holds it, and a checksum of that."""
    checksum = f"{files.checksum(json.dumps(owner).encode('ascii')):08x}"
    return json.dumps({**owner, "checksum": checksum}).encode("ascii").ljust(TEXT_BYTES)


def is_lock_text(data: bytes) -> bool:
    """Whether a lock file holds what a writer writes, or nothing (as after a loss of power)."""
    if not data.strip(b"\0"):
        return True
    try:
        found = json.loads(data)
        del found["checksum"]
        return data == signed(found)
    except (ValueError, KeyError, TypeError):
        return False


def who(writer: Writer | None) -> str:
    """A writer in the words of a message."""
    return f"process {writer.pid} on {writer.host}" if writer else "another process"
