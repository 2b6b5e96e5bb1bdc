"""The README's two set-up commands are the ones that CI runs; test_docs runs its examples."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_readme_has_exactly_two_set_up_commands_and_ci_runs_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line for line in readme.splitlines() if line.startswith("pip install")]
    assert commands == [
        "pip install -e . && streamlearn run",
        "pip install -e '.[test]' && pytest",
    ]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in commands:
        for part in command.split(" && "):
            words = re.escape(part).replace("pip\\ install", "pip install( --quiet)?")
            assert re.search(words.replace("\\ ", " "), script), part


def test_the_readme_holds_no_placeholder() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not re.search(r"\b[A-Z]+_(ROW|TABLE)\b|TODO|TBD", readme)
