"""What the tests of sessions share: words for a run, its end, and what it holds then."""

from pathlib import Path
from typing import Any

import numpy as np

from streamlearn.events import Event, Finished
from streamlearn.scenarios.session import Session
from streamlearn.storage import RunReader


def words(runs: Path, name: str, *more: str) -> list[str]:
    """Words that put a run in a folder under a name, after others."""
    return [*more, f"run.dir={runs}", f"run.name={name}"]


def columns(run: Path) -> dict[str, Any]:
    """All rows of each layer and column."""
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    return {
        f"{name}/{column}": rows
        for name, entry in manifest.layers.items()
        for column, rows in reader.columns(name, 0, entry.rows).items()
    }


def all_events(session: Session) -> list[Event]:
    """Those of a session that finishes its run."""
    with session:
        events = list(session.events())
    assert isinstance(events[-1], Finished)
    return events


def finish(session: Session) -> Finished:
    """The last of them."""
    *_, last = all_events(session)
    assert isinstance(last, Finished)
    return last


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs hold the same bits, and say the same of themselves, but for the time they took."""
    first, second = columns(one), columns(other)
    assert first.keys() == second.keys()
    for name, rows in first.items():
        np.testing.assert_array_equal(rows, second[name], name)
    found = [RunReader(run).manifest() for run in (one, other)]
    summaries = [dict(manifest.summary) for manifest in found if manifest is not None]
    for summary in summaries:
        del summary["seconds"]
    assert summaries[0] == summaries[1]
