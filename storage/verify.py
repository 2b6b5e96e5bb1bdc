"""Whether a run is whole: every byte that a kept commit needs is read and compared with a checksum.

Nothing is changed. A shard is read once, whichever commits it belongs to: an older commit is a
checksum of its first rows.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from streamlearn.errors import FormatError, RunNotFoundError, StorageError, StreamlearnError

from . import files
from .codec import rows_checksum
from .columns import StoredColumn
from .kept import read_kept
from .layout import Layout, not_a_run, read_header
from .lock import is_lock_text
from .manifest import Manifest
from .metadata import METADATA_NAME, read_metadata
from .objects import ObjectPath, name_below, resolve
from .reader import read_manifest
from .segments import segment_folder, segments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .manifest import LayerEntry
    from .objects import RunPath
    from .table import ShardTable

__all__ = ["CheckedCommit", "Damage", "Verification", "check_run", "verify"]

_ATTEMPTS = 5
# Of what is in the way of reading anything, which says nothing about the files.
_OBSTACLES = (
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENODEV,
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.EAGAIN,
)
_Seen = TypeVar("_Seen")


@dataclass(frozen=True, slots=True)
class Damage:
    """A file that is not as it was written.

    file: below the run. problem: what is wrong, as in "is damaged (it is empty)". commits: those
    that cannot be gone on from for it; none where only what people read is concerned.
    """

    file: str
    problem: str
    commits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckedCommit:
    """A commit of a run, and whether it can be gone on from."""

    commit: int
    step: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found.

    run: the directory. commits: oldest first. files, bytes: how many were read.
    """

    run: str
    commits: tuple[CheckedCommit, ...]
    damage: tuple[Damage, ...]
    files: int
    bytes: int

    @property
    def whole(self) -> bool:
        """Whether no damage was found."""
        return not self.damage

    @property
    def newest_whole(self) -> CheckedCommit | None:
        """The newest commit that can be gone on from."""
        return next((commit for commit in reversed(self.commits) if commit.whole), None)


def verify(path: str | RunPath) -> Verification:
    """Read everything of every commit that a run keeps; also while it is written.

    Raises:
        RunNotFoundError: there is no such directory, or it is not a run.
        StorageError: this user may not read it, or the store is away.
    """
    layout = Layout(resolve(path).absolute())
    found = None
    for _ in range(_ATTEMPTS):
        before = _text(layout.manifest)
        found, _manifests = check_run(layout)
        # What is missing may have gone because a newer commit came meanwhile.
        if found.whole or _text(layout.manifest) == before:
            break
    if found is None:
        raise not_a_run(layout.path)
    return found


def check_run(layout: Layout) -> tuple[Verification, list[Manifest]]:
    """Check a run that nobody writes to; also gives the commits whose manifests are whole.

    Raises:
        RunNotFoundError: there is no such directory, or it is not a run.
        StorageError: this user may not read it.
    """
    check = _Check(layout)
    check.everything()
    spoilt = {number for damage in check.damage for number in damage.commits}
    known = {manifest.commit: manifest.step for manifest in check.manifests} | check.unreadable
    commits = tuple(
        CheckedCommit(number, step, number not in spoilt) for number, step in sorted(known.items())
    )
    damage = tuple(check.damage)
    found = Verification(str(layout.path), commits, damage, check.files, check.bytes)
    return found, check.manifests


class _Check:
    """One reading of a run.

    complete: whether the newest commit is known. manifests: of the commits that can be read,
    oldest first. unreadable: the steps of the others, by their numbers.
    """

    def __init__(self, layout: Layout) -> None:
        if not layout.header.is_file():
            raise not_a_run(layout.path)
        self.layout = layout
        self.complete = False
        self.manifests: list[Manifest] = []
        self.unreadable: dict[int, int] = {}
        self.damage: list[Damage] = []
        self.files = 0
        self.bytes = 0
        self._shown: set[RunPath] = set()  # copies of shards for zarr that were looked at

    def everything(self) -> None:
        """Check all files; the manifests first, for they say what there is."""
        self._manifests()
        every = [manifest.commit for manifest in self.manifests]
        self._try(self.layout.header, every, self._header)
        for manifest in self.manifests:
            path = self.layout.path / manifest.state_file
            self._try(path, [manifest.commit], _state, path, manifest)
        self._groups()
        for name in {name: None for manifest in self.manifests for name in manifest.layers}:
            self._layer(name)
        self._try(self.layout.events, [], self._events)
        self._try(self.layout.lock, [], self._lock)

    def _try(
        self, path: RunPath, commits: Sequence[int], look: Callable[..., _Seen], *arguments: Any
    ) -> _Seen | None:
        """Let one file be looked at, and note what is wrong with it."""
        self._count(path)
        try:
            return look(*arguments)
        except (FormatError, RunNotFoundError) as error:
            self._note(path, error, commits)
        except StorageError as error:
            if error.errno in _OBSTACLES:
                raise
            self._note(path, error, commits)
        return None

    def _note(self, path: RunPath, error: StreamlearnError, commits: Sequence[int]) -> None:
        message = str(error)
        if repr(str(self.layout.scenario)) in message:
            path = self.layout.scenario
        problem = message.rpartition("; ")[0].removeprefix(f"{str(path)!r} ")
        name = name_below(path, self.layout.path)
        self.damage.append(Damage(name, problem, tuple(sorted(set(commits)))))

    def _count(self, path: RunPath) -> None:
        try:
            size = path.stat().st_size
        except OSError as error:
            if isinstance(error, StorageError) and error.errno in _OBSTACLES:
                raise
            return  # what is missing is noted where it is read
        self.files += 1
        self.bytes += size

    def _manifests(self) -> None:
        layout = self.layout
        newest = self._try(layout.manifest, [], read_manifest, layout)
        if newest is None:
            self._orphans(lost=not self.damage)
            return
        for entry in newest.kept:
            self.unreadable[entry.commit] = entry.step
            path, numbers = layout.kept(entry.commit), [entry.commit]
            older = self._try(path, numbers, read_kept, layout, newest, entry.commit)
            self.manifests += [older] if older else []
        self.manifests.append(newest)
        self.complete = True

    def _orphans(self, lost: bool) -> None:
        """What is kept of a run whose manifest cannot be read, or (lost) is not there."""
        folder = self.layout.commits
        paths: list[RunPath] = sorted(folder.glob("*.json")) if folder.is_dir() else []
        for path in paths:
            older = self._try(path, [], _orphan, path)
            self.manifests += [older] if older else []
        if paths and lost:
            self.damage.append(Damage(self.layout.manifest.name, "is missing", ()))

    def _header(self) -> None:
        self._count(self.layout.scenario)
        read_header(self.layout)

    def _groups(self) -> None:
        layers = {name for manifest in self.manifests for name in manifest.layers}
        groups = [self.layout.group, self.layout.layers, *map(self.layout.layer, sorted(layers))]
        for path in (group / METADATA_NAME for group in groups):
            self._try(path, [], read_metadata, path)

    def _layer(self, name: str) -> None:
        holders = [manifest for manifest in self.manifests if name in manifest.layers]
        tables = self._tables(name, holders)
        newest = holders[-1].layers[name]  # of the same kind in all of them
        numbers = [manifest.commit for manifest in holders]
        for column in newest.columns:
            path = self.layout.column(name, column)
            most = newest.rows if self.complete else None
            stored = self._try(
                path / METADATA_NAME, numbers, _open_column, self.layout, newest, column, most
            )
            if stored is None:
                continue
            # Which commits say what of how many rows of which file.
            claims: dict[tuple[int, int], dict[tuple[int, str], list[int]]] = {}
            for number, (entry, table) in tables.items():
                for shard in range(entry.shards):
                    known = table.get(column, shard)
                    if known is not None:
                        file = claims.setdefault((shard, known[0].version), {})
                        file.setdefault((known[1], known[0].checksum), []).append(number)
            for (shard, version), claimed in sorted(claims.items()):
                self._shard(stored, shard, version, claimed)

    def _tables(
        self, name: str, holders: list[Manifest]
    ) -> dict[int, tuple[LayerEntry, ShardTable]]:
        from .table import ShardTable

        tables = {}
        failed: dict[str, tuple[StreamlearnError, list[int]]] = {}
        files_of: set[str] = set()
        for manifest in holders:
            entry = manifest.layers[name]
            files_of.add(entry.table.file)
            try:
                tables[manifest.commit] = entry, ShardTable(self.layout.path, entry)
            except (FormatError, StorageError) as error:
                failed.setdefault(entry.table.file, (error, []))[1].append(manifest.commit)
        for file in sorted(files_of - {""}):
            self._count(self.layout.path / file)
        for file, (problem, numbers) in failed.items():
            self._note(self.layout.path / file, problem, numbers)
        return tables

    def _shard(
        self,
        stored: StoredColumn,
        shard: int,
        version: int,
        claims: dict[tuple[int, str], list[int]],
    ) -> None:
        everyone = [number for numbers in claims.values() for number in numbers]
        path = stored.find(shard, version)

        def look() -> None:
            rows = stored.decode(path, max(count for count, _ in claims))
            wrong: list[int] = []
            total, start = 0, 0
            for (count, checksum), numbers in sorted(claims.items()):
                total, start = rows_checksum(rows[start:count], total), count
                if total != int(checksum, 16):
                    wrong += numbers
            if wrong:
                everyone[:] = wrong
                raise FormatError(
                    f"{str(path)!r} is damaged (its rows are not those that were committed); "
                    "put back a copy of this file"
                )

        self._try(path, everyone, look)
        shown = stored.shown_path(shard)
        if path == shown or shown in self._shown:
            return
        if not files.same_file(path, shown) and shown.is_file():
            # Only zarr looks at it. It may be the version before, after a crash.
            self._shown.add(shown)
            self._try(shown, [], stored.decode, shown, 0)

    def _events(self) -> None:
        path = self.layout.events
        if isinstance(path, ObjectPath):
            self._segments(path)
            return
        try:
            with files.translated("read", path, missing=True), path.open("rb") as file:
                size = path.stat().st_size
                for manifest in self.manifests:
                    if size < manifest.event_bytes:
                        reason = f"it lost {manifest.event_bytes - size} bytes"
                    elif files.checksum_of(file.fileno(), manifest.event_bytes) != int(
                        manifest.event_checksum, 16
                    ):
                        reason = "its checksum does not fit"
                    else:
                        continue
                    raise FormatError(f"{str(path)!r} is damaged ({reason}); repair the run")
        except FileNotFoundError as error:
            raise FormatError(f"{str(path)!r} is missing; repair the run") from error

    def _segments(self, path: ObjectPath) -> None:
        """The event log of a run in an object store."""
        folder = segment_folder(path)
        for piece in folder.iterdir():
            self._count(piece)
        for manifest in self.manifests:
            size = checksum = 0
            for data in segments(folder, manifest.event_bytes):
                size, checksum = size + len(data), files.checksum(data, checksum)
            reason = "its checksum does not fit"
            if size < manifest.event_bytes:
                reason = f"it lost {manifest.event_bytes - size} bytes"
            elif checksum == int(manifest.event_checksum, 16):
                continue
            raise FormatError(f"{str(path)!r} is damaged ({reason}); repair the run")

    def _lock(self) -> None:
        try:
            data = files.read_bytes(self.layout.lock)
        except FileNotFoundError:
            return  # the next writer makes it
        if not is_lock_text(data):
            raise FormatError(f"{str(self.layout.lock)!r} is damaged (no writer wrote it); repair")


def _orphan(path: RunPath) -> Manifest:
    return Manifest.from_bytes(path, _require(path))


def _state(path: RunPath, manifest: Manifest) -> None:
    if f"{files.checksum(_require(path)):08x}" != manifest.state_checksum:
        raise FormatError(
            f"{str(path)!r} is damaged (its checksum does not fit); put back a copy of this file"
        )


def _open_column(layout: Layout, entry: LayerEntry, column: str, most: int | None) -> StoredColumn:
    stored = StoredColumn(layout, entry, column)
    path = stored.path
    if most is not None and stored.shown_rows > most:
        raise FormatError(
            f"{str(path / METADATA_NAME)!r} is damaged (it shows {stored.shown_rows} rows but "
            f"{most} are committed); put back a copy of this file"
        )
    return stored


def _require(path: RunPath) -> bytes:
    try:
        return files.read_bytes(path)
    except FileNotFoundError as error:
        raise FormatError(f"{str(path)!r} is missing; put back a copy of this file") from error


def _text(path: RunPath) -> bytes | None:
    try:
        return files.read_bytes(path)
    except (FileNotFoundError, StorageError):
        return None
