"""What happened: the last lines of the list of events, or a screen full of them."""

import io

from rich.console import Console
from rich.text import Text

from streamlearn.cli.format import clock
from streamlearn.cli.model import Line
from streamlearn.cli.plot import styled

from .page import Page, rule

__all__ = ["events", "last_events"]

_CONSOLE = Console(file=io.StringIO(), width=80)
"""Only for what wrapping asks of one."""


def events(page: Page, width: int, room: int) -> list[Text]:
    """As many of the last events as there is room for, the newest below."""
    return last_events(page, width, room)


def last_events(page: Page, width: int, rows: int) -> list[Text]:
    """A heading and the last events, so many lines in all."""
    free = max(0, rows - 1)
    told: list[Text] = []
    for entry in reversed(page.model.lines):
        if len(told) >= free:
            break
        told[:0] = _wrapped(page, entry, width)
    told = told[max(0, len(told) - free) :]
    return [rule(page, "events", width), *told, *(Text() for _ in range(free - len(told)))]


def _wrapped(page: Page, entry: Line, width: int) -> list[Text]:
    """An event in as many lines as it takes, the time before the first."""
    moment = f"{clock(entry.time)}  "
    text = page.text(entry.text)
    room = width - len(moment)
    if room < 20 or text.cell_len <= room:
        parts = [text]
    else:
        parts = list(Text(text.plain).wrap(_CONSOLE, room))
    begins = [moment, *(" " * len(moment) for _ in parts[1:])]
    return [
        styled(begin, "dim").append_text(part) for begin, part in zip(begins, parts, strict=True)
    ]
