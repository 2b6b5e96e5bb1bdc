"""Bring a damaged run back to the newest commit that is whole.

What can be made anew is: the `zarr.json` files, which follow from the manifest, and the event log,
from which nothing is computed. For the rest the run goes back to an older commit, if it keeps one.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamlearn.errors import FormatError

from . import documents, files
from .columns import new_array
from .documents import FORMAT_VERSION
from .kept import keep_commit
from .layers import write_group
from .layout import RUN_KIND, Layout, is_run, not_a_run
from .lock import new_writing, take_lock
from .metadata import METADATA_NAME, seal_metadata
from .objects import ObjectPath, RunPath, name_below, resolve
from .segments import segment_folder, segments, write_segments
from .verify import Damage, Verification, check_run, verify
from .writer import RunStore

if TYPE_CHECKING:
    from .manifest import Manifest
    from .writing import Writing

__all__ = ["Repair", "repair"]


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair found, did (a sentence each, what was lost among it) and left."""

    before: Verification
    done: tuple[str, ...]
    after: Verification


def repair(path: str | RunPath) -> Repair:
    """Put right what `verify` finds, by going back to the newest whole commit where there is need.

    Raises:
        RunNotFoundError: there is no such directory, or it is not a run.
        RunLockedError: another process writes to it; names its pid.
        FormatError: a newer version wrote it, which may know better.
        StorageError: the system refused.
    """
    layout = Layout(resolve(path).absolute())
    if not is_run(layout.path):
        raise not_a_run(layout.path)
    for file in (layout.header, layout.manifest):
        _refuse_newer(file)
    before, manifests = check_run(layout)
    lock = take_lock(layout.lock)
    try:
        writing = new_writing(layout, lock)
        writing.refresh()
        # Once more, now that nobody else can write; taking the lock has signed it anew.
        found, manifests = check_run(layout)
        done = [f"{damage.file} was written anew" for damage in _differing(before, found)]
        if found.whole:
            return Repair(before, tuple(done), found)
        writing.make_directory(layout.scratch)
        done += _metadata(layout, found, manifests, writing)
        found, manifests = check_run(layout)
        whole = {commit.commit for commit in found.commits if commit.whole}
        keeping = [manifest for manifest in manifests if manifest.commit in whole]
        if keeping:
            done += _lost(found, keeping)
            done += _events(layout, found, keeping, writing)
            _point_at(layout, keeping, writing)
            # The writer puts away what the manifest does not name, and shows the rows it counts.
            RunStore(layout, lock).close()
    finally:
        lock.release()
    return Repair(before, tuple(done), verify(layout.path))


def _differing(before: Verification, after: Verification) -> list[Damage]:
    return [damage for damage in before.damage if damage not in after.damage]


def _metadata(
    layout: Layout, found: Verification, manifests: list[Manifest], writing: Writing
) -> list[str]:
    """Make the `zarr.json` files anew that are damaged."""
    groups: dict[RunPath, dict[str, Any]] = {layout.group: {"format": RUN_KIND}, layout.layers: {}}
    arrays: dict[RunPath, bytes] = {}
    for manifest in manifests:
        for name, entry in manifest.layers.items():
            groups[layout.layer(name)] = {"dtype": entry.dtype}
            for column in entry.columns:
                path = layout.column(name, column) / METADATA_NAME
                arrays[path] = seal_metadata(new_array(entry, column))
    damaged = {layout.path / damage.file for damage in found.damage}
    made = []
    for path, attributes in groups.items():
        if path / METADATA_NAME in damaged:
            write_group(path, attributes, writing)
            made.append(path / METADATA_NAME)
    for path, text in arrays.items():
        if path in damaged and path.parent.is_dir():
            writing.replace(path, text)
            made.append(path)
    writing.sync_directories()
    return [f"{name_below(path, layout.path)} was made anew" for path in made]


def _lost(found: Verification, keeping: list[Manifest]) -> list[str]:
    """What goes with the commits that are not whole."""
    newest = keeping[-1]
    lost = [commit for commit in found.commits if not commit.whole]
    said = []
    later = [commit for commit in lost if commit.commit > newest.commit]
    place = f"commit {newest.commit} (step {newest.step}, {newest.samples} samples)"
    if later:
        steps = later[-1].step - newest.step
        came = "1 step that came after it is" if steps == 1 else f"{steps} steps after it are"
        said.append(f"went back to {place}; {came} lost")
    elif any(damage.file == "manifest.json" for damage in found.damage):
        said.append(f"went back to {place}, the newest that was kept; what came after it is lost")
    said += [
        f"commit {commit.commit} (step {commit.step}) is kept no more, for it was damaged"
        for commit in lost
        if commit not in later
    ]
    return said


def _events(
    layout: Layout, found: Verification, keeping: list[Manifest], writing: Writing
) -> list[str]:
    """Leave out of a damaged event log what is no line of it; the commits take what is left."""
    if not any(damage.file == layout.events.name for damage in found.damage):
        return []
    data = _log(layout)
    text, start = b"", 0
    for index, manifest in enumerate(keeping):
        for line in data[start : manifest.event_bytes].split(b"\n"):
            text += line + b"\n" if _is_record(line) else b""
        start = manifest.event_bytes
        if index == len(keeping) - 1:
            notice = "the event log was repaired; some of its lines may be missing or wrong"
            text += documents.encode({"event": "notice", "text": notice})
        keeping[index] = dataclasses.replace(
            manifest, event_bytes=len(text), event_checksum=f"{files.checksum(text):08x}"
        )
    if isinstance(layout.events, ObjectPath):
        write_segments(layout.events, text, writing)
    else:
        writing.replace(layout.events, text)
    return ["events.jsonl was repaired; some of its lines may be missing or wrong"]


def _log(layout: Layout) -> bytes:
    """All bytes of the event log that there are."""
    if isinstance(layout.events, ObjectPath):
        return b"".join(segments(segment_folder(layout.events)))
    try:
        return files.read_bytes(layout.events)
    except FileNotFoundError:
        return b""


def _point_at(layout: Layout, keeping: list[Manifest], writing: Writing) -> None:
    """Make the last of these commits the newest, and keep the others."""
    *older, newest = keeping
    kept = tuple(keep_commit(layout, manifest, writing) for manifest in older)
    writing.sync_directories()
    writing.replace(layout.manifest, dataclasses.replace(newest, kept=kept).to_bytes())
    writing.sync_directories()


def _refuse_newer(path: RunPath) -> None:
    try:
        version = json.loads(files.read_bytes(path))["version"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return  # damaged, not newer
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise FormatError(
            f"{str(path)!r} has format version {version} but this streamlearn repairs up to "
            f"{FORMAT_VERSION}; upgrade it, or put back a copy of this file"
        )


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
