"""What a thread writes while learning goes on: a commit, or blocks ahead of one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from streamlearn.errors import RunStateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .manifest import Commit

__all__ = ["Pending", "PendingCommit"]

Result = TypeVar("Result")


class Pending(Generic[Result]):
    """Something between its beginning and its end.

    Args:
        write: does it; what it raises is raised by `result`.
        end: told, by whoever asks for the result, whether it happened.
    """

    def __init__(self, write: Callable[[], Result], end: Callable[[bool], None]) -> None:
        self._write = write
        self._end: Callable[[bool], None] | None = end
        self._thread: threading.Thread | None = None
        self._result: Result | None = None
        self._error: BaseException | None = RunStateError("it was never begun; begin it first")

    def run(self) -> None:
        """Do it in this thread."""
        try:
            self._result = self._write()
        except BaseException as error:
            self._error = error
        else:
            self._error = None

    def start(self) -> None:
        """Do it in a thread of its own, which a process that ends waits for."""
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
            end(self._error is None)

    def result(self) -> Result:
        """What came of it, once it is over.

        Raises:
            StreamlearnError: it did not happen; what was there before is whole.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # there is no error


PendingCommit: TypeAlias = "Pending[Commit]"
"""A commit between its beginning and its end."""
