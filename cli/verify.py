"""`verify`: whether every byte of a run is as it was written, and what to do if not."""

import dataclasses
import shlex
from typing import Any

from streamlearn.storage import RunPath
from streamlearn.storage.repair import repair
from streamlearn.storage.verify import Verification, verify

from .format import clean, count, size
from .json_lines import to_json
from .output import Output

__all__ = ["DAMAGED", "verify_run"]

DAMAGED = 1
"""The exit code for a run that is damaged."""


def verify_run(path: RunPath, output: Output, *, json: bool, mend: bool) -> int:
    """Print what is damaged, one line a file, and what was put right; gives the exit code."""
    done: tuple[str, ...] = ()
    if mend:
        repaired = repair(path)
        before, done, found = repaired.before, repaired.done, repaired.after
    else:
        before = found = verify(path)
    if json:
        facts = _facts(found)
        if mend:
            facts |= {"found": _facts(before)["damage"], "repairs": list(done)}
        output.line(to_json(facts))
    else:
        for line in (*_damage(before), *done, _end(found, mend and not before.whole)):
            output.line(clean(line))
    return 0 if found.whole else DAMAGED


def _facts(found: Verification) -> dict[str, Any]:
    return {
        "run": found.run,
        "whole": found.whole,
        "commits": [dataclasses.asdict(commit) for commit in found.commits],
        "damage": [dataclasses.asdict(damage) for damage in found.damage],
        "files": found.files,
        "bytes": found.bytes,
    }


def _damage(found: Verification) -> list[str]:
    return [f"{damage.file} {damage.problem}" for damage in found.damage]


def _end(found: Verification, mended: bool) -> str:
    number = len(found.commits)
    if found.whole:
        steps = ", ".join(count(commit.step) for commit in found.commits) or "none yet"
        return (
            f"whole: {count(number)} {'commit' if number == 1 else 'commits'} (step {steps}), "
            f"{count(found.files)} files, {size(found.bytes)} read"
        )
    files = len(found.damage)
    text = f"damaged: {count(files)} {'file' if files == 1 else 'files'}"
    newest = found.newest_whole
    if newest is None:
        return f"{text}; no commit is whole, put back copies of these files"
    if mended:
        return f"{text} that cannot be repaired; put back copies of these files"
    return (
        f"{text}; commit {newest.commit} (step {count(newest.step)}) is whole, go back to it with "
        f"`streamlearn verify --repair {shlex.quote(found.run)}`"
    )
