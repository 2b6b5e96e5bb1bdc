"""`inspect` and `watch` on runs as they lie on the disk."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from streamlearn.cli import inspect_layer
from streamlearn.cli.inspect import describe_run
from streamlearn.cli.main import main
from streamlearn.cli.watch import Follower
from streamlearn.errors import StreamlearnError
from streamlearn.events import (
    CheckpointSaved,
    Event,
    Finished,
    Progress,
    Started,
    Stopped,
    as_json,
)
from streamlearn.memory import DEAD, PRIOR, Memory, Tuples
from streamlearn.storage import RunReader, RunStore

Capture = pytest.CaptureFixture[str]
MakeProgress = Callable[..., Progress]
WriteRun = Callable[..., Path]


def snapshot(path: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


@pytest.fixture
def story(started: Started, progress: MakeProgress, checkpoint: CheckpointSaved) -> list[Event]:
    return [started, *(progress(samples) for samples in range(128, 1_537, 128)), checkpoint]


@pytest.mark.parametrize(
    ("status", "word"),
    [("stopped", "stopped"), ("finished", "finished"), ("running", "crashed"), (None, "empty")],
)
def test_inspect_names_the_state_of_a_run(
    write_run: WriteRun, story: Sequence[Event], capsys: Capture, status: str | None, word: str
) -> None:
    path = write_run(story, status)
    before = snapshot(path)
    assert main(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["status"] == word
    assert facts["run"] == str(path)
    assert (facts["resume"] is not None) == (word in ("stopped", "crashed"))
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"status                {word}" in lines or f"status    {word}" in lines
    assert snapshot(path) == before


def test_inspect_shows_each_layer_and_what_the_commit_says(
    write_run: WriteRun, story: Sequence[Event], capsys: Capture
) -> None:
    path = write_run(story)
    assert main(["inspect", str(path)]) == 0
    text = capsys.readouterr().out
    for fact in (
        "1,536 in 12 steps",
        "prequential accuracy  69.34%",
        "test accuracy         -",
        "float32",
        "rows a block",
        f"resume with: streamlearn resume {path}",
    ):
        assert fact in text
    assert main(["inspect", str(path), "--json"]) == 0
    (layer,) = json.loads(capsys.readouterr().out)["layers"]
    assert layer == {
        "name": "output",
        "tuples": 600,
        "most": None,
        "dead": 0,
        "bytes": 600 * 40,
        "dtype": "float32",
        "keys": "float32",
        "row_bytes": 40,
        "blocks": 2,
        "block_rows": 512,
        "shards": 8,
        "merged": 0,
        "growth": [[samples, samples] for samples in range(128, 1_537, 128)],
    }


def test_every_row_of_a_layer_is_told_and_damage_is_named(
    write_run: WriteRun, story: Sequence[Event], capsys: Capture
) -> None:
    path = write_run(story)
    with RunStore.open(path) as store:
        memory = Memory(4, 3, block_rows=512)
        store.open_memory("output", memory)
        values = torch.zeros(600, 3)
        values[:, 1] = 2.0
        memory.append(Tuples(torch.ones(600, 4), torch.zeros(600), values), 7)
        memory.drop(torch.arange(100))
        store.commit(step=12, samples=1_200, status="stopped", state={},
                     memories={"output": memory},
                     summary={"by_class": {"class": ["a", "b", "c"]}})  # fmt: skip
    assert main(["inspect", str(path), "--layer", "output", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["details"]
    assert (found["rows"], found["read"], found["zero_weights"]) == (1_200, 1_100, 600)
    assert found["age_samples"] == {"oldest": 1_200, "median": 500, "newest": 500}
    assert found["effective"] == pytest.approx(500)
    assert found["value_norm"]["0"] == pytest.approx(3**0.5)
    assert found["value_norm"]["1"] == 2.0
    assert found["classes"] == {"b": 600, "a": 0, "c": 0, "unknown": 500}
    assert [shard["state"] for shard in found["shards"]] == ["rewritten", "whole", "whole"]
    shard = path / "memory.zarr" / "layers" / "output" / "value" / "c.1.0"
    shard.write_bytes(b"\1" + shard.read_bytes()[1:])
    assert main(["inspect", str(path), "--layer", "all"]) == 0
    text = capsys.readouterr().out
    assert "1 do NOT have the rows that were committed" in text
    assert f"! {str(shard)!r} is damaged" in text
    assert "  rX#" in text.replace(" " * 10, "")
    assert main(["inspect", str(path), "--layer", "hidden.7"]) == 2
    assert "--layer 'hidden.7' is no layer of the run; it has 'output'" in capsys.readouterr().err


def test_looking_at_a_run_imports_no_torch(
    write_run: WriteRun, story: Sequence[Event], environment: dict[str, str]
) -> None:
    path = write_run(story)
    program = (
        "import sys; from streamlearn.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit('torch' in sys.modules or code)"
    )
    words = [sys.executable, "-c", program, "inspect", str(path), "--layer", "all"]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, timeout=60, check=True)
    assert b"all checksums fit" in done.stdout
    assert (inspect_layer.PRIOR, inspect_layer.DEAD) == (PRIOR, DEAD)


def test_a_run_is_found_by_its_name_in_the_runs_folder(
    write_run: WriteRun, story: Sequence[Event], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_run(story).parent.parent)
    for word in ("mine", "runs/mine"):
        assert main(["inspect", word, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "mine"


def test_a_clock_set_back_makes_no_negative_age(
    write_run: WriteRun, story: Sequence[Event]
) -> None:
    assert describe_run(RunReader(write_run(story)), now=0.0)["age_seconds"] == 0.0


def test_a_live_writer_is_named(write_run: WriteRun, story: Sequence[Event]) -> None:
    path = write_run(story, "running")
    with RunStore.open(path):
        facts = describe_run(RunReader(path), time.time())
        assert (facts["status"], facts["pid"]) == ("running", os.getpid())
        assert facts["resume"] is None


def test_inspect_cut_off_by_head_is_silent(
    write_run: WriteRun, story: Sequence[Event], environment: dict[str, str]
) -> None:
    path = write_run(story)
    program = "import sys; from streamlearn.cli.main import main; sys.exit(main(sys.argv[1:]))"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", str(path)],
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_watching_a_run_that_is_over_shows_how_it_ended_once(
    write_run: WriteRun, story: Sequence[Event], finished: Finished, capsys: Capture
) -> None:
    path = write_run([*story, finished], "finished")
    before = snapshot(path)
    assert main(["watch", str(path)]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert captured.err == ""
    assert lines[0].startswith("digits-onepass in ")
    assert sum("accuracy 68.21%" in line for line in lines) == 1
    assert "  test accuracy         74.12%" in lines
    assert snapshot(path) == before


def test_watching_with_json_gives_the_log_and_ends_with_the_end(
    write_run: WriteRun, story: Sequence[Event], stopped: Stopped, capsys: Capture
) -> None:
    path = write_run([*story, stopped])
    assert main(["watch", str(path), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records[0]["event"] == "started"
    assert records[-1]["event"] == "stopped"
    assert len(records) == len(story) + 1


def test_a_crashed_run_is_called_crashed_and_says_how_to_resume(
    write_run: WriteRun, story: Sequence[Event], capsys: Capture
) -> None:
    path = write_run(story, "running")
    assert main(["watch", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "crashed; step 12, sample 1,536 and all before are saved"
    assert lines[-1] == f"resume with: streamlearn resume {path}"
    assert main(["watch", str(path), "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["event"], last["step"]) == ("crashed", 12)


def test_a_run_that_crashed_before_its_first_commit_is_shown(
    write_run: WriteRun, capsys: Capture
) -> None:
    path = write_run([], None)
    assert main(["watch", str(path)]) == 0
    assert "before its first checkpoint" in capsys.readouterr().out


def test_watch_follows_a_run_to_its_end(
    write_run: WriteRun,
    story: Sequence[Event],
    progress: MakeProgress,
    stopped: Stopped,
    environment: dict[str, str],
) -> None:
    path = write_run(story, "running")
    program = "import sys; from streamlearn.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with RunStore.open(path) as store:
        child = subprocess.Popen(
            [sys.executable, "-c", program, "watch", str(path), "--json"],
            env=environment,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        seen = [json.loads(child.stdout.readline()) for _ in story]
        store.log(as_json(progress(1_664)))
        seen.append(json.loads(child.stdout.readline()))
        store.log(as_json(stopped))
    rest, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    assert seen[-1]["samples"] == 1_664
    assert json.loads(rest.splitlines()[-1])["event"] == "stopped"


def test_leaving_watch_with_an_interrupt_is_no_error(
    write_run: WriteRun, story: Sequence[Event], environment: dict[str, str]
) -> None:
    import signal

    path = write_run(story, "running")
    program = "import sys; from streamlearn.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with RunStore.open(path):
        child = subprocess.Popen(
            [sys.executable, "-c", program, "watch", str(path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, b"")


def test_a_follower_keeps_up_with_a_log_that_was_cut_by_a_resume(
    write_run: WriteRun, story: Sequence[Event], started: Started, progress: MakeProgress
) -> None:
    path = write_run(story, "running")
    with RunStore.open(path) as store:
        follower = Follower(path)
        follower.poll()
        for samples in range(1_664, 6_000, 128):
            store.log(as_json(progress(samples)))
        follower.poll()
        assert follower.model.samples == 5_888
    with RunStore.open(path) as store:  # cut back to the commit
        store.log(as_json(Started("runs/mine", "d", 12, 1_536, 50_000, 10, "cpu", "float32", 3)))
        store.log(as_json(progress(1_664)))
        follower.poll()
        assert follower.status.word == "running"
        assert follower.model.samples == 1_664
        xs = [point[0] for point in follower.model.curve.points]
        assert xs == sorted(set(xs))
        assert xs[-2:] == [1_536, 1_664]
    follower.poll()
    assert follower.model.phase == "crashed"


def test_readers_work_on_a_directory_that_cannot_be_written(
    write_run: WriteRun, story: Sequence[Event], capsys: Capture
) -> None:
    path = write_run(story)
    for file in sorted(path.rglob("*"), reverse=True):
        file.chmod(0o555 if file.is_dir() else 0o444)
    path.chmod(0o555)
    try:
        assert main(["inspect", str(path)]) == 0
        assert main(["watch", str(path)]) == 0
    finally:
        for folder in (path, *(entry for entry in path.rglob("*") if entry.is_dir())):
            folder.chmod(0o755)
    assert capsys.readouterr().err == ""


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StreamlearnError):
        Follower(tmp_path)


def test_a_run_whose_last_words_were_lost_is_still_called_finished(
    write_run: WriteRun, story: Sequence[Event], capsys: Capture
) -> None:
    path = write_run(story, "finished")
    follower = Follower(path)
    follower.poll()
    assert follower.model.phase == "finished"
    assert main(["watch", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished")
