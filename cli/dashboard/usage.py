"""The view of keys: what each does here, and what the other views show."""

from rich.text import Text

from .page import Page, listed, rule

__all__ = ["usage"]

_VIEWS = [
    ("1 o", "overview: accuracy, memory, the last events"),
    ("2 l", "layers: tuples, bytes and growth of each"),
    ("3 c", "classes and forgetting, drift, late labels"),
    ("4 s", "storage and cache, budgets, checkpoints"),
    ("5 e", "events"),
    ("6 ? h", "this"),
    ("left right", "the view before, the next one (also Tab)"),
]
_RUN = [
    ("space", "pause after the step under way; again: go on"),
    ("k", "checkpoint now, also in a pause"),
    ("q", "save a checkpoint and stop; resume goes on there"),
    ("Ctrl-C", "the same; once more stops at once"),
    ("Ctrl-Z", "suspend; fg brings it back"),
]
_WATCH = [
    ("q", "leave; the run goes on"),
    ("Ctrl-C", "the same"),
    ("Ctrl-Z", "suspend; fg brings it back"),
]
_READS = (
    "watch only reads: it cannot pause, save or stop a run.",
    "For that, press keys or Ctrl-C where the run was started.",
)


def usage(page: Page, width: int, room: int) -> list[Text]:
    """The keys, and where there are none, why."""
    watching = page.model.watching
    lines = [rule(page, "views", width), *listed(page, _VIEWS), Text()]
    lines += [rule(page, "keys", width), *listed(page, _WATCH if watching else _RUN)]
    if watching:
        lines += [Text(), *(page.text(line) for line in _READS)]
    return lines
