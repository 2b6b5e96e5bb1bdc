"""`writing.Writing` for a run in an object store: an object appears whole, and only if it may."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from streamlearn.errors import FormatError

from .manifest import Manifest, is_no_commit, no_commit
from .objects import as_object
from .segments import segment_folder
from .writing import Writing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from .layout import Layout
    from .lease import Lease
    from .objects import RunPath

__all__ = ["ObjectWriting"]

_FINAL = ("manifest.json", "run.json")


class ObjectWriting(Writing):
    """Objects of a run, written on condition that its lease is held.

    Every write is durable when it returns, so the order of a commit is the order of the calls;
    those `later` are when `finish` returns, and several are under way at a time. What there is is
    known from the lease, without a request.

    Args:
        lease: of the run.
    """

    links = False

    def __init__(self, lease: Lease) -> None:
        self.bytes_written = 0
        self.bytes_grown = 0
        self.writer = lease.token
        self._lease = lease
        self._directories = set()
        self._under_way: list[Future[None]] = []

    # -- what there is -----------------------------------------------------------------------

    def settle(self, layout: Layout) -> None:
        """Take stock of the run, and let no commit of a writer come that lost it.

        Raises:
            FormatError: the manifest is damaged; names it.
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        if self._lease.taken_over:
            self._lease.fence(as_object(layout.manifest), self._marked)
        self._lease.refresh()

    def refresh(self) -> None:
        """Take stock of the run, which may be damaged.

        Raises:
            StorageError: the store refused.
        """
        self._lease.refresh()

    def size_of(self, path: RunPath) -> int:
        """The size of an object in bytes, 0 where there is none."""
        return self._lease.size_of(as_object(path))

    def has(self, path: RunPath) -> bool:
        """Whether there is such an object."""
        return self._lease.knows(as_object(path))

    def same(self, one: RunPath, other: RunPath) -> bool:
        """Whether two objects are known to have the same bytes."""
        return self._lease.alike(as_object(one), as_object(other))

    def own_size(self, path: RunPath) -> int:
        """What deleting an object would free."""
        return self.size_of(path)

    def other_bytes(self, layout: Layout) -> int:
        """The bytes of all objects of a run but the manifest and the event log."""
        log = segment_folder(as_object(layout.events))
        parts = map(self._lease.size_of, self._lease.known_below(log))
        return self._lease.total_bytes - self.size_of(layout.manifest) - sum(parts)

    # -- what is to be -----------------------------------------------------------------------

    def replace(self, path: RunPath, data: bytes) -> None:
        """Write an object; the manifest and the header only over what this writer knows.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused; the object is as it was.
        """
        path = as_object(path)
        before = self._lease.size_of(path)
        final = path.parent == self._lease.root and path.name in _FINAL
        self._lease.put(path, data, final=final)
        self._counted(len(data), before)

    def later(self, path: RunPath, data: Iterable[bytes | memoryview]) -> None:
        """Begin to write an object, given in pieces; `finish` waits for it.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused this one or another.
        """
        path = as_object(path)
        before = self._lease.size_of(path)
        whole = b"".join(data)
        self._under_way.append(self._lease.begin(path, whole))
        self._counted(len(whole), before)

    def finish(self) -> None:
        """Wait for the objects that were written for later.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused; some are there, each of them whole.
        """
        under_way, self._under_way = self._under_way, []
        for waiting in under_way:
            waiting.result()

    def append(self, path: RunPath, data: bytes, offset: int) -> None:
        """Write an object anew, up to an offset as it is and then with these bytes.

        Raises:
            FormatError: it is shorter than that.
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused; the object is as it was.
        """
        start = as_object(path).read_range(0, offset)
        if len(start) < offset:
            raise FormatError(
                f"{str(path)!r} is damaged (it ends after {len(start)} bytes); "
                "put back a copy of this file"
            )
        self.replace(path, start + data)

    def copy(self, source: RunPath, target: RunPath) -> None:
        """Let an object be there twice, replacing what had that name.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        before = self.size_of(target)
        self._lease.copy(as_object(source), as_object(target))
        self.bytes_grown += self.size_of(target) - before

    def make_directory(self, path: RunPath) -> None:
        """Nothing: there are no directories."""

    def building(self, path: RunPath) -> RunPath:
        """Where to make a directory: in its place, for nothing names what is in it yet.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        self.remove_tree(path)
        return path

    def built(self, source: RunPath, target: RunPath) -> None:
        """Nothing: it has its name."""

    def remove(self, path: RunPath) -> None:
        """Delete an object.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        before = self.size_of(path)
        self._lease.remove(as_object(path))
        self.bytes_grown -= before

    def remove_tree(self, path: RunPath) -> None:
        """Delete the object and all below it, if there are any; nothing is counted.

        Raises:
            RunLockedError: another process writes to the run by now.
            StorageError: the store refused.
        """
        for known in self._lease.known_below(as_object(path)):
            self._lease.remove(known)

    def sync_directories(self) -> None:
        """Nothing: what was written is durable."""

    # -- how ---------------------------------------------------------------------------------

    def _marked(self, path: RunPath, data: bytes | None) -> bytes:
        """A manifest that says the same, but was written by this writer."""
        if data is None or is_no_commit(path, data):
            return no_commit(self.writer)
        manifest = Manifest.from_bytes(path, data)
        return dataclasses.replace(manifest, writer=self.writer).to_bytes()

    def _counted(self, size: int, before: int) -> None:
        self.bytes_written += size
        self.bytes_grown += size - before
