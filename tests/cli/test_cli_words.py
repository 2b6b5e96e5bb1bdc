"""explain-config, doctor, completion, and the files that are generated from the code."""

import importlib.metadata
import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from streamlearn.cli import doctor as doctors
from streamlearn.cli import packages as packaged
from streamlearn.cli.completion import (
    complete_key_or_word,
    complete_resumable,
    complete_run,
    complete_word,
)
from streamlearn.cli.main import main
from streamlearn.cli.reference import files

Capture = pytest.CaptureFixture[str]


def test_a_scenario_is_explained_key_by_key(capsys: Capture) -> None:
    assert main(["explain-config", "scenario=digits-onepass", "layer.kappa=4"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "layer.kappa = 4 [unit: logit; default: 6; numbers above 0]" in text
    assert "raising it: only nearer tuples count" in text
    assert "[encoder=pca] Projection on whitened principal components." in text
    assert "memory.host_budget = none [unit: bytes; default: none; bytes, such as" in text
    assert "may change when a run is resumed" in text


def test_one_key_or_section_is_explained(capsys: Capture) -> None:
    assert main(["explain-config", "layer.gamma", "drift"]) == 0
    text = capsys.readouterr().out
    assert "of layer=rbf, not in use here" in " ".join(text.split())
    assert "drift.boost" in text
    assert "encoder.fit" not in text
    assert main(["explain-config", "layer.kappa", "--json"]) == 0
    fact = json.loads(capsys.readouterr().out)
    assert (fact["key"], fact["here"], fact["unit"]) == ("layer.kappa", "3", "logit")


@pytest.mark.parametrize(("words", "message"), [
    (["layer.kapa"], "layer.kapa is not a setting; did you mean layer.kappa?"),
    (["digits-onepass"], "did you mean scenario=digits-onepass?"),
    (["layer.kappa=-1"], "layer.kappa=-1 cannot be used"),
])  # fmt: skip
def test_what_cannot_be_explained_is_one_line(
    words: list[str], message: str, capsys: Capture
) -> None:
    assert main(["explain-config", *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


def test_scenarios_say_what_they_set(capsys: Capture) -> None:
    assert main(["scenarios", "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:1] == ["layer=rbf"] for line in lines)
    assert any(line.split()[:1] == ["layer.kappa=3"] and "largest logit" in line for line in lines)
    assert main(["scenarios", "-v", "--json"]) == 0
    facts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert facts[0]["sets"]["encoder"] == "pca"


# -- doctor --------------------------------------------------------------------------------------


def examined(folder: Path | str) -> dict[str, doctors.Finding]:
    return {finding.name: finding for finding in doctors.findings(str(folder))}


def test_the_doctor_says_what_is_used_and_why(tmp_path: Path, capsys: Capture) -> None:
    assert main(["doctor", "--dir", str(tmp_path / "none" / "yet")]) == 0
    text = capsys.readouterr().out
    for word in ("Python 3", "torch", "supported: >=2.9", "device", "dtype", "bfloat16", "threads",
                 "memory", "free", "no terminal", "all that is needed is here"):  # fmt: skip
        assert word in text, word
    assert not (tmp_path / "none").exists()
    assert main(["doctor", "--dir", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["usable"] is True
    assert {finding["state"] for finding in facts["findings"]} <= {"ok", "note"}


def test_a_problem_has_a_remedy_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    wanted = ["torch>=99", "gone-package>=1", 'obstoer>=1; extra == "s3"', "numpy>=1"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)
    (tmp_path / "file").touch()
    found = examined(tmp_path / "file")
    assert found["torch"].state == found["gone-package"].state == found["runs"].state == "problem"
    assert "is not supported, >=99 is" in found["torch"].text
    assert found["gone-package"].remedy == "pip install 'gone-package>=1'"
    assert (found["obstoer"].state, found["obstoer"].remedy) == (
        "note", "pip install 'streamlearn[s3]'",
    )  # fmt: skip
    assert found["numpy"].state == "ok"
    assert main(["doctor", "--dir", str(tmp_path / "file")]) == 2
    assert "3 problems to mend" in capsys.readouterr().out


def test_a_full_disk_and_a_folder_of_others_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    for free, state in ((1 << 20, "problem"), (1 << 29, "note"), (1 << 40, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(1 << 41, 0, free))
        assert examined(tmp_path)["runs"].state == state
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written to" in examined(tmp_path)["runs"].text


def test_every_optional_package_says_what_it_gives() -> None:
    optional = {package.name for package in packaged.packages() if package.extra}
    assert optional == set(packaged.GIVES)


# -- completion ----------------------------------------------------------------------------------


def test_words_are_completed_with_their_values() -> None:
    assert [word for word, _ in complete_word("data.order=")] == [
        *("data.order=shuffled", "data.order=given", "data.order=classes", "data.order=domains"),
    ]
    assert complete_word("layer.kap")[0][0] == "layer.kappa=6"
    assert "layer=rbf" in dict(complete_word("lay"))
    assert "scenario=digits-onepass" in dict(complete_word(""))
    assert "layer.kappa=6" not in dict(complete_word(""))
    assert "checkpoint.keep=1" in dict(complete_resumable("check"))
    assert not complete_resumable("layer")
    assert {"layer", "layer.kappa"} <= set(dict(complete_key_or_word("lay")))


def test_bash_is_given_what_stands_behind_the_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    for words, incomplete, found in (
        ("streamlearn\nrun\nlayer\n=\nr", "r", ["rbf"]),
        ("streamlearn run network =", "", ["mlp", "vit"]),
        ("streamlearn run network.hid", "network.hid", ["network.hidden=1", "network.hidden=4"]),
    ):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert [word for word, _ in complete_word(incomplete)] == found


def test_runs_are_completed_by_name_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("runs/first", "other/second"):
        Path(place).mkdir(parents=True)
        (Path(place) / "run.json").touch()
    assert [name for name, _ in complete_run("")] == ["first"]
    assert [name for name, _ in complete_run("other/s")] == ["other/second"]


# -- what is generated ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", files(), ids=lambda path: path.name)
def test_a_generated_file_is_what_the_code_says(path: Path) -> None:
    message = f"{path.name} is old: run python -m streamlearn.cli.reference"
    assert path.read_text(encoding="utf-8") == files()[path], message
