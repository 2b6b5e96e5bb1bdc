"""Every view of a real run on the screen of a terminal, at every size, and while it is resized."""

import contextlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamlearn.cli.dashboard import VIEWS
from tests.pseudoterminal import Terminal

Start = Callable[..., "subprocess.Popen[bytes]"]

SIZES = [(80, 24), (120, 40), (200, 60)]
STREAM = ["scenario=rbf-drift-endless", "run.name=mine", "run.dir=runs", "memory.rows=500",
          "stream.delay=50", "checkpoint.every_seconds=1"]  # fmt: skip
KEYS = "space pause  k checkpoint now  q save and quit  ? help"

PANELS = {
    "overview": ("prequential accuracy", "memory", "events"),
    "layers": ("layers", "how they grow"),
    "classes": ("accuracy by class", "changes"),
    "storage": ("storage and cache", "checkpoints"),
    "events": ("events",),
    "help": ("views", "keys"),
}
FACTS = {
    "overview": ("cumulative", "windowed", "output", "process", "checkpoint at step"),
    "layers": ("of 500", "layer.gamma 10", "memory.policy oldest"),
    "classes": ("recall", "50 samples late"),
    "storage": ("run on disk", "every 1.0 s", "waited"),
    "events": ("started: an open-ended stream",),
    "help": ("overview: accuracy, memory, the last events", "suspend; fg brings it back"),
}


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Iterator[Start]:
    """Starts the real command line with a terminal as its controlling one; ends it at last."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(terminal: Terminal, *words: str, **env: str) -> "subprocess.Popen[bytes]":
        # A child takes the terminal as its own, as a shell's are, so that resizing signals it.
        take = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        code = take + "from streamlearn.cli.main import main; sys.exit(main(sys.argv[1:]))"
        child = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            env=environment | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | env,
            stdin=terminal.slave,
            stdout=terminal.slave,
            stderr=terminal.slave,
            start_new_session=True,
        )
        begun.append(child)
        return child

    yield start
    for child in begun:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def holds(*facts: str) -> Callable[[list[str]], bool]:
    """Whether a screen has all of these on it."""
    return lambda lines: all(fact in "\n".join(lines) for fact in facts)


def of_view(view: str, width: int) -> Callable[[list[str]], bool]:
    """Whether a screen of this width was drawn in full with this view."""

    def drawn(lines: list[str]) -> bool:
        rules = [line for line in lines if line.startswith("── ")]
        wide = bool(rules) and all(line[width - 1] == "─" for line in rules)
        return wide and KEYS in lines[-1] and holds(*PANELS[view], *FACTS[view])(lines)

    return drawn


def assert_whole(lines: list[str], view: str, columns: int, rows: int) -> None:
    """Nothing on a screen is cut, and what is opened on it is closed on it."""
    assert (len(lines), {len(line) for line in lines}) == (rows, {columns})
    text = "\n".join(lines)
    assert "…" not in text
    assert "Traceback" not in text
    assert lines[0].startswith("streamlearn  rbf-drift-endless  mine")
    assert lines[0].endswith("learning")
    assert re.match(r"[\d,]+ samples  [\d,.]+/s  for \d+:\d\d *$", lines[1])
    assert [name for name in VIEWS if f" {1 + VIEWS.index(name)} {name} " not in lines[-2]] == []
    assert lines[-1].rstrip() == KEYS
    for line in lines:
        if line.startswith("── "):
            assert re.fullmatch(r"── [a-z ]+ ─+(  ── [a-z ]+ ─+)?", line)
    if view == "overview":
        axes = [place for place, line in enumerate(lines) if line[4] in "┤└"]
        assert axes == list(range(axes[0], axes[-1] + 1))
        assert [lines[place][4] for place in axes] == ["┤"] * (len(axes) - 1) + ["└"]
        assert re.search(r"└[\d,]+ ─+ [\d,]+ samples", lines[axes[-1]])


def test_every_view_is_whole_at_every_size_also_after_two_hundred_resizes(
    terminal: Terminal, start: Start
) -> None:
    child = start(terminal, "run", *STREAM)
    terminal.until(holds("checkpoint at step", "└"))
    assert_views_are_whole(terminal)
    draw, before = random.Random(7), frames(terminal)
    for _ in range(200):
        terminal.resize(draw.randint(20, 250), draw.randint(5, 70))
        terminal.type(draw.choice("123456"))  # a key is answered by a picture at once
        time.sleep(0.02)
    assert child.poll() is None
    assert frames(terminal) > before + 50
    assert_views_are_whole(terminal)
    terminal.type("q")
    assert terminal.hang_up_after(child) == 0
    assert "Traceback" not in terminal.text()
    assert not re.search(r"\x1b\[[0-3]?[JK]", pictures(terminal))  # one over another: no flicker


def assert_views_are_whole(terminal: Terminal) -> None:
    """Press the key of every view at every size, and look at what comes."""
    for columns, rows in SIZES:
        terminal.resize(columns, rows)
        for number, view in enumerate(VIEWS, start=1):
            terminal.type(str(number))
            lines = terminal.until(of_view(view, columns))
            assert_whole(lines, view, columns, rows)


def pictures(terminal: Terminal) -> str:
    """What was written while the dashboard had the screen, from its second picture on."""
    shown = terminal.text().split("\x1b[?1049h")[1].split("\x1b[?1049l")[0]
    return shown.split("\x1b[H", 2)[-1]


def frames(terminal: Terminal) -> int:
    """How many pictures were drawn."""
    return terminal.text().count("\x1b[H")


def samples(lines: list[str]) -> int:
    """How many samples a screen says were learnt."""
    found = re.match(r"([\d,]+) samples", lines[1])
    return int(found[1].replace(",", "")) if found else 0


def test_watch_follows_a_run_that_is_killed_and_resumed(
    terminal: Terminal, start: Start, tmp_path: Path
) -> None:
    elsewhere = Terminal()
    try:
        learning = start(elsewhere, "run", *STREAM)
        elsewhere.until(holds("checkpoint at step"))
        watching = start(terminal, "watch", "runs/mine")
        seen = terminal.until(holds("learning", "watching", "checkpoint at step"))
        learning.send_signal(signal.SIGKILL)
        learning.wait()
        killed = terminal.until(lambda lines: "crashed" in lines[0])
        assert samples(killed) >= samples(seen) > 0
        again = start(elsewhere, "resume", "runs/mine")
        # The events view has room for more of them than come while this looks.
        terminal.type(str(1 + VIEWS.index("events")))
        terminal.until(lambda lines: "learning" in lines[0] and holds("resumed")(lines))
        terminal.until(lambda lines: samples(lines) > samples(killed))
        elsewhere.type("q")
        assert again.wait(60) == 0
        terminal.until(lambda lines: "stopped" in lines[0])
        terminal.type("q")
        assert terminal.hang_up_after(watching) == 0
        assert "Traceback" not in terminal.text() + elsewhere.text()
    finally:
        elsewhere.close()
