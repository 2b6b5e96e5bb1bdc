"""Teachers: seeded random functions that a student learns, and the random numbers behind them.

Every number is drawn by counter: from the seed, which part it is of, and where in it, and from
nothing that runs along. So samples can be read anywhere without reading what comes before.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["InputName", "Teacher", "TeacherName", "TeacherSpec", "normals"]

Array: TypeAlias = NDArray[np.float64]
TeacherName = Literal["residual", "softmax", "linear"]
InputName = Literal["sphere", "normal"]

_WEIGHTS = 2
"""The part of the random numbers that a teacher is made of; samples have 0 and 1."""


@dataclass(frozen=True, slots=True)
class TeacherSpec:
    """A teacher and the samples that it labels.

    teacher: "residual" (a residual MLP), "softmax" (attention over random keys) or "linear".
    features: D. outputs: K. hidden: residual blocks. width: of a block's inner layer, or keys.
    kappa: largest logit of a softmax. inputs: "sphere" (‖x‖ = 1) or "normal" (N(0, I)).
    noise: standard deviation that is added to training targets. test: held-out samples, without
    noise. seed: of the teacher and of all samples.

    Source: arXiv 2610.03858, §F.1.2, for the defaults.
    """

    teacher: TeacherName = "residual"
    features: int = 100
    outputs: int = 1
    hidden: int = 2
    width: int = 100
    kappa: float = 6.0
    inputs: InputName = "sphere"
    noise: float = 0.0
    test: int = 2000
    seed: int = 0


def normals(seed: int, part: int, place: int, count: int) -> Array:
    """Standard normal numbers (count,), the same for ever, by Philox and Box & Muller 1958.

    numpy promises the raw words of a bit generator, but not what its distributions make of them.

    Args:
        seed: of all of them.
        part: what they are for.
        place: where in that part.
        count: how many.
    """
    pairs = -(-count // 2)
    source = np.random.Philox(
        key=np.array([seed, part], dtype=np.uint64),
        counter=np.array([0, place, 0, 0], dtype=np.uint64),
    )
    words = (source.random_raw(2 * pairs) >> np.uint64(11)).astype(np.float64)
    uniform = (words + 0.5) * 2.0**-53  # in (0, 1)
    radius = np.sqrt(-2.0 * np.log(uniform[:pairs]))
    angle = 2.0 * np.pi * uniform[pairs:]
    found: Array = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return found


class Teacher:
    """A fixed random function from (n, D) to (n, K), in float64.

    residual: `e ← e + W₂ relu(W₁ RMSNorm(e))` for each block, then `W RMSNorm(e)`, e being x.
    softmax: `Σ e^{⟨k,q⟩/(T√D)} v / Σ e^{⟨k,q⟩/(T√D)}` with q = RMSNorm(x), T = √D/κ, random normal
    keys of length √D and random normal v.
    linear: `W x √D/‖x‖` on the sphere, `W x` for normal x.

    Matrices are LeCun normal, N(0, 1/inputs).

    Args:
        spec: which of them, and its sizes.

    Source: arXiv 2610.03858, §F.1.2.
    """

    def __init__(self, spec: TeacherSpec) -> None:
        self.spec = spec
        self._drawn = 0
        width = spec.features
        self.blocks: list[tuple[Array, Array]] = []
        if spec.teacher == "residual":
            self.blocks = [
                (self._matrix(spec.width, width), self._matrix(width, spec.width))
                for _ in range(spec.hidden)
            ]
        if spec.teacher == "softmax":
            self.keys = _rms_norm(self._matrix(spec.width, width))
            self.values = self._matrix(spec.outputs, spec.width).T * spec.width**0.5
        else:
            self.weight = self._matrix(spec.outputs, width)

    def _matrix(self, rows: int, columns: int) -> Array:
        values = normals(self.spec.seed, _WEIGHTS, self._drawn, rows * columns)
        self._drawn += 1
        matrix: Array = values.reshape(rows, columns) / columns**0.5
        return matrix

    def __call__(self, inputs: Array) -> Array:
        """Targets (n, K) of inputs (n, D)."""
        spec = self.spec
        found: Array
        if spec.teacher == "softmax":
            logits = (spec.kappa / spec.features) * (_rms_norm(inputs) @ self.keys.T)  # (n, keys)
            shares = np.exp(logits - spec.kappa)  # a logit is at most κ
            found = (shares @ self.values) / shares.sum(-1, keepdims=True)
            return found
        if spec.teacher == "linear":
            scale = spec.features**0.5 if spec.inputs == "sphere" else 1.0
            found = scale * (inputs @ self.weight.T)
            return found
        stream = inputs  # e (n, D)
        for first, second in self.blocks:
            stream = stream + np.maximum(_rms_norm(stream) @ first.T, 0.0) @ second.T
        found = _rms_norm(stream) @ self.weight.T
        return found


def _rms_norm(rows: Array) -> Array:
    scaled: Array = rows / np.sqrt(np.square(rows).mean(-1, keepdims=True))
    return scaled
