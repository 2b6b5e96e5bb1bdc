"""The files beside a run that are as long as its last commit says: bad rows, and answers."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamlearn.errors import ConfigError
from streamlearn.jsonlines import JsonLinesFile
from streamlearn.predictions import Answered, records_of
from streamlearn.state import StateTree
from streamlearn.storage import RunPath
from streamlearn.streams.records import Quarantine, Quarantined

from .schema import Scenario

__all__ = ["QUARANTINE", "SideFiles", "check_new"]

QUARANTINE = "quarantine.jsonl"
"""The file in a run's directory that has the rows that could not be used."""


class SideFiles:
    """What a run appends to outside its memories.

    Args:
        scenario: says where answers go, if anywhere.
        run: the run's directory; in an object store, where nothing can be appended to, the event
            log has the bad rows alone.

    Attributes:
        keeps_answers: whether answers are written.
    """

    def __init__(self, scenario: Scenario, run: RunPath) -> None:
        place = scenario.stream.predictions
        self._place = place
        self._quarantine = Quarantine(run / QUARANTINE) if isinstance(run, Path) else None
        self._predictions = None if place is None else JsonLinesFile(place, "predictions")
        self._files: list[JsonLinesFile] = [
            file for file in (self._quarantine, self._predictions) if file is not None
        ]
        self.keeps_answers = self._predictions is not None

    def put_aside(self, row: Quarantined) -> bool:
        """Keep the text of a row that could not be used; whether there is a file for it."""
        if self._quarantine is None:
            return False
        self._quarantine.append([row])
        return True

    def write_answers(self, parts: list[Answered], learner: Any) -> None:
        """Keep answers, if they are asked for."""
        if self._predictions is not None:
            self._predictions.write(records_of(parts, learner.task, learner.labels))

    def sync(self) -> StateTree:
        """Make what was appended durable; gives what `cut` wants."""
        for file in self._files:
            file.sync()
        bad, answers = self._quarantine, self._predictions
        state: StateTree = {"quarantine_bytes": 0 if bad is None else bad.size}
        if answers is not None:
            state["predictions"] = {"bytes": answers.size, "checksum": answers.checksum}
        return state

    def cut(self, state: Mapping[str, Any]) -> None:
        """Forget what was appended after a commit.

        Raises:
            FormatError: a file is not what the run has written.
            ConfigError: answers are asked for now, in a file that cannot be begun.
        """
        if self._quarantine is not None:
            self._quarantine.cut(int(state.get("quarantine_bytes", 0)))
        if self._predictions is not None and "predictions" in state:
            written = state["predictions"]
            self._predictions.cut(int(written["bytes"]), int(written["checksum"]))
        else:
            check_new(self._place)

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def check_new(place: Path | None) -> None:
    """Refuse a file that predictions cannot begin in, before anything is made.

    Raises:
        ConfigError: there is something already, or no folder that can be written.
    """
    if place is None:
        return
    if place.is_dir() or (place.exists() and (not place.is_file() or place.stat().st_size)):
        raise ConfigError(
            f"stream.predictions={place} is there already and is not written over; name a new "
            "file, or move that one away"
        )
    folder = place.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        why = "cannot be written to" if folder.is_dir() else "is no folder"
        raise ConfigError(
            f"stream.predictions={place} cannot be used: {folder} {why}; name a file in a folder "
            "that there is"
        )
