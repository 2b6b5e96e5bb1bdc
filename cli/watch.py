"""`watch`: the picture of a run from its event log, while it runs or afterwards; reads only."""

import sys
import time
from typing import Any

from streamlearn.events import Event, Started
from streamlearn.storage import RunPath, RunReader, resume_command

from .describe import summary
from .format import clean, layer_title
from .json_lines import to_json
from .learn import Options
from .model import Model
from .output import Output, output_code
from .plain import PlainLines
from .status import RunStatus, run_status

__all__ = ["Follower", "watch"]

_PAUSE = 0.4
_TALLEST = 40
_BELOW = 4
"""Lines that follow the last picture, prompt included."""


class Follower:
    """Reads what is new in a run's event log, and keeps a `Model` of it.

    model: starts over when the log does. status: what the run was doing at the last look.
    """

    def __init__(self, path: RunPath) -> None:
        self.reader = RunReader(path)
        self.model = self._blank()
        self.status: RunStatus = run_status(self.reader)
        self._offset = 0

    def poll(self) -> list[tuple[dict[str, Any], Event | None]]:
        """The records since the last look, each with the event it stands for, if known.

        The status is looked at first, so that the last words of a run that ends are not missed.
        """
        self.status = run_status(self.reader)
        records, offset = self.reader.events(self._offset)
        if self._offset and (offset < self._offset or _begins(records)):
            # The log was cut back to a commit when the run was resumed, and is read anew.
            self.model = self._blank()
        self._offset = offset
        news = [(record, self.model.replay(record)) for record in records]
        self._catch_up()
        return news

    @property
    def over(self) -> bool:
        """Whether there is nothing more to come."""
        # A finished or stopped event is not enough: the run may just have been resumed.
        return self.status.word != "running"

    def _blank(self) -> Model:
        header = self.reader.header
        return Model(
            run=str(self.reader.path),
            scenario=header.scenario,
            watching=True,
            settings=self.reader.scenario,
        )

    def _catch_up(self) -> None:
        """What the last commit knows better than a log that was cut by a crash."""
        model, manifest = self.model, self.status.manifest
        model.run = str(self.reader.path)
        if manifest is not None:
            model.checkpoint_time, model.checkpoint_step = manifest.time, manifest.step
            model.disk_bytes = manifest.disk_bytes
            model.summary = manifest.summary
            model.dead = {
                layer_title(name): layer.rows - layer.live
                for name, layer in manifest.layers.items()
            }
        if self.status.word != "running" and not model.over:
            # Also a run whose last words a power cut took: the commit knows how it ended.
            word = self.status.word
            model.phase = word if word in ("finished", "stopped") else "crashed"


def _begins(records: list[dict[str, Any]]) -> bool:
    """Whether these are the first records of a log."""
    return bool(records) and records[0].get("event") == "started" and not records[0].get("step")


def watch(path: RunPath, options: Options) -> int:
    """Show a run until it ends, or once if it has; gives the exit code."""
    follower = Follower(path)
    output = Output(sys.stdout)
    if options.json:
        _watch_json(follower, output)
    else:
        from .live import can_draw

        if options.plain or options.quiet or not can_draw():
            _watch_lines(follower, output, options.quiet)
        else:
            _watch_screen(follower)
    return output_code(output.failed)


def _watch_json(follower: Follower, output: Output) -> None:
    while output.failed is None:
        for record, _ in follower.poll():
            output.line(to_json(record))
        if follower.over:
            if follower.model.phase == "crashed":
                output.line(to_json(_crash_record(follower)))
            return
        time.sleep(_PAUSE)


def _watch_lines(follower: Follower, output: Output, quiet: bool) -> None:
    lines = PlainLines(output, output, str(follower.reader.path), quiet)
    past = [event for _, event in follower.poll() if event is not None]
    for latest in _latest(past):
        lines.show(latest)
    while not follower.over and output.failed is None:
        time.sleep(_PAUSE)
        for _, event in follower.poll():
            if event is not None:
                lines.show(event)
    lines.close()
    model = follower.model
    if model.phase == "crashed":
        for line in _crashed(follower):
            output.line(line)
    elif model.finished is None and model.stopped is None:
        output.line(f"{model.phase}; the log lacks its end, `streamlearn inspect` has the numbers")


def _latest(events: list[Event]) -> list[Event]:
    """Of what is past, the latest of each kind since the run was last started."""
    latest: dict[str, Event] = {}
    for event in events:
        if isinstance(event, Started):
            latest.clear()
        latest[event.event] = event
    return list(latest.values())


def _watch_screen(follower: Follower) -> None:
    from rich.console import Console

    from .dashboard import render
    from .keys import open_keyboard
    from .live import Dashboard, speaks_unicode

    console = Console()
    keyboard = open_keyboard()
    follower.poll()
    # With keys it stays until somebody leaves: a run that is over may be resumed.
    if keyboard is not None or not follower.over:
        dashboard = Dashboard(follower.model, console, keyboard)
        try:
            dashboard.open()
            while dashboard.failed is None and not dashboard.left:
                if keyboard is None and follower.over:
                    break
                dashboard.wait(_PAUSE)
                follower.poll()
                dashboard.model = follower.model
                dashboard.tick()
        finally:
            dashboard.close()
        if dashboard.failed is not None or not follower.over:
            return
    width, height = console.size
    picture = render(
        follower.model,
        width,
        max(1, min(_TALLEST, height - _BELOW)),
        time.time(),
        speaks_unicode(console),
    )
    console.print(picture, end="")
    if follower.model.phase == "crashed":
        for line in _crashed(follower):
            Output(sys.stdout).line(line)
    elif follower.model.stopped is not None:
        Output(sys.stdout).line(summary(follower.model.stopped, str(follower.reader.path))[-1])


def _crash_record(follower: Follower) -> dict[str, Any]:
    manifest = follower.status.manifest
    return {
        "event": "crashed",
        "step": None if manifest is None else manifest.step,
        "samples": None if manifest is None else manifest.samples,
        "resume": None if manifest is None else resume_command(follower.reader.path),
    }


def _crashed(follower: Follower) -> list[str]:
    manifest = follower.status.manifest
    if manifest is None:
        return ["crashed before its first checkpoint; begin it anew"]
    return [
        f"crashed; step {manifest.step:,}, sample {manifest.samples:,} and all before are saved",
        f"resume with: {clean(resume_command(follower.reader.path))}",
    ]
