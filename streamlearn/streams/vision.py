"""How a well-known image data set is found: in files that are here, else by torchvision's download.

A folder that was given is looked through for torchvision's own layout, for plain files as others
pack them, and for class folders or zip files of them. In `data`, where several sets may lie, only
torchvision's layout counts: the others do not say which set they are.
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

__all__ = ["DEFAULT_ROOT", "KnownSet", "open_known", "quietly"]

DEFAULT_ROOT = Path("data")
"""Where data sets are looked for and downloaded to, unless a folder is given."""

_DOWNLOAD_TIMEOUT = 20.0
"""Seconds without an answer after which there is taken to be no network."""


@dataclass(frozen=True)
class KnownSet:
    """A data set that torchvision knows.

    title: for people. classes: how many it has. files: what to put where, for a message.
    read: its data sets from torchvision's layout in a folder, None where that is not there.
    read_plain: the same for another layout that may lie in a folder of its own.
    download: puts torchvision's layout into an empty folder, `delivered` in it.
    system: folders outside the user's where a distribution's package puts it.
    """

    title: str
    classes: int
    files: str
    read: Callable[[Path, Request], Splits | None]
    read_plain: Callable[[Path, Request], Splits | None]
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
    if given is None:
        root, places = DEFAULT_ROOT, [DEFAULT_ROOT, *known.system]
        found = _in_layout(known, root, request)
        for folder in known.system:
            found = found or known.read_plain(folder, request)
    else:
        root = given_path(given)
        places = [root]
        found = _in_layout(known, root, request) or _in_own_folder(known, root, request)
    failure = ""
    if found is None and request.download:
        try:
            _download(known, root)
        except Exception as error:  # torchvision, urllib and tarfile have no common base
            reason = " ".join(str(error).split())[:200]
            failure = f" and could not be downloaded ({reason or type(error).__name__})"
        else:
            found = _in_layout(known, root, request)
    if found is None:
        searched = " or ".join(printable(str(place.absolute())) for place in places)
        raise DataNotFoundError(
            f"{known.title} is not in {searched}{failure}; put {known.files}, or train/ and test/ "
            "(or train.zip and test.zip) of class folders, into a folder and name it by "
            "data.root=FOLDER, or run scenario=digits-onepass, which needs no files"
        )
    return found


def _in_layout(known: KnownSet, root: Path, request: Request) -> Splits | None:
    return known.read(root, request) if root.is_dir() else None


_TEN = 10
"""The classes of CIFAR-10, MNIST and Fashion-MNIST."""


def _in_own_folder(known: KnownSet, root: Path, request: Request) -> Splits | None:
    if not root.exists():
        return None
    found = known.read_plain(root, request) if root.is_dir() else None
    if found is not None:
        return found
    trees = find_class_folders(root)
    if trees is None:
        return None
    train, test = trees
    # A part of the classes is fine, but a whole other set would be learnt under the wrong name.
    other_set = known.classes > _TEN and len(train.folders) == _TEN
    if len(train.folders) > known.classes or other_set:
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
    created = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as folder:
            with quietly():
                known.download(Path(folder))
            target = root / known.delivered
            target.mkdir(parents=True, exist_ok=True)
            for file in (Path(folder) / known.delivered).iterdir():
                os.replace(file, target / file.name)
    except BaseException:
        with contextlib.suppress(OSError):
            for empty in created:
                empty.rmdir()
        raise


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Nothing on standard output, and no waiting for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_DOWNLOAD_TIMEOUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)
