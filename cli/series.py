"""Curves of bounded length: what a plot needs of a history that never ends."""

from bisect import bisect_right
from collections.abc import Sequence

__all__ = ["Series"]


class Series:
    """Points (x, y₁, …, yₘ) with x rising, thinned so that there are never more than `limit`.

    Points are kept at least `gap` apart, and the gap doubles whenever the limit is reached, so
    adding costs a comparison nearly always. The newest point is always there.
    """

    def __init__(self, limit: int = 512) -> None:
        self._limit = max(4, limit)
        self._points: list[tuple[float, ...]] = []
        self._last: tuple[float, ...] | None = None
        self._gap = 0.0

    def __len__(self) -> int:
        return len(self.points)

    @property
    def points(self) -> Sequence[tuple[float, ...]]:
        """The kept points, oldest first, the newest last."""
        return self._points if self._last is None else [*self._points, self._last]

    def add(self, *point: float) -> None:
        """Append a point; one at an x before the newest is left out."""
        newest = self._last or (self._points[-1] if self._points else None)
        if newest is not None and point[0] < newest[0]:
            return
        if self._points and point[0] - self._points[-1][0] < self._gap:
            self._last = point
            return
        self._points.append(point)
        self._last = None
        if len(self._points) >= self._limit:
            self._points = self._points[::2]
            self._gap = 2 * (point[0] - self._points[0][0]) / self._limit
            if self._points[-1] != point:
                self._last = point

    def cut(self, x: float) -> None:
        """Forget the points after `x`, as when a run goes on from an earlier checkpoint."""
        if self._last is not None and self._last[0] > x:
            self._last = None
        while self._points and self._points[-1][0] > x:
            self._points.pop()

    def sample(self, grid: Sequence[float], column: int = 1) -> list[float | None]:
        """Values of a column at rising positions, linear in between; None before and after."""
        points = self.points
        if not points:
            return [None] * len(grid)
        xs = [point[0] for point in points]
        values: list[float | None] = []
        for x in grid:
            right = bisect_right(xs, x)
            if right == 0 or x > xs[-1]:
                values.append(None)
            elif right == len(xs):
                values.append(points[-1][column])
            else:
                left = points[right - 1]
                share = (x - left[0]) / (xs[right] - left[0])
                values.append(left[column] + share * (points[right][column] - left[column]))
        return values
