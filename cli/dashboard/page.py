"""What all views are drawn with: the moment and the room, and lines that fit it exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from streamlearn.cli.format import clean
from streamlearn.cli.model import Model
from streamlearn.cli.plot import styled

__all__ = [
    "SIDE_BY_SIDE",
    "VIEWS",
    "Page",
    "bold_facts",
    "fact_line",
    "facts_in",
    "fit_line",
    "listed",
    "rule",
    "side_by_side",
    "spread",
]

VIEWS = ("overview", "layers", "classes", "storage", "events", "help")
"""The views by name, in the order of their keys 1 to 6."""

SIDE_BY_SIDE = 110
"""From this width on, two parts of a view stand side by side."""


@dataclass(frozen=True, slots=True)
class Page:
    """What all parts need: the model, the moment, and which characters may be used.

    keys: whether keys are heard.
    """

    model: Model
    now: float
    unicode: bool
    keys: bool = False

    def text(self, text: str, style: str = "") -> Text:
        """Text from outside, made safe for this terminal."""
        safe = clean(text)
        if not self.unicode:
            safe = safe.encode("ascii", "replace").decode("ascii")
        return styled(safe, style)

    def setting(self, section: str, name: str) -> Any:
        """What the run's scenario says, None where it is not known."""
        found = self.model.settings.get(section)
        return found.get(name) if isinstance(found, dict) else None


def rule(page: Page, title: str, width: int) -> Text:
    """A line across with a title in it."""
    dash = "─" if page.unicode else "-"
    line = styled(f"{dash}{dash} ", "dim")
    line.append(title, "bold")
    return line.append(" " + dash * (width - len(title) - 4), "dim")


def bold_facts(facts: Sequence[tuple[str, str, str]]) -> Text:
    """Names, values, and the values' styles in a line."""
    line = styled()
    for name, value, style in facts:
        if line:
            line.append("   ")
        line.append(f"{name} ", "dim")
        line.append(value, f"bold {style}".strip())
    return line


def fact_line(facts: Sequence[tuple[str, str]]) -> Text:
    """Names and values in a line."""
    line = styled()
    for name, value in facts:
        if line:
            line.append("   ")
        line.append(f"{name} ", "dim")
        line.append(value)
    return line


def facts_in(facts: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """The same in as many lines of this width as it takes."""
    lines: list[list[tuple[str, str]]] = []
    for fact in facts:
        if lines and fact_line([*lines[-1], fact]).cell_len <= width:
            lines[-1].append(fact)
        else:
            lines.append([fact])
    return [fact_line(line) for line in lines]


def listed(page: Page, facts: Sequence[tuple[str, str]]) -> list[Text]:
    """Names and values, a line each, the values under one another."""
    width = max((len(name) for name, _ in facts), default=0)
    lines = []
    for name, value in facts:
        line = styled(f"{name:<{width}}  ", "dim")
        lines.append(line.append_text(page.text(value)))
    return lines


def side_by_side(page: Page, left: list[Text], right: list[Text], width: int) -> list[Text]:
    """Two columns of lines, the left one of this width."""
    rows = []
    for index in range(max(len(left), len(right))):
        line = fit_line(left[index] if index < len(left) else Text(), width, page.unicode)
        line.end = ""
        line.append("  ")
        line.append_text(right[index] if index < len(right) else Text())
        rows.append(line)
    return rows


def spread(left: Text, right: Text, width: int, unicode: bool) -> Text:
    """Left and right parts at the two ends of a line; the left one gives way."""
    room = width - right.cell_len - 1
    if room < 1:
        return right
    line = fit_line(left, room, unicode)
    line.end = ""
    line.append(" ")
    return line.append_text(right)


def fit_line(text: Text, width: int, unicode: bool) -> Text:
    """The text on a line of exactly this width; where it is cut, it says so."""
    line = text.copy()
    line.no_wrap, line.overflow, line.end = True, "crop", "\n"
    if unicode or line.cell_len <= width or width < 4:
        line.truncate(width, overflow="ellipsis" if unicode else "crop", pad=True)
        return line
    line.truncate(width - 3, overflow="crop", pad=True)
    return line.append("...")
