"""Durable files: whole or absent, on the medium when the call returns, errors in plain words.

Every change of a run's files goes through the few primitives below (`open_file`, `write_all`,
`truncate`, `sync`, `rename`, `link`, `remove`, `make_directory`, `remove_directory`), so that a
test can let any one of them fail, or see in which order they come.

What only reads takes a path in an object store as well; what writes there is `object_writing`.
"""

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from streamlearn.errors import StorageError, StreamlearnError

from .objects import ObjectPath, RunPath

__all__ = [
    "checksum",
    "checksum_of",
    "link",
    "make_directory",
    "open_file",
    "own_size",
    "read_bytes",
    "read_into",
    "remove",
    "remove_directory",
    "remove_tree",
    "rename",
    "same_file",
    "size_of",
    "sync",
    "sync_directory",
    "translated",
    "tree_bytes",
    "truncate",
    "write_all",
    "write_whole",
]

_REMEDIES = {
    errno.ENOSPC: "free space on this disk and go on; the last commit is whole",
    errno.EDQUOT: "free space within your quota and go on; the last commit is whole",
    errno.EFBIG: "use a file system that takes larger files; the last commit is whole",
    errno.EACCES: "give yourself the permission, or copy the run to a folder of your own",
    errno.EPERM: "give yourself the permission, or copy the run to a folder of your own",
    errno.EROFS: "the file system is read-only, copy the run to one that is not",
    errno.EIO: "check the disk and its cable, then go on from the last commit",
    errno.ENOENT: "if the run was moved, put it back and go on from the last commit",
    errno.ENOTDIR: "name a folder, not a file",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENOLCK: "use a file system that supports locks",
    errno.ENAMETOOLONG: "choose a shorter name",
}

_PIECE = 1 << 20


# macOS answers fsync before the drive has written; this asks for the real thing.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


@contextlib.contextmanager
def translated(action: str, path: RunPath, *, missing: bool = False) -> Iterator[None]:
    """Turn what the operating system refuses into a `StorageError` that names the path.

    Args:
        action: what is being done to it, for the sentence ("write", "read").
        path: the file or directory.
        missing: whether a file that is not there is no failure here; FileNotFoundError then
            passes.

    Raises:
        StorageError: in place of any OSError that is not ours already; `errno` is kept.
    """
    try:
        yield
    except StreamlearnError:
        raise
    except OSError as error:
        if missing and isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
        reason = (error.strerror or str(error)).lower()
        remedy = _REMEDIES.get(error.errno or 0, "look at the disk and try again")
        failure = StorageError(f"cannot {action} {str(path)!r}: {reason}; {remedy}")
        failure.errno = error.errno
        raise failure from error


def checksum(data: bytes | memoryview, start: int = 0) -> int:
    """The CRC-32 of the bytes, continued from `start`, the checksum of what came before them."""
    return zlib.crc32(data, start)


def checksum_of(descriptor: int, size: int) -> int:
    """The CRC-32 of the first bytes of an open file, which is not read all at once."""
    total, offset = 0, 0
    while offset < size:
        data = os.pread(descriptor, min(_PIECE, size - offset), offset)
        if not data:
            break
        total = checksum(data, total)
        offset += len(data)
    return total


# -- the primitives ------------------------------------------------------------------------------


def open_file(path: Path, *, empty: bool = False) -> int:
    """The descriptor of a file to read and write, which is made if missing and may be emptied."""
    return os.open(path, os.O_RDWR | os.O_CREAT | (os.O_TRUNC if empty else 0), 0o666)


def write_all(descriptor: int, data: bytes | memoryview, offset: int = 0) -> None:
    """Write all bytes at an offset, however many calls the system makes of it."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]


def truncate(descriptor: int, size: int) -> None:
    """Cut a file to a size."""
    os.ftruncate(descriptor, size)


def sync(descriptor: int) -> None:
    """Wait until the file or directory is on the medium."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError:
            pass  # not every file system knows it
        else:
            return
    os.fsync(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file another name, in one step, replacing what had that name."""
    os.replace(source, target)


def link(source: Path, target: Path) -> None:
    """Give a file a second name, which nothing has yet."""
    os.link(source, target)


def remove(path: Path) -> None:
    """Delete a file; one that is gone already is as good as deleted."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def make_directory(path: Path) -> None:
    """Make one directory; one that is there already is as good as made."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)


def remove_directory(path: Path) -> None:
    """Delete an empty directory; one that is gone already is as good as deleted."""
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


# -- what they make ------------------------------------------------------------------------------


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the medium.

    Raises:
        StorageError: the system refused.
    """
    with translated("write", path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of its own so that a crash leaves the old one or the new one, never a part.

    Raises:
        StorageError: the system refused; the old file is as it was.
    """
    part = path.with_name(f".{path.name[:200]}.{os.getpid()}.part")
    with translated("write", path):
        try:
            descriptor = open_file(part, empty=True)
            try:
                write_all(descriptor, data)
                sync(descriptor)
            finally:
                os.close(descriptor)
            rename(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(part)
            raise
    sync_directory(path.parent)


def read_bytes(path: RunPath) -> bytes:
    """All bytes of a file.

    Raises:
        StorageError: the system refused.
        FileNotFoundError: there is no such file; the caller knows what that means.
    """
    try:
        with translated("read", path, missing=True):
            return path.read_bytes()
    except ValueError as error:  # a NUL in the path
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from error


def read_into(path: RunPath, places: Sequence[memoryview | bytearray]) -> None:
    """Fill buffers, one after the other, with the first bytes of a file.

    Raises:
        StorageError: the system refused.
        FileNotFoundError: there is no such file.
        ValueError: the file is shorter than that.
    """
    if isinstance(path, ObjectPath):
        _object_into(path, places)
        return
    with translated("read", path, missing=True), path.open("rb", buffering=0) as file:
        for place in places:
            view = memoryview(place)
            while len(view):
                count = file.readinto(view)
                if not count:
                    raise ValueError(f"it ends after {file.tell()} bytes")
                view = view[count:]


def _object_into(path: ObjectPath, places: Sequence[memoryview | bytearray]) -> None:
    data = memoryview(path.read_range(0, sum(map(len, places))))
    offset = 0
    for place in places:
        piece = data[offset : offset + len(place)]
        offset += len(piece)
        if len(piece) < len(place):
            raise ValueError(f"it ends after {offset} bytes")
        place[:] = piece


def size_of(path: RunPath) -> int:
    """The size of a file in bytes, 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def remove_tree(path: Path) -> None:
    """Delete a file or a directory with everything in it, if it is there.

    Raises:
        StorageError: the system refused.
    """
    with translated("delete", path):
        if path.is_dir() and not path.is_symlink():
            for entry in sorted(path.iterdir()):
                remove_tree(entry)
            remove_directory(path)
        else:
            remove(path)


def tree_bytes(path: RunPath) -> int:
    """The sizes of all files under a directory, in bytes; one with several names counts once.

    Raises:
        StorageError: the system refused.
    """
    if isinstance(path, ObjectPath):
        return sum(stat.st_size for _, stat in path.walk())
    return _tree_bytes(path, set())


def _tree_bytes(path: Path, seen: set[int]) -> int:
    total = 0
    with translated("read", path), os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                total += _tree_bytes(Path(entry.path), seen)
                continue
            facts = entry.stat(follow_symlinks=False)
            if facts.st_nlink > 1:
                if facts.st_ino in seen:
                    continue
                seen.add(facts.st_ino)
            total += facts.st_size
    return total


def same_file(one: RunPath, other: RunPath) -> bool:
    """Whether two names are there and mean the same file, as names of objects never do."""
    if isinstance(one, ObjectPath) or isinstance(other, ObjectPath):
        return False
    return one.exists() and other.exists() and os.path.samefile(one, other)


def own_size(path: Path) -> int:
    """What deleting a name would free: nothing where the file has another."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0
    return facts.st_size if facts.st_nlink == 1 else 0
