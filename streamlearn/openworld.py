"""A growing learner of an open world: features and classes may appear at any sample.

`Learner` knows its classes and the shape of samples beforehand, and fits an encoder once. Here
samples are records, dictionaries by any names, labels are any hashable objects, and widths grow.
"""

import json
import os
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from streamlearn.blocks import LABEL, THUMBNAIL
from streamlearn.build import check_task
from streamlearn.errors import ConfigError, DataError, FormatError
from streamlearn.files import read_learner_file, write_learner_file
from streamlearn.hardware import resolve_hardware
from streamlearn.kinds import GrowingSettings
from streamlearn.members import Member, Mixture, learn_together
from streamlearn.memory import UNKNOWN, Memory
from streamlearn.models import NetworkModel, ScaledModel, Seen
from streamlearn.records import Record, RecordEncoder, View, plain
from streamlearn.saving import take_tuples, tuples_of
from streamlearn.settings import LearnerSettings
from streamlearn.state import StateTree, flatten, unflatten
from streamlearn.tagged import Tags
from streamlearn.tasks import Classes, Outputs
from streamlearn.thumbnails import of_texts, text_of
from streamlearn.tiers import InTiers, Usage
from streamlearn.widening import features_room

__all__ = ["OpenLearner"]

_PREDICT_ROWS = 256
_COLUMN_BYTES = 32
"""Of a column's count, mean and deviation."""
_EARLY_BYTES = 16
"""Of a sample that is kept, beside its features."""


class OpenLearner:
    """What learns records one after the other, whatever features and classes they bring.

    The network begins with room for 15 features and 15 classes and is made wider when there are
    more; that changes no answer (`widening`). Classes that were not seen yet have no share in the
    softmax or the loss.

    The first `warmup` samples are kept: each time that their number has doubled, the network is
    learnt anew from them in their order, since their means and deviations, and those of a
    regression's targets, are only then known well. It costs at most two more steps for each.

    Args:
        settings: of a growing learner; `encoder` and `learner.cold_start` mean nothing here.
        regression: whether targets are numbers.
        warmup: samples, at least 1.
        others: further networks that learn beside the first, each by its view of records and its
            settings; all answer together, see `members`.

    Attributes:
        labels: the classes in the order in which they came.
        samples: how many were learnt.
        widened: how often the network was made wider since `warmup` samples were learnt.
        tiers: where the tuples of all networks are now.

    Raises:
        ConfigError: settings of another kind of learner, or of a layer that cannot be widened.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        *,
        regression: bool = False,
        warmup: int = 64,
        others: Sequence[tuple[View, LearnerSettings]] = (),
    ) -> None:
        if not isinstance(settings.learner, GrowingSettings):
            raise ConfigError(
                f"learner={settings.learner.kind} cannot grow by features and classes; leave "
                "learner.kind out"
            )
        if settings.layer.kind == "linear" or getattr(settings.layer, "temperature", None):
            what = "layer.temperature" if settings.layer.kind != "linear" else "layer=linear"
            raise ConfigError(
                f"{what} depends on how many features there are, which is not known here; use "
                "layer.kappa, or layer=rbf with layer.gamma"
            )
        if settings.solves():
            raise ConfigError(
                "network.output=least-squares keeps sums that cannot be made wider, and the widths "
                "of records are not known beforehand; leave network.output out"
            )
        if settings.learner.revisit != "append":
            raise ConfigError(
                f"learner.revisit={settings.learner.revisit} needs samples that are known by a "
                "number, which records are not; leave it out"
            )
        if warmup < 1:
            raise ConfigError(f"warmup={warmup} must be at least 1")
        self.settings = settings
        self.regression = regression
        self.warmup = warmup
        self.hardware = resolve_hardware(settings.learner.device, settings.learner.dtype)
        views = {view for view, _ in others}
        self.encoder = RecordEncoder(values="values" in views)
        self.labels: list[Hashable] = []
        self.samples = 0
        self.widened = 0
        self._places: dict[Hashable, int] = {}
        self._early: list[tuple[NDArray[np.float64], float, int, bytes]] = []
        self._members = [
            Member(own, view, self.hardware, regression=regression, sharing=1 + len(others))
            for view, own in (("standardised", settings), *others)
        ]
        self._mixture = Mixture(len(self._members), regression=regression)
        check_task(settings, Outputs(1) if regression else Classes(("0", "1")))

    @property
    def tiers(self) -> InTiers:
        """Where the tuples of all networks are now."""
        return Usage.of(member.tiers for member in self._members)

    @property
    def _begun(self) -> bool:
        return self._members[0].model is not None

    # -- predicting and learning -----------------------------------------------------------------

    def answer(self, records: Sequence[Record]) -> NDArray[np.float64]:
        """Class probabilities (n, labels), whose rows sum to 1, or values (n,), 0 before learning.

        Raises:
            DataError: a feature is neither a number nor a category.
        """
        rows = [self.encoder.read(record, add=False) for record in records]
        if self.regression and not self._begun:
            return np.zeros(len(rows))
        if not self._begun or not rows:
            return np.zeros((len(rows), len(self.labels))[: 1 if self.regression else 2])
        parts = []
        with torch.no_grad():
            for start in range(0, len(rows), _PREDICT_ROWS):
                part = rows[start : start + _PREDICT_ROWS]
                said = [m.answer(m.codes(self.encoder, part)) for m in self._members]
                parts.append(self._mixture.together([self._known(answers) for answers in said]))
        answers = np.concatenate(parts)
        return answers[:, 0] if self.regression else answers

    def _known(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of the classes that came, or values as they are."""
        if self.regression:
            return answers
        answers = answers[:, : len(self.labels)]
        whole: NDArray[np.float64] = answers / answers.sum(-1, keepdims=True)
        return whole

    @property
    def shares(self) -> list[float]:
        """What each network counts for in the answer."""
        found: list[float] = self._mixture.shares.tolist()
        return found

    def see(self, records: Sequence[Record]) -> Seen | None:
        """What the first network makes of samples, layer by layer; None before learning."""
        member = self._members[0]
        if not isinstance(member.model, (NetworkModel, ScaledModel)):
            return None
        rows = [self.encoder.read(record, add=False) for record in records]
        return member.model.see(member.codes(self.encoder, rows))

    def predict(self, records: Sequence[Record]) -> list[Any]:
        """The most probable label of each, None before anything was learnt; or values."""
        answers = self.answer(records)
        if self.regression:
            return [float(value) for value in answers]
        if not self.labels:
            return [None] * len(records)
        return [self.labels[place] for place in answers.argmax(-1).tolist()]

    def learn(
        self,
        records: Sequence[Record],
        targets: Sequence[Any],
        index: Sequence[int] | None = None,
    ) -> None:
        """Learn samples in their order, `learner.batch` at a time.

        Args:
            records: of features.
            targets: labels, or numbers.
            index: which sample of a stream each is, kept beside its tuples; None counts those that
                were learnt.

        Raises:
            DataError: another number of targets, a feature that is no number or category, or a
                label that is missing or not hashable. None of the samples was learnt.
            NotFiniteError: a target that is not finite, likewise; or what would be stored is not,
                and the batch with that sample and those after it were not learnt.
        """
        if len(records) != len(targets):
            raise DataError(
                f"there are {len(records)} samples but {len(targets)} targets; give one for each"
            )
        values = self._checked(targets)
        rows = [self.encoder.read(record, add=True) for record in records]
        samples = self._named(len(rows), index)
        batch = self.settings.learner.batch
        for start in range(0, len(rows), batch):
            part = slice(start, start + batch)
            self._learn(rows[part], values[part], samples[part], self._texts(records[part]))

    def _texts(self, records: Sequence[Record]) -> list[bytes]:
        """The thumbnails of records, empty where none are kept."""
        room = self.settings.memory.thumbnails
        return [b"" if room is None else text_of(record, room) for record in records]

    def _named(self, count: int, index: Sequence[int] | None) -> list[int]:
        """Which samples the next ones are."""
        if index is None:
            return list(range(self.samples, self.samples + count))
        if len(index) != count:
            raise DataError(
                f"there are {count} samples but index names {len(index)}; give one for each"
            )
        return [int(sample) for sample in index]

    def test_then_train(
        self,
        records: Sequence[Record],
        targets: Sequence[Any],
        index: Sequence[int] | None = None,
    ) -> NDArray[np.float64]:
        """Answer to one batch and learn it, where that can be in one forward pass.

        Returns:
            What `answer` said before, with columns of zeros for classes that came with this batch;
            features are standardised by means that know the batch's.

        Raises:
            DataError, NotFiniteError: as `learn` does.
        """
        known, warm = len(self.labels), self.samples >= self.warmup
        before = None if warm else self.answer(records)
        if len(records) != len(targets) or not records:
            self.learn(records, targets, index)
            return self.answer(records)
        values = self._checked(targets)
        rows = [self.encoder.read(record, add=True) for record in records]
        answers = self._learn(rows, values, self._named(len(rows), index), self._texts(records))
        if self.regression:
            return answers[:, 0] if before is None else before
        found = answers[:, : len(self.labels)] if before is None else before
        whole = np.zeros((len(rows), len(self.labels)))
        whole[:, : found.shape[1]] = found
        whole[:, known:] = 0.0
        total = whole.sum(-1, keepdims=True)
        np.divide(whole, total, out=whole, where=total > 0)
        return whole

    def expect(self, labels: Sequence[Any]) -> None:
        """Make classes known before a sample of theirs comes.

        Raises:
            DataError: a label that is missing or not hashable.
        """
        self._numbers(self._checked(labels))

    def places(self, labels: Sequence[Any]) -> list[int]:
        """The numbers of labels that have come."""
        return [self._places[plain(label)] for label in labels]

    def _checked(self, targets: Sequence[Any]) -> list[Any]:
        """Labels that can be classes, or numbers that can be learnt."""
        if self.regression:
            try:
                values = torch.tensor([float(target) for target in targets], dtype=torch.float64)
            except (TypeError, ValueError):
                raise DataError(
                    f"targets such as {targets[0]!r} are no numbers, which a regression learns; "
                    "use GrowingClassifier for labels"
                ) from None
            return Outputs(1).checked(values, len(targets))[:, 0].tolist()
        labels = [plain(target) for target in targets]
        for label in labels:
            if label is None or label != label or not isinstance(label, Hashable):
                raise DataError(
                    f"label {label!r} cannot be a class; leave samples out whose label is missing, "
                    "and give hashable labels such as strings, numbers and booleans"
                )
        return labels

    def _numbers(self, targets: Sequence[Any]) -> Sequence[float]:
        """Places of labels among those that came so far, of which there may be more now."""
        if self.regression:
            return targets
        for label in targets:
            if label not in self._places:
                self._places[label] = len(self.labels)
                self.labels.append(label)
        return [self._places[label] for label in targets]

    def _learn(
        self,
        rows: Sequence[NDArray[np.float64]],
        targets: Sequence[Any],
        samples: Sequence[int],
        texts: Sequence[bytes],
    ) -> NDArray[np.float64]:
        """Learn one batch, or raise and know only what the means have seen of it.

        Returns:
            What was answered to it before, (n, classes) or (n, 1); means nothing in the warm-up.
        """
        held = [member.held() for member in self._members], self.widened
        mixed = self._mixture.scores, self._mixture.weight
        labels, early = len(self.labels), len(self._early)
        try:
            return self._take_in(rows, self._numbers(targets), samples, texts)
        except BaseException:
            for member, before in zip(self._members, held[0], strict=True):
                member.put_back(before)
            self.widened = held[1]
            self._mixture.scores, self._mixture.weight = mixed
            for label in self.labels[labels:]:
                del self._places[label]
            del self.labels[labels:], self._early[early:]
            raise

    def _take_in(
        self,
        rows: Sequence[NDArray[np.float64]],
        numbers: Sequence[float],
        samples: Sequence[int],
        texts: Sequence[bytes],
    ) -> NDArray[np.float64]:
        self.encoder.track(rows)
        before, after = self.samples, self.samples + len(rows)
        if before < self.warmup:
            self._early += zip(rows, numbers, samples, texts, strict=True)
        if before < self.warmup and after.bit_length() > before.bit_length():
            self._begin_anew()
            answers = np.zeros((len(rows), 1))
        else:
            answers = self._step(rows, numbers, samples, texts)
        self.samples = after
        if after >= self.warmup:
            self._early = []
        return answers

    def _begin_anew(self) -> None:
        """New networks, which learn the samples that were kept."""
        rows, numbers, samples, texts = zip(*self._early, strict=True)
        self._mixture = Mixture(len(self._members), regression=self.regression)
        for member in self._members:
            member.model = None
            self._fit_widths(member)
            member.start(member.codes(self.encoder, rows), self._targets(numbers))
        batch = self.settings.learner.batch
        for start in range(0, len(rows), batch):
            part = slice(start, start + batch)
            self._step(rows[part], numbers[part], samples[part], texts[part])

    def _step(
        self,
        rows: Sequence[NDArray[np.float64]],
        numbers: Sequence[float],
        samples: Sequence[int],
        texts: Sequence[bytes],
    ) -> NDArray[np.float64]:
        wider = [self._fit_widths(member) for member in self._members]
        self.widened += any(wider) and self.samples >= self.warmup
        targets = self._targets(numbers)
        which = torch.tensor(samples, dtype=torch.int64)
        codes = [member.codes(self.encoder, rows) for member in self._members]
        room = self.settings.memory.thumbnails
        beside = {} if room is None else {LABEL: targets, THUMBNAIL: of_texts(texts, room)}
        together = learn_together(self._members, codes, targets, which, beside)
        said = [self._known(one) for one in together]
        answers = self._mixture.together(said)
        self._mixture.judge(said, numbers)
        return answers

    def _fit_widths(self, member: Member) -> bool:
        """Let a member have room for what came; whether it was made wider."""
        beside = 0
        if member is self._members[0]:
            # As many columns as come before this one is made wider again.
            columns = features_room(self.encoder.width)
            beside = _COLUMN_BYTES * columns
            if self.samples < self.warmup:
                kept = self.warmup - 1 + self.settings.learner.batch
                beside += kept * (
                    8 * columns + _EARLY_BYTES + (self.settings.memory.thumbnails or 0)
                )
        return member.fit_widths(self.encoder, len(self.labels), beside)

    def _targets(self, numbers: Sequence[float]) -> Tensor:
        if self.regression:
            return torch.tensor(numbers, dtype=torch.float64)[:, None]
        return torch.tensor(numbers, dtype=torch.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the tuples, of the encoder's statistics and of samples that are kept."""
        tuples = sum(member.nbytes for member in self._members)
        room = self.settings.memory.thumbnails or 0
        early = sum(row.nbytes + _EARLY_BYTES + room for row, *_ in self._early)
        return tuples + _COLUMN_BYTES * len(self.encoder) + early

    def boost(self, factor: float, samples: int) -> bool:
        """Multiply the rates of growing layers for the next samples; whether there are any."""
        networks = self._networks()
        for network in networks:
            network.boost(factor, samples)
        return bool(networks)

    def forget(self, samples: int) -> bool:
        """Drop what was stored before the last samples, in whole steps; whether there is any."""
        networks = self._networks()
        for network in networks:
            network.forget(-(-samples // self.settings.learner.batch))
        return bool(networks)

    def bounds(self) -> dict[str, int]:
        """Bounds of the memory, see `Learner.bounds`."""
        rows = [member.rows for member in self._members if member.rows is not None]
        growths = [network.growth for network in self._networks() if network.growth is not None]
        if not rows or not growths:
            return {}
        found = {"rows": max(rows), "left": max(growth.left for growth in growths)}
        if self.settings.memory.budget is not None:
            found |= {"budget": int(self.settings.memory.budget), "used": self.nbytes}
        return found

    def _networks(self) -> list[NetworkModel]:
        return [found for member in self._members if (found := member.network()) is not None]

    # -- state -----------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        """The networks' memories by layer name; none before anything was learnt.

        Those of the second network and later ones have its number before their names.
        """
        return {
            name if number == 1 else f"{number}-{name}": memory
            for number, member in enumerate(self._members, start=1)
            for name, memory in member.memories().items()
        }

    def state_dict(self, tags: Tags) -> StateTree:
        """Everything but the tuples of `memories()`.

        Args:
            tags: writes names and labels.
        """
        return self._state(tags)

    def load_state_dict(self, state: StateTree, tags: Tags) -> None:
        """Restore that in a new learner of the same settings; `memories()` then want their tuples.

        Raises:
            FormatError: the state is one of numbers where this learns classes, or the reverse.
        """
        if state["regression"] != self.regression:
            raise FormatError(
                f"the saved learner learns {'numbers' if state['regression'] else 'classes'} but "
                f"this one {'numbers' if self.regression else 'classes'}; give data.task as before"
            )
        self._load(state, tags)

    def _state(self, tags: Tags) -> StateTree:
        known, room = len(self.encoder), self.settings.memory.thumbnails
        early = np.full((len(self._early), known), np.nan)
        for place, (row, *_) in enumerate(self._early):
            early[place, : len(row)] = row
        return {
            "regression": self.regression,
            "warmup": self.warmup,
            "settings": self.settings.model_dump_json(),
            "labels": [tags.encode(label) for label in self.labels],
            "samples": self.samples,
            "encoder": self.encoder.state_dict(tags),
            "early": torch.from_numpy(early),
            "early_targets": torch.tensor([one[1] for one in self._early]).to(torch.float64),
            "early_samples": torch.tensor([one[2] for one in self._early], dtype=torch.int64),
            **(
                {}
                if room is None or not self._early
                else {"early_thumbnails": of_texts([one[3] for one in self._early], room)}
            ),
            "widened": self.widened,
            "others": [[m.view, m.settings.model_dump_json()] for m in self._members[1:]],
            "members": [member.state_dict() for member in self._members],
            "scores": torch.from_numpy(self._mixture.scores.copy()),
            "score_weight": self._mixture.weight,
        }

    def _saved(self, tags: Tags, extra: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
        memories = self.memories()
        tensors, tree = flatten({**self._state(tags), "extra": tags.encode(dict(extra))})
        counts = {name: len(memory) for name, memory in memories.items()}
        text = json.dumps({"state": tree, "tuples": counts}, sort_keys=True)
        return tensors | tuples_of(memories), text

    @classmethod
    def _restored(
        cls, what: str, tensors: dict[str, Tensor], text: str, tags: Tags
    ) -> tuple["OpenLearner", dict[str, Any]]:
        try:
            saved = json.loads(text)
            state = unflatten(tensors, saved["state"])
            settings = LearnerSettings.model_validate_json(state["settings"])
            learner = cls(
                settings,
                regression=state["regression"],
                warmup=state["warmup"],
                others=[
                    (view, LearnerSettings.model_validate_json(own))
                    for view, own in state.get("others", [])
                ],
            )
            learner._load(state, tags)
            memories = learner.memories()
            take_tuples(what, memories, tensors, saved["tuples"])
            return learner, tags.decode(state["extra"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise FormatError(f"{what} is damaged ({reason}); fall back to a copy") from error

    def _load(self, state: StateTree, tags: Tags) -> None:
        self.samples = int(state["samples"])
        widened = int(state.get("widened", 0))
        self.encoder.load_state_dict(state["encoder"], tags)
        self._numbers([] if self.regression else [tags.decode(label) for label in state["labels"]])
        targets = state["early_targets"].tolist()
        numbers = targets if self.regression else [int(target) for target in targets]
        unknown = torch.full((len(numbers),), UNKNOWN)
        samples = state.get("early_samples", unknown).tolist()
        texts = (
            [bytes(row.numpy()).rstrip(b"\0") for row in state["early_thumbnails"]]
            if ("early_thumbnails" in state)
            else [b""] * len(numbers)
        )
        rows = state["early"].numpy().copy()
        self._early = list(zip(rows, numbers, samples, texts, strict=True))
        self.widened = widened
        members = state.get("members") or [{"widths": state["widths"], "model": state["model"]}]
        if len(members) != len(self._members):
            raise FormatError(
                f"the saved learner has {len(members)} networks but this one {len(self._members)}; "
                "build it with the settings that it was saved with"
            )
        for member, saved in zip(self._members, members, strict=True):
            member.load_state_dict(saved, len(self.labels))
        if "scores" in state:
            self._mixture.scores = state["scores"].numpy().copy()
            self._mixture.weight = float(state["score_weight"])

    def to_bytes(self, **extra: Any) -> tuple[bytes, list[Any]]:
        """Everything as bytes, the same for the same state, and objects that only pickle can hold.

        Args:
            extra: what else is to be kept: names with numbers, text, and lists and dictionaries.
        """
        tags = Tags()
        tensors, text = self._saved(tags, extra)
        # One entry alone, since safetensors writes several in no fixed order.
        return save_tensors(tensors, {"open": text}), tags.objects

    @classmethod
    def from_bytes(
        cls, saved: bytes, objects: Sequence[Any] = ()
    ) -> tuple["OpenLearner", dict[str, Any]]:
        """The learner that `to_bytes` wrote, and what else was kept.

        Raises:
            FormatError: the bytes are no learner.
        """
        length = int.from_bytes(saved[:8], "little")
        try:
            text = json.loads(saved[8 : 8 + length])["__metadata__"]["open"]
            tensors = load_tensors(saved)
        except (ValueError, KeyError) as error:
            raise FormatError("these bytes are no saved model; fall back to a copy") from error
        return cls._restored("the saved model", tensors, text, Tags(objects))

    def save(self, path: str | os.PathLike[str], **extra: Any) -> None:
        """Write everything to one safetensors file, replaced only once complete.

        Raises:
            FormatError: a label, name or category that no file can hold.
            StorageError: the system refused; a file that was there before is as it was.
        """
        tags = Tags()
        tensors, text = self._saved(tags, extra)
        tags.refuse()
        write_learner_file(Path(path), tensors, {"open": text})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple["OpenLearner", dict[str, Any]]:
        """The learner that `save` wrote, and what else was kept; it goes on with the same bits.

        Raises:
            DataNotFoundError: no such file.
            FormatError: another file, damaged, or written by a newer version.
        """
        tensors, header = read_learner_file(Path(path))
        if "open" not in header:
            raise FormatError(f"{str(path)!r} holds a Learner; load it with Learner.load")
        return cls._restored(repr(str(path)), tensors, header["open"], Tags())

    def __getstate__(self) -> dict[str, Any]:
        """The bytes of `to_bytes`."""
        saved, objects = self.to_bytes()
        return {"saved": saved, "objects": objects}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become what was saved."""
        learner, _ = type(self).from_bytes(state["saved"], state["objects"])
        self.__dict__ = learner.__dict__
