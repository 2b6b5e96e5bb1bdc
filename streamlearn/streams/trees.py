"""Class folders of image files, as a tree that is read by position; here from a folder."""

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from streamlearn.errors import DataError

from .images import IMAGE_SUFFIXES

__all__ = ["FolderTree", "Tree", "in_order", "is_image", "is_visible", "printable"]


class Tree(Protocol):
    """Class folders of image files."""

    @property
    def place(self) -> str:
        """What the tree is called in messages."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """The images as "class/…/file", sorted bytewise by class and then by the rest.

        So the order is the same on every machine.
        """
        ...

    @property
    def folders(self) -> Sequence[str]:
        """The class folders, sorted bytewise, those without images included."""
        ...

    def read(self, position: int) -> bytes:
        """The bytes of the image at this position in `names`; safe to call from many threads.

        Raises:
            DataError: they cannot be read; the message is only the reason.

        """
        ...

    def where(self, position: int) -> str:
        """The full path of the image at this position, for people."""
        ...


class FolderTree:
    """Class folders in a folder.

    Raises:
        DataError: the folder, or one in it, may not be read.

    """

    def __init__(self, root: Path) -> None:
        self.place = printable(str(root))
        self._root = os.fspath(root)
        names: list[str] = []
        try:
            with os.scandir(root) as entries:
                folders = [e.name for e in entries if e.is_dir() and is_visible(e.name)]
            for folder in folders:
                for path, below, files in os.walk(root / folder, onerror=_raise):
                    below[:] = [name for name in below if is_visible(name)]
                    start = os.path.relpath(path, root)
                    names.extend(f"{start}/{name}" for name in files if is_image(name))
        except OSError as error:
            place = printable(str(error.filename or root))
            raise DataError(
                f"the folder {place} cannot be read ({error.strerror}); make it readable"
            ) from error
        self.names, self.folders = in_order(names), sorted(folders, key=os.fsencode)

    def read(self, position: int) -> bytes:
        """The bytes of a file."""
        try:
            with open(f"{self._root}/{self.names[position]}", "rb") as file:
                return file.read()
        except OSError as error:
            raise DataError(f"the file cannot be read ({error.strerror})") from error

    def where(self, position: int) -> str:
        """The path of a file."""
        return printable(f"{self._root}/{self.names[position]}")


def printable(name: str) -> str:
    r"""A file name that can be printed and stored: bytes that are no UTF-8 are written as \xNN."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return unicodedata.normalize("NFC", text)


def is_visible(name: str) -> bool:
    """Whether one part of a path counts: not hidden, and not what macOS adds to zip files."""
    return not name.startswith(".") and name != "__MACOSX"


def is_image(name: str) -> bool:
    """Whether the last part of a path is the name of a visible image file."""
    base = name.rpartition("/")[2]
    return is_visible(base) and os.path.splitext(base)[1].lower() in IMAGE_SUFFIXES


def in_order(names: Iterable[str]) -> list[str]:
    """Paths sorted by their first folder and then by the rest, bytewise."""
    return sorted(names, key=lambda name: os.fsencode(name).partition(b"/"))


def _raise(error: OSError) -> None:
    raise error
