"""Files that appear whole, and what they add up to for the figures of a commit.

`object_writing.ObjectWriting` does the same for a run in an object store.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from typing import TYPE_CHECKING

from streamlearn.errors import StorageError

from . import files
from .files import translated
from .objects import as_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .layout import Layout
    from .objects import RunPath

__all__ = ["Writing"]

_NUMBERS = itertools.count()  # of files that have no name yet

# File systems without hard links, and links that are full or would lead to another disk.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK, errno.ENOSYS)


class Writing:
    """Files that appear whole: written aside, synced, then given their name.

    Args:
        scratch: a directory on the same file system, for files that have no name yet.

    Attributes:
        bytes_written: everything written so far.
        bytes_grown: the same, less what the replaced files took.
        writer: what the manifest says of who writes; nothing for files.
        links: whether a second name of a file takes no room.

    `replace` does so at once. Many files are quicker `later`: the system begins to write them while
    others are made, and `finish` waits for all of them and names them. A name is durable once its
    directory is: `sync_directories` does that for all of them, each once.
    """

    writer = ""
    links = True

    def __init__(self, scratch: Path) -> None:
        self.bytes_written = 0
        self.bytes_grown = 0
        self._scratch = scratch
        self._directories: set[Path] = set()
        self._waiting: dict[Path, Path] = {}

    # -- what there is -----------------------------------------------------------------------

    def settle(self, layout: Layout) -> None:
        """Make sure that the newest manifest is there for good, before its word is acted on.

        Raises:
            StorageError: the system refused.
        """
        files.sync_directory(as_file(layout.path))

    def refresh(self) -> None:
        """Find out what there is, which needs nothing where files are simply looked at."""

    def size_of(self, path: RunPath) -> int:
        """The size of a file in bytes, 0 where there is none."""
        return files.size_of(path)

    def has(self, path: RunPath) -> bool:
        """Whether there is such a file."""
        return path.exists()

    def same(self, one: RunPath, other: RunPath) -> bool:
        """Whether two names are there and one of them need not be copied to the other."""
        return files.same_file(one, other)

    def own_size(self, path: RunPath) -> int:
        """What deleting a name would free: nothing where the file has another."""
        return files.own_size(as_file(path))

    def other_bytes(self, layout: Layout) -> int:
        """The bytes of all files of a run but the manifest and the event log."""
        counted = (layout.manifest, layout.events)
        return files.tree_bytes(layout.path) - sum(map(files.size_of, counted))

    # -- what is to be -----------------------------------------------------------------------

    def replace(self, path: RunPath, data: bytes) -> None:
        """Write a file so that a crash leaves the old one or the new one, never a part.

        Raises:
            StorageError: the system refused; the old file is as it was.
        """
        path = as_file(path)
        temporary = self._aside(path, [data], wait=True)
        self._name(temporary, path)

    def later(self, path: RunPath, data: Iterable[bytes | memoryview]) -> None:
        """Write a file, given in pieces, that gets its name by `finish`.

        Raises:
            StorageError: the system refused; the old file is as it was.
        """
        path = as_file(path)
        self._waiting[path] = self._aside(path, data, wait=False)

    def finish(self) -> None:
        """Give the files that were written for later their names, each once it is on the medium.

        Raises:
            StorageError: the system refused; some have their names, each of them whole.
        """
        for path, temporary in list(self._waiting.items()):
            with translated("write", path):
                descriptor = files.open_file(temporary)
                try:
                    files.sync(descriptor)
                finally:
                    os.close(descriptor)
            self._name(temporary, path)
            del self._waiting[path]

    def join(self, other: Writing, *, counts: bool = True) -> None:
        """Take over the names that another has given, and what it has counted."""
        if counts:
            self.bytes_written += other.bytes_written
            self.bytes_grown += other.bytes_grown
        self._directories |= other._directories

    def append(self, path: RunPath, data: bytes, offset: int) -> None:
        """Write bytes at an offset of a file, of which nobody needs what comes after that.

        Raises:
            StorageError: the system refused; what comes before the offset is as it was.
        """
        path = as_file(path)
        with translated("write", path):
            before = files.size_of(path)
            descriptor = files.open_file(path)
            try:
                files.write_all(descriptor, data, offset)
                files.sync(descriptor)
            finally:
                os.close(descriptor)
        self.bytes_written += len(data)
        self.bytes_grown += max(0, offset + len(data) - before)

    def copy(self, source: RunPath, target: RunPath) -> None:
        """Let a file have a second name, replacing what had that name, or be there twice.

        Raises:
            StorageError: the system refused.
        """
        source, target = as_file(source), as_file(target)
        temporary = self._scratch / str(next(_NUMBERS))
        try:
            with translated("write", target):
                before = files.own_size(target)
                files.link(source, temporary)
                files.rename(temporary, target)
                # Renaming to another name of the same file does nothing, and leaves the first.
                files.remove(temporary)
        except StorageError as error:
            if error.errno not in _NO_LINKS:
                raise
            self.replace(target, files.read_bytes(source))
            return
        self.bytes_grown -= before
        self._directories.add(target.parent)

    def _aside(self, path: Path, data: Iterable[bytes | memoryview], *, wait: bool) -> Path:
        temporary = self._scratch / str(next(_NUMBERS))
        try:
            with translated("write", path):
                descriptor = files.open_file(temporary, empty=True)
                try:
                    size = 0
                    for piece in data:
                        files.write_all(descriptor, piece, size)
                        size += len(piece)
                    if wait:
                        files.sync(descriptor)
                    else:
                        _begin_writing(descriptor)
                finally:
                    os.close(descriptor)
        except StorageError:
            # On a full disk the half-written file is the first to make room.
            with contextlib.suppress(OSError):
                files.remove(temporary)
            raise
        self.bytes_written += size
        return temporary

    def _name(self, temporary: Path, path: Path) -> None:
        try:
            with translated("write", path):
                grown = files.size_of(temporary) - files.own_size(path)
                files.rename(temporary, path)
        except StorageError:
            with contextlib.suppress(OSError):
                files.remove(temporary)
            raise
        self.bytes_grown += grown
        self._directories.add(path.parent)

    def make_directory(self, path: RunPath) -> None:
        """Make a directory, and those above it that are missing.

        Raises:
            StorageError: the system refused.
        """
        path = as_file(path)
        with translated("write", path):
            if not path.is_dir():
                if not path.parent.is_dir():
                    self.make_directory(path.parent)
                files.make_directory(path)
                self._directories.add(path.parent)

    def building(self, path: RunPath) -> RunPath:
        """Where to make a directory that is to appear whole by `built`; nothing is there.

        Raises:
            StorageError: the system refused.
        """
        place = self._scratch / "layer"
        files.remove_tree(place)
        return place

    def built(self, source: RunPath, target: RunPath) -> None:
        """Give a finished directory its name; what had that name goes.

        Raises:
            StorageError: the system refused.
        """
        source, target = as_file(source), as_file(target)
        self.sync_directories()
        files.remove_tree(target)
        with translated("write", target):
            files.rename(source, target)
        self._directories.add(target.parent)

    def remove(self, path: RunPath) -> None:
        """Delete a file.

        Raises:
            StorageError: the system refused.
        """
        path = as_file(path)
        with translated("delete", path):
            before = files.own_size(path)
            files.remove(path)
        self.bytes_grown -= before

    def remove_tree(self, path: RunPath) -> None:
        """Delete a file or a directory with everything in it, if it is there; nothing is counted.

        Raises:
            StorageError: the system refused.
        """
        files.remove_tree(as_file(path))

    def sync_directories(self) -> None:
        """Make every name given since the last call durable, each directory synced once.

        Raises:
            StorageError: the system refused.
        """
        # A directory's own name lies in its parent, so the deepest go first.
        for directory in sorted(self._directories, key=lambda path: -len(path.parts)):
            if directory.is_dir():  # of a commit that failed, some may be gone again
                files.sync_directory(directory)
            self._directories.discard(directory)


def _begin_writing(descriptor: int) -> None:
    """Let the system begin to write a file; harmless where it does not know how."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
