"""The built-in scenarios; light, so that listing and completing them is instant."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlearn.errors import ConfigError

__all__ = ["DEFAULT", "RECORDS", "Entry", "catalogue", "read_scenario_file"]

DEFAULT = "digits-onepass"

RECORDS = "stdin"
"""What is run where only a kind of data is named whose samples are records."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Entry:
    """A scenario's name, what it does in a line, and its file."""

    name: str
    summary: str
    path: Path


def catalogue() -> list[Entry]:
    """The built-in scenarios, the default first, the others by name."""
    entries = [
        Entry(path.stem, str(read_scenario_file(path).get("summary", "")), path)
        for path in sorted(_FOLDER.glob("*.toml"))
    ]
    return sorted(entries, key=lambda entry: (entry.name != DEFAULT, entry.name))


def read_scenario_file(path: Path) -> dict[str, Any]:
    """The tables of a scenario file.

    Raises:
        ConfigError: the file cannot be read or is not TOML.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"scenario file {str(path)!r} cannot be read ({error.strerror}); "
            "give the path of a TOML file or a name that `streamlearn scenarios` lists"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"scenario file {str(path)!r} is not TOML: {error}; mend that line"
        ) from None
