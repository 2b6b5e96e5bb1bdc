"""Answers of a run on its report: what was predicted, and which stored samples made it so."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamlearn.errors import StreamlearnError
from streamlearn.storage import RunPath

from .explain_html import image_of, witnesses_of
from .format import MISSING, number, percent

if TYPE_CHECKING:
    from streamlearn.scenarios.explain import Explanation

__all__ = ["EXPLAINED_STYLE", "explanations"]

EXPLAINED_STYLE = """
:root { --good: #2a8a4a; --bad: #c0443c; }
.answers { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr));
  gap: 1.5rem 2.5rem; }
.answer h4 { font-size: .85rem; font-weight: 600; margin: .6rem 0 .3rem; opacity: .75; }
.answer .own { width: 6.5rem; image-rendering: pixelated; display: block; }
.row { display: flex; flex-wrap: wrap; gap: .7rem; }
.row figure { flex: none; width: 5.5rem; font-size: .8rem; border-top: 3px solid var(--line); }
.row figure.good { border-color: var(--good); } .row figure.bad { border-color: var(--bad); }
.row img { width: 5.5rem; image-rendering: pixelated; display: block; }
.row figcaption { overflow-wrap: anywhere; }
.wrong { color: var(--bad); } .right { color: var(--good); }
"""

_TOP = 5
"""Helpers and hurters of an answer."""


def explanations(paths: Sequence[RunPath], count: int) -> list[str]:
    """For each run the explained answers as HTML, or a sentence that says why there are none.

    Args:
        paths: of the runs.
        count: answers of each; 0 gives an empty list.
    """
    return [_explained(path, count) for path in paths] if count else []


def _explained(path: RunPath, count: int) -> str:
    from streamlearn.scenarios.explain import Explaining

    try:
        run = Explaining(path)
        asked = run.examples(count)
        told = [run.told(one, top=_TOP) for one in asked]
    except (StreamlearnError, OSError) as error:
        return f'<p class="note">None, for {_text(str(error))}.</p>'
    if not told:
        return '<p class="note">None, for no stored tuple says which sample it is of.</p>'
    notes = dict.fromkeys(note for one in told for note in one.notes)
    where = "of the held-out test" if asked[0].test else "that were stored last"
    answers = "".join(_answer(one) for one in told)
    return (
        f'<p class="note">Samples {where}, and the stored tuples whose contributions to the '
        "predicted output are largest, with their label, contribution, sample and age in samples; "
        "streamlearn explain has all of it.</p>"
        f'<div class="answers">{answers}</div>'
        + "".join(f'<p class="note">{_text(note)}</p>' for note in notes)
    )


def _answer(told: "Explanation") -> str:
    right = told.truth == told.prediction
    verdict = "" if told.truth is None or not told.purity_of else (
        f' <span class="{"right" if right else "wrong"}">{"right" if right else "wrong"}</span>'
    )  # fmt: skip
    share = f", {percent(told.answers[told.prediction])}" if told.purity_of else ""
    label = MISSING if told.truth is None else _text(told.truth)
    parts = [
        f"<h3>{_text(told.asked)}: {_text(told.prediction)}{share}{verdict}</h3>",
        "" if told.picture is None else image_of(told.picture, told.asked, "own"),
        f"<p>label {label}</p>",
    ]
    if told.attributed is None:
        parts.append(f'<p class="note">Not attributed: {_text(told.reason)}.</p>')
    for case in told.cases[:1]:
        output = f"{_text(case.name)}, whose output is {number(case.output)}"
        for what, witnesses in (("For", case.helpers), ("Against", case.hurters)):
            shown = witnesses_of(told, witnesses, lambda value: f"{value:+.4f}")
            parts.append(f"<h4>{what} {output}</h4>{shown}")
    return f'<article class="answer">{"".join(parts)}</article>'


def _text(text: str) -> str:
    return html.escape(text.rstrip("."))
