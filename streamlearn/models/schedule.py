"""How rates fall while a network learns: a pure function of the samples so far."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A factor of all rates.

    After n samples, with warm-up over w and a length of N: `min(1, (n + 1)/w)` times

        none: 1;   linear: 1 − n/N;   cosine: (1 + cos(π n/N))/2,

    and 0 after N samples. No state is needed to resume it but n.

    kind: which of them. length: N, samples. warmup: w, samples.
    """

    kind: Literal["none", "linear", "cosine"] = "none"
    length: int | None = None
    warmup: int = 0

    def factor(self, samples: int) -> float:
        """The factor of the step that comes after so many samples."""
        rise = min(1.0, (samples + 1) / self.warmup) if self.warmup else 1.0
        if self.kind == "none" or self.length is None:
            return rise
        share = min(1.0, samples / self.length)
        if self.kind == "linear":
            return rise * (1.0 - share)
        return rise * 0.5 * (1.0 + math.cos(math.pi * share))
