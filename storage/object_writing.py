"""`files.Writing` for a run in an object store: an object appears whole, and only if it may."""

from .lease import Lease
from .objects import ObjectPath

__all__ = ["ObjectWriting"]

_FINAL = ("manifest.json", "run.json")


class ObjectWriting:
    """Objects of a run, written on condition that its lease is held.

    Args:
        lease: of the run.

    Attributes:
        bytes_written: everything written so far.
        bytes_grown: the same, less what the replaced objects took.

    Every write is durable when it returns, so the order of a commit is the order of the calls.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.bytes_written = 0
        self.bytes_grown = 0

    def replace(self, path: ObjectPath, data: bytes) -> None:
        """Write an object; the manifest and the header only over what this writer knows.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused; the object is as it was.
        """
        before = self._lease.size_of(path)
        final = path.parent == self._lease.root and path.name in _FINAL
        self._lease.put(path, data, final=final)
        self.bytes_written += len(data)
        self.bytes_grown += len(data) - before

    def make_directory(self, path: ObjectPath) -> None:
        """Nothing: there are no directories."""

    def remove(self, path: ObjectPath) -> None:
        """Delete an object.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        before = self._lease.size_of(path)
        self._lease.remove(path)
        self.bytes_grown -= before

    def sync_directories(self) -> None:
        """Nothing: what was written is durable."""
