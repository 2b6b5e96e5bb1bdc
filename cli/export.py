"""`export`: the tuples of a run as one file or folder of a common format."""

import dataclasses
from pathlib import Path

from streamlearn.storage import RunPath
from streamlearn.storage.export import export_run

from .format import clean, count, size
from .json_lines import to_json
from .output import Output

__all__ = ["export"]


def export(path: RunPath, to: Path, output: Output, json: bool) -> None:
    """Write it, and say what was written."""
    made = export_run(path, to)
    if json:
        output.line(to_json(dataclasses.asdict(made) | {"path": str(made.path)}))
        return
    output.line(
        clean(
            f"{made.path}: {count(made.tuples)} tuples of step {count(made.step)} as "
            f"{made.format}, {size(made.bytes)}"
        )
    )
