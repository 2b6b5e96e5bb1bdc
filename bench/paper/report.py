"""docs/results/paper.md and its plots, from the recorded trials and runs alone."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import records
from .claims import CLAIMS, Verdict, judge, mean_of
from .plots import bars, curves
from .records import Record
from .rows import TRIALS, Row, rows
from .sweep import VALIDATION, chosen_words

__all__ = ["markdown", "write"]

_GROUPS = {
    "raw": "Raw pixels, D = 3072",
    "pca": "256 whitened principal components of the pixels",
    "patch": "384 whitened components of patch features",
    "variants": "Variants and sampled features, on the same principal components",
    "vit": "Vision transformers",
    "temperature": "Temperature at D = 3072",
    "depth": "Hidden layers",
    "epochs": "Five epochs of 20,000 samples, augmented",
}
_SHORT = {"pca": "principal components", "raw": "raw pixels", "patch": "patch features",
          "vit": "transformers", "variants": "variants", "temperature": "temperatures"}  # fmt: skip
_CURVES = ("raw", "pca", "patch", "vit")
_NOISE = 1.4  # points: two standard errors of a difference on 10,000 test images

Runs = Mapping[str, Sequence[Record]]


def write(results: Path) -> None:
    """Make `paper.md` in this folder and the plots beside the records in its folder `paper`."""
    trials = records.read(results / "paper" / "trials.jsonl")
    runs: dict[str, list[Record]] = defaultdict(list)
    known = rows()
    for run in records.read(results / "paper" / "runs.jsonl"):
        if run["row"] in known and _limit(run["words"]) == known[run["row"]].samples:
            runs[run["row"]].append(run)  # others are of rows as they once were
    teacher = results / "teacher.json"
    text = markdown(
        known, trials, runs, json.loads(teacher.read_text("utf-8")) if teacher.exists() else None
    )
    for group, title in _GROUPS.items():
        ours = {key: runs[key] for key, row in known.items() if row.group == group and runs[key]}
        if not ours:
            continue
        bars(results / "paper" / f"{group}.png", title, ours, {k: known[k].claim for k in ours})
        if group in _CURVES:
            curves(results / "paper" / f"{group}-curves.png", title, ours)
    (results / "paper.md").write_text(text, encoding="utf-8")


def _limit(words: Sequence[str]) -> int | None:
    """The `data.limit` in the words of a run."""
    values = [word.partition("=")[2] for word in words if word.startswith("data.limit=")]
    return int(values[-1]) if values else None


def markdown(
    known: Mapping[str, Row], trials: Sequence[Record], runs: Runs, teacher: Any = None
) -> str:
    """The whole report."""
    parts = [_head(trials, runs), _claims(runs)]
    for group, title in _GROUPS.items():
        keys = [key for key, row in known.items() if row.group == group and runs.get(key)]
        if keys:
            parts.append(_group(group, title, keys, known, runs))
    if teacher is not None:
        parts.append(_teacher(teacher))
    parts.append(_sweeps(known, trials))
    return "\n\n".join(parts) + "\n"


# -- parts ---------------------------------------------------------------------------------------


def _head(trials: Sequence[Record], runs: Runs) -> str:
    every = [*trials, *(run for of_row in runs.values() for run in of_row)]
    hardware = sorted({f"{r['hardware']}, {_count(r['threads'], 'thread')} a run, "
                       f"PyTorch {r['torch']}" for r in every})  # fmt: skip
    days = sorted({record["day"] for record in every})
    trials_of = ", ".join(f"{_SHORT[group]} {count}" for group, count in TRIALS.items())
    finished = sum(len(of_row) for of_row in runs.values())
    return f"""# The paper's whole family, side by side

Made by `python -m bench.paper write` of what `sweep` and `run` recorded in
[paper/trials.jsonl](paper/trials.jsonl) and [paper/runs.jsonl](paper/runs.jsonl): {len(trials)}
trials and {finished} runs, {" to ".join(dict.fromkeys((days[0], days[-1]))) if days else "none"}.

- Data: CIFAR-10 (JPEG), a copy whose images were re-encoded as JPEG. Claimed figures are for the
  original files and, unless a table says otherwise, raw pixels, so they stand beside ours only as a
  scale.
- Hardware: {"; ".join(hardware) or "none"}.
- Every row that is swept has as many trials as the others on its features ({trials_of}), on
  seed 0: axis after axis, each at the best values of those before, by the accuracy on a validation
  split of {VALIDATION:.0%} of the training part. The test set is scored once a run, at the end.
  Trials learn fewer samples than runs do, and not every run goes through all 50,000 of the
  training set; the tables say how many. Either way each sample comes once, in the same order.
- What the axes are was settled after an earlier sweep of the same rows on another machine, whose
  records were put aside when this one was made from nothing.
- A claim compares the best row of either side by its test figure, which flatters the side with more
  rows.
- A stream is encoded once for all rows that share an encoder, which is fitted on its first 2,048
  samples. Seconds are CPU seconds of learning, without encoding and scoring; the memory is the peak
  of a process with the encoded stream mapped into it.
- "prequential" is the accuracy before learning, over the whole stream; "train" that on up to
  5,000 samples that were learnt, after the pass, "linearised" that on every second test image at
  least, with 1 + x for e^x after learning with e^x."""


def _claims(runs: Runs) -> str:
    verdicts = [judge(claim, runs) for claim in CLAIMS]
    lines = ["## Claims", "", "| claim | | left | right | margin | samples |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for verdict in verdicts:
        claim = verdict.claim
        both = verdict.left is not None and verdict.right is not None
        margin = f"{verdict.margin:+.1f}" if both else ""
        if margin and abs(verdict.margin - claim.margin) < _NOISE:
            margin += " (noise)"
        lines.append(
            f"| {claim.text} | **{verdict.answer}** | {_side(verdict.left, claim.field)} | "
            f"{_side(verdict.right, claim.other)} | {margin} | {_learnt(verdict, runs)} |"
        )
    lines += [
        "",
        f"Noise: the margin is within {_NOISE} points of what is claimed, two standard errors of a "
        "difference between two accuracies on 10,000 images.",
    ]
    failed = [verdict for verdict in verdicts if verdict.answer == "no"]
    if failed:
        lines += ["", "Not reproduced:", ""]
        lines += [f"- {_failure(verdict)}" for verdict in failed]
    missing = [verdict for verdict in verdicts if verdict.answer == "open"]
    if missing:
        lines += ["", "Open, for these were not run:", ""]
        lines += [f"- {verdict.claim.text}: {', '.join(verdict.missing)}" for verdict in missing]
    return "\n".join(lines)


def _learnt(verdict: Verdict, runs: Runs) -> str:
    """How many samples either side learnt."""
    sides = [side for side in (verdict.left, verdict.right) if side is not None]
    counts = dict.fromkeys(f"{run['samples']:,}" for key, _ in sides for run in runs[key][:1])
    return " and ".join(counts)


def _side(side: tuple[str, float] | None, field: str) -> str:
    if side is None:
        return "–"
    what = {"linearised": ", linearised", "gap": ", gap"}.get(field, "")
    return f"{side[1]:.1f} {side[0].split(' / ')[0]}{what}"


def _failure(verdict: Verdict) -> str:
    needed = "" if verdict.claim.margin == 0 else f" where {verdict.claim.margin:+.1f} is claimed"
    tried = f" Tried: {verdict.claim.tried}." if verdict.claim.tried else ""
    return f"{verdict.claim.text}: {verdict.margin:+.1f} points{needed}.{tried}"


def _group(group: str, title: str, keys: list[str], known: Mapping[str, Row], runs: Runs) -> str:
    keys.sort(key=lambda key: -(mean_of(runs[key], "accuracy") or 0))
    lines = [f"## {title}", ""]
    lines += ["| | test | claimed | prequential | train | linearised | samples | seeds |"
              " learner MiB | peak MiB | s |",
              "|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for key in keys:
        of_row, row = runs[key], known[key]
        first = of_row[0]
        claim = "" if row.claim is None else f"{row.claim:.1f}"
        lines.append(
            f"| {row.name} | **{_spread(of_row, 'accuracy')}** | {claim} | "
            f"{_spread(of_row, 'prequential')} | {_spread(of_row, 'train_accuracy')} | "
            f"{_spread(of_row, 'linearised')} | {first.get('samples', 0):,} | {len(of_row)} | "
            f"{first.get('learner_bytes', 0) / 2**20:,.0f} | "
            f"{max(run.get('peak_rss_bytes', 0) for run in of_row) / 2**20:,.0f} | "
            f"{statistics.median(run.get('cpu_seconds', 0) for run in of_row):,.0f} |"
        )
    sources = dict.fromkeys(known[key].source for key in keys if known[key].source)
    if sources:
        lines += ["", f"Claimed: {'; '.join(sources)}."]
    lines += ["", f"![{title}](paper/{group}.png)"]
    if group in _CURVES:
        lines += ["", f"![{title}, while learning](paper/{group}-curves.png)"]
    lines += ["", "What was run, as words for `streamlearn run` beside `data.root`:", ""]
    lines += [f"- {known[key].name}: `{' '.join(_settings(runs[key][0]))}`" for key in keys]
    return "\n".join(lines)


def _settings(run: Record) -> list[str]:
    return [word for word in run["words"] if not word.startswith("seed=")]


def _spread(of_row: Iterable[Record], field: str) -> str:
    """Mean ± standard deviation (n − 1) over seeds, in percent."""
    values = [100 * run[field] for run in of_row if run.get(field) is not None]
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.1f}"


def _teacher(teacher: Any) -> str:
    """The teacher–student experiment, as it was recorded."""
    lines = ["## Teacher–student regression", "", "Recorded by `python -m bench.teacher`.", ""]
    for name, value in teacher.items() if isinstance(teacher, dict) else ():
        if isinstance(value, (str, int, float)):
            lines.append(f"- {name}: {value}")
    return "\n".join(lines)


def _sweeps(known: Mapping[str, Row], trials: Sequence[Record]) -> str:
    lines = [
        "## Sweeps",
        "",
        "Validation accuracy, in percent. \"Edge\" says that the best of the first axis is one of "
        "its ends. `key*=factor` multiplies what the axes before chose. A row with more trials "
        "than its axes have had others before its axes were moved, for they led nowhere.",
        "",
        "| row | samples | trials | best | first axis | diverged | CPU s | chosen | tried |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for key, row in known.items():
        ours = [trial for trial in trials if trial["row"] == key]
        if not row.axes or not ours:
            continue
        best = max(trial.get("accuracy") or 0.0 for trial in ours)
        chosen = chosen_words(key, row, trials)
        changed = [] if chosen is None else [word for word in chosen if word not in row.words]
        first = [trial.get("accuracy") or 0.0 for trial in ours[: len(row.axes[0])]]
        edge = first.index(max(first)) in (0, len(first) - 1)
        lines.append(
            f"| {key} | {row.trial_samples:,} | {len(ours)} | {100 * best:.1f} | "
            f"{' '.join(f'{100 * value:.1f}' for value in first)}{' edge' if edge else ''} | "
            f"{sum(1 for trial in ours if trial.get('error'))} | "
            f"{sum(trial.get('cpu_seconds', 0) for trial in ours):,.0f} | "
            f"{'incomplete' if chosen is None else f'`{chr(32).join(changed)}`'} | "
            f"{'; '.join(', '.join(f'`{option}`' for option in axis) for axis in row.axes)} |"
        )
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
