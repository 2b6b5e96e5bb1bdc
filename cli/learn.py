"""`run` and `resume`: start a session, show its events, and end as the world asks."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from streamlearn.events import Event, Finished, Stopped
from streamlearn.storage import RunPath, resume_command

from .describe import summary
from .json_lines import JsonLines
from .output import Output, output_code
from .plain import PlainLines
from .signals import StopSignals

if TYPE_CHECKING:
    from .live import Controls

__all__ = ["Display", "Learning", "Options", "learn"]


@dataclass(frozen=True, slots=True)
class Options:
    """How events are shown: as JSON lines, as plain lines, or (quiet) hardly at all."""

    json: bool = False
    plain: bool = False
    quiet: bool = False


class Learning(Protocol):
    """What is needed of a session; see `streamlearn.scenarios.session.Session`."""

    @property
    def path(self) -> RunPath:
        """The run directory."""
        ...

    def events(self) -> Iterator[Event]:
        """Learn, and say what happens."""
        ...

    def request_stop(self, reason: str) -> None:
        """Save at the next step boundary and end; safe from any thread."""
        ...

    def pause(self, paused: bool) -> None:
        """Learn nothing from the next step on, or go on."""
        ...

    def request_checkpoint(self) -> None:
        """Save as soon as a step is at its end."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """What a commit would note of the run now."""
        ...

    def __enter__(self) -> "Learning": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None: ...


class Display(Protocol):
    """A consumer of events."""

    @property
    def failed(self) -> OSError | None:
        """What ended the output, if anything did."""
        ...

    def open(self) -> None:
        """Before the first event."""
        ...

    def show(self, event: Event) -> None:
        """Take in an event."""
        ...

    def stopping(self, name: str) -> None:
        """A signal of this name was heard; called from any thread."""
        ...

    def restore(self) -> None:
        """Leave the terminal usable, at once; called from any thread."""
        ...

    def close(self) -> None:
        """After the last event, or when something went wrong."""
        ...


def learn(start: Callable[[], Learning], options: Options) -> int:
    """Run a session to its end, or to the first signal, and give the exit code.

    0 when finished, or stopped by a key; 130, 143 or 129 when stopped by SIGINT, SIGTERM or
    SIGHUP; 141 when stopped because nobody reads the output any more. In all these cases everything
    learnt is saved.

    Raises:
        StreamlearnError: as the session does; also where the output cannot be written.
        Interrupted: a signal before the session was there.
    """
    draws = _draws(options)
    with StopSignals() as signals, _begun(start, draws) as session:
        display = _dashboard(session.path, session) if draws else _lines(session.path, options)

        def stop(name: str) -> None:
            session.request_stop(name)
            display.stopping(name)

        signals.attach(stop, display.restore)
        last = _follow(session, display)
        if last is not None and draws:
            # The dashboard is gone from the screen; what stays is the result.
            output = _stdout()
            for line in summary(last, str(session.path)):
                output.line(line)
        if display.failed is not None and signals.received is None:
            remedy = f"the run itself is saved, go on with `{resume_command(session.path)}`"
            code = output_code(display.failed, remedy)
            return 0 if isinstance(last, Finished) else code
        return 0 if isinstance(last, Finished) else signals.exit_code


def _follow(session: Learning, display: Display) -> Finished | Stopped | None:
    """Show all events; gives the last one, if it is what a session should end with."""
    last: Event | None = None
    asked = False
    display.open()
    try:
        for event in session.events():
            display.show(event)
            last = event
            if display.failed is not None and not asked:
                # Nobody sees the run any more: save it, as for any other wish to stop.
                asked = True
                session.request_stop("SIGPIPE")
    finally:
        display.close()
    return last if isinstance(last, (Finished, Stopped)) else None


def _draws(options: Options) -> bool:
    """Whether the events go to a dashboard."""
    if options.json or options.plain or options.quiet:
        return False
    from .live import can_draw

    return can_draw()


def _begun(start: Callable[[], Learning], draws: bool) -> Learning:
    """The session; importing and reading the data take seconds, so a terminal says it waits."""
    if not draws:
        return start()
    _scribble("starting ...")
    try:
        return start()
    finally:
        _scribble("\r\x1b[2K")


def _scribble(text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()


def _lines(path: RunPath, options: Options) -> Display:
    if options.json:
        return JsonLines(_stdout(), options.quiet)
    return PlainLines(_stderr(), _stdout(), str(path), options.quiet)


def _dashboard(path: RunPath, controls: "Controls") -> Display:
    from rich.console import Console

    from streamlearn.storage import RunReader

    from .keys import open_keyboard
    from .live import Dashboard
    from .model import Model

    reader = RunReader(path)
    model = Model(settings=reader.scenario)
    # What a resumed run did before belongs to its curves. A new run's log holds only its beginning,
    # which comes as an event too.
    records, _ = reader.events()
    if any(record.get("event") == "progress" for record in records):
        for record in records:
            model.replay(record)
    piped = str(model.settings.get("data", {}).get("path")) == "-"
    return Dashboard(model, Console(), open_keyboard(stdin_is_data=piped), controls)


def _stdout() -> Output:
    return Output(sys.stdout)


def _stderr() -> Output:
    return Output(sys.stderr)
