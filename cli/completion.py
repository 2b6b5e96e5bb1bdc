"""What the shell offers after a Tab: scenario names and runs, without importing anything heavy."""

from pathlib import Path

__all__ = ["complete_run", "complete_word"]

_RUNS = Path("runs")


def complete_word(incomplete: str) -> list[tuple[str, str]]:
    """`scenario=NAME` words that begin like this, with what each scenario is."""
    from streamlearn.scenarios.catalogue import catalogue

    words = [(f"scenario={entry.name}", entry.summary) for entry in catalogue()]
    return [(word, summary) for word, summary in words if word.startswith(incomplete)]


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Names of the runs in the runs folder that begin like this."""
    try:
        found = sorted(path.parent.name for path in _RUNS.glob("*/run.json"))
    except OSError:
        return []
    return [(name, "a run") for name in found if name.startswith(incomplete)]
