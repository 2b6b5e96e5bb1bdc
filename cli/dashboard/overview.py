"""The first view: accuracy or errors, memory, and the last events.

When room is short the plot shrinks first, then the list of events.
"""

from rich.text import Text

from .events import last_events
from .memory import FEW_LINES, SHORT_PLOT, memory
from .page import SIDE_BY_SIDE, Page, side_by_side
from .quality import accuracy

__all__ = ["overview"]


def overview(page: Page, width: int, room: int) -> list[Text]:
    """How well it learns, what it takes, and what happened last."""
    if width >= SIDE_BY_SIDE and room >= 14:
        return _wide(page, width, room)
    return _tall(page, width, room)


def _tall(page: Page, width: int, room: int) -> list[Text]:
    """Accuracy above memory above events."""
    places = memory(page, width, room)
    room -= len(places)
    plot_rows = max(SHORT_PLOT, (room - 3) * 2 // 3)
    events = room - 2 - plot_rows
    if events < 1 + FEW_LINES:
        plot_rows = max(SHORT_PLOT, room - 2 - 1 - FEW_LINES)
        events = room - 2 - plot_rows
    return [
        *accuracy(page, width, plot_rows),
        *places,
        *(last_events(page, width, events) if events >= 2 else []),
    ]


def _wide(page: Page, width: int, room: int) -> list[Text]:
    """Accuracy beside memory, events below both."""
    right = min(76, max(48, width * 2 // 5))
    left = width - right - 2
    events = max(1 + FEW_LINES, room // 4)
    upper = room - events
    places = memory(page, right, upper, tall=True)
    curves = accuracy(page, left, upper - 2)
    rows = side_by_side(page, [*curves, *_blank(upper)][:upper], places, left)[:upper]
    return [*rows, *last_events(page, width, events)]


def _blank(lines: int) -> list[Text]:
    return [Text() for _ in range(lines)]
