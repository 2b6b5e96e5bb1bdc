"""Stop signals: the first asks the run to save and stop, a second one of the same kind ends it.

While a run is learning, a signal is noticed by a thread that reads the interpreter's wake-up pipe,
so it is timed when it arrives and not when a long matrix product lets the main thread look. The
first one only sets a flag in the session. Before there is a session, a signal raises
`Interrupted`.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupted", "StopSignals"]

_GRACE = {"SIGINT": 0.1, "SIGTERM": 1.0, "SIGHUP": 1.0}
"""Seconds within which a repeated signal is the same wish: process managers send two."""


_END = b"\0"
"""Written to the pipe to end the thread; no signal has this number."""
_AT_ONCE = b"stopped at once; what was committed is kept and can be resumed\n"


class Interrupted(BaseException):
    """A stop signal that came while there was nothing to save yet."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        super().__init__(self.name)
        self.exit_code = 128 + number


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP inside a `with` block; main thread only.

    A signal that the program was started to ignore (as `nohup` does) stays ignored.

    received: the name of the first signal since `attach`, or None.
    """

    def __init__(self, end: Callable[[int], None] = os._exit) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._stop: Callable[[str], None] | None = None
        self._restore: Callable[[], None] | None = None
        self._early: list[int] = []
        self._before: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._previous: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._previous_pipe = -1
        self._thread: threading.Thread | None = None
        self._number: int | None = None

    @property
    def received(self) -> str | None:
        """The name of the first signal that a session was told of."""
        return None if self._number is None else signal.Signals(self._number).name

    @property
    def exit_code(self) -> int:
        """128 and the number of the first signal; 0 without one."""
        return 0 if self._number is None else 128 + self._number

    def attach(
        self, stop: Callable[[str], None], restore: Callable[[], None] | None = None
    ) -> None:
        """From here on call `stop(name)` on the first signal, and `restore()` before ending."""
        with self._lock:
            self._stop, self._restore = stop, restore
            early, self._early = self._early, []
        for number in early:
            self._receive(number)

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._previous_pipe = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="stop-signals", daemon=True)
        self._thread.start()
        for name in _GRACE:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        if self._pipe is not None and self._thread is not None:
            signal.set_wakeup_fd(self._previous_pipe)
            os.write(self._pipe[1], _END)
            self._thread.join()
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = self._thread = None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Run by the interpreter in the main thread; once attached, the thread does the work."""
        # An exception in the middle of an import may have to pass C++ code, which aborts then; the
        # signal is not lost, but kept for `attach`.
        if self._stop is None and not _importing():
            raise Interrupted(number)

    def _listen(self) -> None:
        pipe = self._pipe
        if pipe is None:
            return
        while True:
            for number in os.read(pipe[0], 64):
                if number == _END[0]:
                    return
                if number in self._previous:
                    self._receive(number)

    def _receive(self, number: int) -> None:
        with self._lock:
            now = time.monotonic()
            if self._stop is None:
                first = self._before.setdefault(number, now)
                self._early.append(number)
                if now - first > _GRACE[signal.Signals(number).name]:
                    self._end(128 + number)  # nothing was begun that could be lost
                return
            first = self._first.setdefault(number, now)
            if first == now:
                if self._number is None:
                    self._number = number
                    self._stop(signal.Signals(number).name)
                return
        if now - first > _GRACE[signal.Signals(number).name]:
            if self._restore is not None:
                self._restore()
            with contextlib.suppress(OSError):
                os.write(2, _AT_ONCE)
            self._end(128 + number)


def _importing() -> bool:
    """Whether any module is being imported."""
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    return any(getattr(spec, "_initializing", False) for spec in specs)
