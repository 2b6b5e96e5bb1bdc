import math
from collections.abc import Callable

import pytest

from streamlearn import events
from streamlearn.cli.model import Model
from streamlearn.cli.records import to_event
from streamlearn.events import (
    CheckpointSaved,
    ClassArrived,
    EncoderFitted,
    Event,
    Finished,
    Notice,
    Progress,
    Skipped,
    Started,
    Stopped,
    as_json,
)

MakeProgress = Callable[..., Progress]


def every_event(
    started: Started,
    progress: MakeProgress,
    checkpoint: CheckpointSaved,
    stopped: Stopped,
    finished: Finished,
) -> list[Event]:
    return [
        started,
        EncoderFitted(16, 2048, "patches", 256, 3.2),
        progress(),
        progress(memory=None),
        Skipped("a.png", "cannot identify image file", 1),
        checkpoint,
        Notice("resumed with 2 threads"),
        events.Testing(512, 10_000),
        events.Tested(10_000, 0.74, 0.8, 3.0),
        stopped,
        finished,
    ]


def test_every_event_comes_back_from_its_record(
    started: Started,
    progress: MakeProgress,
    checkpoint: CheckpointSaved,
    stopped: Stopped,
    finished: Finished,
) -> None:
    for event in every_event(started, progress, checkpoint, stopped, finished):
        assert to_event({"time": 1.0, **as_json(event)}) == event


def test_a_record_of_a_newer_version_is_shown_as_far_as_it_is_understood() -> None:
    assert to_event({"event": "notice", "text": "hello", "colour": "blue"}) == Notice("hello")
    assert to_event({"event": "drift"}) is None
    assert to_event({"event": "tested", "samples": 3}) is None
    assert to_event({"event": "progress", "layers": [{"tuples": 3}]}) is None
    assert to_event({}) is None


def test_events_and_their_records_give_the_same_picture(
    started: Started,
    progress: MakeProgress,
    checkpoint: CheckpointSaved,
    stopped: Stopped,
    finished: Finished,
) -> None:
    live, replayed = Model(), Model()
    for event in every_event(started, progress, checkpoint, stopped, finished):
        live.update(event, 1_700_000_000.0)
        replayed.replay({"time": 1_700_000_000.0, **as_json(event)})
    for name in ("phase", "samples", "accuracy", "memory", "checkpoint_time", "lines", "skipped"):
        assert getattr(live, name) == getattr(replayed, name)
    assert live.curve.points == replayed.curve.points


def test_a_resumed_run_keeps_its_curve_up_to_the_checkpoint(
    started: Started, progress: MakeProgress, stopped: Stopped
) -> None:
    model = Model()
    model.update(started, 0.0)
    for samples in range(128, 2_000, 128):
        model.update(progress(samples), 0.0)
    model.update(stopped, 0.0)
    assert model.over
    model.update(
        Started("runs/mine", "digits-onepass", 5, 640, 50_000, 10, "cpu", "float32", 3), 0.0
    )
    assert not model.over
    assert model.curve.points[-1][0] == 640
    assert model.layers["output"].growth.points[-1][0] == 640
    model.update(progress(768), 0.0)
    assert [point[0] for point in model.curve.points] == [128, 256, 384, 512, 640, 768]


def test_the_list_of_events_is_bounded_and_free_of_control_characters() -> None:
    model = Model()
    for index in range(1_000):
        model.update(ClassArrived(index, index, f"\x1b[31m{index}.png\r\n"), float(index))
        model.update(Skipped(f"\x1b[31m{index}.png", "broken\r\nfile", index), float(index))
    assert len(model.lines) == 200
    assert all(line.text.isprintable() for line in model.lines)


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_missing_accuracy_does_not_enter_the_curve(
    progress: MakeProgress, value: float | None
) -> None:
    model = Model()
    model.update(progress(accuracy=value), 0.0)
    assert len(model.curve) == 0


def test_time_left_counts_that_later_samples_cost_more(progress: MakeProgress) -> None:
    model = Model()
    # A sample costs 2n microseconds: n of them take n² microseconds.
    for samples in range(500, 25_001, 500):
        rate = 1e6 / (2 * samples)
        model.update(progress(samples, seconds=1e-6 * samples**2, rate=rate), 0.0)
    exact = 1e-6 * (50_000**2 - 25_000**2)
    assert model.time_left() == pytest.approx(exact, rel=0.02)


def test_time_left_is_unknown_on_an_endless_stream_and_never_negative(
    progress: MakeProgress,
) -> None:
    model = Model()
    model.update(progress(total_samples=None), 0.0)
    assert model.time_left() is None
    model.update(progress(60_000, total_samples=50_000), 0.0)
    assert model.time_left() == 0
    model.update(progress(60_001, rate=0.0), 0.0)
    assert model.time_left() is None


def test_progress_costs_no_line_in_the_list_of_events(progress: MakeProgress) -> None:
    model = Model()
    model.update(progress(), 0.0)
    assert isinstance(progress(), Progress)
    assert not model.lines
