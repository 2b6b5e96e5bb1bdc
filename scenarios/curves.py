"""The learning curve of one learner, of bounded length, and where it stood at a size."""

import math
from dataclasses import dataclass, field

__all__ = ["Curve", "Point"]

_LONGEST = 512
_STEP = math.log(1.01)


@dataclass(frozen=True, slots=True)
class Point:
    """A moment: samples scored so far, bytes of the learner, and the figures then by name."""

    samples: int
    learner_bytes: int
    values: dict[str, float] = field(default_factory=dict)


class Curve:
    """Points of rising samples, thinned evenly so that there are never more than `limit`.

    Beside them the latest point of each size is kept, sizes being told apart by one percent, so
    that `at_size` is as exact for a learner that ends a thousand times larger.
    """

    def __init__(self, limit: int = _LONGEST) -> None:
        self._limit = limit
        self._points: list[Point] = []
        self._every, self._count = 1, 0
        self._last: Point | None = None
        self._of_size: dict[int, Point] = {}

    def add(self, point: Point) -> None:
        """Append a point; its samples are at least those of the one before."""
        if self._count % self._every == 0:
            self._points.append(point)
            if len(self._points) >= self._limit:
                self._points = self._points[::2]
                self._every *= 2
        self._count += 1
        self._last = point
        if point.learner_bytes > 0:
            self._of_size[int(math.log(point.learner_bytes) / _STEP)] = point

    @property
    def points(self) -> list[Point]:
        """The kept points, the newest last."""
        if self._last is None or self._points[-1] is self._last:
            return list(self._points)
        return [*self._points, self._last]

    @property
    def smallest(self) -> int | None:
        """The smallest size that the learner had; None before it had any."""
        return min((point.learner_bytes for point in self._of_size.values()), default=None)

    def at_size(self, learner_bytes: int) -> Point | None:
        """The last moment at which the learner took no more bytes; None if it never did."""
        fits = [point for point in self._of_size.values() if point.learner_bytes <= learner_bytes]
        return max(fits, key=lambda point: point.samples, default=None)
