"""Every kind of data set by its name."""

from collections.abc import Callable
from pathlib import Path

from streamlearn.errors import ConfigError, DataError, StreamlearnError

from .base import OnError
from .bundled import open_river
from .cifar import open_cifar10, open_cifar100
from .digits import open_digits
from .folders import open_folder
from .mnist import open_fashion, open_mnist
from .npz import open_npz
from .splits import Request, Splits, unknown_word
from .synthetic import open_teacher
from .teachers import TeacherSpec

__all__ = ["KINDS", "open_data"]

_OPENERS: dict[str, Callable[[Request], Splits]] = {
    "cifar10": open_cifar10,
    "cifar100": open_cifar100,
    "mnist": open_mnist,
    "fashion": open_fashion,
    "folder": open_folder,
    "digits": open_digits,
    "river": open_river,
    "npz": open_npz,
    "teacher": open_teacher,
}

KINDS: tuple[str, ...] = tuple(_OPENERS)
"""What `open_data` can open."""


def open_data(
    kind: str,
    *,
    root: Path | None = None,
    path: Path | None = None,
    name: str | None = None,
    download: bool = True,
    on_error: OnError = "stop",
    holdout: float = 0.2,
    image_size: int | None = None,
    teacher: TeacherSpec | None = None,
) -> Splits:
    """Open a data set: what to learn from and what to test on.

    Args:
        kind: one of `KINDS`.
        root: the folder to look in (cifar10, cifar100, mnist, fashion, folder).
        path: the file to read (npz), or a zip file (folder).
        name: which of the package's sets (river).
        download: let torchvision download what is not found.
        on_error: "skip" leaves out and names items that cannot be used, "stop" raises at the first.
        holdout: the fraction to hold out, in [0, 1), where the set has no test part of its own;
            0 gives no test part.
        image_size: bring images to this many pixels a side; by default they keep their size, and
            those of a folder get that of the first.
        teacher: what labels random samples, and which (teacher).

    Raises:
        ConfigError: a setting that is out of range, missing, or without meaning for this kind.
        DataNotFoundError: the data is not where it should be.
        DataError: the data cannot be read or does not mean what it should.
    """
    if kind not in _OPENERS:
        raise unknown_word("the data set kind", kind, KINDS)
    if not 0 <= holdout < 1:
        raise ConfigError(
            f"data.holdout={holdout} is no fraction to hold out; give one from 0 to below 1"
        )
    if image_size is not None and image_size < 1:
        raise ConfigError(f"data.image_size={image_size} must be at least 1; leave it out")
    request = Request(kind, root, path, name, download, on_error, holdout, image_size, teacher)
    try:
        return _OPENERS[kind](request)
    except StreamlearnError:
        raise
    except OSError as error:  # no permission, a name too long, a disk that fails
        place = error.filename or path or root or kind
        raise DataError(
            f"{place} cannot be read ({error.strerror or error}); make it readable or name "
            "another by data.root or data.path"
        ) from error
