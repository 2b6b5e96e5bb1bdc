"""What stands around every view: the run and its progress above, tabs and keys below."""

from collections.abc import Callable
from pathlib import PurePath

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from streamlearn.cli.format import count, duration, percent, rate
from streamlearn.cli.model import Model
from streamlearn.cli.plot import bar, styled

from .classes import classes
from .events import events
from .layers import layers
from .overview import overview
from .page import VIEWS, Page, fit_line, spread
from .storage import storage
from .usage import usage

__all__ = ["render"]

_PHASE_STYLES = {
    "learning": "green",
    "testing": "cyan",
    "finished": "bold green",
    "stopped": "yellow",
    "stopping": "yellow",
    "paused": "bold yellow",
    "pausing": "yellow",
    "crashed": "bold red",
}

_DRAWN: dict[str, Callable[[Page, int, int], list[Text]]] = {
    "overview": overview,
    "layers": layers,
    "classes": classes,
    "storage": storage,
    "events": events,
    "help": usage,
}


def render(
    model: Model,
    width: int,
    height: int,
    now: float,
    unicode: bool = True,
    *,
    view: str = "overview",
    keys: bool = False,
) -> RenderableType:
    """The dashboard as at most `height` lines of exactly `width` columns.

    Args:
        model: what is known of the run.
        width: columns of the screen.
        height: lines of the screen.
        now: unix time, for ages.
        unicode: whether anything but ASCII may be used.
        view: which of `VIEWS`.
        keys: whether keys are heard, so that what they do is shown.
    """
    page = Page(model, now, unicode, keys)
    width, height = max(1, width), max(1, height)
    head = [_title(page, width), _progress(page, width)]
    foot = [*([_tabs(page, width, view)] if keys else []), _footer(page)]
    room = max(0, height - len(head) - len(foot))
    body = _DRAWN[view](page, width, room)[:room]
    body += [Text() for _ in range(room - len(body))]
    lines = [*head, *body, *foot]
    return Group(*(fit_line(text, width, unicode) for text in lines[:height]))


def _title(page: Page, width: int) -> Text:
    model = page.model
    phase = model.phase
    if not model.over and model.stopping:
        phase = f"stopping ({model.stopping})"
    elif not model.over and model.pausing and phase != "paused":
        phase = "pausing"
    left = page.text("streamlearn", "bold")
    if model.scenario:
        left.append("  ")
        left.append_text(page.text(model.scenario, "bold cyan"))
    name = PurePath(model.run).name
    if name and name != model.scenario:
        left.append("  ")
        left.append_text(page.text(name))
    machine = " ".join(part for part in (model.device, model.dtype) if part)
    if left.cell_len + len(machine) + len(phase) + 4 > width:
        machine = ""
    right = styled(f"{machine}  " if machine else "", "dim")
    right.append(phase, _PHASE_STYLES.get(phase.split()[0], ""))
    return spread(left, right, width, page.unicode)


def _progress(page: Page, width: int) -> Text:
    model = page.model
    if model.testing is not None:
        done, total = model.testing.samples, model.testing.total_samples
        facts = [f"{count(done)}/{count(total)} test samples"]
    else:
        done, total = model.position, model.total_samples or 0
        facts = [f"{count(done)}/{count(total)}" if total else f"{count(done)} samples"]
        facts.append(rate(model.rate))
        if model.over:
            facts.append(f"in {duration(model.seconds)}")
        elif model.total_samples is not None:
            facts.append(f"{duration(model.time_left())} left")
        else:
            facts.append(f"for {duration(model.seconds)}")
    fraction = done / total if total else 0.0
    if total:
        facts.insert(0, percent(fraction, 1))
    right = "  ".join(facts)
    length = width - cell_len(right) - 2
    if length < 6 or not total:
        return styled(right, "bold")
    filled, rest = bar(fraction, length, page.unicode)
    line = styled(filled, "green")
    line.append(rest, "dim")
    line.append("  " + right)
    return line


def _tabs(page: Page, width: int, view: str) -> Text:
    """The views and their keys, by their numbers alone where there is no room for names."""
    names = [(number, name) for number, name in enumerate(VIEWS, start=1)]
    short = sum(len(name) + 5 for _, name in names) > width
    line = styled()
    for number, name in names:
        shown = f" {number} " if short and name != view else f" {number} {name} "
        line.append(shown, "reverse bold" if name == view else "dim")
        if name == view and not page.unicode:
            line.append("<", "dim")
        line.append(" ")
    return line


def _footer(page: Page) -> Text:
    model = page.model
    if model.stopping and not model.over:
        return page.text("saving a checkpoint; the same again stops at once", "dim")
    if page.keys:
        if model.watching:
            return page.text("watching: q leaves, the run goes on  left/right other views", "dim")
        goes = "go on" if model.pausing else "pause"
        return page.text(f"space {goes}  k checkpoint now  q save and quit  ? help", "dim")
    if model.over:
        return page.text(model.run, "dim")
    if model.watching:
        return page.text("watching; Ctrl-C leaves the run alone", "dim")
    return page.text("Ctrl-C saves a checkpoint and stops", "dim")
