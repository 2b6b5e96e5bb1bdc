import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from streamlearn.cli.plot import Curve, area, bar, plot, sparkline
from streamlearn.cli.series import Series

CURVES = [Curve(2, "windowed", "yellow", dotted=True), Curve(1, "cumulative", "cyan")]


def rising(points: int = 100) -> Series:
    series = Series()
    for x in range(points):
        share = x / max(1, points - 1)
        series.add(1 + 100 * x, 0.2 + 0.4 * share, 0.3 + 0.5 * share)
    return series


def drawn(lines: list[Text]) -> list[str]:
    return [line.plain for line in lines]


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=40),
    st.integers(1, 200),
    st.integers(1, 60),
    st.booleans(),
)
def test_a_plot_has_the_size_that_was_asked_for(
    values: list[tuple[float, float]], width: int, height: int, unicode: bool
) -> None:
    series = Series()
    for x, (low, high) in enumerate(values):
        series.add(x, low, high)
    lines = plot(series, CURVES, width, height, unicode)
    assert len(lines) == height
    assert {line.cell_len for line in lines} == {width}
    assert unicode or "".join(drawn(lines)).isascii()


def test_curves_are_told_apart_by_shape_and_label_without_colour() -> None:
    lines = drawn(plot(rising(), CURVES, 72, 9, unicode=False))
    canvas = "".join(lines)
    assert "*" in canvas
    assert "." in canvas
    ends = {line.split()[-1] for line in lines[:-1] if line.split()}
    assert {"windowed", "cumulative"} <= ends
    # The higher curve has its label above the other's.
    text = "\n".join(lines)
    assert text.index("windowed") < text.index("cumulative")


def test_the_axes_have_round_percentages_and_the_range_of_samples() -> None:
    lines = drawn(plot(rising(), CURVES, 72, 13))
    ticks = [int(line[:3]) for line in lines if line[3] == "%"]
    assert ticks == sorted(ticks, reverse=True)
    assert len(ticks) >= 3
    assert all(tick % 5 == 0 for tick in ticks)
    assert lines[-1].split()[0] == "└1"
    assert lines[-1].endswith("9,901 samples")


def test_the_first_swings_do_not_flatten_the_curve() -> None:
    series = rising()
    begun = Series()
    begun.add(0, 0.0, 1.0)
    for point in series.points:
        begun.add(*point)
    lines = drawn(plot(begun, CURVES, 72, 13))
    assert not lines[0].startswith("100%")


def test_a_plot_without_points_says_when_it_begins() -> None:
    assert "first scored samples" in "".join(drawn(plot(Series(), CURVES, 60, 7)))


def test_a_constant_curve_is_drawn() -> None:
    series = Series()
    for x in range(10):
        series.add(x, 1.0, 1.0)
    assert "*" in "".join(drawn(plot(series, CURVES, 60, 7, unicode=False)))


@given(
    st.lists(st.floats(0, 1e12), max_size=50),
    st.integers(0, 80),
    st.integers(1, 6),
    st.booleans(),
)
def test_an_area_has_the_size_that_was_asked_for(
    values: list[float], width: int, height: int, unicode: bool
) -> None:
    series = Series()
    for x, value in enumerate(values):
        series.add(x, value)
    lines = area(series, width, height, unicode=unicode)
    assert [len(line) for line in lines] == [width] * height
    assert unicode or "".join(lines).isascii()


def test_a_growing_layer_has_a_rising_sparkline() -> None:
    line = sparkline(rising(), 8)
    assert list(line) == sorted(line)
    assert line[-1] == "█"


@pytest.mark.parametrize("fraction", [0.0, 0.013, 0.5, 0.999, 1.0, 1.7, -2.0, math.nan])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_bar_has_its_width_at_every_fraction(fraction: float, unicode: bool) -> None:
    for width in range(40):
        assert len("".join(bar(fraction, width, unicode))) == width


def test_a_bar_is_full_at_the_end_only() -> None:
    assert bar(0.99, 10, unicode=False) == ("[#######", "-]")
    assert bar(1.0, 10, unicode=False) == ("[########", "]")
