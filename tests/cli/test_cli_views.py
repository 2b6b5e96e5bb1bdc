"""The dashboard's views at every size, and the keys that choose them and steer a run."""

import io
import os
import pty
import termios
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from streamlearn.cli.dashboard import VIEWS, render
from streamlearn.cli.describe import matrix_lines
from streamlearn.cli.keys import Keyboard, keys_of, open_keyboard
from streamlearn.cli.live import Dashboard
from streamlearn.cli.model import Model
from streamlearn.events import ClassArrived, DriftDetected, Paused, Progress

NOW = 1_700_000_030.0
MATRIX = [[0.97, 0.0, 0.0], [0.71, 0.95, 0.0], [0.52, 0.66, 0.93]]
FIGURES = {"matrix": MATRIX, "average_accuracy": 0.7033, "anytime_accuracy": 0.8347,
           "forgetting": 0.37, "backward_transfer": -0.37, "forward_transfer": -0.1}  # fmt: skip
BY_CLASS = {"class": ["cat", "dog", "eel"], "samples": [900, 80, 7], "recall": [0.91, 0.5, None],
            "first_seen": [1, 412, 0]}  # fmt: skip


@pytest.fixture
def full(model: Model) -> Model:
    model.settings = {"memory": {"rows": 200_000, "host_budget": 1 << 30},
                      "stream": {"delay": 500}, "checkpoint": {"every_seconds": 30.0}}  # fmt: skip
    model.summary = {"by_class": BY_CLASS, **FIGURES}
    model.dead = {"output": 17}
    model.update(DriftDetected(9, 20_000, "adwin", 0.1, 0.5, 64, "boost"), NOW)
    model.update(ClassArrived(9, 21_000, "eel"), NOW)
    return model


def shown(model: Model, width: int, height: int, view: str, unicode: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, no_color=True)
    with console.capture() as capture:
        picture = render(model, width, height, NOW, unicode, view=view, keys=True)
        console.print(picture, end="")
    return capture.get().splitlines()


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_every_size_and_nothing_is_cut_on_a_usual_one(
    full: Model, view: str
) -> None:
    for width, height in [(80, 24), (120, 40), (200, 60), (1, 1), (20, 9), (61, 11), (133, 17)]:
        for unicode in (True, False):
            lines = shown(full, width, height, view, unicode)
            assert len(lines) == height
            assert {cell_len(line) for line in lines} == {width}
            text = "\n".join(lines)
            assert unicode or text.isascii()
            assert width < 80 or height < 24 or "…" not in text
    assert f" {1 + VIEWS.index(view)} {view} " in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 60)])
def test_each_view_has_what_it_is_for(full: Model, width: int, height: int) -> None:
    wanted = {
        "overview": ("cumulative 66.56%", "rows 156,672 of 200,000", "drift at sample 20,000"),
        "layers": ("156,672", "78.3% of 200,000", "17"),
        "classes": ("cat", "91.0%", "412", "97%", "52%", "forgetting", "37.0%", "eel at 21,000",
                    "at 20,000 (0.1 to 0.5)", "500 samples late"),
        "storage": ("358 MiB", "35% of 1.00 GiB", "1.12 GiB", "every 30.0 s", "11.8 MiB"),
        "events": ("checkpoint at step 12", "class eel came with sample 21,000"),
        "help": ("space", "checkpoint now", "Ctrl-Z"),
    }  # fmt: skip
    for view, facts in wanted.items():
        text = "\n".join(shown(full, width, height, view))
        assert [fact for fact in facts if fact not in text] == []
    full.watching = True
    assert "cannot pause" in "\n".join(shown(full, width, height, "help"))


def test_of_many_classes_the_worst_are_shown(full: Model) -> None:
    many = 500
    full.summary = {"by_class": {"class": [f"c{n}" for n in range(many)], "samples": [9] * many,
                                 "recall": [(n + 1) / many for n in range(many)][::-1],
                                 "first_seen": [1] * many}}  # fmt: skip
    text = "\n".join(shown(full, 80, 24, "classes"))
    assert "c499" in text
    assert "c0 " not in text
    assert "more" in text


def test_the_matrix_is_printed_with_its_formulas() -> None:
    lines = matrix_lines(FIGURES)
    assert max(map(len, lines)) <= 80
    line = "  forgetting         37.00%  mean[j<n] (max[j<=i<n] R[i][j] - R[n][j])"
    assert line in lines
    assert sum("mean[" in line for line in lines) == 5


# -- keys ------------------------------------------------------------------------------------------


class Typed(Keyboard):
    """A keyboard on which a test has typed."""

    def __init__(self) -> None:
        super().__init__(-1)
        self.keys: list[str] = []
        self.closed = False

    @property
    def foreground(self) -> bool:
        return True

    def enter(self) -> None:
        """There are no modes."""

    def read(self, seconds: float = 0.0) -> list[str]:
        keys, self.keys = self.keys, []
        return keys

    def close(self) -> None:
        self.closed = True


class Run:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def pause(self, paused: bool) -> None:
        self.asked.append(paused)

    def request_checkpoint(self) -> None:
        self.asked.append("checkpoint")

    def request_stop(self, reason: str) -> None:
        self.asked.append(reason)

    def facts(self) -> dict[str, Any]:
        return {"summary": {"by_class": BY_CLASS}, "dead": {"output.2": 3}}


def test_keys_choose_views_and_steer_the_run(progress: Callable[..., Progress]) -> None:
    typed, run, screen = Typed(), Run(), io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=24)
    clock = iter(range(1_000))
    dashboard = Dashboard(Model(), console, typed, run, clock=lambda: float(next(clock)))
    dashboard.open()
    seen = []
    for key in [*"123456olcse?", "right", "left", "left", "c"]:
        typed.keys = [key]
        dashboard.show(progress())
        seen.append(dashboard.view)
    assert seen == [*VIEWS, *VIEWS, "overview", "help", "events", "classes"]
    assert "accuracy by class" in screen.getvalue()
    assert dashboard.model.dead == {"output": 3}
    typed.keys = [" "]
    dashboard.show(progress())
    assert "pausing" in screen.getvalue()
    typed.keys = ["k"]
    for _ in range(3):
        dashboard.show(Paused(10, 1_280))
    assert dashboard.model.phase == "paused"
    assert [line.text for line in dashboard.model.lines] == [
        "paused at step 10, sample 1,280", "a checkpoint is asked for"
    ]  # fmt: skip
    typed.keys = [" ", "q", "q"]
    dashboard.show(Paused(10, 1_280))
    dashboard.close()
    assert run.asked == [True, "checkpoint", False, "the key q"]
    assert typed.closed


def test_sequences_of_other_keys_mean_nothing() -> None:
    assert keys_of("q\x1b[A\x1b[5~\x1b[1;5C\x1b[C\x1bOD k") == ["q", "right", "left", " ", "k"]


def test_a_keyboard_is_read_without_echo_and_gives_the_terminal_back() -> None:
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        keyboard = Keyboard(slave)
        keyboard.enter()
        assert not termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON)
        assert termios.tcgetattr(slave)[3] & termios.ISIG
        os.write(master, b"2q")
        assert keyboard.read(10) == ["2", "q"]
        keyboard.close()
        assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)


def test_data_on_the_standard_input_are_not_taken_as_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave) as terminal, os.fdopen(master):
        monkeypatch.setattr("sys.stdin", terminal)
        assert open_keyboard(stdin_is_data=True) is None
        assert isinstance(open_keyboard(), Keyboard)
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    assert open_keyboard() is None
