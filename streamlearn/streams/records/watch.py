"""A folder that is watched: files are taken as they come, each once."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from streamlearn.errors import DataError, DataNotFoundError, FormatError
from streamlearn.state import StateTree

from .base import Cursor, Item, Source

__all__ = ["EXTENSIONS", "WatchCursor", "WatchedFolder"]

EXTENSIONS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
POLL_SECONDS = 0.5
SETTLED_SECONDS = 1.0
"""Since a file was last written to; until then somebody may be writing to it."""

_IDLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class WatchCursor:
    """Files that are done, and the place in the one after them, None if it was not begun."""

    done: int = 0
    source: Source | None = None
    inner: Cursor = None


class WatchedFolder:
    """The files of a folder, in the order in which they came; those that came together by name.

    The folder is looked at every half second. A file is taken once nobody has written to it for a
    second, and never again, even if it changes or is removed later; names that begin with a dot
    and other endings than .jsonl, .ndjson, .csv, .tsv and .parquet are overlooked. A file that
    cannot be read at all is one bad item.

    Args:
        path: of the folder.
        opened: makes the source of one file.
        idle_seconds: the stream ends when nothing has come for so long; None: never.
    """

    waits = True
    count: int | None = None
    columns: tuple[str, ...] | None = None
    regression: bool | None = None

    def __init__(
        self, path: Path, opened: Callable[[Path], Source], idle_seconds: float | None
    ) -> None:
        self.name = path.name or str(path)
        self._path = path
        self._opened = opened
        self._patience = idle_seconds
        self._files: list[str] = []  # noticed, in the order in which they are taken
        self._known: set[str] = set()
        self._done = 0
        self._source: Source | None = None
        self.hints: dict[str, str] = {}
        self._news = time.monotonic()
        self._looked = -POLL_SECONDS
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether nothing has come for too long."""
        return self._ended

    def pull(self, count: int, *, wait: bool = True) -> list[Item]:
        """The next rows: of one file, or none if there is nothing new."""
        until = time.monotonic() + (_IDLE_SECONDS if wait else 0.0)
        while not self._ended:
            if self._source is None and not self._next_file():
                now = time.monotonic()
                if self._patience is not None and now - self._news >= self._patience:
                    self._ended = True
                if now >= until or self._ended:
                    break
                time.sleep(min(0.1, until - now))
                continue
            if items := self._of_file(count):
                self._news = time.monotonic()
                return items
        return []

    def _of_file(self, count: int) -> list[Item]:
        """Rows of the file that is open, or the one that says why it cannot be."""
        name, done = self._files[self._done], self._done
        source = self._source
        try:
            if source is None:
                source = self._source = self._opened(self._path / name)
                self.hints = {**source.hints, **self.hints}
            items = source.pull(count)
            ended = source.ended
        except (DataError, DataNotFoundError) as error:
            items, ended = [Item(None, name, str(error), b"", None)], True
        items = [replace(item, cursor=WatchCursor(done, source, item.cursor)) for item in items]
        if ended:
            self._close_file()
            self._done += 1
            # A file whose last row was handed out is done, and need not be there any more.
            items[-1:] = [replace(item, cursor=WatchCursor(done + 1)) for item in items[-1:]]
        return items

    def _next_file(self) -> bool:
        """Whether there is a file to be taken."""
        now = time.monotonic()
        if self._done == len(self._files) and now - self._looked >= POLL_SECONDS:
            self._looked = now
            self._look()
        return self._done < len(self._files)

    def _look(self) -> None:
        """Take note of files that came and are written."""
        try:
            found = [
                (path.name, path.stat().st_mtime)
                for path in self._path.iterdir()
                if path.suffix.lower() in EXTENSIONS
                and not path.name.startswith(".")
                and path.name not in self._known
                and path.is_file()
            ]
        except FileNotFoundError:  # one was moved away just now, or the folder was
            if not self._path.is_dir():
                raise DataError(
                    f"the folder {self._path} is gone; give it back, or stop the run"
                ) from None
            return
        except OSError as error:
            raise DataError(
                f"the folder {self._path} cannot be read ({error.strerror}); allow reading it"
            ) from error
        # A file of the future: the clock was put back, and waiting would take for ever.
        now = time.time()
        ready = sorted(name for name, when in found if not 0 <= now - when < SETTLED_SECONDS)
        self._files += ready
        self._known.update(ready)
        if found:
            self._news = time.monotonic()

    def state(self, cursor: Cursor, position: int) -> StateTree:
        """The files that are done, those that wait, and the place in the one between."""
        cursor = cursor or WatchCursor()
        inner = None
        if cursor.source is not None:  # perhaps not the one that is open: rows may be read ahead
            inner = cursor.source.state(cursor.inner, position)
        return {"files": list(self._files), "done": cursor.done, "inner": inner}

    def restore(self, state: StateTree, position: int) -> Cursor:
        """Go to the row after the last one that was handed out, past the files before it."""
        try:
            self._files = [str(name) for name in state["files"]]
            self._done = int(state["done"])
            inner = state["inner"]
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                "the state has no files of a folder to resume at; it is damaged or of another kind "
                "of data, fall back to an earlier commit"
            ) from error
        self._close_file()
        self._known = set(self._files)
        self._ended = False
        self._news = time.monotonic()
        if inner is None:
            return WatchCursor(self._done)
        path = self._path / self._files[self._done]
        if not path.is_file():
            raise FormatError(
                f"{path} is gone, of which the run had learnt only a part; give it back"
            )
        self._source = self._opened(path)
        return WatchCursor(self._done, self._source, self._source.restore(inner, position))

    def _close_file(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def close(self) -> None:
        """Close the file that is open."""
        self._close_file()
