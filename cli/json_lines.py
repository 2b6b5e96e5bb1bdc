"""Events as one JSON object a line, for programs."""

import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from streamlearn.events import Event, Progress, Testing, as_json

from .output import Output

__all__ = ["JsonLines", "to_json"]

_PAUSE = 0.5


def to_json(record: Mapping[str, Any]) -> str:
    """Strict JSON on one line in ASCII; what is not finite becomes null."""
    return json.dumps(_finite(record), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


class JsonLines:
    """Writes events; progress at most about twice a second, but always the last one.

    Args:
        output: where the lines go.
        quiet: leave out progress altogether.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, output: Output, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._output = output
        self._quiet = quiet
        self._clock = clock
        self._next = -math.inf
        self._held: Progress | Testing | None = None

    @property
    def failed(self) -> OSError | None:
        """What ended the output, if anything did."""
        return self._output.failed

    def open(self) -> None:
        """Nothing: lines need no screen."""

    def restore(self) -> None:
        """Nothing: the terminal is as it was."""

    def show(self, event: Event) -> None:
        """Write an event, or hold it back until another one makes it the last of its kind."""
        if isinstance(event, (Progress, Testing)):
            if self._quiet:
                return
            if self._held is not None and type(self._held) is not type(event):
                self._flush()
            now = self._clock()
            if now < self._next:
                self._held = event
                return
            self._next = now + _PAUSE
            self._held = None
        else:
            self._flush()
        self._output.line(to_json(as_json(event)))

    def stopping(self, name: str) -> None:
        """Nothing: the stopped event will say it."""

    def close(self) -> None:
        """Write what was held back."""
        self._flush()

    def _flush(self) -> None:
        if self._held is not None:
            self._output.line(to_json(as_json(self._held)))
            self._held = None
