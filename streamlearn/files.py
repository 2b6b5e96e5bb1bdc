"""The file of a saved learner: named tensors and a header of strings, in one safetensors file."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from streamlearn.errors import DataNotFoundError, FormatError, StorageError

__all__ = ["FORMAT", "FORMAT_VERSION", "read_learner_file", "write_learner_file"]

FORMAT = "streamlearn-learner"
FORMAT_VERSION = 2


def write_learner_file(path: Path, tensors: dict[str, Tensor], header: Mapping[str, str]) -> None:
    """Write a file that takes the place of an older one only once it is complete.

    Raises:
        StorageError: the system refused; a file that was there before is as it was.
    """
    marked = {"format": FORMAT, "version": str(FORMAT_VERSION), **header}
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(tensors, part, metadata=marked)
        _sync(part)  # the name must not move to bytes that a power cut could still take
        os.replace(part, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise StorageError(
            f"{str(path)!r} cannot be written ({error}); choose another place or make room, "
            "what was there before is as it was"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_learner_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the header of a file that `write_learner_file` wrote.

    Raises:
        DataNotFoundError: no such file.
        FormatError: not a learner, damaged, or written by a newer version.
    """
    if not path.is_file():
        raise DataNotFoundError(f"{str(path)!r} is not a file; give the path of a saved learner")
    try:
        with safe_open(path, framework="pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise FormatError(f"{str(path)!r} is damaged or not a learner: {error}") from error
    if header.get("format") != FORMAT:
        raise FormatError(f"{str(path)!r} is not a saved learner; it has no such header")
    version = header.get("version", "")
    if not version.isdecimal():
        raise FormatError(f"{str(path)!r} is damaged: {version!r} is no format version")
    if int(version) > FORMAT_VERSION:
        raise FormatError(
            f"{str(path)!r} has format version {version} but this program reads up to "
            f"{FORMAT_VERSION}; upgrade streamlearn"
        )
    return tensors, header
