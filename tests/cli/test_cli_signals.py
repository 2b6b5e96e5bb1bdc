"""Stop signals and broken outputs, with real processes."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., "subprocess.Popen[bytes]"]
Until = Callable[[Callable[[], bool]], None]

LONG = "busy=4000000"  # rounds of hashing: seconds that no signal interrupts
SLOW_SAVE = "saving=2000000"


def ended(child: "subprocess.Popen[bytes]") -> tuple[int, str, str]:
    out, err = child.communicate(timeout=60)
    return child.returncode, (out or b"").decode(), (err or b"").decode()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_first_signal_saves_and_says_how_to_resume(
    program: Program, until: Until, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    child = program("run", "name=my own run")
    until((tmp_path / "steps.txt").exists)
    child.send_signal(number)
    returned, out, err = ended(child)
    assert returned == code
    path = tmp_path / "runs" / "my own run"
    assert f"resume with: streamlearn resume '{path}'" in out.splitlines()
    assert f"{number.name}: saving a checkpoint" in err
    assert "Traceback" not in err
    assert (tmp_path / "committed.txt").read_text() in out


def test_a_second_interrupt_ends_the_run_in_the_middle_of_a_computation(
    program: Program, until: Until, tmp_path: Path
) -> None:
    child = program("run", "saving=400000000")
    until((tmp_path / "steps.txt").exists)
    child.send_signal(signal.SIGINT)
    until((tmp_path / "saving.txt").exists)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    returned, _, err = ended(child)
    assert returned == 130
    assert not (tmp_path / "committed.txt").exists()
    assert "Traceback" not in err


@pytest.mark.parametrize("busy", [LONG, SLOW_SAVE])
def test_two_terminations_in_a_row_still_save(
    program: Program, until: Until, tmp_path: Path, busy: str
) -> None:
    child = program("run", busy)
    until((tmp_path / "steps.txt").exists)
    child.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    child.send_signal(signal.SIGTERM)
    returned, out, _ = ended(child)
    assert returned == 143
    assert (tmp_path / "committed.txt").exists()
    assert "resume with" in out


def test_a_later_termination_ends_the_run(program: Program, until: Until, tmp_path: Path) -> None:
    child = program("run", "saving=400000000")
    until((tmp_path / "steps.txt").exists)
    child.send_signal(signal.SIGTERM)
    until((tmp_path / "saving.txt").exists)
    time.sleep(1.2)
    child.send_signal(signal.SIGTERM)
    assert ended(child)[0] == 143
    assert not (tmp_path / "committed.txt").exists()


def test_another_kind_of_signal_does_not_cut_the_saving_short(
    program: Program, until: Until, tmp_path: Path
) -> None:
    child = program("run", SLOW_SAVE)
    until((tmp_path / "steps.txt").exists)
    child.send_signal(signal.SIGINT)
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    assert ended(child)[0] == 130
    assert (tmp_path / "committed.txt").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_before_the_session_ends_quietly(
    program: Program, until: Until, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    child = program("run", "opening=60")
    until((tmp_path / "opening.txt").exists)
    child.send_signal(number)
    assert ended(child) == (code, "", "")


def test_a_hang_up_that_nohup_ignores_stays_ignored(
    program: Program, until: Until, tmp_path: Path
) -> None:
    child = program("run", "steps=60", "--quiet", ignored=[signal.SIGHUP])
    until((tmp_path / "steps.txt").exists)
    child.send_signal(signal.SIGHUP)
    returned, out, err = ended(child)
    assert (returned, err) == (0, "")
    assert out.startswith("finished")


def test_json_ends_with_the_stopped_event_and_nothing_else_is_on_stdout(
    program: Program, until: Until, tmp_path: Path
) -> None:
    child = program("run", "--json")
    until((tmp_path / "steps.txt").exists)
    child.send_signal(signal.SIGINT)
    returned, out, err = ended(child)
    assert (returned, err) == (130, "")
    names = [json.loads(line, parse_constant=pytest.fail)["event"] for line in out.splitlines()]
    assert names[0] == "started"
    assert names[-2:] == ["checkpoint", "stopped"]


def test_json_ends_with_the_finished_event(program: Program) -> None:
    returned, out, err = ended(program("run", "--json", "steps=5"))
    assert (returned, err) == (0, "")
    records = [json.loads(line, parse_constant=pytest.fail) for line in out.splitlines()]
    assert records[-1]["event"] == "finished"
    assert records[-1]["test_accuracy"] is None


def test_a_reader_that_goes_away_stops_the_run_but_loses_nothing(
    program: Program, tmp_path: Path
) -> None:
    child = program("run", "--json", "pause=0.05")
    assert child.stdout is not None
    assert b'"started"' in child.stdout.readline()
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == b""
    assert child.wait(60) == 141
    assert (tmp_path / "committed.txt").exists()


def test_lines_that_nobody_reads_stop_the_run_as_well(program: Program, tmp_path: Path) -> None:
    child = program("run", "pause=0.05", stderr=subprocess.STDOUT)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(60) == 141
    assert (tmp_path / "committed.txt").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_on_a_full_disk_is_an_error_after_the_run_was_saved(
    program: Program, tmp_path: Path
) -> None:
    with open("/dev/full", "wb") as full:
        returned, _, err = ended(program("run", "--json", stdout=full))
    assert returned == 2
    assert err.startswith("error: cannot write the output: No space left on device; ")
    assert len(err.splitlines()) == 1
    assert (tmp_path / "committed.txt").exists()


def test_an_ascii_only_stdout_without_a_terminal_gets_plain_lines(program: Program) -> None:
    for env in (
        {"PYTHONIOENCODING": "ascii", "TERM": ""},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ):
        name = f"name=mis datos ñ {len(env)}"
        returned, out, err = ended(program("run", "steps=3", name, env=env))
        assert returned == 0
        assert out.isascii()
        assert err.isascii()
        assert not {"\x1b", "\r"} & set(out + err)
        assert "finished" in out


def test_a_mistake_is_one_line_and_code_2(program: Program) -> None:
    returned, out, err = ended(program("run", "fails=mistake", "--quiet"))
    assert (returned, out) == (2, "")
    assert err == "error: row 3 of 'x.csv' has no label; give it one\n"


def test_a_mistake_is_also_an_event_with_json(program: Program) -> None:
    returned, out, err = ended(program("run", "fails=mistake", "--json"))
    assert returned == 2
    assert json.loads(out.splitlines()[-1]) == {
        "event": "error",
        "message": "row 3 of 'x.csv' has no label; give it one",
    }
    assert err.count("\n") == 1


def test_a_run_closed_off_from_every_stream_still_learns(program: Program, tmp_path: Path) -> None:
    child = program("run", "steps=3", stdout=None, stderr=None, closed=[1, 2])
    assert child.wait(60) == 0
    assert (tmp_path / "committed.txt").exists()
