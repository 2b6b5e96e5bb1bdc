"""The dashboard on a real pseudo-terminal."""

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pseudoterminal import Terminal

Program = Callable[..., "subprocess.Popen[bytes]"]
Until = Callable[[Callable[[], bool]], None]

ENTER, LEAVE, SHOW_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def on(terminal: Terminal, program: Program, *words: str, **env: str) -> "subprocess.Popen[bytes]":
    env = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | env
    return program(
        *words,
        env=env,
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
        start_new_session=True,
    )


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_dashboard_takes_the_screen_and_gives_it_back_with_a_summary(
    terminal: Terminal, program: Program
) -> None:
    child = on(terminal, program, "run", "steps=60")
    assert terminal.hang_up_after(child) == 0
    text = terminal.text()
    assert text.count(ENTER) == text.count(LEAVE) == 1
    screen, after = text.split(LEAVE)
    for fact in ("slow", "prequential accuracy", "cumulative", "output", "checkpoint", "events"):
        assert fact in plain(screen)
    assert SHOW_CURSOR in text[text.index(ENTER) :]
    assert "prequential accuracy  50.00%" in after


def test_an_interrupt_gives_the_screen_back_and_prints_the_resume_command(
    terminal: Terminal, program: Program, until: Until, tmp_path: Path
) -> None:
    child = on(terminal, program, "run")
    until(lambda: "cumulative" in terminal.text())
    child.send_signal(signal.SIGINT)
    assert terminal.hang_up_after(child) == 130
    screen, after = terminal.text().split(LEAVE)
    assert "SIGINT: saving a checkpoint" in screen
    assert f"streamlearn resume {tmp_path / 'runs' / 'mine'}" in after.replace("\r\n", "")


def test_a_second_interrupt_leaves_a_usable_terminal(
    terminal: Terminal, program: Program, until: Until, tmp_path: Path
) -> None:
    child = on(terminal, program, "run", "saving=400000000")
    until(lambda: "cumulative" in terminal.text())
    child.send_signal(signal.SIGINT)
    until((tmp_path / "saving.txt").exists)
    until(lambda: "saving a checkpoint" in terminal.text())
    threading.Event().wait(0.3)
    child.send_signal(signal.SIGINT)
    assert terminal.hang_up_after(child) == 130
    assert LEAVE in terminal.text()
    assert SHOW_CURSOR in terminal.text().split(LEAVE)[1]


@pytest.mark.parametrize(("fails", "code"), [("mistake", 2), ("fault", 1)])
def test_an_error_is_read_on_the_normal_screen(
    terminal: Terminal, program: Program, fails: str, code: int
) -> None:
    child = on(terminal, program, "run", f"fails={fails}")
    assert terminal.hang_up_after(child) == code
    after = terminal.text().split(LEAVE)[1]
    assert ("error: row 3" in after) == (fails == "mistake")
    assert ("Traceback" in after) == (fails == "fault")


@pytest.mark.parametrize("how", ["--plain", "dumb", "unset"])
def test_plain_lines_on_a_terminal_have_no_escape_codes(
    terminal: Terminal, program: Program, how: str
) -> None:
    words = ["run", "steps=3", *(["--plain"] if how == "--plain" else [])]
    term = {"dumb": "dumb", "unset": ""}.get(how, "xterm")
    assert terminal.hang_up_after(on(terminal, program, *words, TERM=term)) == 0
    assert "\x1b" not in terminal.text()
    assert "finished" in terminal.text()


def test_no_color_and_an_ascii_terminal_are_respected(terminal: Terminal, program: Program) -> None:
    child = on(terminal, program, "run", "steps=20", NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert terminal.hang_up_after(child) == 0
    assert terminal.text().isascii()
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.text())


def test_a_terminal_that_goes_away_does_not_end_the_run_without_saving(
    program: Program, tmp_path: Path
) -> None:
    master, slave = pty.openpty()
    child = program("run", env={"TERM": "xterm"}, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    while b"cumulative" not in seen:
        seen += os.read(master, 65536)
    os.close(master)
    assert child.wait(60) == 141
    assert (tmp_path / "committed.txt").exists()
