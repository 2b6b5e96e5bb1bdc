"""The layers of a run: what each stores, of how much it may, and how that grew."""

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from streamlearn.cli.format import clean, count, number, percent, size
from streamlearn.cli.model import Layer
from streamlearn.cli.plot import area, bar, sparkline, styled

from .memory import most_rows
from .page import Page, facts_in, rule

__all__ = ["layers"]

_TALLEST = 16
"""Lines of the chart of a layer at the most."""


def layers(page: Page, width: int, room: int) -> list[Text]:
    """Tuples, bytes, growth and dead rows of each layer, and the settings they grow by."""
    model = page.model
    known = list(model.layers.items())
    foot = [rule(page, "how they grow", width), *facts_in(_settings(page), width)]
    lines = [rule(page, "layers", width)]
    if not known:
        nothing = f"nothing grows; the learner takes {size(model.learner_bytes)}"
        return [*lines, styled(nothing if model.learner_bytes else "nothing is stored yet"), *foot]
    names = max(5, *(cell_len(clean(name)) for name, _ in known))
    names = min(names, max(5, width // 4))
    most = most_rows(page)
    head = f"{'layer':<{names}} {'tuples':>12} {'bytes':>10} {'a tuple':>9} {'dead':>8}"
    free = room - len(lines) - 1 - len(foot)
    each = max(1, free // len(known))
    beside = "of its rows" if most else "growth" if each < 3 else ""
    lines.append(styled(f"{head}  {beside}".rstrip(), "dim"))
    shown = known if len(known) <= free else known[: max(0, free - 1)]
    for name, layer in shown:
        lines.append(_row(page, name, layer, names, width, most, spark=each < 3))
        if each >= 3:
            chart = min(_TALLEST, each - 1)
            drawn = area(layer.growth, width, chart, unicode=page.unicode)
            lines += [styled(line, "magenta") for line in drawn]
    if len(known) > len(shown):
        rest = [layer for _, layer in known[len(shown) :]]
        tuples, held = sum(one.tuples for one in rest), sum(one.bytes for one in rest)
        more = f"{len(rest)} more"
        lines.append(styled(f"{more:<{names}} {count(tuples):>12} {size(held):>10}"))
    return [*lines, *foot]


def _row(
    page: Page, name: str, layer: Layer, names: int, width: int, most: int | None, spark: bool
) -> Text:
    line = styled(set_cell_size(page.text(name).plain, names))
    each = size(layer.bytes / layer.tuples) if layer.tuples else size(None)
    line.append(f" {count(layer.tuples):>12} {size(layer.bytes):>10} {each:>9}")
    line.append(f" {count(page.model.dead.get(name)):>8}  ")
    free = width - cell_len(line.plain)
    if most:
        share = layer.tuples / most
        told = f" {percent(share, 1)} of {count(most)}"
        done, rest = bar(share, max(0, min(30, free - len(told))), page.unicode)
        line.append(done, "magenta").append(rest, "dim")
        return line.append(told)
    if spark:
        line.append(sparkline(layer.growth, max(0, min(60, free)), unicode=page.unicode), "magenta")
    return line


def _settings(page: Page) -> list[tuple[str, str]]:
    """What the scenario says of the network and of its rates, as far as it is known."""
    words = []
    for section, names in {
        "network": ("hidden", "width"),
        "layer": ("kind", "kappa", "gamma", "temperature", "lr_value", "lr_weight"),
        "optimizer": ("momentum", "decay"),
        "learner": ("kind", "batch", "rehearsal", "members"),
        "memory": ("rows", "budget", "policy", "block_rows"),
    }.items():
        for name in names:
            value = page.setting(section, name)
            if value is not None:
                told = number(value, 4).rstrip("0") if isinstance(value, float) else str(value)
                words.append((f"{section}.{name}", told.rstrip(".")))
    return words or [("settings", "not known")]
