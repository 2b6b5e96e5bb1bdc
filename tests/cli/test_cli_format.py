import math

import pytest

from streamlearn.cli.format import (
    clean,
    clock,
    count,
    duration,
    number,
    percent,
    rate,
    size,
    span,
)
from streamlearn.storage import resume_command


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (1023.9 * 1024, "1.00 MiB"),
        (312 * 1024**2, "312 MiB"),
        (1.25 * 1024**3, "1.25 GiB"),
        (5 * 1024**6, "5120 PiB"),
        (-3, "0 B"),
        (None, "-"),
        (math.nan, "-"),
    ],
)
def test_sizes_have_binary_units_and_three_or_four_figures(value: float | None, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0:00"),
        (7, "0:07"),
        (59.7, "1:00"),
        (3753, "1:02:33"),
        (3 * 86400 + 4 * 3600 + 5 * 60, "3d 04:05"),
        (-5e8, "0:00"),
        (math.inf, "-"),
        (None, "-"),
    ],
)
def test_durations_are_never_negative(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_short_span_shows_its_fraction() -> None:
    assert [span(0.021), span(7.31), span(59.96), span(-1)] == ["0.02 s", "7.3 s", "1:00", "0.00 s"]


def test_what_is_missing_or_not_finite_is_a_dash() -> None:
    shown = [count(None), number(None), number(math.nan), percent(None), percent(math.inf)]
    assert [*shown, rate(None), rate(-1.0), rate(math.nan), span(None)] == ["-"] * 9


def test_numbers_are_grouped_and_fractions_are_percentages() -> None:
    assert (count(26112), percent(0.6821), percent(1), rate(1310.4), rate(0.25)) == (
        "26,112",
        "68.21%",
        "100.00%",
        "1,310/s",
        "0.25/s",
    )


def test_a_time_that_no_calendar_has_is_no_error() -> None:
    assert clock(1e30) == clock(math.nan) == "--:--:--"


def test_control_characters_cannot_reach_a_terminal() -> None:
    assert clean("a\x1b[2Jb\nc\u202ed\x9be") == "a?[2Jb c?d?e"
    assert clean("año 文件") == "año 文件"


def test_the_resume_command_can_be_pasted_into_a_shell() -> None:
    assert resume_command("runs/a b'c") == "streamlearn resume 'runs/a b'\"'\"'c'"
    assert resume_command("-x") == "streamlearn resume ./-x"
