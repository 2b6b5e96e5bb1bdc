"""An explanation as one page of HTML that needs nothing else: no network, no script."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.storage import files

from .format import MISSING, count, number, percent

if TYPE_CHECKING:
    from streamlearn.scenarios.explain import Explanation, LayerView, Witness

__all__ = ["image_of", "witnesses_of", "write_html"]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #2a8a4a; --bad: #c0443c; --bar: #4a7fc1; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.5rem; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; }
th { font-weight: 600; border-bottom: 1px solid var(--line); }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: .7em; background: var(--bar); vertical-align: baseline; }
.row { display: flex; flex-wrap: wrap; gap: .8rem; margin: .6rem 0; }
figure { margin: 0; width: 6.5rem; font-size: .8rem; border-top: 3px solid var(--line); }
figure.good { border-color: var(--good); } figure.bad { border-color: var(--bad); }
figure img, .own { width: 6.5rem; image-rendering: pixelated; display: block; }
figcaption { overflow-wrap: anywhere; }
.note { opacity: .8; } .wrong { color: var(--bad); } .right { color: var(--good); }
"""


def write_html(path: Path, told: "Explanation") -> None:
    """Write the page.

    Raises:
        StorageError: the file cannot be written; one that was there before is as it was.
    """
    files.write_whole(path.absolute(), _page(told).encode("utf-8", "replace"))


def _page(told: "Explanation") -> str:
    title = _text(f"{told.asked}: {told.prediction}")
    right = told.truth == told.prediction
    mark = "" if told.truth is None or not told.purity_of else (
        f' <span class="{"right" if right else "wrong"}">{"right" if right else "wrong"}</span>'
    )  # fmt: skip
    facts = {
        "run": f"{_text(told.run)}, step {count(told.step)}, {count(told.samples)} samples",
        "label": MISSING if told.truth is None else _text(told.truth),
        "prediction": _text(told.prediction) + mark,
        "attribution": _sum(told),
        **({} if told.labels is None else {"labels": _text(told.labels)}),
    }
    own = "" if told.picture is None else image_of(told.picture, "the sample", "own")
    body = [f"<h1>{title}</h1>", own, "<dl>"]
    body += [f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items()]
    body += ["</dl>", _answers(told)]
    for case in told.cases:
        name = _text(case.name)
        for what, witnesses in (("For", case.helpers), ("Against", case.hurters)):
            body.append(f"<h2>{what} {name}, whose output is {number(case.output)}</h2>")
            body.append(witnesses_of(told, witnesses, lambda value: f"{value:+.4f}"))
    body += [_layer(told, layer) for layer in told.layers]
    body += [f'<p class="note">{_text(note)}</p>' for note in told.notes]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{_STYLE}</style></head>\n'
        f"<body>{chr(10).join(body)}</body></html>\n"
    )


def _sum(told: "Explanation") -> str:
    if told.attributed is None:
        return f"none: {_text(told.reason)}"
    verb = "sum" if told.sums else '<span class="wrong">do not sum</span>'
    return (
        f"the contributions of all tuples of layer {_text(told.attributed)} {verb} to its outputs: "
        f"off by {told.off:.1e} at most (allowed: {told.tolerance:.1e})"
    )


def _answers(told: "Explanation") -> str:
    classes = bool(told.purity_of)
    ordered = sorted(told.answers, key=lambda n: -told.answers[n]) if classes else told.answers
    head = ("class", "probability", "output") if classes else ("output", "value", "")
    rows = []
    for name in ordered:
        value = told.answers[name]
        shown = f"{percent(value)} {_bar(value)}" if classes else number(value)
        raw = number(told.outputs.get(name)) if classes else ""
        rows.append(f'<tr><td>{_text(name)}</td><td>{shown}</td><td class="n">{raw}</td></tr>')
    titles = "".join(f"<th>{title}</th>" for title in head)
    return f"<table><tr>{titles}</tr>{''.join(rows)}</table>"


def _layer(told: "Explanation", layer: "LayerView") -> str:
    parts = [
        f"<h2>Layer {_text(layer.name)}</h2>",
        f"<p>{count(layer.tuples)} tuples, attention as on {count(round(layer.effective))} of them "
        "alike."
        + ("" if layer.purity is None else
           f" Of the first 50, {percent(layer.purity, 0)} are {_text(told.purity_of)}.")
        + "</p>",
        witnesses_of(told, layer.attended, lambda value: percent(value, 3)),
    ]  # fmt: skip
    if layer.by_class:
        parts.append(_shares("attention by class", layer.by_class))
    times = {f"{10 * i}–{10 * (i + 1)} %": v for i, v in enumerate(layer.by_time)}
    parts.append(_shares("attention by time of writing, in parts of the run", times))
    return "".join(parts)


def _shares(title: str, shares: Mapping[str, float]) -> str:
    rows = "".join(
        f'<tr><td>{_text(name)}</td><td class="n">{percent(value, 1)}</td>'
        f"<td>{_bar(value)}</td></tr>"
        for name, value in shares.items()
    )
    return f'<table><tr><th colspan="3">{title}</th></tr>{rows}</table>'


def witnesses_of(told: "Explanation", witnesses: "Sequence[Witness]", show: Any) -> str:
    """Stored samples side by side, each with its picture, label, score, number and age.

    Args:
        told: the explanation that they are of.
        witnesses: of it.
        show: what a score is written as.
    """
    if not witnesses:
        return '<p class="note">none</p>'
    figures = []
    for one in witnesses:
        picture = None if one.sample is None else told.pictures.get(one.sample)
        image = "" if picture is None else image_of(picture, "")
        kind = "" if told.truth is None or one.label is None or not told.purity_of else (
            "good" if one.label == told.truth else "bad"
        )  # fmt: skip
        sample = "sample unknown" if one.sample is None else f"sample {one.sample}"
        itself = ", itself" if one.itself else ""
        label = MISSING if one.label is None else _text(one.label)
        record = None if one.sample is None else told.texts.get(one.sample)
        text = "" if record is None else f"<br><code>{_text(record)}</code>"
        figures.append(
            f'<figure class="{kind}">{image}<figcaption><b>{label}</b> {show(one.score)}<br>'
            f"{sample}{itself}<br>{count(one.age)} ago{text}</figcaption></figure>"
        )
    return f'<div class="row">{"".join(figures)}</div>'


def _bar(share: float) -> str:
    return f'<span class="bar" style="width:{max(0.0, min(share, 1.0)) * 12:.3f}rem"></span>'


def image_of(pixels: Any, alt: str, kind: str = "") -> str:
    """A picture (channels, height, width) as an element that has its bytes in itself."""
    of = f' class="{kind}"' if kind else ""
    return f'<img{of} alt="{_text(alt)}" src="{_source(pixels)}">'


def _source(pixels: Any) -> str:
    """A picture (channels, height, width) as the address of its own bytes."""
    from PIL import Image

    image = Image.fromarray(pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0))
    data = io.BytesIO()
    image.save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


def _text(text: str) -> str:
    return html.escape(text)
