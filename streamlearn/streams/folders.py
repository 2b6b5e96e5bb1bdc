"""Images in class folders, in a folder or in zip files, decoded when they are read."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.errors import ConfigError, DataError, DataNotFoundError
from streamlearn.tasks import Classes

from .base import OnError, Rows, SkippedItem
from .images import Header, decode_image, read_header
from .splits import Request, Splits, given_path, hold_out, refuse
from .trees import FolderTree, Tree, is_visible, printable
from .zips import open_zip

__all__ = ["ImageFolder", "find_class_folders", "open_class_folders", "open_folder"]

_SAMPLED = 32
"""Images whose headers are read to see whether all are grey, and how large they are."""

_LARGE = 128 * 128
"""Pixels of an image from which on decoding in threads pays."""


class ImageFolder:
    """Images of a tree of class folders; see `Dataset`.

    Args:
        name: for people.
        tree: where the files come from.
        classes: the classes' names; those of the tree must be among them.
        shape: (channels, height, width) that every image is brought to.
        threads: how many decode at the same time.
        on_error: "skip" names damaged images in what `read` returns, "stop" raises at the first.

    Raises:
        DataError: a class of the tree is not among the classes.

    """

    def __init__(
        self,
        name: str,
        tree: Tree,
        classes: tuple[str, ...],
        shape: tuple[int, int, int],
        *,
        threads: int = 1,
        on_error: OnError = "stop",
    ) -> None:
        self.name = name
        self.classes = classes
        self._tree = tree
        self._shape = shape
        self._threads = threads
        self._on_error = on_error
        known = {label: target for target, label in enumerate(classes)}
        own = [printable(item.split("/", 1)[0]) for item in tree.names]
        for label in dict.fromkeys(own):
            if label not in known:
                raise DataError(
                    f"{tree.place} has a class {label!r} that is none of the {len(classes)} "
                    "classes to learn; remove it, or add such a folder to the training images"
                )
        self._targets = np.array([known[label] for label in own], dtype=np.int64)

    @property
    def task(self) -> Classes:
        """The classes."""
        return Classes(self.classes)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self._shape

    def __len__(self) -> int:
        return len(self._targets)

    def labels(self) -> NDArray[np.int64]:
        """Every image's class, (n,)."""
        return self._targets

    def read(self, index: NDArray[np.int64]) -> Rows:
        """The images at these positions, in this order."""
        features = np.empty((len(index), *self._shape), dtype=np.uint8)

        def fill(row: int) -> str | None:
            try:
                position = int(index[row])
                features[row] = decode_image(self._tree.read(position), self._shape)
            except DataError as error:
                return str(error)
            return None

        if self._threads > 1 and len(index) > 1:
            with ThreadPoolExecutor(self._threads, thread_name_prefix="decode") as pool:
                faults = list(pool.map(fill, range(len(index))))
        else:
            faults = [fill(row) for row in range(len(index))]
        skipped = tuple(
            SkippedItem(self._tree.where(int(position)), fault)
            for position, fault in zip(index, faults, strict=True)
            if fault is not None
        )
        if skipped:
            refuse(skipped, self._on_error)
            good = np.array([fault is None for fault in faults])
            features, index = features[good], index[good]
        return Rows(
            torch.from_numpy(features),
            torch.from_numpy(self._targets[index]),
            torch.from_numpy(index.copy()),
            skipped,
        )


def open_folder(request: Request) -> Splits:
    """Class folders in the folder or zip file that `root` or `path` names.

    The folder has train/ and test/ with class folders (or train.zip and test.zip of them), or only
    class folders, of which part is then held out.

    Raises:
        ConfigError: no folder is named.
        DataNotFoundError: there is no such folder or file.
        DataError: there are no images in it, or what is there cannot be read.

    """
    place = request.path or request.root
    if place is None:
        raise ConfigError(
            "data=folder needs data.root=FOLDER, a folder (or a zip file) of class folders"
        )
    place = given_path(place)
    if not place.exists():
        raise DataNotFoundError(
            f"there is no folder {printable(str(place))}; give one with class folders of images "
            "by data.root=FOLDER"
        )
    trees = find_class_folders(place) or (FolderTree(place), None)
    return open_class_folders(request, printable(place.resolve().stem), *trees)


def find_class_folders(place: Path) -> tuple[Tree, Tree | None] | None:
    """The train and test part of a folder or a zip file, None in a folder that has no train part.

    Raises:
        DataError: a zip file cannot be read, or there is a test part only.

    """
    if place.is_file():
        return open_zip(place)
    train, inner_test = _part(place, "train")
    test, _ = _part(place, "test")
    if train is None:
        if test is not None:
            raise DataError(
                f"{test.place} has images to test on but there is no train/ or train.zip beside "
                "it; add the training images"
            )
        return None
    return train, test or inner_test


def open_class_folders(request: Request, name: str, train: Tree, test: Tree | None) -> Splits:
    """Data sets of a train and a test tree of class folders; part of train is held out without one.

    Raises:
        DataError: a class folder is empty, there are none, no image is readable, or a class of the
            test tree is not in the train tree.

    """
    for tree in (train, test):
        if tree is not None:
            _check_folders(tree)
    classes = tuple(dict.fromkeys(printable(folder) for folder in train.folders))
    headers = _survey(train)
    side = request.image_size
    size = (side, side) if side else (headers[0].height, headers[0].width)
    shape = (1 if all(header.grey for header in headers) else 3, *size)
    pixels = sum(header.height * header.width for header in headers) / len(headers)
    threads = min(4, os.cpu_count() or 1) if pixels >= _LARGE else 1

    def dataset(tree: Tree) -> ImageFolder:
        return ImageFolder(name, tree, classes, shape, threads=threads, on_error=request.on_error)

    if test is None:
        return hold_out(dataset(train), request.holdout)
    return Splits(dataset(train), dataset(test))


def _part(place: Path, name: str) -> tuple[Tree | None, Tree | None]:
    folder, packed = place / name, place / f"{name}.zip"
    if folder.is_dir():
        with os.scandir(folder) as entries:
            # A folder called train that holds images itself is a class of trains.
            if any(entry.is_dir() and is_visible(entry.name) for entry in entries):
                return FolderTree(folder), None
    return open_zip(packed) if packed.is_file() else (None, None)


def _check_folders(tree: Tree) -> None:
    if not tree.names:
        raise DataError(
            f"there are no images in class folders in {tree.place}; put them into "
            f"{tree.place}/CLASS/"
        )
    filled = {name.split("/", 1)[0] for name in tree.names}
    for folder in tree.folders:
        if folder not in filled:
            raise DataError(
                f"the class folder {tree.place}/{printable(folder)} has no images; "
                "remove it or put images into it"
            )


def _survey(tree: Tree) -> list[Header]:
    """The headers of the first readable image and of others spread over the tree."""
    headers: list[Header] = []
    reason = ""
    spread = np.linspace(0, len(tree.names) - 1, _SAMPLED).astype(np.int64).tolist()
    first = 0
    while not headers and first < len(tree.names):
        try:
            headers.append(read_header(tree.read(first)))
        except DataError as error:
            reason = reason or str(error)
        first += 1
    if not headers:
        raise DataError(
            f"none of the {len(tree.names)} images in {tree.place} can be read ({reason}); "
            "give images that can"
        )
    for position in sorted(set(spread) - set(range(first))):
        try:
            headers.append(read_header(tree.read(position)))
        except DataError:  # it is named when it is read
            continue
    return headers
