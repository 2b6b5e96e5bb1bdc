import io
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from streamlearn import events
from streamlearn.cli.dashboard import render
from streamlearn.cli.describe import describe
from streamlearn.cli.model import Model
from streamlearn.events import Finished, LayerStatus, Progress, Skipped, Started

MakeProgress = Callable[..., Progress]

NOW = 1_700_000_030.0
SIZES = [(60, 20), (80, 24), (120, 40), (200, 60)]


def shown(
    model: Model, width: int, height: int, unicode: bool = True, now: float = NOW
) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, height=height, no_color=True, force_terminal=False
    )
    with console.capture() as capture:
        console.print(render(model, width, height, now, unicode), end="")
    return capture.get().splitlines()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_line_fills_the_width_and_the_key_facts_are_there(
    model: Model, width: int, height: int
) -> None:
    lines = shown(model, width, height)
    assert len(lines) == height
    assert {cell_len(line) for line in lines} == {width}
    text = "\n".join(lines)
    for fact in (
        "digits-onepass",
        "learning",
        "52.2%",
        "26,112/50,000",
        "1,310/s",
        "left",
        "cumulative 66.56%",
        "windowed 73.95%",
        "loss 0.912",
        "hidden.0",
        "156,672",
        "output",
        "26,112",
        "device 0 B",
        "host 358 MiB",
        "process 1.12 GiB",
        "disk 22.4 MiB",
        "checkpoint 0:30 ago, step 12",
        "skipped 2",
        "26,112 samples",
        "checkpoint at step 12: 11.8 MiB in 0.14 s",
        "Ctrl-C saves a checkpoint and stops",
    ):
        assert fact in text, fact
    assert width < 80 or "…" not in text


@pytest.mark.parametrize("width", [1, 7, 20, 33, 59, 79, 109, 110, 133, 250])
@pytest.mark.parametrize("height", [1, 2, 5, 9, 16, 24, 37, 80])
@pytest.mark.parametrize("unicode", [True, False])
def test_no_size_is_overrun(model: Model, width: int, height: int, unicode: bool) -> None:
    lines = shown(model, width, height, unicode)
    assert len(lines) <= height
    assert {cell_len(line) for line in lines} == {width}


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_terminal_without_unicode_gets_ascii_only(
    started: Started, progress: MakeProgress, width: int, height: int
) -> None:
    model = Model()
    model.update(Started("runs/año-文件", "vögel", 0, 0, 50_000, 10, "cpu", "float32", 3), NOW)
    for samples in range(128, 10_000, 128):
        model.update(progress(samples), NOW)
    model.update(Skipped("ñandú.png", "cannot identify", 1), NOW)
    text = "\n".join(shown(model, width, height, unicode=False))
    assert text.isascii()
    assert "#" in text


def test_wide_characters_do_not_push_a_line_over_the_edge(progress: MakeProgress) -> None:
    model = Model()
    model.update(Started("runs/文件" * 30, "场景", 0, 0, 9, 10, "cpu", "float32", 3), NOW)
    layers = (LayerStatus("层" * 40, 3, 9),)
    model.update(progress(layers=layers), NOW)
    for line in shown(model, 81, 24):
        assert cell_len(line) == 81


def test_a_run_that_has_only_started_is_shown(started: Started) -> None:
    for model in (Model(), Model(run="runs/mine", scenario="digits-onepass")):
        text = "\n".join(shown(model, 80, 24))
        assert "starting" in text
        assert "none yet" in text
    model.update(started, NOW)
    assert "0/50,000" in "\n".join(shown(model, 80, 24))


def test_a_learner_that_does_not_grow_is_shown_by_its_size(progress: MakeProgress) -> None:
    model = Model()
    model.update(progress(layers=(), learner_bytes=3 << 20), 5.0)
    assert "nothing grows; the learner takes 3.00 MiB" in "\n".join(shown(model, 80, 24))
    assert "learner 3.00 MiB" in describe(progress(layers=(), learner_bytes=3 << 20))
    assert "tuples" not in describe(progress(layers=(), learner_bytes=3 << 20))


def test_an_endless_stream_has_no_bar_and_no_time_left(progress: MakeProgress) -> None:
    model = Model()
    model.update(progress(total_samples=None), NOW)
    text = "\n".join(shown(model, 80, 24))
    assert "1,280 samples" in text
    assert "left" not in text
    assert "0:01" in text


def test_a_clock_set_back_makes_no_negative_age(model: Model) -> None:
    assert "checkpoint 0:00 ago" in "\n".join(shown(model, 80, 24, now=1_000_000_000.0))


def test_many_layers_are_summed_up_and_leave_room_for_the_rest(progress: MakeProgress) -> None:
    model = Model()
    layers = tuple(LayerStatus(f"hidden.{index}", 100, 1_000) for index in range(40))
    model.update(progress(layers=layers), NOW)
    for width, height in SIZES:
        text = "\n".join(shown(model, width, height))
        assert "hidden.0" in text
        assert " more " in text
        assert "device 0 B" in text
        assert "events" in text


def test_testing_has_its_own_progress(model: Model) -> None:
    model.update(events.Testing(512, 10_000), NOW)
    text = "\n".join(shown(model, 80, 24))
    assert "testing" in text
    assert "5.1%  512/10,000 test samples" in text


def test_the_end_shows_the_test_and_the_path(model: Model, finished: Finished) -> None:
    model.update(events.Tested(10_000, 0.7412, 0.81, 3.0), NOW)
    model.update(finished, NOW)
    lines = shown(model, 80, 24)
    text = "\n".join(lines)
    assert "finished" in lines[0]
    assert "test 74.12%" in text
    assert lines[-1].startswith("runs/mine")


def test_a_stop_that_was_asked_for_is_said(model: Model) -> None:
    model.stopping = "SIGINT"
    lines = shown(model, 80, 24)
    assert "stopping (SIGINT)" in lines[0]
    assert "saving a checkpoint" in lines[-1]


def test_without_colour_only_weight_is_left(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(render(model, 80, 24, NOW))
    codes = {part.split("m")[0] for part in capture.get().split("\x1b[")[1:]}
    assert codes <= {"0", "1", "2", "1;2"}


def test_curves_have_their_own_colour_and_are_not_dimmed(model: Model) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(render(model, 80, 24, NOW))
    text = capture.get()
    assert "\x1b[33mwindowed 73.9%" in text
    assert "\x1b[36mcumulative 66.6%" in text
    assert "\x1b[2;3" not in text


def test_watching_does_not_promise_to_stop_the_run(model: Model) -> None:
    model.watching = True
    assert shown(model, 80, 24)[-1].startswith("watching; Ctrl-C leaves the run alone")
