"""The entry point: runs a command and turns what went wrong into one line and an exit code.

Exit codes: 0 done; 1 `verify` found damage; 2 a mistake or a full disk, one line on stderr; 130,
143 and 129 stopped by SIGINT, SIGTERM and SIGHUP; 141 nobody reads the output any more. Anything
else is a fault of the program and shows a traceback.
"""

import errno
import sys
from collections.abc import Sequence

__all__ = ["main"]

_MISTAKE = 2
_SIGINT_EXIT = 130
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
"""How a system says that a path, which somebody named, cannot be looked at or used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code.

    Args:
        argv: the words after the program's name; None for those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
    except KeyboardInterrupt:
        code = _SIGINT_EXIT
    if argv is None and code > 128:
        _ignore_signals()
    return code


def _run(words: list[str]) -> int:
    from streamlearn.errors import StreamlearnError

    from .output import prepare_streams
    from .signals import Interrupted

    prepare_streams()
    try:
        import typer

        from .app import app

        # Its parent is not exported: every mistake in the words that were typed.
        usage_error: type[Exception] = typer.BadParameter.__mro__[1]
        try:
            code = app(args=words, prog_name="streamlearn", standalone_mode=False)
        except usage_error as error:
            return _fail(_usage(error), words)
        return code if isinstance(code, int) else 0
    except StreamlearnError as error:
        return _fail(str(error), words)
    except Interrupted as interrupted:
        return interrupted.exit_code
    except MemoryError:
        return _fail(_OUT_OF_MEMORY, words)
    except OSError as error:
        if error.errno in _REFUSALS and error.filename is not None:
            reason = (error.strerror or "refused").lower()
            remedy = "give yourself the permission, or name another place"
            return _fail(f"{str(error.filename)!r} cannot be used: {reason}; {remedy}", words)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = f" at {error.filename}" if error.filename else ""
        return _fail(f"the disk is full{place}; make room and go on with `resume`", words)
    except RuntimeError as error:
        # How torch says that an allocation on the device or the host failed.
        if type(error).__name__ == "OutOfMemoryError" or "t allocate memory" in str(error):
            return _fail(_OUT_OF_MEMORY, words)
        raise


_OUT_OF_MEMORY = (
    "out of memory; a run keeps what its last checkpoint holds, resume it on a larger machine or "
    "run a shorter stream (data.limit=N)"
)


def _usage(error: Exception) -> str:
    """A mistake in the words that were typed, with where to look."""
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "streamlearn")
    return f"{message} (see `{command} --help`)"


def _fail(message: str, words: Sequence[str]) -> int:
    """One line on stderr, and with `--json` an error event on stdout."""
    from .format import clean
    from .json_lines import to_json
    from .output import Output

    line = " ".join(clean(message).split())
    if "--json" in words:
        Output(sys.stdout).line(to_json({"event": "error", "message": line}))
    Output(sys.stderr).line(f"error: {line}")
    return _MISTAKE


def _ignore_signals() -> None:
    """The run is saved and the program on its way out: one more signal must not change how."""
    import signal

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
