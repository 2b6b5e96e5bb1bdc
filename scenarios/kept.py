"""What a run keeps of its samples itself, for when their data has gone: labels and thumbnails."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.blocks import DEAD, LABEL, SAMPLE, THUMBNAIL
from streamlearn.errors import ConfigError, StreamlearnError
from streamlearn.learner import Learner
from streamlearn.memory import Memory
from streamlearn.recordlearner import RecordLearner
from streamlearn.tasks import Outputs
from streamlearn.thumbnails import as_picture, as_text, enlarged, is_picture

from .sources import Item, ItemSource, Labels, ListedLabels, Pictures

__all__ = ["KeptItems", "Thumbnails"]

_ROWS = 1 << 16
_CUT = "…"
_STAND_IN = "thumbnails stand in for the data, for"


class Thumbnails:
    """The thumbnails and labels of the samples that live tuples are of.

    Args:
        learner: as it was restored, with its tuples.
    """

    def __init__(self, learner: Learner | RecordLearner) -> None:
        self._memories = [
            memory for memory in learner.memories().values() if THUMBNAIL in memory.columns()
        ]
        self._room = learner.settings.memory.thumbnails or 0
        shape = learner.input_shape or () if isinstance(learner, Learner) else ()
        self._shape = shape if is_picture(shape) else ()

    def __bool__(self) -> bool:
        return bool(self._memories)

    def samples(self) -> set[int]:
        """The samples that there is a thumbnail of."""
        return {int(one) for _, _, samples in self._live() for one in samples}

    def _live(self) -> Iterator[tuple[Memory, Tensor, NDArray[np.int64]]]:
        """Live rows (n,) of each memory, and the samples (n,) that they are of."""
        for memory in self._memories:
            for start in range(0, len(memory), _ROWS):
                rows = torch.arange(start, min(start + _ROWS, len(memory)))
                found = memory.gather(rows, (SAMPLE, "born"))
                live = ((found["born"] != DEAD) & (found[SAMPLE] >= 0)).cpu()
                yield memory, rows[live], found[SAMPLE].cpu()[live].numpy()

    def of(self, wanted: Sequence[int]) -> dict[int, Tensor]:
        """Thumbnails (bytes,) uint8 of those of the samples that have one."""
        found: dict[int, Tensor] = {}
        for memory, rows, samples in self._live():
            _, first = np.unique(samples, return_index=True)
            first = first[np.isin(samples[first], [one for one in wanted if one not in found])]
            columns = memory.gather(rows[torch.from_numpy(first)], (THUMBNAIL,))
            found |= zip(samples[first].tolist(), columns[THUMBNAIL].cpu(), strict=True)
        return found

    def pictures(self, samples: Sequence[int]) -> Pictures:
        """Pixels of those of the samples that have a thumbnail; none but of pictures."""
        if not self._shape:
            return {}
        return {
            sample: as_picture(kept, self._shape, self._room)
            for sample, kept in self.of(samples).items()
        }

    def texts(self, samples: Sequence[int]) -> dict[int, str]:
        """JSON of those of the samples that have a thumbnail, cut ones end in "…"; no pictures."""
        if self._shape:
            return {}
        return {sample: as_text(kept) for sample, kept in self.of(samples).items()}

    def whole(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A picture at the size that the learner wants."""
        return enlarged(pixels, self._shape)

    def labels(self) -> Labels:
        """The labels of all samples that live tuples are of."""
        ids, values = [np.zeros(0, np.int64)], []
        for memory, rows, samples in self._live():
            ids.append(samples)
            values.append(memory.gather(rows, (LABEL,))[LABEL].cpu().numpy())
        every, first = np.unique(np.concatenate(ids), return_index=True)
        return ListedLabels("kept with the thumbnails", every, np.concatenate(values)[first])


class KeptItems:
    """The data of a run, and its thumbnails in the place of what cannot be read any more.

    Args:
        source: the data.
        kept: the thumbnails.
        learner: as it was restored.

    Attributes:
        notes: what thumbnails stand for, for people.
    """

    def __init__(
        self, source: ItemSource, kept: Thumbnails, learner: Learner | RecordLearner
    ) -> None:
        self._source = source
        self._kept = kept
        self._regression = isinstance(learner.task, Outputs)
        self.notes: list[str] = []

    def _gone(self, error: Exception | None = None) -> None:
        """Say once that thumbnails stand in."""
        if not any(note.startswith(_STAND_IN) for note in self.notes):
            why = "some of it cannot be read any more" if error is None else str(error)
            self.notes.append(f"{_STAND_IN} {why.partition(';')[0]}")

    def item(self, sample: int, *, held_out: bool) -> Item:
        """A sample of the data, or what its thumbnail says of it.

        Raises:
            StreamlearnError: there is neither.
        """
        try:
            return self._source.item(sample, held_out=held_out)
        except (StreamlearnError, OSError) as error:
            found = None if held_out else self._item(sample)
            if found is None and (held_out or not self._kept):
                raise
            if found is None:
                raise ConfigError(f"no stored tuple keeps sample {sample}, and {error}") from error
            self._gone(error)
            return found

    def _item(self, sample: int) -> Item | None:
        label = self._kept.labels().of(torch.zeros(1), torch.tensor([sample]))[0]
        truth = label.tolist() if self._regression else int(label)
        for pixels in self._kept.pictures([sample]).values():
            picture = self._kept.whole(pixels)
            if picture.shape != pixels.shape:
                _, height, width = pixels.shape
                self.notes.append(
                    f"sample {sample} is a thumbnail of {width} × {height} pixels, enlarged, so "
                    "the answer is to that"
                )
            return Item(torch.from_numpy(picture.copy())[None], truth, picture, sample)
        for text in self._kept.texts([sample]).values():
            if text.endswith(_CUT):
                raise ConfigError(
                    f"the data of sample {sample} cannot be read any more, and memory.thumbnails "
                    "had no room for all of it; give the row itself by --row"
                )
            return self._source.row(text)._replace(truth=truth, itself=sample)
        return None

    def tests(self) -> int:
        """How many samples of a held-out test there are; none where the data has gone."""
        try:
            return self._source.tests()
        except (StreamlearnError, OSError) as error:
            self._gone(error)
            return 0

    def file(self, path: Path) -> Item:
        """As the source has it."""
        return self._source.file(path)

    def row(self, text: str, what: str = "--row") -> Item:
        """As the source has it."""
        return self._source.row(text, what)

    def labels(self, samples: Sequence[int] | None) -> Labels | None:
        """Those of the data, or those that were kept."""
        try:
            return self._source.labels(samples)
        except (StreamlearnError, OSError) as error:
            self._gone(error)
            return self._kept.labels()

    def pictures(self, samples: Sequence[int]) -> Pictures:
        """Those of the data, and thumbnails of the others."""
        try:
            found = self._source.pictures(samples)
        except (StreamlearnError, OSError) as error:
            self._gone(error)
            found = {}
        missing = self._kept.pictures([sample for sample in samples if sample not in found])
        if missing:
            self._gone()
        return missing | found

    def texts(self, samples: Sequence[int]) -> dict[int, str]:
        """The records of samples as JSON, where they were kept."""
        return self._kept.texts(samples)
