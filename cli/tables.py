"""Tables of plain columns, drawn by rich: as text for lines, or live on a terminal."""

import errno
import io
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .format import clean
from .live import can_draw, speaks_unicode
from .plot import bar

__all__ = ["LiveView", "columns_of_screen", "lines_of", "note", "progress_line", "table"]

_PAUSE = 0.25


def columns_of_screen() -> int:
    """The width to write for: the terminal's, as COLUMNS says, or 80."""
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> Table:
    """A table without lines; long cells of the columns `left` wrap, numbers stay on one line."""
    drawn = Table(
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for name in head:
        words = name in left
        drawn.add_column(
            Text(clean(name)),
            justify="left" if words else "right",
            overflow="fold",
            no_wrap=not words,
        )
    for row in rows:
        drawn.add_row(*(Text(clean(cell)) for cell in row))
    return drawn


def lines_of(drawn: RenderableType, width: int | None = None) -> list[str]:
    """A table as lines of text, bold where stdout is a terminal."""
    file = io.StringIO()
    terminal = can_draw()
    console = Console(
        file=file,
        width=width or columns_of_screen(),
        force_terminal=terminal,
        color_system="standard" if terminal else None,
    )
    console.print(drawn)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def progress_line(share: float, facts: str, width: int, unicode: bool = True) -> Text:
    """A bar, and at its right what it means, in one line."""
    facts = clean(facts)
    done, rest = bar(share, max(6, width - cell_len(facts) - 2), unicode)
    line = Text(no_wrap=True).append(done, "green").append(rest, "dim")
    return line.append(f"  {facts}")


def note(text: str) -> Text:
    """A line that matters less."""
    return Text(clean(text), "dim")


class LiveView:
    """A picture below the cursor that is drawn anew at most four times a second, and then goes.

    Args:
        picture: what to draw, for a width, and whether anything but ASCII may be used.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        picture: Callable[[int, bool], RenderableType],
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failed: OSError | None = None
        self._picture = picture
        self._console = console or Console()
        self._clock = clock
        self._next = -math.inf
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def open(self) -> None:
        """Begin to draw."""
        self._attempt(self._live.start)

    def tick(self, *, at_once: bool = False) -> None:
        """Draw if it is time to, or at once what seldom changes."""
        if at_once or self._clock() >= self._next:
            self._attempt(self._draw)
            self._next = self._clock() + _PAUSE

    def close(self) -> None:
        """The picture goes."""
        self._attempt(self._live.stop)

    def restore(self) -> None:
        """Give the cursor back at once; called from any thread."""
        try:
            os.write(self._console.file.fileno(), b"\x1b[?25h\r\n")
        except (OSError, ValueError):
            return

    def _draw(self) -> None:
        if not self._console.is_terminal:
            raise OSError(errno.EIO, "the terminal went away")
        picture = self._picture(self._console.size.width, speaks_unicode(self._console))
        self._live.update(picture, refresh=True)

    def _attempt(self, action: Callable[[], Any]) -> None:
        """A terminal that went away ends the drawing; whoever drives it decides what that means."""
        if self.failed is not None:
            return
        try:
            action()
        except OSError as error:
            self.failed = error
