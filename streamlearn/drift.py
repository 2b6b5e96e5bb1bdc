"""Drift: a detector of river that hears each sample's error, and what is done when it rises.

river's detectors cannot say their state without pickle, so what a detector has heard is kept
instead, and a restored one hears it again. That stays short: a detector begins anew with each
drift, as river's own do, and at the latest after `_Kind.most` values, of which the new one hears
the last `_Kind.kept` again. Both happen at the same samples whether a run is resumed or not, so its
signals are the same. 50,000 errors that are 0 or 1 take 6 KB and are heard again in 0.1 s; errors
that are numbers are heard as float32.

Detectors also find errors that fall. These are no drift: the detector begins anew, silently.
"""

import importlib
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from streamlearn.errors import ConfigError, FormatError
from streamlearn.events import DriftDetected
from streamlearn.sections import Settings
from streamlearn.state import StateTree

__all__ = ["Action", "Adaptable", "Drift", "DriftMonitor", "DriftSettings"]

Action: TypeAlias = Literal["none", "boost", "forget"]
DetectorName: TypeAlias = Literal["none", "adwin", "kswin", "page-hinkley", "ddm"]

_REMEMBERED = 20
"""Drifts that are listed; all are counted."""


class DriftSettings(Settings):
    """How drift is detected in the errors, and what is done about it."""

    detector: DetectorName = Field(
        "adwin", description="the detector of river that hears each error; none: nobody listens"
    )
    delta: float = Field(
        0.002,
        gt=0,
        lt=1,
        description="how probable a false signal may be, of adwin and kswin [probability]; more: "
        "hears smaller drifts, and more that are none",
    )
    gap: int = Field(
        500,
        ge=0,
        description="samples after a drift in which no other is signalled [samples]; more: fewer "
        "signals, one for a slow drift rather than many",
    )
    action: Action = Field(
        "none",
        description="boost: growing layers learn faster for a while; forget: they drop what is "
        "older than the detector's window",
    )
    boost: float = Field(
        3.0,
        gt=0,
        le=1000,
        description="factor of the growing layers' rates during a boost [factor]; more: adapts "
        "faster, and overshoots when it is too much",
    )
    samples: int = Field(
        1000, ge=1, description="how many samples a boost lasts [samples]; more: adapts for longer"
    )


class Drift(NamedTuple):
    """The error has risen.

    sample: the number of the last sample heard, from 1. before, after: mean errors before and in
    the detector's window. window: its samples.
    """

    sample: int
    before: float
    after: float
    window: int


class Adaptable(Protocol):
    """What a learner can do about drift; each says whether it was able to."""

    def boost(self, factor: float, samples: int) -> bool:
        """Learn faster for the next samples."""

    def forget(self, samples: int) -> bool:
        """Drop what was stored before the last samples."""


class _Detector(Protocol):
    """What is asked of a detector of river."""

    drift_detected: bool

    def update(self, x: float) -> object:
        """Hear a value."""


class _Kind(NamedTuple):
    """How a detector is made from δ and a seed, how much of its past is kept, and its window."""

    make: Callable[[float, int], _Detector]
    most: int
    kept: int
    window: Callable[[Any], int]


def _river(module: str, name: str) -> Any:
    """A detector's class; river is imported once one is wanted."""
    return getattr(importlib.import_module(module), name)


_KINDS: dict[str, _Kind] = {
    "adwin": _Kind(
        lambda delta, _: _river("river.drift", "ADWIN")(delta=delta),
        50_000, 25_000, lambda detector: int(detector.width),
    ),
    "kswin": _Kind(
        lambda delta, seed: _river("river.drift", "KSWIN")(alpha=delta, seed=seed),
        500, 100, lambda detector: int(detector.stat_size),
    ),
    "page-hinkley": _Kind(
        lambda _, __: _river("river.drift", "PageHinkley")(mode="up"),
        50_000, 25_000, lambda _: 100,
    ),
    "ddm": _Kind(
        lambda _, __: _river("river.drift.binary", "DDM")(),
        50_000, 25_000, lambda _: 100,
    ),
}  # fmt: skip


class DriftMonitor:
    """Hears errors in the order of the stream.

    Args:
        settings: of the detector, which is not "none".
        binary: whether errors are 0 or 1; else they are numbers from 0 on.

    Attributes:
        count: drifts so far.
        recent: the last of them.

    Raises:
        ConfigError: a detector of 0 and 1 alone where errors are numbers.
    """

    def __init__(self, settings: DriftSettings, *, binary: bool = True) -> None:
        if settings.detector == "ddm" and not binary:
            raise ConfigError(
                "drift.detector=ddm hears only whether an answer is right, and answers are numbers "
                "here; choose adwin, kswin or page-hinkley"
            )
        self.settings = settings
        self.binary = binary
        self.count = 0
        self.recent: list[Drift] = []
        self._kind = _KINDS[settings.detector]
        self._heard = np.zeros(0, np.float32)  # since the detector began
        self._seed = 0
        self._detector = self._made()

    def _made(self) -> _Detector:
        """A detector that has heard what is kept."""
        detector = self._kind.make(self.settings.delta, self._seed)
        for value in self._heard.tolist():
            detector.update(value)
        return detector

    def update(self, errors: Tensor, before: int) -> list[Drift]:
        """Hear the errors (B,) of samples in their order; gives the drifts that these show.

        Args:
            errors: 0 or 1, or numbers from 0 on.
            before: samples of the stream before them.
        """
        values = errors.to("cpu", torch.float32).numpy()
        found: list[Drift] = []
        start = 0
        detector = self._detector
        for place, value in enumerate(values.tolist(), start=1):
            detector.update(value)
            drifted = detector.drift_detected
            if not drifted and len(self._heard) + place - start < self._kind.most:
                continue
            heard = np.concatenate([self._heard, values[start:place]])
            if drifted:
                drift = _drift(before + place, heard, self._kind.window(detector))
                if drift.after > drift.before and not self._is_too_soon(drift):
                    self.recent = [*self.recent, drift][-_REMEMBERED:]
                    self.count += 1
                    found.append(drift)
            self._heard = heard[:0] if drifted else heard[-self._kind.kept :]
            self._seed = before + place
            detector = self._detector = self._made()
            start = place
        self._heard = np.concatenate([self._heard, values[start:]])
        return found

    def hear(
        self, learner: Adaptable, errors: Tensor, samples: int, step: int
    ) -> list[DriftDetected]:
        """Hear the errors of a batch that was learnt, and let the learner answer to drift.

        Args:
            learner: what may learn faster or forget.
            errors: (B,) of the batch, as for `update`.
            samples: of the stream, this batch included.
            step: of the batch.
        """
        return [
            DriftDetected(
                step=step,
                samples=drift.sample,
                detector=self.settings.detector,
                before=drift.before,
                after=drift.after,
                window=drift.window,
                action=self._answer(learner, drift.window + samples - drift.sample),
            )
            for drift in self.update(errors, samples - len(errors))
        ]

    def _answer(self, learner: Adaptable, window: int) -> Action:
        """Do what the settings say; what was done."""
        action = self.settings.action
        done = False
        if action == "boost":
            done = learner.boost(self.settings.boost, self.settings.samples)
        elif action == "forget":
            done = learner.forget(window)
        return action if done else "none"

    def _is_too_soon(self, drift: Drift) -> bool:
        return bool(self.recent) and drift.sample - self.recent[-1].sample < self.settings.gap

    def summary(self) -> dict[str, Any]:
        """What is noted of a run at each commit: how many drifts there were, and the last ones."""
        return {
            "drift_detector": self.settings.detector,
            "drifts": self.count,
            "recent_drifts": [drift._asdict() for drift in self.recent],
        }

    def state_dict(self) -> StateTree:
        """What was heard since the detector began, and the drifts."""
        heard = np.packbits(self._heard.astype(np.bool_)) if self.binary else self._heard.copy()
        return {
            "detector": self.settings.detector,
            "heard": len(self._heard),
            "values": torch.from_numpy(heard),
            "seed": self._seed,
            "count": self.count,
            "recent": [list(drift) for drift in self.recent],
        }

    def load_state_dict(self, state: StateTree) -> None:
        """Restore that; the detector hears it again.

        Raises:
            FormatError: the state of another detector.
        """
        if state["detector"] != self.settings.detector:
            raise FormatError(
                f"the saved run listened with drift.detector={state['detector']} but this one with "
                f"{self.settings.detector}; set that again"
            )
        values: NDArray[Any] = state["values"].numpy()
        if self.binary:
            values = np.unpackbits(values, count=int(state["heard"]))
        self._heard = values.astype(np.float32)
        self._seed = int(state["seed"])
        self.count = int(state["count"])
        self.recent = [
            Drift(int(drift[0]), float(drift[1]), float(drift[2]), int(drift[3]))
            for drift in state["recent"]
        ]
        self._detector = self._made()


def _drift(sample: int, heard: NDArray[np.float32], window: int) -> Drift:
    """The means of what was heard before and in a window, of which there is at most a half."""
    window = max(1, min(window, len(heard) - 1))
    wide = heard.astype(np.float64)
    before = float(wide[:-window].mean()) if len(heard) > 1 else 0.0
    return Drift(sample, before, float(wide[-window:].mean()), window)
