"""The dashboard on a terminal: draws a `Model` on the alternate screen, seldom and cheaply."""

import errno
import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live

from streamlearn.events import Event

from .dashboard import render
from .model import Model

__all__ = ["Dashboard", "can_draw", "speaks_unicode"]

_PAUSE = 0.25
_LONGEST_PAUSE = 5.0
_SHARE = 0.01
"""Of the time, what drawing may take; a slow terminal is drawn to less often."""


def can_draw() -> bool:
    """Whether stdout is a terminal that can show more than lines."""
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")


def speaks_unicode(console: Console) -> bool:
    """Whether the console's encoding can show box and braille characters."""
    return console.encoding.lower().replace("-", "").startswith("utf")


class Dashboard:
    """Shows events on the whole screen, which comes back as it was at the end.

    At most four frames a second, and fewer where drawing is slow, so that it stays within about
    one percent of the time.

    Args:
        model: what is shown; may know a run's past already.
        console: the terminal.
        clock: a monotonic clock in seconds.
        now: unix time.
    """

    def __init__(
        self,
        model: Model,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.model = model
        self.failed: OSError | None = None
        self._console = console
        self._clock = clock
        self._now = now
        self._unicode = speaks_unicode(console)
        self._next = -math.inf
        self._cost = 0.0
        self._live = Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._shown = False
        self._warn: Any = None

    def open(self) -> None:
        """Take the screen."""
        self._warn = warnings.showwarning
        warnings.showwarning = self._warning
        self._attempt(self._live.start)
        self._shown = True
        self.refresh()

    def close(self) -> None:
        """Give the screen back; the picture is gone from it then."""
        if self._warn is not None:
            warnings.showwarning, self._warn = self._warn, None
        self._attempt(self._live.stop)
        self._shown = False

    def show(self, event: Event) -> None:
        """Take in an event, and draw if it is time to."""
        self.model.update(event, self._now())
        self.tick()

    def tick(self) -> None:
        """Draw if it is time to."""
        if self._clock() >= self._next:
            self.refresh()

    def refresh(self) -> None:
        """Draw now."""
        begun = self._clock()
        self._attempt(self._draw)
        ended = self._clock()
        # One slow frame, as the first one is, says little: the quicker of the last two counts.
        cost, self._cost = min(self._cost, ended - begun), ended - begun
        self._next = ended + min(_LONGEST_PAUSE, max(_PAUSE, cost / _SHARE))

    def stopping(self, name: str) -> None:
        """Say at once that a signal was heard; called from any thread, past every buffer."""
        self.model.stopping = name
        line = f"{name}: saving a checkpoint; the same again stops at once"
        # Save the cursor, go to the last line, clear it, write, go back.
        self._raw(f"\x1b7\x1b[999;1H\x1b[2K{line}\x1b8")

    def restore(self) -> None:
        """Give the terminal back without help from anything that may be half way through."""
        self._raw("\x1b[?1049l\x1b[?25h\r\n")

    def _draw(self) -> None:
        if not self._console.is_terminal:
            # rich draws nothing then, and would not say that the terminal was closed.
            raise OSError(errno.EIO, "the terminal went away")
        size = self._console.size
        picture = render(self.model, size.width, size.height, self._now(), self._unicode)
        self._live.update(picture, refresh=True)

    def _attempt(self, action: Callable[[], Any]) -> None:
        """A terminal that went away ends the drawing, not the learning."""
        if self.failed is not None:
            return
        try:
            action()
        except OSError as error:
            self.failed = error

    def _raw(self, text: str) -> None:
        if not self._shown:
            return
        try:
            os.write(self._console.file.fileno(), text.encode())
        except (OSError, ValueError):
            return

    def _warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        """A warning would scribble over the screen: it becomes a line in the list of events."""
        self.model.note(f"{category.__name__}: {message}", self._now())
