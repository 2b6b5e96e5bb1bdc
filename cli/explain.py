"""`explain`: which stored samples made an answer of a run."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .format import MISSING, clean, count, number, percent, shortened
from .json_lines import to_json
from .output import Output
from .output_file import check_output_file, need_matplotlib

if TYPE_CHECKING:
    from rich.text import Text

    from streamlearn.scenarios.explain import Asked, Explanation, LayerView, Witness
    from streamlearn.storage import RunPath

__all__ = ["explain", "facts_of"]

_CLASSES = 6
"""The most classes of a table; --json has them all."""

_TEXT = 100
"""The most letters of a record; --json has all of it."""

_NAME = 28
"""The most letters of a class's name."""


def explain(
    path: "RunPath",
    asked: "Asked",
    words: Sequence[str],
    output: Output,
    *,
    top: int,
    json: bool,
    to: Path | None,
) -> int:
    """Print what made an answer, and write it to a file if one is named.

    Returns:
        1 if contributions do not sum to the answer, else 0.
    """
    if to is not None:
        check_output_file(to, kinds=(".html", ".png"))
        if to.suffix.lower() == ".png":
            need_matplotlib(f"-o {str(to)!r}", ", or write .html")
    from streamlearn.scenarios.explain import explain as find

    told = find(path, asked, words, top=top)
    if to is not None and to.suffix.lower() == ".png":
        from .explain_png import write_png

        write_png(to, told)
    elif to is not None:
        from .explain_html import write_html

        write_html(to, told)
    if json:
        output.line(to_json(facts_of(told)))
    else:
        for line in _drawn(_lines(told)):
            output.line(line)
        if to is not None:
            output.line(f"\nwritten to {clean(str(to))}")
    return 1 if told.sums is False else 0


def facts_of(told: "Explanation") -> dict[str, Any]:
    """All of an explanation but its pictures, ready for JSON."""
    facts = dataclasses.asdict(dataclasses.replace(told, pictures={}, picture=None))
    for name in ("pictures", "picture"):
        del facts[name]
    return facts


# -- lines -----------------------------------------------------------------------------------------


def _drawn(lines: "Sequence[str | Text | _Strip]") -> list[str]:
    """Lines for stdout; pictures where it is a terminal with colours."""
    from rich.console import Console

    from .thumbnails import can_show, strip

    console = Console(file=sys.stdout, highlight=False)
    shows = console.is_terminal and can_show(console)
    found: list[str] = []
    for line in lines:
        if isinstance(line, str):
            found.append(line)
        elif isinstance(line, _Strip) and shows:
            with console.capture() as capture:
                for text in strip(line.pictures, min(console.width, 100)):
                    console.print(text, soft_wrap=True)
            found += capture.get().splitlines()
    return found


@dataclasses.dataclass(frozen=True)
class _Strip:
    """Pictures side by side, each with a few words."""

    pictures: list[tuple[Any, str]]


def _lines(told: "Explanation") -> "list[str | Text | _Strip]":
    right = told.truth is not None and told.truth == told.prediction
    verdict = "" if told.truth is None or not told.purity_of else (
        " (right)" if right else " (wrong)"
    )  # fmt: skip
    lines: list[str | Text | _Strip] = [
        f"run          {clean(told.run)}, step {count(told.step)}, {count(told.samples)} samples",
        f"explained    {clean(told.asked)}",
        f"label        {MISSING if told.truth is None else clean(told.truth)}",
        f"prediction   {clean(told.prediction)}{verdict}",
    ]
    if told.picture is not None:
        lines += ["", _Strip([(told.picture, "")])]
    lines += ["", *_answer_lines(told), "", *_sum_lines(told)]
    for case in told.cases:
        for title, witnesses in (("for", case.helpers), ("against", case.hurters)):
            lines += ["", f"{title} {_name(case.name)}, whose output is {number(case.output)}"]
            lines += _witness_lines(witnesses, "contribution", _signed)
            lines += _text_lines(told, witnesses)
            lines += _pictures(told, witnesses, _signed)
    for layer in told.layers:
        lines += ["", *_layer_lines(layer, told)]
    return [*lines, *(line for note in told.notes for line in ("", f"note: {clean(note)}"))]


def _answer_lines(told: "Explanation") -> list[str]:
    if not told.purity_of:
        values = [(_name(name), number(value)) for name, value in told.answers.items()]
        return _table(("output", "value"), values[:_CLASSES])
    ordered = sorted(told.answers, key=lambda name: -told.answers[name])
    rows = [
        (_name(name), percent(told.answers[name]), number(told.outputs.get(name)))
        for name in ordered[:_CLASSES]
    ]
    lines = _table(("class", "probability", "output"), rows)
    if len(ordered) > _CLASSES:
        lines.append(f"{count(len(ordered) - _CLASSES)} more classes; --json has them all")
    return lines


def _sum_lines(told: "Explanation") -> list[str]:
    if told.attributed is None:
        return [f"attribution  none: {told.reason}"]
    view = next(layer for layer in told.layers if layer.name == told.attributed)
    verb = "sum" if told.sums else "do NOT sum"
    lines = [
        f"attribution  the contributions of the {count(view.tuples)} tuples of layer "
        f"{told.attributed} {verb} to its outputs: off by {told.off:.1e} at most "
        f"(allowed: {told.tolerance:.1e})"
    ]
    for what, values in (("starting rows", told.starting), ("no tuple", told.beside)):
        largest = max((abs(value) for value in values.values()), default=0.0)
        if largest > 0:
            lines.append(f"             of {what} are up to {number(largest)} of an output")
    return lines


def _layer_lines(layer: "LayerView", told: "Explanation") -> "list[str | _Strip]":
    lines: list[str | _Strip] = [
        f"layer {layer.name}: {count(layer.tuples)} tuples, attention as on "
        f"{count(round(layer.effective))} of them alike"
    ]
    if layer.purity is not None:
        share = percent(layer.purity, 0)
        lines.append(f"  label purity  {share} of the first 50 are {_name(told.purity_of)}")
    lines += _witness_lines(layer.attended, "attention", lambda value: percent(value, 3))
    lines += _text_lines(told, layer.attended)
    lines += _pictures(told, layer.attended, lambda value: percent(value, 2))
    if layer.by_class:
        ordered = sorted(layer.by_class, key=lambda name: -layer.by_class[name])[:_CLASSES]
        shares = ", ".join(f"{_name(n)} {percent(layer.by_class[n], 1)}" for n in ordered)
        lines.append(f"  by class      {shares}")
    times = " ".join(f"{100 * value:.0f}" for value in layer.by_time)
    lines.append(f"  by time       {times}  (% by tenths of the run, first to last)")
    return lines


def _witness_lines(witnesses: "Sequence[Witness]", what: str, show: Any) -> list[str]:
    if not witnesses:
        return ["  none"]
    rows = [
        (
            show(one.score),
            MISSING if one.sample is None else count(one.sample),
            MISSING if one.label is None else _name(one.label),
            f"{count(one.age)} ago",
            "itself" if one.itself else "",
        )
        for one in witnesses
    ]
    return [f"  {line}" for line in _table((what, "sample", "label", "written", ""), rows)]


def _text_lines(told: "Explanation", witnesses: "Sequence[Witness]") -> list[str]:
    texts = [(one.sample, told.texts[one.sample]) for one in witnesses
             if one.sample is not None and one.sample in told.texts]  # fmt: skip
    return [f"  {count(sample)}  {clean(shortened(text, _TEXT))}" for sample, text in texts]


def _pictures(told: "Explanation", witnesses: "Sequence[Witness]", show: Any) -> list[_Strip]:
    pictures = [
        (told.pictures[one.sample], f"{one.label or MISSING} {show(one.score)}")
        for one in witnesses
        if one.sample is not None and one.sample in told.pictures
    ]
    return [_Strip(pictures)] if pictures else []


def _signed(value: float) -> str:
    return f"{value:+.4f}" if math.isfinite(value) else MISSING


def _name(name: str) -> str:
    text = clean(name)
    return text if len(text) <= _NAME else f"{text[: _NAME - 3]}..."


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Cells under their titles: the first column begun at the left, others ended at the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
