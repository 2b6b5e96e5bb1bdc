"""What was claimed, as questions to the runs: two figures, the margin between them, yes or no."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .records import Record

__all__ = ["CLAIMS", "Claim", "Verdict", "judge", "mean_of"]

FEATURES = ("raw", "pca", "patch")
_DENSE = ("SGD MLP", "Adam MLP", "AdamW MLP", "RMSProp MLP", "Muon MLP", "FOOF MLP",
          "Delta MLP")  # fmt: skip
_GROWING = {
    "raw": ("weighted softmax", "gauge-invariant softmax", "RBF"),
    "pca": ("weighted softmax", "gauge-invariant softmax", "RBF"),
    "patch": ("weighted softmax",),
}
_NAMES = {"raw": "raw pixels", "pca": "whitened principal components", "patch": "patch features"}


@dataclass(frozen=True)
class Claim:
    """That the best of `left` is above the best of `right` by `margin` points.

    text: the claim. left, right: keys of rows. field, other: which figure of their runs, in
    percent once it is multiplied by 100. sign: -1 where lower is better. tried: what was tried, for
    the case that it is not reproduced.
    """

    text: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    margin: float = 0.0
    field: str = "accuracy"
    other: str = "accuracy"
    tried: str = ""


@dataclass(frozen=True)
class Verdict:
    """An answer: yes, no, or open where a run is missing; figures in percent."""

    claim: Claim
    answer: Literal["yes", "no", "open"]
    left: tuple[str, float] | None = None
    right: tuple[str, float] | None = None
    missing: tuple[str, ...] = ()

    @property
    def margin(self) -> float:
        """By how many points the left is above the right."""
        if self.left is None or self.right is None:
            return 0.0
        return self.left[1] - self.right[1]


def _keys(names: Sequence[str], features: str) -> tuple[str, ...]:
    return tuple(f"{name} / {features}" for name in names)


def _per_feature() -> list[Claim]:
    made = []
    for features in FEATURES:
        growing = _keys(_GROWING[features], features)
        where = f"on {_NAMES[features]}"
        made += [
            Claim(
                f"Growing layers beat every tuned parametric optimizer in one pass, {where}",
                growing,
                _keys(_DENSE, features),
                tried="as many trials for either side, on the axes that the table of sweeps lists",
            ),
            Claim(
                f"Growing layers beat exact streaming ridge, {where}",
                growing,
                _keys(("streaming ridge",), features),
                tried="as many trials for either side, on the axes that the table of sweeps lists",
            ),
        ]
        made += [
            Claim(
                f"{name} beats Adam, {where}",
                _keys((f"{name} MLP",), features),
                _keys(("Adam MLP",), features),
                tried="as many trials for both, on the axes that the table of sweeps lists",
            )
            for name in ("FOOF", "Muon")
        ]
    return made


CLAIMS: tuple[Claim, ...] = (
    *_per_feature(),
    Claim(
        "A ViT with growing feed-forward layers beats the dense ViT by at least 4 points",
        ("ViT, growing feed-forward layers / vit",),
        ("ViT, dense / vit",),
        4.0,
        tried="AdamW's rate and the batch for either side, weight decay for the dense one, the "
        "rate of values for the other; on a part of the stream only, for a tuple is stored for "
        "every token and the cost grows with the square",
    ),
    *(
        Claim(
            f"Linearising after training (1 + x for e^x) costs at least 10 points, {title}",
            (key,),
            (key,),
            10.0,
            other="linearised",
        )
        for key, title in (
            ("weighted softmax / raw", "raw pixels"),
            ("weighted softmax / pca", "whitened principal components"),
        )
    ),
    Claim("At D = 3072, T = 10 beats T = 30", ("T = 10 / temperature",), ("T = 30 / temperature",),
          tried="rates of values, for each T by itself"),
    Claim("At D = 3072, T = 10 beats T = 1", ("T = 10 / temperature",), ("T = 1 / temperature",),
          tried="rates of values, for each T by itself"),
    Claim(
        "Two hidden layers are enough: a third adds less than 1 point",
        ("weighted softmax, 2 hidden / depth",),
        ("weighted softmax, 3 hidden / depth",),
        -1.0,
    ),
    *(
        Claim(
            f"The train–test gap of the {kind} parametric softmax exceeds that of the growing one, "
            "five epochs",
            (f"parametric softmax, {kind} / epochs",),
            ("weighted softmax, appending / epochs",),
            field="gap",
            other="gap",
            tried="the settings of both are those of their one-pass sweeps; the growing network "
            "keeps every sample, so it knows those that it learnt",
        )
        for kind in ("weighted", "unweighted")
    ),
)  # fmt: skip


def mean_of(runs: Sequence[Record], field: str) -> float | None:
    """The mean over seeds of a figure of finished runs, in percent; None without one."""
    values = []
    for run in runs:
        if field == "gap":
            value = (run.get("train_accuracy") or 0) - (run.get("accuracy") or 0)
        else:
            value = run.get(field)
        if value is not None and not run.get("error"):
            values.append(100 * value)
    return statistics.fmean(values) if values else None


def judge(claim: Claim, runs: Mapping[str, Sequence[Record]]) -> Verdict:
    """Compare the best of either side, over those rows that were run."""
    left = _best(claim.left, runs, claim.field)
    right = _best(claim.right, runs, claim.other)
    missing = tuple(key for key in claim.left + claim.right if not runs.get(key))
    if left is None or right is None:
        return Verdict(claim, "open", left, right, missing)
    if left[1] - right[1] < claim.margin:
        answer: Literal["yes", "no", "open"] = (
            "no" if set(claim.left).isdisjoint(missing) else "open"
        )
    else:  # a rival that was not run may still be above
        answer = "yes" if set(claim.right).isdisjoint(missing) else "open"
    return Verdict(claim, answer, left, right, missing)


def _best(
    keys: Sequence[str], runs: Mapping[str, Sequence[Record]], field: str
) -> tuple[str, float] | None:
    figures = [(key, mean_of(runs.get(key, ()), field)) for key in keys]
    known = [(key, figure) for key, figure in figures if figure is not None]
    return max(known, key=lambda pair: pair[1], default=None)
