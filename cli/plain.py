"""Events as plain lines: for logs, pipes, screen readers and terminals that can do no more."""

import math
import os
import time
from collections.abc import Callable

from streamlearn.events import Event, Finished, Progress, Skipped, Started, Stopped, Testing

from .describe import describe, summary
from .format import clean
from .output import Output

__all__ = ["PlainLines"]

_PAUSE = 5.0


class PlainLines:
    """Writes a line an event; progress about every five seconds, and always the last one.

    Args:
        progress: where what happens meanwhile goes (stderr, so that stdout holds the result).
        result: where the closing summary goes.
        path: the run, for the summary.
        quiet: the summary only.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        progress: Output,
        result: Output,
        path: str,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._result = result
        self._path = path
        self._quiet = quiet
        self._clock = clock
        self._next = -math.inf
        self._held: Progress | Testing | None = None

    @property
    def failed(self) -> OSError | None:
        """What ended one of the outputs, if anything did."""
        return self._result.failed or self._progress.failed

    def open(self) -> None:
        """Nothing: lines need no screen."""

    def restore(self) -> None:
        """Nothing: the terminal is as it was."""

    def show(self, event: Event) -> None:
        """Write an event, or hold it back until it is the last of its kind."""
        if isinstance(event, (Progress, Testing)):
            if self._held is not None and type(self._held) is not type(event):
                self._flush()
            now = self._clock()
            if now < self._next:
                self._held = event
                return
            self._next = now + _PAUSE
            self._held = None
            self._say(describe(event))
            return
        if isinstance(event, Skipped):  # bad rows may be many: each alone is no news of progress
            self._say(describe(event))
            return
        self._flush()
        if isinstance(event, (Finished, Stopped)):
            for line in summary(event, self._path):
                self._result.line(line)
            return
        if isinstance(event, Started):
            self._say(clean(f"{event.scenario} in {self._path}"))
        self._say(describe(event))

    def stopping(self, name: str) -> None:
        """Say at once that a signal was heard; called from any thread, past every buffer."""
        if self._quiet:
            return
        try:
            os.write(2, f"{name}: saving a checkpoint; the same again stops at once\n".encode())
        except OSError:
            return

    def close(self) -> None:
        """Write what was held back."""
        self._flush()

    def _flush(self) -> None:
        if self._held is not None:
            self._say(describe(self._held))
            self._held = None

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._progress.line(line)
