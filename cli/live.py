"""The dashboard on a terminal: draws a `Model` on the alternate screen, seldom and cheaply.

Where keys are read, they choose the view and, through `Controls`, what becomes of the run.
"""

import errno
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live

from streamlearn.events import Event

from .dashboard import VIEWS, render
from .format import layer_title
from .keys import Keyboard
from .model import Model

__all__ = ["Controls", "Dashboard", "can_draw", "speaks_unicode"]

_PAUSE = 0.25
_KEYS = 0.02
"""Seconds between two looks for keys."""

_LETTERS = {"o": "overview", "l": "layers", "c": "classes", "s": "storage", "e": "events",
            "?": "help", "h": "help"}  # fmt: skip

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?1049l\x1b[?25h"
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


class Controls(Protocol):
    """What keys can make of a run that this process learns."""

    def pause(self, paused: bool) -> None:
        """Learn nothing from the next step on, or go on."""
        ...

    def request_checkpoint(self) -> None:
        """Save as soon as a step is at its end."""
        ...

    def request_stop(self, reason: str) -> None:
        """Save at the next step and end."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What a commit would note of the run now."""
        ...


class Dashboard:
    """Shows events on the whole screen, which comes back as it was at the end.

    At most four frames a second, and fewer where drawing is slow, so that it stays within about
    one percent of the time.

    Args:
        model: what is shown; may know a run's past already.
        console: the terminal.
        keyboard: what keys come from, if any do.
        controls: the run, if this process learns it.
        clock: a monotonic clock in seconds.
        now: unix time.

    Attributes:
        view: the one of `VIEWS` that is shown.
        left: whether somebody who only watches wants to leave.
    """

    def __init__(
        self,
        model: Model,
        console: Console,
        keyboard: Keyboard | None = None,
        controls: Controls | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.model = model
        self.failed: OSError | None = None
        self.view = VIEWS[0]
        self.left = False
        self._console = console
        self._keyboard = keyboard
        self._controls = controls
        self._looked = -math.inf
        self._handlers: dict[int, Any] = {}
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
        if self._keyboard is not None:
            self._keyboard.enter()
        if threading.current_thread() is threading.main_thread():
            for number, handler in ((signal.SIGTSTP, self._suspend), (signal.SIGCONT, self._back)):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, handler)
        self.refresh()

    def close(self) -> None:
        """Give the screen back; the picture is gone from it then."""
        if self._warn is not None:
            warnings.showwarning, self._warn = self._warn, None
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._handlers.clear()
        if self._keyboard is not None:
            self._keyboard.close()
        self._attempt(self._live.stop)
        self._shown = False

    def show(self, event: Event) -> None:
        """Take in an event, and draw if it is time to."""
        self.model.update(event, self._now())
        self.tick()

    def tick(self) -> None:
        """Answer keys, and draw if it is time to."""
        now = self._clock()
        if self._keyboard is not None and now - self._looked >= _KEYS:
            self._looked = now
            self._press(self._keyboard.read())
        if now >= self._next:
            self.refresh()

    def wait(self, seconds: float) -> None:
        """Let time pass; a key is answered at once and ends it."""
        if self._keyboard is None:
            time.sleep(seconds)
        else:
            self._press(self._keyboard.read(seconds))

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
        if self._keyboard is not None:
            self._keyboard.leave()
        self._raw(f"{_LEAVE}\r\n")

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._pressed(key)
        if keys:
            self._next = -math.inf  # what was asked for is seen at once

    def _pressed(self, key: str) -> None:
        if key in ("left", "right"):
            place = VIEWS.index(self.view) + (1 if key == "right" else -1)
            self.view = VIEWS[place % len(VIEWS)]
        elif key.isdecimal() and 1 <= int(key) <= len(VIEWS):
            self.view = VIEWS[int(key) - 1]
        elif key.lower() in _LETTERS:
            self.view = _LETTERS[key.lower()]
        elif key.lower() == "q":
            self.left = True
            if self._controls is not None and self.model.stopping is None:
                self.model.stopping = "q"
                self._controls.request_stop("the key q")
        elif self._controls is not None and not self.model.over:
            if key == " ":
                self.model.pausing = not self.model.pausing
                if self.model.phase == "paused":
                    self.model.phase = "learning"
                self._controls.pause(self.model.pausing)
            elif key.lower() == "k":
                self.model.note("a checkpoint is asked for", self._now())
                self._controls.request_checkpoint()

    def _suspend(self, number: int, frame: Any) -> None:
        """Ctrl-Z: give the terminal back and stop, as without a dashboard."""
        if self._keyboard is not None:
            self._keyboard.leave()
        self._raw(_LEAVE)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # Here it goes on once it is continued.
        signal.signal(signal.SIGTSTP, self._suspend)
        self._back(number, frame)

    def _back(self, number: int, frame: Any) -> None:
        """Take the terminal again, whose modes a shell may have changed meanwhile."""
        if self._keyboard is not None:
            if not self._keyboard.foreground:
                return
            self._keyboard.leave()
            self._keyboard.enter()
        self._raw(_ENTER)
        self._next = -math.inf

    def _draw(self) -> None:
        if not self._console.is_terminal:
            # rich draws nothing then, and would not say that the terminal was closed.
            raise OSError(errno.EIO, "the terminal went away")
        if self._keyboard is not None and not self._keyboard.foreground:
            return  # the screen is another program's now
        if self._controls is not None and self.view in ("classes", "layers"):
            facts = self._controls.facts()
            self.model.summary = facts.get("summary", {})
            self.model.dead = {
                layer_title(name): dead for name, dead in facts.get("dead", {}).items()
            }
        size = self._console.size
        picture = render(
            self.model,
            size.width,
            size.height,
            self._now(),
            self._unicode,
            view=self.view,
            keys=self._keyboard is not None,
        )
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
