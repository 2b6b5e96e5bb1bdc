"""What happened: the last lines of the list of events, or a screen full of them."""

from rich.text import Text

from streamlearn.cli.format import clock
from streamlearn.cli.plot import styled

from .page import Page, rule

__all__ = ["events", "last_events"]


def events(page: Page, width: int, room: int) -> list[Text]:
    """As many of the last events as there is room for, the newest below."""
    return last_events(page, width, room)


def last_events(page: Page, width: int, rows: int) -> list[Text]:
    """A heading and the last events, so many lines in all."""
    lines = [rule(page, "events", width)]
    last = list(page.model.lines)[-(rows - 1) :] if rows > 1 else []
    for entry in last:
        line = styled(f"{clock(entry.time)}  ", "dim")
        line.append_text(page.text(entry.text))
        lines.append(line)
    return [*lines, *(Text() for _ in range(rows - len(lines)))]
