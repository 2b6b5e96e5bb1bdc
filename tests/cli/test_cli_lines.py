import io
import json
import math
from collections.abc import Callable

import pytest

from streamlearn import events
from streamlearn.cli.json_lines import JsonLines, to_json
from streamlearn.cli.output import Output, is_gone, output_code
from streamlearn.cli.plain import PlainLines
from streamlearn.errors import StorageError
from streamlearn.events import CheckpointSaved, Finished, Progress, Skipped, Started, Stopped

MakeProgress = Callable[..., Progress]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_json_is_strict_ascii_and_on_one_line() -> None:
    line = to_json({"a": math.nan, "b": [math.inf, 1.5], "c": "ñ\n\u2028", "d": {"e": -math.inf}})
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "c": "ñ\n\u2028",
        "d": {"e": None},
    }


def test_json_progress_is_thinned_but_the_last_one_always_comes(
    started: Started, progress: MakeProgress, finished: Finished
) -> None:
    stream, clock = io.StringIO(), Clock()
    lines = JsonLines(Output(stream), clock=clock)
    lines.show(started)
    for samples in range(1, 1_001):
        clock.now = samples / 100
        lines.show(progress(samples))
    lines.show(finished)
    lines.close()
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    names = [record["event"] for record in records]
    assert names[0] == "started"
    assert names[-1] == "finished"
    seen = [record["samples"] for record in records if record["event"] == "progress"]
    assert (seen[0], seen[-1]) == (1, 1_000)
    assert len(seen) <= 22
    assert {
        "test_accuracy",
        "prequential_accuracy",
        "samples",
        "seconds",
        "peak_rss_bytes",
        "tuples",
        "tuple_bytes",
        "run",
    } <= set(records[-1])


def test_quiet_json_leaves_out_progress(progress: MakeProgress, finished: Finished) -> None:
    stream = io.StringIO()
    lines = JsonLines(Output(stream), quiet=True)
    for event in (progress(), events.Testing(1, 2), finished):
        lines.show(event)
    lines.close()
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["finished"]


def test_what_was_held_back_is_written_at_the_end(progress: MakeProgress) -> None:
    stream, clock = io.StringIO(), Clock()
    lines = JsonLines(Output(stream), clock=clock)
    for samples in (1, 2, 3):
        lines.show(progress(samples))
    lines.close()
    lines.close()
    seen = [json.loads(line)["samples"] for line in stream.getvalue().splitlines()]
    assert seen == [1, 3]


def test_plain_progress_goes_beside_the_result(
    started: Started, progress: MakeProgress, checkpoint: CheckpointSaved, finished: Finished
) -> None:
    meanwhile, result, clock = io.StringIO(), io.StringIO(), Clock()
    lines = PlainLines(Output(meanwhile), Output(result), "runs/mine", clock=clock)
    lines.show(started)
    for samples in range(100, 2_001, 100):
        clock.now += 1
        lines.show(progress(samples))
    lines.show(Skipped("b\x1b[2J.png", "cannot identify\nimage", 3))
    lines.show(checkpoint)
    lines.show(events.Testing(10, 20))
    lines.show(events.Testing(20, 20))
    lines.show(events.Tested(20, 0.75, 0.5, 0.1))
    lines.show(finished)
    lines.close()
    said = meanwhile.getvalue().splitlines()
    assert said.pop(0) == "digits-onepass in runs/mine"
    assert said[0] == "started: 50,000 samples, 10 classes, cpu float32, seed 3"
    assert sum("accuracy 68.21%" in line for line in said) == 5
    # Bad items may be many, so they do not end the pause between two lines of progress.
    assert said[6].startswith("2,000 of 50,000 (4.0%), accuracy 68.21%, windowed 73.14%")
    assert said[5] == "skipped b?[2J.png: cannot identify image (3 so far)"
    assert said[7] == "checkpoint at step 12: 11.8 MiB in 0.14 s"
    assert said[8] == "testing 20 of 20"
    closing = result.getvalue().splitlines()
    assert closing[0] == "finished"
    facts = dict(line.strip().split("  ", 1) for line in closing[1:])
    assert facts["test accuracy"].strip() == "74.12%"
    assert facts["run"].strip() == "runs/mine"
    assert facts["skipped"].strip() == "2 items"
    everything = meanwhile.getvalue() + result.getvalue()
    assert "\r" not in everything
    assert "\x1b" not in everything


def test_quiet_lines_are_the_summary_alone(
    started: Started, progress: MakeProgress, stopped: Stopped
) -> None:
    meanwhile, result = io.StringIO(), io.StringIO()
    lines = PlainLines(Output(meanwhile), Output(result), "runs/my own", quiet=True)
    for event in (started, progress(), stopped):
        lines.show(event)
    lines.close()
    assert meanwhile.getvalue() == ""
    assert result.getvalue().splitlines() == [
        "stopped by SIGINT at step 12, sample 1,536; everything up to there is saved",
        "resume with: streamlearn resume 'runs/my own'",
    ]


class Broken(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error
        self.calls = 0

    def write(self, text: str) -> int:
        self.calls += 1
        raise self.error


def test_an_output_goes_quiet_after_its_first_failure() -> None:
    stream = Broken(BrokenPipeError(32, "Broken pipe"))
    output = Output(stream)
    for _ in range(3):
        output.line("x")
    assert output.failed is stream.error
    assert is_gone(stream.error)
    assert stream.calls == 1
    assert output_code(output.failed) == 141


def test_an_output_that_cannot_be_written_is_an_error_with_a_remedy() -> None:
    output = Output(Broken(OSError(28, "No space left on device")))
    output.line("x")
    with pytest.raises(StorageError, match="cannot write the output: No space left on device; w"):
        output_code(output.failed)


def test_a_missing_stream_is_no_output() -> None:
    output = Output(None)
    output.line("x")
    assert output_code(output.failed) == 0
