"""The file that a command is asked to write: whether it can be, before anything is read."""

import os
from collections.abc import Sequence
from pathlib import Path

from streamlearn.errors import ConfigError

__all__ = ["check_output_file", "need_matplotlib"]


def check_output_file(path: Path, option: str = "-o", kinds: Sequence[str] = ()) -> None:
    """Refuse a file that could not be written.

    Args:
        path: the file.
        option: that named it.
        kinds: suffixes that it may have; any if there are none.

    Raises:
        ConfigError: another suffix, a folder of that name, or no folder that may be written to.
    """
    said = f"{option} {str(path)!r}"
    if kinds and path.suffix.lower() not in kinds:
        raise ConfigError(
            f"{said} is no kind of file that can be written; give a name that ends in "
            f"{' or '.join(kinds)}"
        )
    folder = path.absolute().parent
    if path.is_dir() or not folder.is_dir():
        what = "is a folder" if path.is_dir() else "lies in a folder that is not there"
        raise ConfigError(f"{said} {what}; name a file in a folder that there is")
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{said} lies in a folder that you may not write to; choose another")


def need_matplotlib(what: str, instead: str = "") -> None:
    """Refuse what cannot be drawn.

    Args:
        what: wants it.
        instead: what could be done without it, such as ", or write .html".

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"{what} needs matplotlib, which is not installed: pip install 'streamlearn[plot]'"
            f"{instead}"
        ) from None
