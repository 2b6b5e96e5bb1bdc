"""The one tree of errors: each is a `StreamlearnError` and the builtin that it refines.

A message is one sentence that names the offending value and says the remedy. The command line
prints it as it is and exits with code 2.
"""

__all__ = [
    "ConfigError",
    "DataError",
    "DataNotFoundError",
    "FormatError",
    "GraphError",
    "NotFiniteError",
    "RunExistsError",
    "RunLockedError",
    "RunNotFoundError",
    "RunStateError",
    "ShapeError",
    "StorageError",
    "StreamlearnError",
]


class StreamlearnError(Exception):
    """The base of every error that the library raises on purpose."""


class ConfigError(StreamlearnError, ValueError):
    """A key, a value or a combination of settings that cannot be used."""


class ShapeError(StreamlearnError, ValueError):
    """A tensor whose shape, dtype or device does not fit where it is used."""


class NotFiniteError(StreamlearnError, ValueError):
    """NaN or infinity where only finite numbers can be learnt or scored."""


class GraphError(StreamlearnError, RuntimeError):
    """Forward, backward and step were called in an order that gradients cannot follow."""


class DataError(StreamlearnError, ValueError):
    """Data that was found but cannot be read or does not mean what it should."""


class DataNotFoundError(StreamlearnError, FileNotFoundError):
    """Data that is not where it should be."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class StorageError(StreamlearnError, OSError):
    """The operating system refused to read or write a run (disk full, permissions)."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RunNotFoundError(StreamlearnError, FileNotFoundError):
    """A directory that does not exist or is not a run."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RunExistsError(StreamlearnError, FileExistsError):
    """A run of this name is already there."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RunLockedError(StreamlearnError, BlockingIOError):
    """Another process is writing to this run."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RunStateError(StreamlearnError, RuntimeError):
    """A run that is not in the state that a command needs (finished, never committed)."""


class FormatError(StreamlearnError, ValueError):
    """A file that is damaged, foreign, or written by a newer version of the format."""
