"""The equal sweep: the same number of trials for every row, chosen by a validation split."""

from collections.abc import Callable, Sequence
from pathlib import Path

from . import records
from .records import Record
from .rows import Row, with_words
from .trial import measure

__all__ = ["VALIDATION", "chosen_words", "run_words", "sweep"]

VALIDATION = 0.1  # of the training part, never learnt in a trial


def _trial_words(words: Sequence[str], row: Row) -> tuple[str, ...]:
    return with_words(words, f"data.validation={VALIDATION} data.limit={row.trial_samples}")


def sweep(
    key: str,
    row: Row,
    path: Path,
    data: Sequence[str],
    threads: int,
    scratch: Path,
    *,
    before: Callable[[], None] = lambda: None,
) -> None:
    """Make the trials of a row that are not recorded yet; `before` is called before each."""

    def trial(words: tuple[str, ...]) -> float:
        known = records.find(records.read(path), key, words, 0)
        if known is None:
            before()
            known = {"row": key, **measure(words, data, threads, scratch, whole=False)}
            known.setdefault("seed", 0)
            records.append(path, known)
        return known.get("accuracy") or 0.0

    _search(row, trial)


def _search(row: Row, trial: Callable[[tuple[str, ...]], float]) -> tuple[str, ...]:
    """Axis after axis, each at the best of those before; the first of equals wins."""
    best, accuracy = row.words, -1.0
    for axis in row.axes:
        start = best
        for option in axis:
            words = with_words(start, option)
            reached = trial(_trial_words(words, row))
            if reached > accuracy:
                best, accuracy = words, reached
    return best


def chosen_words(key: str, row: Row, trials: Sequence[Record]) -> tuple[str, ...] | None:
    """The words that the recorded sweep of a row chose; None where it is not complete."""
    missing = False

    def look_up(words: tuple[str, ...]) -> float:
        nonlocal missing
        known = records.find(trials, key, words, 0)
        missing = missing or known is None
        return 0.0 if known is None else known.get("accuracy") or 0.0

    best = _search(row, look_up)
    return None if missing else best


def run_words(key: str, rows: dict[str, Row], trials: Sequence[Record]) -> tuple[str, ...] | None:
    """The words of a row's runs: its own with what its sweep, or another row's, chose."""
    row = rows[key]
    if row.settings_of is None:
        words = chosen_words(key, row, trials)
    else:
        other = rows[row.settings_of]
        words = chosen_words(row.settings_of, other, trials)
        if words is not None:
            words = with_words(words, " ".join(row.words))
    if words is not None:
        words = with_words(words, row.more)
    if words is None or row.samples is None:
        return words
    return with_words(words, f"data.limit={row.samples}")
