"""`verify`: what is printed and with which exit code."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlearn.cli.main import main
from streamlearn.storage import RunStore

Capture = pytest.CaptureFixture[str]
WriteRun = Callable[..., Path]


@pytest.fixture
def run(write_run: WriteRun) -> Path:
    """A run that keeps two commits, of the steps 12 and 13."""
    import torch

    from streamlearn.memory import Memory

    path = write_run([], "running")
    with RunStore.open(path) as store:
        memory = Memory(4, 3, block_rows=512)
        store.read().load_memory("output", memory)
        store.commit(
            step=13,
            samples=1_664,
            status="stopped",
            state={"x": torch.ones(9)},
            memories={"output": memory},
            summary={},
            keep=2,
        )
    return path


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_whole_run_exits_with_0(run: Path, capsys: Capture) -> None:
    assert main(["verify", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("whole: 2 commits (step 12, 13), ")
    assert err == ""
    assert main(["verify", str(run), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["whole"] is True
    assert facts["damage"] == []
    assert facts["commits"][1] == {"commit": 2, "step": 13, "whole": True}


def test_each_damaged_file_has_a_line_and_the_exit_code_is_1(run: Path, capsys: Capture) -> None:
    damage(run / "state" / "000000000013.safetensors")
    damage(run / "commits" / "00000001.json")
    assert main(["verify", str(run)]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("commits/00000001.json is damaged (")
    assert second == "state/000000000013.safetensors is damaged (its checksum does not fit)"
    assert last == "damaged: 2 files; no commit is whole, put back copies of these files"
    assert main(["verify", str(run), "--repair"]) == 1


def test_a_repair_says_what_is_lost_and_exits_with_0(run: Path, capsys: Capture) -> None:
    damage(run / "state" / "000000000013.safetensors")
    assert main(["verify", str(run)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("damaged: 1 file; commit 1 (step 12) is whole, go back to it with ")
    assert f"`streamlearn verify --repair {run}`" in last
    copy = Path(shutil.copytree(run, run.parent / "copy"))
    assert main(["verify", "--repair", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("went back to commit 1 (step 12, 1536 samples); 1 step ")
    assert lines[2].startswith("whole: 1 commit (step 12), ")
    assert main(["verify", str(copy), "--repair", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [entry["file"] for entry in facts["found"]] == ["state/000000000013.safetensors"]
    assert facts["whole"] is True
    assert len(facts["repairs"]) == 1


def test_a_users_mistake_exits_with_2(run: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert "there is no run" in capsys.readouterr().err
    with RunStore.open(run):
        assert main(["verify", str(run), "--repair"]) == 2
        assert main(["verify", str(run)]) == 0
    assert "is being written by" in capsys.readouterr().err
