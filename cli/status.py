"""What a run is doing, as its directory tells: running, stopped, finished, crashed or empty."""

from dataclasses import dataclass

from streamlearn.storage import Manifest, RunReader

__all__ = ["RunStatus", "run_status"]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A word for what a run is doing, its last commit, and its writer while it is running.

    word: "running", "stopped", "finished", "crashed" (it was running, but nobody writes to it any
    more) or "empty" (it ended before its first commit).
    """

    word: str
    manifest: Manifest | None
    pid: int | None = None
    host: str | None = None


def run_status(reader: RunReader) -> RunStatus:
    """Look at a run; the writer first, so that one that ends meanwhile is not called crashed."""
    writer = reader.writer()
    manifest = reader.manifest()
    if writer is not None:
        return RunStatus("running", manifest, writer.pid, writer.host)
    if manifest is None:
        return RunStatus("empty", None)
    return RunStatus("crashed" if manifest.status == "running" else manifest.status, manifest)
