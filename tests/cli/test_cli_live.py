import io
import warnings
from collections.abc import Callable

import pytest
from rich.console import Console

from streamlearn.cli.live import Dashboard, can_draw, speaks_unicode
from streamlearn.cli.model import Model
from streamlearn.events import Progress

MakeProgress = Callable[..., Progress]


class Clock:
    """A clock that passes while something is drawn."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Screen(io.StringIO):
    """A terminal that takes its time."""

    def __init__(self, clock: Clock, cost: float) -> None:
        super().__init__()
        self.clock, self.cost, self.frames = clock, cost, 0

    def write(self, text: str) -> int:
        if "prequential accuracy" in text:
            self.clock.now += self.cost
            self.frames += 1
        return super().write(text)

    def isatty(self) -> bool:
        return True


def dashboard(clock: Clock, screen: Screen) -> Dashboard:
    console = Console(file=screen, force_terminal=True, width=80, height=24)
    return Dashboard(Model(), console, clock=clock, now=clock)


@pytest.mark.parametrize(("cost", "frames"), [(0.0, 42), (0.05, 5)])
def test_at_most_four_frames_a_second_and_fewer_on_a_slow_terminal(
    progress: MakeProgress, cost: float, frames: int
) -> None:
    clock = Clock()
    screen = Screen(clock, cost)
    shown = dashboard(clock, screen)
    shown.open()
    for samples in range(1, 1_001):
        clock.now += 0.01
        shown.show(progress(samples))
    shown.close()
    assert 2 <= screen.frames <= frames
    assert shown.model.samples == 1_000


def test_a_terminal_that_fails_ends_the_drawing_only(progress: MakeProgress) -> None:
    class Gone(Screen):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    clock = Clock()
    shown = dashboard(clock, Gone(clock, 0))
    shown.open()
    clock.now = 9
    shown.show(progress())
    shown.stopping("SIGHUP")
    shown.restore()
    shown.close()
    assert shown.failed is not None
    assert shown.failed.errno == 5


def test_a_warning_becomes_a_line_in_the_list_of_events() -> None:
    clock = Clock()
    shown = dashboard(clock, Screen(clock, 0))
    before = warnings.showwarning
    shown.open()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = shown._warning
        warnings.warn("tiny batch", UserWarning, stacklevel=1)
    shown.close()
    assert warnings.showwarning is before
    assert [line.text for line in shown.model.lines] == ["UserWarning: tiny batch"]


def test_nothing_but_a_capable_terminal_is_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", Screen(Clock(), 0))
    assert can_draw()
    for term in ("", "dumb", "unknown", "DUMB"):
        monkeypatch.setenv("TERM", term)
        assert not can_draw()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert not can_draw()
    monkeypatch.setattr("sys.stdout", None)
    assert not can_draw()


@pytest.mark.parametrize(
    ("encoding", "unicode"), [("utf-8", True), ("UTF8", True), ("ascii", False), ("latin-1", False)]
)
def test_the_encoding_decides_about_box_characters(encoding: str, unicode: bool) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert speaks_unicode(console) is unicode
