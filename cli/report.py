"""`report`: one page of HTML about one or several runs, that needs nothing else."""

import html
from collections.abc import Sequence
from pathlib import Path

from streamlearn.errors import ConfigError
from streamlearn.storage import RunPath, files

from .describe import CONTINUAL, FORMULAS
from .figures import draw, names_of
from .format import MISSING, count, duration, figure, number, percent, rate, size
from .output import Output
from .output_file import check_output_file, need_matplotlib
from .report_charts import svg
from .report_explained import EXPLAINED_STYLE, explanations
from .report_facts import RunFacts, facts_of, settings_lines

__all__ = ["check_page", "report"]

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
.wide { overflow-x: auto; }
.side { display: flex; flex-wrap: wrap; gap: 1rem 2rem; align-items: flex-start; }
figure { margin: 0; flex: 0 1 37rem; min-width: 0; } figure svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left; }
th { font-weight: 600; border-bottom: 1px solid var(--line); }
td.n { white-space: nowrap; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
details { margin-top: 1rem; } .note { opacity: .75; }
"""


def check_page(path: Path) -> None:
    """Refuse a file that could not be written, before runs are read.

    Raises:
        ConfigError: no .html, no such folder, or matplotlib is missing.
    """
    check_output_file(path, kinds=(".html", ".htm"))
    need_matplotlib("report")


def report(paths: Sequence[RunPath], page: Path, output: Output, explained: int = 4) -> None:
    """Write a page about runs.

    Args:
        paths: of the runs.
        page: the file.
        output: where its name is printed.
        explained: how many answers of each run are explained, 0 for none.

    Raises:
        StreamlearnError: a run cannot be read or the page not be written; one that was there
            before is as it was.
    """
    check_page(page)
    runs = [facts_of(path) for path in paths]
    if all("commit" not in run.facts for run in runs):
        raise ConfigError(
            f"run {runs[0].name!r} has no checkpoint yet to report of; wait for its first"
        )
    files.write_whole(
        page.absolute(), _page(runs, explanations(paths, explained)).encode("utf-8", "replace")
    )
    output.line(f"report  {page}")


def _page(runs: Sequence[RunFacts], explained: Sequence[str]) -> str:
    names = names_of(runs)
    title = html.escape(", ".join(names))
    parts = [f"<h1>{title}</h1>", _figures(runs, names), *_curves(runs, names)]
    for place, (run, name) in enumerate(zip(runs, names, strict=True)):
        parts += _matrices(run, name if len(runs) > 1 else "")
        if explained:
            of = f": {html.escape(name)}" if len(runs) > 1 else ""
            parts += [f"<h2>Answers explained{of}</h2>", explained[place]]
    parts += [_settings(runs, names)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title}</title>'
        f"<style>{_STYLE}{EXPLAINED_STYLE}</style></head>\n"
        f"<body>{chr(10).join(parts)}</body></html>\n"
    )


def _figures(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    """A column of figures for each run."""
    rows: list[tuple[str, list[str]]] = [
        ("scenario", [str(run.facts["scenario"]) for run in runs]),
        ("status", [str(run.facts["status"]) for run in runs]),
        ("samples", [count(run.facts.get("samples", 0)) for run in runs]),
    ]
    keys = dict.fromkeys(
        key
        for run in runs
        for key, value in run.summary.items()
        if key.startswith(("prequential_", "test_", "windowed_")) and isinstance(value, float)
    )
    for key in keys:
        values = [run.summary.get(key) for run in runs]
        rows.append((key.replace("_", " "), [_shown(key, value) for value in values]))
    rows += [
        ("learnt in", [duration(run.summary.get("seconds", 0.0)) for run in runs]),
        ("rate", [_rate(run) for run in runs]),
        ("tuples", [count(sum(_tuples(run))) for run in runs]),
        ("learner", [size(run.summary.get("learner_bytes", 0)) for run in runs]),
        ("on disk", [size(run.facts.get("disk_bytes", 0)) for run in runs]),
    ]
    if any("drifts" in run.summary for run in runs):
        rows.append(("drifts", [count(run.summary.get("drifts", 0)) for run in runs]))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *names))
    body = "".join(
        f"<tr><td>{html.escape(title)}</td>"
        + "".join(f"<td>{html.escape(value)}</td>" for value in values)
        + "</tr>"
        for title, values in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _shown(key: str, value: float | None) -> str:
    if value is None:
        return MISSING
    shares = ("accuracy", "coverage", "f1")
    return percent(value) if key.endswith(shares) else figure(value)


def _rate(run: RunFacts) -> str:
    seconds = run.summary.get("seconds") or 0.0
    return rate(run.facts.get("samples", 0) / seconds) if seconds else MISSING


def _tuples(run: RunFacts) -> list[int]:
    return [layer["tuples"] - layer["dead"] for layer in run.facts.get("layers", ())]


def _curves(runs: Sequence[RunFacts], names: Sequence[str]) -> list[str]:
    """Quality, tuples, memory and throughput against samples."""
    marks = {} if len(runs) > 1 else runs[0].marks
    along = ("quality", "tuples", "memory", "process", "throughput")
    return ["<h2>Along the stream</h2>", _side(_drawn(along, runs, names)), _noted(marks)]


def _drawn(
    figures: Sequence[str], runs: Sequence[RunFacts], names: Sequence[str]
) -> list[tuple[str, str]]:
    """Titles and pictures of those charts that there is something of."""
    found = (draw(chart, runs, names) for chart in figures)
    return [(one.label, svg(one)) for one in found if one is not None]


def _noted(marks: dict[str, list[int]]) -> str:
    told = [f"{kind}: {len(places)}" for kind, places in marks.items()]
    return f'<p class="note">{html.escape(", ".join(told))}</p>' if told else ""


def _side(figures: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<figure><h3>{html.escape(name)}</h3>{svg}</figure>" for name, svg in figures)
    return f'<div class="side">{cells}</div>'


def _matrices(run: RunFacts, name: str) -> list[str]:
    """Recall by class, the confusion matrix, and the accuracy of each experience after each."""
    figures = _drawn(("by-class", "confusion", "accuracy-matrix"), [run], [name])
    if not figures:
        return []
    title = f"Classes: {html.escape(name)}" if name else "Classes"
    there = _continual(run) if run.summary.get("matrix") else ""
    return [f"<h2>{title}</h2>", _side(figures), there]


def _continual(run: RunFacts) -> str:
    rows = "".join(
        f'<tr><td>{title}</td><td class="n">{percent(run.summary.get(key))}</td>'
        f"<td>{html.escape(FORMULAS[key])}</td></tr>"
        for title, key in CONTINUAL
    )
    return f'<div class="wide"><table>{rows}</table></div>'


def _settings(runs: Sequence[RunFacts], names: Sequence[str]) -> str:
    """Every setting; those that differ first, where there are several runs."""
    tables = [dict(settings_lines(run.scenario)) for run in runs]
    keys = list(dict.fromkeys(key for table in tables for key in table))
    differing = [key for key in keys if len({table.get(key) for table in tables}) > 1]
    order = [*differing, *(key for key in keys if key not in set(differing))]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("setting", *names))
    body = "".join(
        f"<tr><td>{html.escape(key)}</td>"
        + "".join(f"<td>{html.escape(table.get(key, MISSING))}</td>" for table in tables)
        + "</tr>"
        for key in order
    )
    note = f"{number(len(differing))} differ" if len(runs) > 1 else f"{len(keys)}"
    return (
        f"<details><summary>Settings ({note})</summary>"
        f'<div class="wide"><table><tr>{head}</tr>{body}</table></div></details>'
    )
