from hypothesis import given
from hypothesis import strategies as st

from streamlearn.cli.series import Series


@given(st.lists(st.integers(0, 1000), max_size=300), st.integers(4, 40))
def test_a_series_stays_within_its_limit_and_keeps_both_ends(gaps: list[int], limit: int) -> None:
    series, x = Series(limit), 0
    xs = []
    for gap in gaps:
        x += gap
        xs.append(x)
        series.add(x, x / 2)
    kept = [point[0] for point in series.points]
    assert len(kept) <= limit + 1
    assert kept == sorted(kept)
    assert set(kept) <= set(xs)
    if xs:
        assert (kept[0], kept[-1]) == (xs[0], xs[-1])


def test_a_point_before_the_newest_is_left_out() -> None:
    series = Series()
    series.add(5, 1)
    series.add(3, 9)
    assert list(series.points) == [(5, 1)]


def test_cutting_forgets_what_came_after() -> None:
    series = Series(8)
    for x in range(20):
        series.add(x, x)
    series.cut(6.5)
    assert all(point[0] <= 6.5 for point in series.points)
    series.add(7, 0)
    assert series.points[-1] == (7, 0)
    series.cut(-1)
    assert len(series) == 0


def test_sampling_is_linear_between_points_and_empty_outside() -> None:
    series = Series()
    series.add(0, 0, 10)
    series.add(10, 1, 20)
    assert series.sample([-1, 0, 5, 10, 11], 1) == [None, 0, 0.5, 1, None]
    assert series.sample([5], 2) == [15]
    assert Series().sample([1, 2]) == [None, None]
