"""A commit that a thread is making while learning goes on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from streamlearn.errors import RunStateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .manifest import Commit

__all__ = ["PendingCommit"]


class PendingCommit:
    """A commit between its beginning and its end.

    Args:
        write: makes it; what it raises is raised by `result`.
        end: told, by whoever asks for the result, whether it happened.
    """

    def __init__(self, write: Callable[[], Commit], end: Callable[[bool], None]) -> None:
        self._write = write
        self._end: Callable[[bool], None] | None = end
        self._thread: threading.Thread | None = None
        self._commit: Commit | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make it in this thread."""
        try:
            self._commit = self._write()
        except BaseException as error:
            self._error = error

    def start(self) -> None:
        """Make it in a thread of its own, which a process that ends waits for."""
        thread = threading.Thread(target=self.run, name="streamlearn-commit")
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            self.run()
        else:
            self._thread = thread

    @property
    def done(self) -> bool:
        """Whether `result` will answer at once."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until it is over, and let the memories know how it went; raises nothing."""
        if self._thread is not None:
            self._thread.join()
        if self._end is not None:
            end, self._end = self._end, None
            end(self._commit is not None)

    def result(self) -> Commit:
        """What the commit took, once it is over.

        Raises:
            StreamlearnError: it did not happen; the one before is whole.
        """
        self.wait()
        if self._commit is None:
            raise self._error or RunStateError("this commit was never begun; begin it first")
        return self._commit
