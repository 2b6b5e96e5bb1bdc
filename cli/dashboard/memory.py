"""What a run takes, as the overview shows it: its layers, and where their bytes are."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from streamlearn.cli.format import MISSING, clean, count, duration, size
from streamlearn.cli.model import Layer
from streamlearn.cli.plot import area, sparkline, styled

from .page import Page, fact_line, facts_in, rule

__all__ = ["FEW_LINES", "SHORT_PLOT", "bound", "checkpoint_age", "memory", "most_rows"]

SHORT_PLOT, FEW_LINES = 4, 3
"""The least lines of a plot, and of a list of events."""

_TALLEST = 12
"""Lines of the chart of a layer at the most."""


def memory(page: Page, width: int, room: int, tall: bool = False) -> list[Text]:
    """A line a layer, then where bytes are, and what is saved.

    Args:
        page: what is drawn.
        width: columns.
        room: lines, of which other parts want some, but for `tall`.
        tall: all of the room is for this, so layers may have charts.
    """
    model = page.model
    layers = list(model.layers.items())
    facts = [*_places(page, width), *_safety(page, width)]
    # Everything else wants at least a heading, a short plot, and the last events.
    others = 0 if tall else (2 + SHORT_PLOT) + (1 + FEW_LINES)
    free = room - 2 - len(facts) - others
    shown = max(1, min(len(layers), free))
    names = max((cell_len(clean(name)) for name, _ in layers), default=5)
    names = min(max(names, 5), max(5, width // 4))
    lines = [rule(page, "memory", width)]
    if layers:
        growth = "" if tall else "  growth"
        head = f"{'layer':<{names}} {'tuples':>12} {'bytes':>10}{growth}"
        lines.append(styled(head, "dim"))
    elif model.learner_bytes:
        line = styled("nothing grows; the learner takes ", "dim")
        lines.append(line.append(size(model.learner_bytes)))
    rows = layers if len(layers) <= shown else layers[: max(0, shown - 1)]
    chart = min(_TALLEST, free // len(layers) - 1) if tall and layers else 0
    for name, layer in rows:
        lines.append(_layer(page, name, layer, names, width, spark=chart < 1))
        if chart >= 1:
            drawn = area(layer.growth, width, chart, unicode=page.unicode)
            lines.extend(styled(line, "magenta") for line in drawn)
    if len(layers) > len(rows):
        lines.append(_rest([layer for _, layer in layers[len(rows) :]], names))
    return [*lines, *facts]


def _layer(page: Page, name: str, layer: Layer, names: int, width: int, spark: bool) -> Text:
    line = styled(set_cell_size(page.text(name).plain, names))
    line.append(f" {count(layer.tuples):>12} {size(layer.bytes):>10}  ")
    length = min(48, width - cell_len(line.plain)) if spark else 0
    return line.append(sparkline(layer.growth, length, unicode=page.unicode), "magenta")


def _rest(layers: Sequence[Layer], names: int) -> Text:
    tuples, held = (sum(layer.tuples for layer in layers), sum(layer.bytes for layer in layers))
    head = f"{len(layers)} more"
    return styled(f"{head:<{names}} {count(tuples):>12} {size(held):>10}")


def _places(page: Page, width: int) -> list[Text]:
    model, memory = page.model, page.model.memory
    facts = [
        ("device", size(memory.device_bytes) if memory else MISSING),
        ("host", size(memory.host_bytes) if memory else MISSING),
        ("process", size(memory.rss_bytes) if memory else MISSING),
        ("disk", size(model.disk_bytes)),
    ]
    line = fact_line(facts)
    return [line] if line.cell_len <= width else [fact_line(facts[:2]), fact_line(facts[2:])]


def most_rows(page: Page) -> int | None:
    """The most rows of a growing layer, where there is such a bound."""
    most: int | None = page.model.bounds.get("rows") or page.setting("memory", "rows")
    return most


def bound(page: Page) -> list[tuple[str, str]]:
    """How much is used of what the memory may have at most, and what went; where it is bounded."""
    bounds, most, budget = page.model.bounds, most_rows(page), page.setting("memory", "budget")
    used = max((layer.tuples for layer in page.model.layers.values()), default=0)
    facts = [("rows", f"{count(used)} of {count(most)}")] if most else []
    if budget:
        facts.append(("budget", f"{size(bounds.get('used'))} of {size(budget)}"))
    if bounds.get("left"):
        facts.append(("left", count(bounds["left"])))
    return facts


def checkpoint_age(page: Page) -> str:
    """How long ago the last checkpoint was, and at which step."""
    model = page.model
    if model.checkpoint_time is None:
        return "none yet"
    # A clock that was set back must not make a checkpoint younger than now.
    age = f"{duration(page.now - model.checkpoint_time)} ago"
    return age if model.checkpoint_step is None else f"{age}, step {count(model.checkpoint_step)}"


def _safety(page: Page, width: int) -> list[Text]:
    model = page.model
    age = checkpoint_age(page)
    waiting = [("waiting", count(model.waiting))] if model.waiting else []
    counts = [*bound(page), ("skipped", count(model.skipped)), *waiting]
    line = fact_line([("checkpoint", age), *counts])
    if line.cell_len <= width:
        return [line]
    return [fact_line([("checkpoint", age)]), *facts_in(counts, width)]
