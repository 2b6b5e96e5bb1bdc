"""What is still known of the samples that a run has learnt: items, labels and pictures, if any.

Tuples say which sample they are of; the data leads from there to the sample, as long as it is
there to be read again.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import ConfigError, DataError, DataNotFoundError
from streamlearn.learner import Learner
from streamlearn.memory import PRIOR, UNKNOWN, Memory
from streamlearn.recordlearner import RecordLearner
from streamlearn.state import StateTree
from streamlearn.streams import Splits
from streamlearn.streams.base import Rows
from streamlearn.streams.experiences import Labelled
from streamlearn.streams.images import IMAGE_SUFFIXES, decode_image
from streamlearn.streams.records import BadRow, JsonLines, RecordRows, Schema

from .build import build_stream, open_record_stream, open_splits
from .schema import Scenario

__all__ = ["Item", "ItemSource", "Labels", "ListedLabels", "NotedLabels", "RecordItems", "SetItems"]

_ROWS = 1 << 16
_STREAM_ROWS = 4096

Pictures = dict[int, NDArray[np.uint8]]
"""Pixels (channels, height, width) by sample."""


class Item(NamedTuple):
    """A sample to be explained.

    features: as the learner takes them, a batch of one. truth: the class's number, or numbers; None
    where it is not known. picture: its pixels. itself: its number among what is learnt.
    """

    features: Any
    truth: Any = None
    picture: NDArray[np.uint8] | None = None
    itself: int | None = None


class Labels(Protocol):
    """The targets of stored tuples."""

    where: str
    """Where they come from, for people."""

    def of(self, rows: Tensor, samples: Tensor) -> Tensor:
        """Classes (n,) int64, negative where unknown; or numbers (n, K), NaN where unknown.

        Args:
            rows: (n,) of a memory.
            samples: (n,) that these are of.
        """
        ...


class NotedLabels:
    """The targets that are kept beside the tuples of a network which rehearses.

    Each sample has one tuple in every layer of such a network, in the same row.

    Args:
        memory: of the first layer.
        mean: what numbers were standardised by, as is deviation; None for classes.
        deviation: see there.
    """

    where = "kept beside the tuples"

    def __init__(self, memory: Memory, mean: Tensor | None, deviation: Tensor | None) -> None:
        parts = []
        for start in range(0, len(memory), _ROWS):
            rows = torch.arange(start, min(start + _ROWS, len(memory)))
            there = memory.gather(rows, ("target", "born"))
            target, prior = there["target"].cpu(), there["born"].cpu() == PRIOR
            target[prior] = float("nan") if target.is_floating_point() else UNKNOWN
            parts.append(target)
        self._targets = torch.cat(parts)
        if mean is not None and deviation is not None:
            self._targets = mean + deviation * self._targets

    def of(self, rows: Tensor, samples: Tensor) -> Tensor:
        """By row."""
        return self._targets[rows.cpu()]


class ListedLabels:
    """Targets by sample: ids (n,) ascending, and values (n,) or (n, K)."""

    def __init__(self, where: str, ids: NDArray[np.int64], values: NDArray[Any]) -> None:
        self.where = where
        self._ids = ids
        self._values = values

    def of(self, rows: Tensor, samples: Tensor) -> Tensor:
        """By sample."""
        wanted = samples.cpu().numpy()
        unknown = UNKNOWN if self._values.dtype.kind == "i" else np.nan
        found = np.full((len(wanted), *self._values.shape[1:]), unknown, self._values.dtype)
        if len(self._ids):
            at = np.searchsorted(self._ids, wanted).clip(max=len(self._ids) - 1)
            there = self._ids[at] == wanted
            found[there] = self._values[at[there]]
        return torch.from_numpy(found)


class ItemSource(Protocol):
    """The data of a run."""

    def item(self, sample: int, *, held_out: bool) -> Item:
        """A sample of what is learnt, or of the test set.

        Raises:
            StreamlearnError: there is none, or it cannot be read again.
        """
        ...

    def tests(self) -> int:
        """How many samples of a held-out test there are to be asked for.

        Raises:
            StreamlearnError: the data cannot be read.
        """
        ...

    def file(self, path: Path) -> Item:
        """A sample in a file.

        Raises:
            StreamlearnError: the file cannot be read as one.
        """
        ...

    def row(self, text: str, what: str = "--row") -> Item:
        """A sample as JSON.

        Raises:
            ConfigError: it is none.
        """
        ...

    def labels(self, samples: Sequence[int] | None) -> Labels | None:
        """The targets of samples, or of all.

        Raises:
            StreamlearnError: the data cannot be read.
        """
        ...

    def pictures(self, samples: Sequence[int]) -> Pictures:
        """What samples look like, those that are pictures and can be read."""
        ...

    def texts(self, samples: Sequence[int]) -> dict[int, str]:
        """What samples are as JSON, those that are no pictures and were kept."""
        ...


def _bytes_of(path: Path) -> bytes:
    if not path.exists():
        raise DataNotFoundError(f"there is no file {str(path)!r}; give --file one that there is")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{str(path)!r} cannot be read ({error.strerror}); give --file a file that can"
        ) from error


class SetItems:
    """Items of a data set that is read by position.

    Args:
        scenario: of the run.
        learner: as it was restored.
        items: that the stream had; data with another number of them is refused.
    """

    def __init__(self, scenario: Scenario, learner: Learner, items: int | None = None) -> None:
        self._scenario = scenario
        self._learner = learner
        self._shape = learner.input_shape or ()
        self._items = items
        self._opened: Splits | None = None

    @property
    def _splits(self) -> Splits:
        if self._opened is None:
            splits = open_splits(self._scenario)
            there = build_stream(self._scenario, splits).total
            if self._items is not None and there != self._items:
                raise DataError(
                    f"{splits.train.name} has {there} items now where the run learns from "
                    f"{self._items}; give back the data that it began with"
                )
            self._opened = splits
        return self._opened

    def item(self, sample: int, *, held_out: bool) -> Item:
        """A sample by its position in the data set, in the domain that it comes in."""
        splits = self._splits
        dataset = splits.test if held_out else splits.train
        if dataset is None:
            raise ConfigError(
                "the data of this run has no test set (data.holdout=0); leave --test out"
            )
        if sample < 0 or (not (splits.endless and not held_out) and sample >= len(dataset)):
            count = len(dataset)
            raise ConfigError(
                f"--sample {sample} is not among the {count} samples of {dataset.name}"
                f"{' that it is tested on' if held_out else ''}; choose one from 0 to {count - 1}"
            )
        if held_out:
            rows = dataset.read(np.array([sample], np.int64))
        else:
            rows = build_stream(self._scenario, splits).shown(sample)
        if rows.skipped:
            bad = rows.skipped[0]
            raise DataError(f"{bad.item} cannot be used: {bad.reason}; choose another sample")
        target = self._learner.task.checked(rows.targets, 1)[0].tolist()
        return Item(rows.features, target, _picture(rows.features[0]), None if held_out else sample)

    def tests(self) -> int:
        """Of the test set, if there is one."""
        return 0 if self._splits.test is None else len(self._splits.test)

    def file(self, path: Path) -> Item:
        """A picture of any size, or a row as JSON."""
        data = _bytes_of(path)
        if len(self._shape) == 3 and path.suffix.lower() in IMAGE_SUFFIXES:
            try:
                pixels = decode_image(data, (self._shape[0], self._shape[1], self._shape[2]))
            except DataError as error:
                raise DataError(
                    f"{str(path)!r} cannot be explained: {error}; give --file another"
                ) from error
            features = torch.from_numpy(pixels.copy())[None]
            return Item(features, None, pixels)
        if path.suffix.lower() == ".json":
            return self.row(data.decode("utf-8", "backslashreplace"), str(path))
        what = "an image or " if len(self._shape) == 3 else ""
        raise ConfigError(
            f"{str(path)!r} is no sample of this run; give --file {what}a .json file with a list "
            f"of numbers of shape {list(self._shape)}"
        )

    def row(self, text: str, what: str = "--row") -> Item:
        """Numbers of the shape of a sample."""
        shape = tuple(self._shape)
        try:
            values = np.asarray(json.loads(text), np.float64)
        except (ValueError, TypeError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"{what} is no list of numbers ({reason}); give JSON of shape {list(shape)}, such "
                "as [0.5, 1, …]"
            ) from None
        if values.shape != shape:
            raise ConfigError(
                f"{what} has shape {list(values.shape)} but samples of this run have {list(shape)};"
                " give as many numbers"
            )
        if len(shape) == 3:
            pixels = values.round().clip(0, 255).astype(np.uint8)
            return Item(torch.from_numpy(pixels)[None], None, pixels)
        return Item(torch.from_numpy(values.astype(np.float32))[None])

    def labels(self, samples: Sequence[int] | None) -> Labels | None:
        """Of all where the data knows them without reading items, else of the samples alone."""
        train = self._splits.train
        where = f"of {train.name}"
        if isinstance(train, Labelled) and train.classes:
            labels = train.labels()
            return ListedLabels(where, np.arange(len(labels)), labels)
        if samples is None:
            return None
        rows = train.read(np.unique(np.asarray([s for s in samples if s >= 0], np.int64)))
        return ListedLabels(where, rows.index.numpy(), rows.targets.numpy())

    def pictures(self, samples: Sequence[int]) -> Pictures:
        """Those whose sample has channels, height and width."""
        if len(self._shape) != 3:
            return {}
        stream = build_stream(self._scenario, self._splits)
        found: Pictures = {}
        for sample in sorted({s for s in samples if s >= 0}):
            rows: Rows = stream.shown(sample)
            picture = _picture(rows.features[0]) if len(rows.features) else None
            if picture is not None:
                found[sample] = picture
        return found

    def texts(self, samples: Sequence[int]) -> dict[int, str]:
        """None: the data is not read for that."""
        return {}


def _picture(features: Tensor) -> NDArray[np.uint8] | None:
    """Pixels, if features (channels, height, width) are an image."""
    if features.ndim != 3 or features.shape[0] not in (1, 3) or features.dtype != torch.uint8:
        return None
    pixels: NDArray[np.uint8] = features.numpy()
    return pixels


class RecordItems:
    """Records of a stream that can be read from its beginning again: files and generators.

    Args:
        scenario: of the run.
        learner: as it was restored.
        stream: the state of the run's stream.
    """

    def __init__(self, scenario: Scenario, learner: RecordLearner, stream: StateTree) -> None:
        self._scenario = scenario
        self._learner = learner
        self._position = int(stream["position"])
        self._known: Labels | None = None
        saved = stream.get("schema")
        self._schema = None if saved is None else Schema.of_state(saved)

    def _again(self) -> None:
        """Refuse streams that cannot be read again.

        Raises:
            ConfigError: one that came in time.
        """
        data = self._scenario.data
        once = data.kind == "watch" or str(data.path) == "-"
        if once or (data.path is not None and not (data.path.is_file() or data.path.is_dir())):
            place = "" if data.path is None else f" data.path={data.path}"
            raise ConfigError(
                f"the rows of data={data.kind}{place} cannot be read again; give the row itself by "
                "--row, or the file that has them by data.path=FILE"
            )

    def item(self, sample: int, *, held_out: bool) -> Item:
        """A row by its number in the stream, counted from 0, bad ones included."""
        if held_out:
            raise ConfigError(
                "--test means nothing for a stream of records, of which none is held out; leave it "
                "out"
            )
        self._again()
        stream = open_record_stream(self._scenario)
        try:
            for batch in stream.batches(_STREAM_ROWS):
                if batch.position > sample >= 0:
                    return self._of(batch.rows, sample)
            raise ConfigError(
                f"--sample {sample} is not among the {stream.position} rows of {stream.name}; "
                f"choose one from 0 to {stream.position - 1}"
            )
        finally:
            stream.close()

    def _of(self, rows: RecordRows, sample: int) -> Item:
        if sample not in rows.index:
            raise DataError(
                f"--sample {sample} is a row that could not be used, see quarantine.jsonl of the "
                "run; choose another"
            )
        place = rows.index.index(sample)
        return Item([rows.features[place]], self._truth(rows.targets[place]), itself=sample)

    def _truth(self, target: Any) -> Any:
        """A label as the number of its class, None if it has not come; or a number."""
        if target is None or self._learner.open.regression:
            return None if target is None else [float(target)]
        labels = list(self._learner.labels)
        return labels.index(target) if target in labels else None

    def tests(self) -> int:
        """None: of a stream nothing is held out."""
        return 0

    def file(self, path: Path) -> Item:
        """A row as JSON in a file."""
        if path.suffix.lower() not in (".json", ".jsonl"):
            raise ConfigError(
                f"{str(path)!r} is no sample of this run, which learns records; give --file a "
                ".json file with one object, or the object itself by --row"
            )
        return self.row(_bytes_of(path).decode("utf-8", "backslashreplace").strip(), str(path))

    def row(self, text: str, what: str = "--row") -> Item:
        """An object, with or without its label."""
        try:
            values = JsonLines(what).values(text.encode())
            if self._schema is None or values is None:
                raise BadRow("the run has read no row yet")
            record, target = self._schema.row(values)
        except BadRow as error:
            raise ConfigError(
                f'{what} cannot be explained: {error}; give an object such as {{"x": 1.5}}'
            ) from None
        return Item([record], self._truth(target))

    def labels(self, samples: Sequence[int] | None) -> Labels | None:
        """Of all rows that the run has read."""
        if self._known is None:
            self._known = self._read_labels()
        return self._known

    def _read_labels(self) -> Labels:
        self._again()
        ids: list[int] = []
        values: list[Any] = []
        stream = open_record_stream(self._scenario)
        try:
            for batch in stream.batches(_STREAM_ROWS):
                ids += batch.rows.index
                values += batch.rows.targets
                if batch.position >= self._position:
                    break
        finally:
            stream.close()
        where = f"of {stream.name}"
        if self._learner.open.regression:
            numbers = [np.nan if value is None else float(value) for value in values]
            return ListedLabels(where, np.asarray(ids, np.int64), np.asarray(numbers)[:, None])
        places = {label: place for place, label in enumerate(self._learner.labels)}
        classes = [places.get(value, UNKNOWN) for value in values]
        return ListedLabels(where, np.asarray(ids, np.int64), np.asarray(classes, np.int64))

    def pictures(self, samples: Sequence[int]) -> Pictures:
        """None: records are no pictures."""
        return {}

    def texts(self, samples: Sequence[int]) -> dict[int, str]:
        """None: the data is not read for that."""
        return {}
