"""Documents as tests: their fenced blocks, and a shell of sorts that runs them in this process.

A block of `sh` is commands. A block of `text` right behind it is what they print: each of its lines
has to be in the output, whatever its numbers, and its beginning where it ends in `…`. A block of
`python` is run, examples of `>>>` as doctests. A comment before a block says what else:

    <!-- not run: REASON -->       nothing is done; the test is skipped and says why
    <!-- stopped: TEXT -->         Ctrl-C once the command has printed TEXT
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Block", "Reader", "blocks"]

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>not run|stopped): (?P<said>.+?) -->\n+)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_OPERATORS = {"|", "&&", "||", ";", "&", "<", ">", ">>", "<<", "(", ")"}
_LIMIT = 60


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    place: file and line. mark: "not run", "stopped" or "". said: what stands behind the mark.
    prints: the block of text right behind it, "" without one.
    """

    place: str
    language: str
    text: str
    mark: str
    said: str
    prints: str


def blocks(path: Path) -> list[Block]:
    """The blocks of a document, but for those that are what others print."""
    text = path.read_text(encoding="utf-8")
    found: list[Block] = []
    matches = list(_FENCE.finditer(text))
    for index, match in enumerate(matches):
        behind = matches[index + 1] if index + 1 < len(matches) else None
        prints = ""
        if behind is not None and behind["language"] == "text":
            prints = "" if text[match.end() : behind.start()].strip() else behind["text"]
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(
            Block(
                f"{path.name}:{line}", match["language"], match["text"],
                match["mark"] or "", match["said"] or "", prints,
            )
        )  # fmt: skip
    return found


class Reader:
    """Does what a document says, one block after the other.

    Args:
        folder: where; the current one of the process, too.
        environment: of the programs that are started.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        shim = folder / ".bin" / "streamlearn"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streamlearn.cli "$@"\n')
        shim.chmod(0o755)
        python = shim.with_name("python")
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        self._environment = environment | {"PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def do(self, block: Block) -> None:
        """Run a block.

        Raises:
            AssertionError: it fails, or does not print what it should.
        """
        if block.language == "python":
            self._python(block)
            return
        printed = "".join(self._command(command, block) for command in _commands(block.text))
        known = [_shape(line) for line in printed.splitlines()]
        for line in block.prints.splitlines():
            start, more, _ = _shape(line).partition(" …")
            found = any(other.startswith(start) if more else other == start for other in known)
            assert found, f"{block.place}: {line!r} is not in\n{printed}"

    def _python(self, block: Block) -> None:
        if ">>> " not in block.text:
            exec(compile(block.text, block.place, "exec"), self._names)
            return
        test = doctest.DocTestParser().get_doctest(
            block.text, self._names, block.place, block.place, 0
        )
        report = io.StringIO()
        runner = doctest.DocTestRunner()
        runner.run(test, out=report.write, clear_globs=False)
        self._names = test.globs
        assert runner.failures == 0, report.getvalue()

    def _command(self, command: str, block: Block) -> str:
        words = _words(command)
        if words[0] == "streamlearn" and not _OPERATORS & set(words):
            return self._in_process(words[1:], block)
        if words.count("|") == 1:
            left, _, right = command.partition("|")
            with contextlib.suppress(ValueError):  # that one stands in quotes
                if _words(right)[0] == "streamlearn":
                    return self._piped(left, _words(right)[1:], block)
                if words[0] == "streamlearn":
                    return self._bash(right, block, self._in_process(_words(left)[1:], block))
        return self._bash(command, block)

    def _bash(self, command: str, block: Block, given: str = "") -> str:
        done = subprocess.run(
            ["bash", "-ec", command], env=self._environment, input=given, capture_output=True,
            text=True, timeout=_LIMIT,
        )  # fmt: skip
        assert done.returncode == 0, f"{block.place}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _in_process(
        self, words: list[str], block: Block, stdin: io.TextIOBase | None = None
    ) -> str:
        from streamlearn.cli.main import main

        stopped = block.mark == "stopped"
        before, output = sys.stdin, _Stopping(block.said) if stopped else io.StringIO()
        sys.stdin = stdin or io.StringIO()
        # Whoever starts the tests in the background may have it ignored.
        interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = main(words)
        finally:
            sys.stdin = before
            signal.signal(signal.SIGINT, interrupt)
        expected = 130 if stopped else 0
        assert code == expected, f"{block.place}: {code} of {words}\n{output.getvalue()}"
        return output.getvalue()

    def _piped(self, left: str, words: list[str], block: Block) -> str:
        with subprocess.Popen(
            ["bash", "-ec", left], env=self._environment, stdout=subprocess.PIPE,
            start_new_session=True,
        ) as writer:  # fmt: skip
            assert writer.stdout is not None
            try:
                with io.TextIOWrapper(writer.stdout) as stdin:
                    return self._in_process(words, block, stdin)
            finally:
                with contextlib.suppress(ProcessLookupError):  # it is done
                    os.killpg(writer.pid, signal.SIGTERM)


class _Stopping(io.StringIO):
    """Ctrl-C, once, when a text has been written."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self._awaited = awaited

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._awaited and self._awaited in text:
            self._awaited = ""
            signal.raise_signal(signal.SIGINT)
        return written


def _shape(line: str) -> str:
    """A line whatever its numbers and spaces."""
    return " ".join(re.sub(r"[-−]?\d[\d,.]*(e-?\d+)?", "#", line).split())


def _commands(text: str) -> Iterator[str]:
    """The commands of a block: lines, with those that a quote, a backslash or a document joins."""
    held = ""
    for line in text.splitlines():
        held = f"{held}\n{line}" if held else line
        if not held.strip():
            held = ""
            continue
        wanted = re.search(r"<<'?(\w+)'?", held)
        if wanted and line != wanted[1]:
            continue
        if held.endswith("\\"):
            continue
        try:
            words = [wanted[1]] if wanted else _words(held)
        except ValueError:  # a quote is open
            continue
        if words:
            yield held
        held = ""
    assert not held.strip(), f"not a whole command: {held}"


def _words(command: str) -> list[str]:
    reader = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>()")
    reader.whitespace_split = True
    return list(reader)
