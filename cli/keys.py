"""Keys that are pressed on a terminal, read without an echo and without waiting for Enter."""

import contextlib
import os
import re
import select
import sys
import termios
import time
import tty
from typing import Any

__all__ = ["Keyboard", "open_keyboard"]

_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
_NAMES = {
    "\x1b[C": "right",
    "\x1bOC": "right",
    "\x1b[D": "left",
    "\x1bOD": "left",
    "\t": "right",
}


class Keyboard:
    """A terminal's keys; signals such as that of Ctrl-C are sent as ever.

    Its modes are changed only while this process is in the terminal's foreground, where changing
    them does not stop it, and given back by `close`, as often as that is called.

    Args:
        descriptor: of the terminal.
        own: whether it is to be closed with this.
    """

    def __init__(self, descriptor: int, *, own: bool = False) -> None:
        self._descriptor = descriptor
        self._own = own
        self._before: list[Any] | None = None

    @property
    def foreground(self) -> bool:
        """Whether what is typed is meant for this process."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # not the terminal that jobs are controlled by
            return True

    def enter(self) -> None:
        """Let keys come one by one, and show none of them."""
        if self._before is None and self.foreground:
            with contextlib.suppress(OSError, termios.error):
                before = termios.tcgetattr(self._descriptor)
                tty.setcbreak(self._descriptor, termios.TCSANOW)
                self._before = before

    def leave(self) -> None:
        """Give the terminal's modes back; may be called from any thread."""
        before, self._before = self._before, None
        if before is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, before)

    def close(self) -> None:
        """Leave, and let go of the terminal."""
        self.leave()
        if self._own:
            self._own = False
            with contextlib.suppress(OSError):
                os.close(self._descriptor)

    def read(self, seconds: float = 0.0) -> list[str]:
        """The keys that were pressed, waiting so long for the first: characters, left or right."""
        if not self.foreground:
            time.sleep(seconds)
            return []
        self.enter()
        try:
            ready, _, _ = select.select([self._descriptor], [], [], seconds)
            data = os.read(self._descriptor, 1024) if ready else b""
        except (OSError, ValueError):  # the terminal went away, which drawing will find out
            time.sleep(seconds)
            return []
        return keys_of(data.decode(errors="replace"))


def keys_of(text: str) -> list[str]:
    """What a terminal sends for keys, as these; sequences of other keys are left out."""
    found = (_NAMES.get(key, key) for key in _KEY.findall(text))
    return [key for key in found if len(key) == 1 or key in ("left", "right")]


def open_keyboard(*, stdin_is_data: bool = False) -> Keyboard | None:
    """The keyboard of the terminal that this program is used on; None where keys mean no keys.

    Args:
        stdin_is_data: the standard input is what is learnt. Then keys are those of the terminal
            behind it, unless the data themselves are typed there.
    """
    try:
        typed = sys.stdin is not None and sys.stdin.isatty()
        if typed and not stdin_is_data:
            return Keyboard(sys.stdin.fileno())
        if stdin_is_data and not typed:
            return Keyboard(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY), own=True)
    except (OSError, ValueError):
        pass
    return None
