"""Samples that a teacher labels, made when they are asked for: as many as anyone wants."""

import numpy as np
import torch
from numpy.typing import NDArray

from streamlearn.errors import ConfigError
from streamlearn.tasks import Outputs

from .arrays import no_image_size
from .base import Rows
from .splits import Request, Splits
from .teachers import Teacher, TeacherSpec, normals

__all__ = ["TeacherDataset", "open_teacher"]

_CHUNK = 256
"""Rows that are made together, always in this shape: a row's bits depend on its position alone."""

_NOISE = 3
"""The part of the random numbers that noise is made of; the teacher has 2."""

_Chunk = tuple[NDArray[np.float32], NDArray[np.float32]]


class TeacherDataset:
    """Inputs drawn at random and a teacher's targets for them; see `Dataset`.

    A row depends on the seed, the part and its position, so that any row can be read at any time.
    Everything is computed in float64 and rounded to float32 at last.

    Args:
        teacher: what labels them.
        part: 0 to learn from, 1 to test on: another stream of the same teacher.
        count: how many there are; None: no end.
        noise: standard deviation added to targets.
    """

    def __init__(
        self, teacher: Teacher, part: int, *, count: int | None = None, noise: float = 0.0
    ) -> None:
        self.name = f"{teacher.spec.teacher} teacher"
        self.classes: tuple[str, ...] = ()
        self.task = Outputs(teacher.spec.outputs)
        self.feature_shape: tuple[int, ...] = (teacher.spec.features,)
        self._teacher = teacher
        self._part = part
        self._count = count
        self._noise = noise
        self._latest: tuple[int, _Chunk] | None = None

    def __len__(self) -> int:
        if self._count is None:
            raise ConfigError("a teacher's samples have no end to count to; set data.limit")
        return self._count

    def read(self, index: NDArray[np.int64]) -> Rows:
        """The rows at these positions, in this order."""
        spec = self._teacher.spec
        features = np.empty((len(index), spec.features), dtype=np.float32)
        targets = np.empty((len(index), spec.outputs), dtype=np.float32)
        chunks = index // _CHUNK
        for number in np.unique(chunks).tolist():
            inside = chunks == number
            rows, values = self._chunk(number)
            places = index[inside] % _CHUNK
            features[inside], targets[inside] = rows[places], values[places]
        return Rows(
            torch.from_numpy(features), torch.from_numpy(targets), torch.from_numpy(index.copy())
        )

    def _chunk(self, number: int) -> _Chunk:
        """256 rows: their features and targets."""
        latest = self._latest  # read by one thread at a time, but kept whole all the same
        if latest is not None and latest[0] == number:
            return latest[1]
        spec = self._teacher.spec
        drawn = normals(spec.seed, self._part, number, _CHUNK * spec.features)
        inputs = drawn.reshape(_CHUNK, spec.features)
        if spec.inputs == "sphere":
            inputs = inputs / np.sqrt(np.square(inputs).sum(-1, keepdims=True))
        features = inputs.astype(np.float32)
        # Of the inputs as they are handed out, so that the target is exact for what is seen.
        targets = self._teacher(features.astype(np.float64))
        if self._noise:
            noise = normals(spec.seed, _NOISE, number, targets.size)
            targets = targets + self._noise * noise.reshape(targets.shape)
        chunk = features, targets.astype(np.float32)
        self._latest = number, chunk
        return chunk


def open_teacher(request: Request) -> Splits:
    """An endless stream of a teacher's samples, and others of it to test on."""
    no_image_size(request)
    spec = request.teacher or TeacherSpec()
    teacher = Teacher(spec)
    test = TeacherDataset(teacher, 1, count=spec.test) if spec.test else None
    return Splits(TeacherDataset(teacher, 0, noise=spec.noise), test, endless=True)
