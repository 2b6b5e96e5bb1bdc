"""Older commits that are kept: each its manifest in a file of its own, beside its state file.

Rows are appended, and changed ones go to files of their own, so an older commit needs no rows of
its own: it is a number of rows, versions of shards, and checksums of what they begin with. Which
commits are kept, `manifest.json` alone says; a
file that it does not name is none of them, whatever lies in the folder. So going back to an older
commit drops the newer ones in the moment in which the manifest moves, and only then may rows be
written where theirs lie.
"""

import dataclasses
from collections.abc import Iterable

from streamlearn.errors import ConfigError, FormatError, RunStateError

from . import files
from .layout import Layout
from .manifest import KeptCommit, Manifest
from .objects import RunPath
from .writing import Writing

__all__ = ["check_keep", "find_commit", "keep_commit", "named_files", "read_kept"]


def check_keep(keep: int) -> None:
    """Refuse a number of commits that cannot be kept.

    Raises:
        ConfigError: it is less than one.
    """
    if keep < 1:
        raise ConfigError(f"checkpoint.keep={keep} must be at least 1; 1 keeps the newest commit")


def keep_commit(layout: Layout, manifest: Manifest, writing: Writing) -> KeptCommit:
    """Put a commit aside that another is about to follow.

    Raises:
        StorageError: the system refused.
    """
    data = dataclasses.replace(manifest, kept=()).to_bytes()
    writing.make_directory(layout.commits)
    writing.replace(layout.kept(manifest.commit), data)
    return KeptCommit(
        commit=manifest.commit,
        step=manifest.step,
        state_file=manifest.state_file,
        tables=manifest.tables,
        checksum=f"{files.checksum(data):08x}",
    )


def read_kept(layout: Layout, newest: Manifest, commit: int) -> Manifest:
    """The manifest of a commit that is kept, with those that were kept before it.

    Args:
        layout: of the run.
        newest: its newest commit.
        commit: the number of one that it keeps, or its own.

    Raises:
        RunStateError: it is not kept.
        FormatError: its file is missing or damaged; names it.
        StorageError: the system refused.
    """
    if commit == newest.commit:
        return newest
    for index, entry in enumerate(newest.kept):
        if entry.commit != commit:
            continue
        path = layout.kept(commit)
        try:
            data = files.read_bytes(path)
        except FileNotFoundError as error:
            raise FormatError(f"{str(path)!r} is missing; put back a copy of this file") from error
        if f"{files.checksum(data):08x}" != entry.checksum:
            raise FormatError(
                f"{str(path)!r} is damaged (its checksum does not fit); "
                "put back a copy of this file"
            )
        manifest = Manifest.from_bytes(path, data)
        return dataclasses.replace(manifest, kept=newest.kept[:index])
    raise RunStateError(
        f"the run {str(layout.path)!r} does not keep commit {commit}; "
        f"it keeps {_listed([*(entry.commit for entry in newest.kept), newest.commit])}"
    )


def find_commit(layout: Layout, newest: Manifest, step: int) -> Manifest:
    """The commit of a step to go on from: the newest of this step that is not finished.

    Raises:
        RunStateError: no commit of this step is kept, or only one that is finished; lists the
            steps that there are.
        FormatError: a file is missing or damaged; names it.
        StorageError: the system refused.
    """
    finished = False
    numbers = {entry.commit: entry.step for entry in newest.kept} | {newest.commit: newest.step}
    for commit in sorted(numbers, reverse=True):
        if numbers[commit] != step:
            continue
        manifest = read_kept(layout, newest, commit)
        if manifest.status != "finished":
            return manifest
        finished = True
    steps = [other for other in newest.steps if not (finished and other == step)]
    where = f"it keeps {'step' if len(steps) == 1 else 'steps'} {_listed(steps)}"
    if finished:
        where = f"the other steps that it keeps are {_listed(steps)}" if steps else "it keeps none"
    raise RunStateError(
        f"the run {str(layout.path)!r} "
        + (f"is finished at step {step}" if finished else f"keeps no commit of step {step}")
        + f"; {where} (checkpoint.keep=K keeps K commits)"
    )


def named_files(layout: Layout, manifest: Manifest | None) -> set[RunPath]:
    """The states, tables and manifests of older commits that a manifest names."""
    if manifest is None:
        return set()
    return {
        *(layout.path / name for name in manifest.named_files),
        *(layout.kept(entry.commit) for entry in manifest.kept),
    }


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
