"""The layout of a run directory: where its files lie, what it may be called, how it is found."""

import difflib
import os
import shlex
import unicodedata
from dataclasses import dataclass
from typing import Any

from streamlearn.errors import ConfigError, FormatError, RunNotFoundError

from . import documents, files
from .objects import ObjectPath, RunPath, resolve

__all__ = [
    "Layout",
    "RunHeader",
    "check_name",
    "find_run",
    "is_run",
    "list_runs",
    "not_a_run",
    "read_header",
    "resume_command",
]

RUN_KIND = "streamlearn-run"
_LONGEST_NAME = 255  # bytes, on every common file system


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of a run's files."""

    path: RunPath

    @property
    def header(self) -> RunPath:
        """What makes a directory a run; written once."""
        return self.path / "run.json"

    @property
    def scenario(self) -> RunPath:
        """The resolved scenario; written once."""
        return self.path / "scenario.json"

    @property
    def manifest(self) -> RunPath:
        """The newest commit."""
        return self.path / "manifest.json"

    @property
    def commits(self) -> RunPath:
        """The folder of older commits that are kept."""
        return self.path / "commits"

    @property
    def events(self) -> RunPath:
        """The event log."""
        return self.path / "events.jsonl"

    @property
    def lock(self) -> RunPath:
        """The lock of the one writer."""
        return self.path / "lock"

    @property
    def states(self) -> RunPath:
        """The folder of state files."""
        return self.path / "state"

    @property
    def group(self) -> RunPath:
        """The zarr group."""
        return self.path / "memory.zarr"

    @property
    def layers(self) -> RunPath:
        """The zarr group of layers."""
        return self.group / "layers"

    @property
    def scratch(self) -> RunPath:
        """Files that have no name yet."""
        return self.path / "tmp"

    def kept(self, commit: int) -> RunPath:
        """The manifest of an older commit that is kept."""
        return self.commits / f"{commit:08d}.json"

    def layer(self, name: str) -> RunPath:
        """The zarr group of one layer."""
        return self.layers / name

    @property
    def tables(self) -> RunPath:
        """The folder of the files that say what full shards hold."""
        return self.path / "shards"

    @property
    def all_versions(self) -> RunPath:
        """The folder of shards that are not, or not only, what zarr sees."""
        return self.path / "versions"

    def versions(self, layer: str, *column: str) -> RunPath:
        """The folder of versions of a layer's, or of one of its columns', shards."""
        return self.all_versions / "/".join((layer, *column))

    def column(self, layer: str, column: str) -> RunPath:
        """The zarr array of one column."""
        return self.layers / layer / column


@dataclass(frozen=True, slots=True)
class RunHeader:
    """What a run was from its first moment; created in seconds since 1970.

    scenario: the name of the scenario. program: the version of streamlearn that made the run.
    """

    version: int
    id: str
    name: str
    scenario: str
    created: float
    program: str


def check_name(name: str, what: str) -> None:
    """Refuse a name that cannot be, or should not be, the name of a directory.

    Raises:
        ConfigError: says what is wrong with it.
    """
    wrong = None
    if not name.strip():
        wrong = "is empty"
    elif name.startswith("."):
        wrong = "begins with a dot"
    elif "/" in name or "\\" in name or os.sep in name:
        wrong = "contains a separator"
    elif any(unicodedata.category(character) == "Cc" for character in name):
        wrong = "contains a control character"
    elif len(os.fsencode(name)) > _LONGEST_NAME:
        wrong = f"is longer than {_LONGEST_NAME} bytes"
    if wrong:
        raise ConfigError(
            f"{what}={name!r} {wrong}; choose a plain name such as 'shuttle-2', without folders"
        )


def read_header(layout: Layout) -> tuple[RunHeader, dict[str, Any]]:
    """The header of a run and its scenario.

    Raises:
        RunNotFoundError: there is no such directory, or it is not a run.
        FormatError: a file of it is damaged or missing, or of a newer version.
        StorageError: the system refused.
    """
    try:
        data = files.read_bytes(layout.header)
    except FileNotFoundError as error:
        raise not_a_run(layout.path) from error
    found = documents.parse(layout.header, data)
    if not isinstance(found, dict) or found.get("format") != RUN_KIND:
        raise not_a_run(layout.path)
    found = documents.unseal(RUN_KIND, layout.header, data)
    try:
        text = files.read_bytes(layout.scenario)
    except FileNotFoundError as error:
        raise FormatError(
            f"{str(layout.scenario)!r} is missing; put back a copy of this file"
        ) from error
    scenario = documents.parse(layout.scenario, text)
    fits = f"{files.checksum(text):08x}" == found.get("scenario_checksum")
    if not isinstance(scenario, dict) or not fits:
        raise FormatError(
            f"{str(layout.scenario)!r} is damaged or was edited (its checksum does not fit); "
            "put back a copy of this file"
        )
    header = RunHeader(
        version=documents.FORMAT_VERSION,
        id=str(found["id"]),
        name=str(found["name"]),
        scenario=str(found["scenario"]),
        created=float(found["created"]),
        program=str(found["program"]),
    )
    return header, scenario


def is_run(path: RunPath) -> bool:
    """Whether a directory has what makes it a run.

    Raises:
        StorageError: the object store refused to say.
    """
    if isinstance(path, ObjectPath):
        return (path / "run.json").is_file()
    return os.path.isfile(path / "run.json")  # False for whatever path, where is_file may raise


def find_run(word: str | RunPath, runs: str | RunPath | None = None) -> RunPath:
    """The directory of a run, or its place in an object store.

    Args:
        word: the path of a run, or its name in the folder of runs.
        runs: the folder of runs, "runs" if not given.

    Raises:
        RunNotFoundError: names what was tried and the nearest names that there are.
        ConfigError: a URL that names no place in a bucket.
        StorageError: the object store refused.
    """
    folder = resolve("runs" if runs is None else runs)
    place = resolve(word)
    tried: list[RunPath] = [place]
    if isinstance(place, ObjectPath):
        folder = place.parent
    elif not str(word).strip():
        tried = []
    elif not place.is_absolute():
        tried.append(folder / place)
    for path in tried:
        if is_run(path):
            return path
    names = [path.name for path in list_runs(folder)]
    near = difflib.get_close_matches(place.name, names, n=3, cutoff=0.5)
    if near:
        remedy = "did you mean " + " or ".join(repr(name) for name in near) + "?"
    elif names:
        remedy = f"{str(folder)!r} has " + ", ".join(repr(name) for name in names[:5])
        remedy += " and others" if len(names) > 5 else ""
    else:
        remedy = f"{str(folder)!r} has no runs yet, make one with `streamlearn run`"
    places = " and ".join(repr(str(path)) for path in tried) or "the empty name"
    raise RunNotFoundError(f"there is no run {str(word)!r} (looked at {places}); {remedy}")


def list_runs(runs: str | RunPath) -> list[RunPath]:
    """The runs in a folder, by name; none if there is no such folder.

    Raises:
        StorageError: the system or the store refused to list the folder.
    """
    runs = resolve(runs)
    try:
        with files.translated("read", runs, missing=True):
            entries: list[RunPath] = sorted(runs.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in entries if not path.name.startswith(".") and is_run(path)]


def not_a_run(path: RunPath) -> RunNotFoundError:
    """The refusal of a directory that is no run."""
    there = path.is_dir() if isinstance(path, ObjectPath) else os.path.isdir(path)
    what = "is not a run of streamlearn" if there else "is not there"
    return RunNotFoundError(
        f"{str(path)!r} {what}; give the path of a run, or its name in the folder of runs"
    )


def resume_command(path: str | RunPath) -> str:
    """The command that goes on with a run, ready to be pasted into a shell."""
    word = str(path)
    if word.startswith("-"):
        word = os.path.join(os.curdir, word)
    return f"streamlearn resume {shlex.quote(word)}"
