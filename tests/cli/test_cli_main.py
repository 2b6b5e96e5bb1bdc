import json
import subprocess
import sys
from pathlib import Path

import pytest

import streamlearn
from streamlearn.cli.completion import complete_run, complete_word
from streamlearn.cli.main import main

Capture = pytest.CaptureFixture[str]
COMMANDS = (
    *("run", "resume", "scenarios", "inspect", "info"),
    *("watch", "evaluate", "verify", "export"),
)


def run(words: list[str], environment: dict[str, str], **settings: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", *words],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        **settings,  # type: ignore[call-overload]
    )
    return str(done.stdout)


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "--help"], ["--version"], ["scenarios"], ["scenarios", "--json"]]
)
def test_help_and_scenarios_do_not_import_torch(
    words: list[str], environment: dict[str, str]
) -> None:
    program = (
        "import sys; from streamlearn.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'zarr', 'river', 'sklearn'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else code)"
    )
    assert run([program, *words], environment)


def test_completion_does_not_import_torch(environment: dict[str, str]) -> None:
    program = (
        "import sys; from streamlearn.cli.main import main\n"
        "try: main([])\n"
        "finally: assert 'torch' not in sys.modules"
    )
    asked = {
        "_STREAMLEARN_COMPLETE": "complete_zsh",
        "_TYPER_COMPLETE_ARGS": "streamlearn run scenario=dig",
    }
    assert "scenario=digits-onepass" in run([program], environment | asked)


def test_help_names_every_command(capsys: Capture) -> None:
    for words in ([], ["--help"], ["-h"]):
        assert main(words) == 0
        text = capsys.readouterr().out
        for command in COMMANDS:
            assert f" {command} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_and_help(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert ("--plain" in text) == (command in ("run", "resume", "watch"))


def test_the_version_is_the_packages(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"streamlearn {streamlearn.__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspct", "x"], "error: No such command 'inspct'. Did you mean 'inspect'?"),
        (["run", "--jsn"], "--json"),
        (["inspect"], "error: Missing argument 'RUN'"),
        (["resume"], "error: Missing argument 'RUN'"),
    ],
)
def test_a_mistyped_command_line_is_one_line_with_the_nearest_right_word(
    words: list[str], message: str, capsys: Capture
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("error: ")
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


@pytest.mark.parametrize("command", ["inspect", "watch", "evaluate", "resume"])
def test_a_run_that_is_not_there_is_one_line(
    command: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "nowhere"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert "nowhere" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_an_error_with_json_is_an_event_too(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", "--json", "nowhere"]) == 2
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert record["event"] == "error"
    assert captured.err == f"error: {record['message']}\n"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory"),
        (OSError(28, "No space left on device", "runs/x"), "the disk is full at runs/x"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
    ],
)
def test_what_the_machine_lacks_is_said_in_a_sentence(
    error: Exception, message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("streamlearn.cli.listing.list_scenarios", fail)
    assert main(["scenarios"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}")
    assert len(err.splitlines()) == 1


def test_a_fault_of_the_program_shows_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("streamlearn.cli.listing.list_scenarios", fail)
    with pytest.raises(RuntimeError, match="unforeseen"):
        main(["scenarios"])


def test_an_interrupt_before_anything_began_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamlearn.cli.listing.list_scenarios", interrupt)
    assert main(["scenarios"]) == 130
    assert capsys.readouterr() == ("", "")


def test_scenarios_are_listed_with_the_default_first_and_marked(capsys: Capture) -> None:
    assert main(["scenarios"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("digits-onepass ")
    assert lines[0].endswith("(default)")
    assert not any(line.endswith("(default)") for line in lines[1:])
    assert main(["scenarios", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["name"] for record in records] == [line.split()[0] for line in lines]
    assert [record["default"] for record in records].count(True) == 1
    assert all(record["summary"] for record in records)


def test_completion_offers_scenarios_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete_run("") == []
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "run.json").write_text("{}")
    (tmp_path / "runs" / "other").mkdir()
    assert [name for name, _ in complete_run("m")] == ["mine"]
    assert complete_run("x") == []
    assert "scenario=digits-onepass" in [word for word, _ in complete_word("scen")]
    assert complete_word("colour") == []


def test_help_on_an_ascii_only_stdout_has_no_escape_codes(environment: dict[str, str]) -> None:
    program = "import sys; from streamlearn.cli.main import main; sys.exit(main(sys.argv[1:]))"
    env = environment | {"PYTHONIOENCODING": "ascii", "TERM": ""}
    for words in (["--help"], ["scenarios"]):
        text = run([program, *words], env)
        assert text.isascii()
        assert "\x1b" not in text
