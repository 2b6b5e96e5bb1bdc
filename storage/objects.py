"""Paths in an object store: `s3://bucket/runs/digits`, used as a `pathlib.Path` is.

An object is written whole or not at all, and may be written on condition that nobody else has
written it meanwhile; there are no directories, only names with slashes, no append, no rename and
nothing to sync. What a run needs of a file system is made of that:

    files                         objects
    open_file, write_all, sync,   `put`; `put_if_absent` and `put_if_unchanged` where another
    rename                        writer might be
    truncate                      `put` of the shorter bytes
    remove, remove_tree           `remove`, `remove_tree`; what is gone is as good as deleted
    make_directory, sync of one   nothing
    is_dir                        whether there is any object below
    size_of, tree_bytes           `stat().st_size`, the sum over `walk`
    flock                         an object with a lease, see `lease`
    append                        the last segment is put anew, see `segments`
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import total_ordering
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from streamlearn.errors import ConfigError, StreamlearnError

from .endpoints import SCHEMES, connect, explained

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

__all__ = [
    "ObjectPath",
    "RunPath",
    "Stat",
    "Version",
    "as_file",
    "as_object",
    "name_below",
    "resolve",
]

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/(/?)(.*)", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Version:
    """Which content of an object is meant: what the store calls it (ETag, generation)."""

    e_tag: str | None
    version: str | None

    @property
    def condition(self) -> dict[str, str]:
        """As the library takes it."""
        named = {"e_tag": self.e_tag, "version": self.version}
        return {key: value for key, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Stat:
    """What a store knows of an object.

    st_size: in bytes. st_mtime: when it was written by the store's clock, seconds since 1970.
    """

    st_size: int
    st_mtime: float
    version: Version


@total_ordering
class ObjectPath:
    """The name of an object, or of all objects below it.

    Args:
        scheme: "s3" and so on.
        bucket: the name of the bucket.
        key: the name in the bucket, slashes between its parts, none at the ends.

    Every method that asks the store raises `StorageError` in one sentence if it refuses.
    """

    __slots__ = ("bucket", "key", "scheme")

    def __init__(self, scheme: str, bucket: str, key: str = "") -> None:
        self.scheme = scheme
        self.bucket = bucket
        self.key = key

    # -- the name ----------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and str(self) == str(other)

    def __lt__(self, other: ObjectPath) -> bool:
        return self.parts < other.parts

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, name: str | PurePath) -> ObjectPath:
        parts = PurePosixPath(str(name).lstrip("/")).parts
        return ObjectPath(self.scheme, self.bucket, "/".join((*self._names, *parts)))

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.key.split("/")) if self.key else ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket's URL and the parts of the name."""
        return (f"{self.scheme}://{self.bucket}", *self._names)

    @property
    def name(self) -> str:
        """The last part of the name, empty for the bucket itself."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """What the name ends in, from its last dot on."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> ObjectPath:
        """The name without its last part; the bucket's is itself."""
        return ObjectPath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def with_name(self, name: str) -> ObjectPath:
        """Another name beside this one."""
        return self.parent / name

    def absolute(self) -> ObjectPath:
        """Itself."""
        return self

    def is_relative_to(self, other: ObjectPath) -> bool:
        """Whether it is the other, or below it."""
        return self.parts[: len(other.parts)] == other.parts

    def relative_to(self, other: ObjectPath) -> PurePosixPath:
        """The name as seen from the other.

        Raises:
            ValueError: it is not below the other.
        """
        if not self.is_relative_to(other):
            raise ValueError(f"{str(self)!r} is not below {str(other)!r}")
        return PurePosixPath(*self.parts[len(other.parts) :])

    @property
    def store(self) -> ObjectStore:
        """The library's client of the bucket.

        Raises:
            ConfigError: the optional library is missing, or the environment says nonsense.
        """
        return connect(self.scheme, self.bucket)

    # -- reading -----------------------------------------------------------------------------

    def read(self) -> tuple[bytes, Stat]:
        """All bytes of the object, and which content of it they are.

        Raises:
            FileNotFoundError: there is no such object.
        """
        import obstore

        with self._asking("read"):
            found = obstore.get(self.store, self.key)
            return bytes(found.bytes()), _stat(found.meta)

    def read_bytes(self) -> bytes:
        """All bytes of the object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        return self.read()[0]

    def read_range(self, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop`, as far as there are any.

        Raises:
            FileNotFoundError: there is no such object.
        """
        import obstore

        if stop <= start:
            return b""
        with self._asking("read"):
            try:
                return bytes(obstore.get_range(self.store, self.key, start=start, end=stop))
            except FileNotFoundError:
                raise
            except Exception as error:  # it begins past the end
                if start < self.stat().st_size:
                    raise explained(error, "read", str(self)) from error
                return b""

    def stat(self) -> Stat:
        """The size of the object and when it was written.

        Raises:
            FileNotFoundError: there is no such object.
        """
        import obstore

        with self._asking("read"):
            return _stat(obstore.head(self.store, self.key))

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        if not self.key:
            return False
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        """Whether there is any object below."""
        import obstore

        with self._asking("list"):
            return any(obstore.list(self.store, self._prefix, chunk_size=1))

    def exists(self) -> bool:
        """Whether there is an object of this name, or any below."""
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPath]:
        """The names directly below, those of objects and those that have objects below."""
        import obstore

        with self._asking("list"):
            found = obstore.list_with_delimiter(self.store, self._prefix)
        keys = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        for key in sorted({key.rstrip("/") for key in keys}):
            yield ObjectPath(self.scheme, self.bucket, key)

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """The names directly below that fit a pattern, without regard to what is below them."""
        return (path for path in self.iterdir() if fnmatch.fnmatchcase(path.name, pattern))

    def walk(self) -> Iterator[tuple[ObjectPath, Stat]]:
        """Every object below, in no order, with its size."""
        import obstore

        with self._asking("list"):
            for chunk in obstore.list(self.store, self._prefix):
                for meta in chunk:
                    yield ObjectPath(self.scheme, self.bucket, meta["path"]), _stat(meta)

    # -- writing -----------------------------------------------------------------------------

    def put(self, data: bytes) -> Version:
        """Write the object, whatever it was."""
        version = self._put(data, "overwrite")
        if version is None:
            raise explained(FileExistsError("it is refused"), "write", str(self))
        return version

    def put_if_absent(self, data: bytes | memoryview) -> Version | None:
        """Write the object if there is none; None if there is, unless with these very bytes."""
        return self._put(data, "create")

    def put_if_unchanged(self, data: bytes | memoryview, version: Version) -> Version | None:
        """Write the object if it is that content still; None if it is another, or gone."""
        return self._put(data, version.condition)

    def remove(self) -> None:
        """Delete the object; one that is gone already is as good as deleted."""
        self._remove([self.key])

    def remove_tree(self) -> None:
        """Delete the object and all below it."""
        # Not sorted into an order that means something: who needs one deletes one by one.
        keys = [path.key for path, _ in self.walk()]
        for start in range(0, len(keys), 1000):
            self._remove(keys[start : start + 1000])
        if self.key:
            self.remove()

    def copy_to(self, target: ObjectPath) -> None:
        """Let the store copy the object to another name in the same bucket.

        Raises:
            FileNotFoundError: there is no such object.
        """
        import obstore

        with self._asking("copy"):
            obstore.copy(self.store, self.key, target.key)

    # -- how ---------------------------------------------------------------------------------

    @property
    def _prefix(self) -> str | None:
        return self.key or None

    def _put(self, data: bytes | memoryview, mode: Any) -> Version | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with self._asking("write", missing=False):
                try:
                    # In one request: conditions hold for no other.
                    put = obstore.put(self.store, self.key, data, mode=mode, use_multipart=False)
                    return Version(put["e_tag"], put.get("version"))
                except (AlreadyExistsError, PreconditionError):
                    # If an answer was lost, the library asked again, and met what it had written.
                    return self._if_written(data)
        except StreamlearnError:
            with contextlib.suppress(StreamlearnError):
                version = self._if_written(data)
                if version is not None:
                    return version
            raise

    def _if_written(self, data: bytes | memoryview) -> Version | None:
        try:
            found, stat = self.read()
        except FileNotFoundError:
            return None
        return stat.version if found == data else None

    def _remove(self, keys: list[str]) -> None:
        import obstore

        with self._asking("delete"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self.store, keys)

    @contextlib.contextmanager
    def _asking(self, action: str, *, missing: bool = True) -> Iterator[None]:
        """Turn what the store refuses into a `StorageError`; a missing object may be none."""
        try:
            yield
        except StreamlearnError:
            raise
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or not missing:
                raise explained(error, action, str(self)) from error
            raise FileNotFoundError(2, "no such object", str(self)) from error
        except Exception as error:  # the library's errors are Exceptions and many
            raise explained(error, action, str(self)) from error


RunPath: TypeAlias = Path | ObjectPath
"""Where a run may lie."""


def as_file(path: RunPath) -> Path:
    """The path, for what works with files alone.

    Raises:
        ConfigError: it lies in an object store.
    """
    if isinstance(path, ObjectPath):
        raise ConfigError(f"{str(path)!r} lies in an object store; name a folder or file instead")
    return path


def as_object(path: RunPath) -> ObjectPath:
    """The path, for what works with objects alone.

    Raises:
        ConfigError: it is that of a file.
    """
    if not isinstance(path, ObjectPath):
        raise ConfigError(f"{str(path)!r} is no object; write it as s3://BUCKET/FOLDER")
    return path


def name_below(path: RunPath, root: RunPath) -> str:
    """The name of a file or object as seen from a folder that it lies in."""
    return str(path).removeprefix(str(root)).lstrip("/")


def resolve(text: str | RunPath) -> RunPath:
    """The path that a text names: a file's, or an object's if it is a URL.

    Args:
        text: as in "runs", "s3://bucket/runs", "file:///home/me/runs".

    Raises:
        ConfigError: the URL is of a kind that is not known, or incomplete; or the library for it
            is missing.
    """
    if isinstance(text, ObjectPath):
        return text
    found = _URL.fullmatch(str(text))
    if found is None:
        return Path(text)
    scheme, rest = found.group(1).lower(), found.group(3)
    if scheme == "file" and found.group(2) and rest.startswith("/"):
        return Path(rest)
    if scheme not in SCHEMES:
        if not found.group(2):
            return Path(text)  # a folder whose name ends in a colon
        raise ConfigError(
            f"{str(text)!r} is a kind of address that is not known; use a folder, or "
            + " or ".join(f"{known}://…" for known in SCHEMES[:-1])
        )
    bucket, _, key = rest.partition("/")
    names = [name for name in key.split("/") if name]
    if not found.group(2) or not _BUCKET.fullmatch(bucket) or {".", ".."} & {*names}:
        raise ConfigError(
            f"{str(text)!r} names no place in a bucket; write it as {scheme}://BUCKET/FOLDER, "
            "without '.' and '..'"
        )
    path = ObjectPath(scheme, bucket, "/".join(names))
    connect(scheme, bucket)
    return path


def _stat(meta: ObjectMeta) -> Stat:
    version = Version(meta["e_tag"], meta.get("version"))
    return Stat(meta["size"], meta["last_modified"].timestamp(), version)
