"""How a well-known image data set is found: in files that are here, else by torchvision's download.

Each is looked for in torchvision's own layout (its module says which) and as class folders or zip
files of them, first in the given folder or `data`, then where the system keeps it.
"""

import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from streamlearn.errors import DataError, DataNotFoundError

from .folders import find_class_folders, open_class_folders
from .splits import Request, Splits, given_path
from .trees import Tree, printable

__all__ = ["DEFAULT_ROOT", "KnownSet", "open_known"]

DEFAULT_ROOT = Path("data")
"""Where data sets are looked for and downloaded to, unless a folder is given."""

_DOWNLOAD_TIMEOUT = 20.0
"""Seconds without an answer after which there is taken to be no network."""


@dataclass(frozen=True)
class KnownSet:
    """A data set that torchvision knows.

    title: for people. classes: how many it has. files: what to put where, for a message.
    read: its data sets from torchvision's layout in a folder, None where that is not there.
    download: puts torchvision's layout into an empty folder, `delivered` in it.
    system: folders outside the user's where a distribution's package puts it.
    """

    title: str
    classes: int
    files: str
    read: Callable[[Path, Request], Splits | None]
    download: Callable[[Path], None]
    delivered: str
    system: tuple[Path, ...] = ()


def open_known(known: KnownSet, request: Request) -> Splits:
    """The train and the test part of a well-known data set.

    Raises:
        DataNotFoundError: it is nowhere, and downloading is not allowed or failed.
        DataError: what was found is damaged.
    """
    given = request.root or request.path
    roots = [DEFAULT_ROOT, *known.system] if given is None else [given_path(given)]
    for root in roots:
        found = _find(known, root, request)
        if found is not None:
            return found
    failure = ""
    if request.download:
        try:
            _download(known, roots[0])
        except Exception as error:  # torchvision, urllib and tarfile have no common base
            reason = " ".join(str(error).split())[:200]
            failure = f" and could not be downloaded ({reason or type(error).__name__})"
        else:
            found = _find(known, roots[0], request)
            if found is not None:
                return found
    places = " or ".join(printable(str(root.absolute())) for root in roots)
    raise DataNotFoundError(
        f"{known.title} is not in {places}{failure}; put {known.files}, or train/ and test/ (or "
        "train.zip and test.zip) of class folders, into a folder and name it by data.root=FOLDER, "
        "or run scenario=digits-onepass, which needs no files"
    )


def _find(known: KnownSet, root: Path, request: Request) -> Splits | None:
    if not root.exists():
        return None
    found = None if root.is_file() else known.read(root, request)
    if found is not None:
        return found
    trees = find_class_folders(root)
    if trees is None:
        return None
    train, test = trees
    if len(train.folders) > known.classes:
        raise DataError(
            f"{train.place} has {len(train.folders)} class folders but {known.title} has "
            f"{known.classes} classes; for images of your own use data=folder"
        )
    return open_class_folders(request, known.title + _packing(train), train, test)


def _packing(tree: Tree) -> str:
    # Pixels that went through JPEG are not the original ones, and figures differ.
    jpeg = all(name.lower().endswith((".jpg", ".jpeg")) for name in tree.names)
    return " (JPEG)" if jpeg else ""


def _download(known: KnownSet, root: Path) -> None:
    """Download beside the place and move finished files there, so that a cut leaves no torso."""
    created = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as folder:
            with _polite():
                known.download(Path(folder))
            target = root / known.delivered
            target.mkdir(parents=True, exist_ok=True)
            for file in (Path(folder) / known.delivered).iterdir():
                os.replace(file, target / file.name)
    except BaseException:
        if created:
            with contextlib.suppress(OSError):
                root.rmdir()
        raise


@contextlib.contextmanager
def _polite() -> Iterator[None]:
    """Nothing on standard output, and no waiting for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)
