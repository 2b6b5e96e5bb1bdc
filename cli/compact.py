"""`compact`: a run without its dead tuples."""

import dataclasses

from streamlearn.storage import RunPath, RunStore

from .format import clean, count, size
from .json_lines import to_json
from .output import Output

__all__ = ["compact"]


def compact(path: RunPath, output: Output, json: bool) -> None:
    """Leave the dead tuples out, and say what that gave."""
    with RunStore.open(path) as store:
        found = store.compact()
    if json:
        output.line(to_json(dataclasses.asdict(found) | {"run": str(path)}))
        return
    if not found.dead:
        line = f"{path}: none of the {count(found.tuples)} tuples is dead, nothing was changed"
    else:
        line = (
            f"{path}: {count(found.dead)} dead tuples left out, {count(found.tuples)} stay; "
            f"{size(found.bytes_after)} on disk instead of {size(found.bytes_before)}"
        )
        if found.kept:
            line += (
                f" ({count(found.kept)} older "
                f"{'commit is' if found.kept == 1 else 'commits are'} kept with their shards)"
            )
    output.line(clean(line))
