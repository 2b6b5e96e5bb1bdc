"""Lines to a standard stream that may be a closed pipe, a full disk or a terminal that went away.

A failing stream must not end a run with a traceback: `Output` remembers what failed and goes quiet,
and whoever drives it decides what that means.
"""

import errno
import io
import os
import sys
from typing import TextIO

from streamlearn.errors import StorageError

__all__ = ["BROKEN_PIPE", "Output", "is_gone", "output_code", "prepare_streams", "silence"]

BROKEN_PIPE = 141
"""128 + SIGPIPE: what a shell sees of any program whose reader went away."""

_GONE = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.ECONNRESET, errno.ESHUTDOWN)


class Output:
    """Writes whole lines to a stream and flushes each one.

    failed: the error that ended it, or None.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.failed: OSError | None = None

    def line(self, text: str) -> None:
        """Write one line; does nothing once the stream has failed or where there is none."""
        if self._stream is None or self.failed is not None:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except OSError as error:
            self.failed = error
            silence(self._stream)


def is_gone(error: OSError) -> bool:
    """Whether nobody reads any more (as after `| head -1`), which is no fault to report."""
    return error.errno in _GONE


def output_code(failed: OSError | None, remedy: str = "write it to another place") -> int:
    """The exit code after an output: 0, or `BROKEN_PIPE` where nobody read it to the end.

    Raises:
        StorageError: it could not be written, as on a full disk.
    """
    if failed is None:
        return 0
    if is_gone(failed):
        return BROKEN_PIPE
    raise StorageError(f"cannot write the output: {failed.strerror}; {remedy}")


def silence(stream: TextIO) -> None:
    """Point a broken stream's descriptor at nothing, so that flushing it at exit says nothing."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, descriptor)
    finally:
        os.close(nothing)


def prepare_streams() -> None:
    """Let stdout and stderr take any character: what an encoding lacks is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
