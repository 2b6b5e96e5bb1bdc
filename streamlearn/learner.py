"""The learner: encoder, cold start and model behind predict, learn, save and load."""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamlearn.blocks import LABEL, THUMBNAIL
from streamlearn.build import build_encoder, build_model, build_tiers, check_task
from streamlearn.coldstart import ColdStart, RunningMean
from streamlearn.encoders import Encoder
from streamlearn.encoders.base import as_float
from streamlearn.errors import ConfigError, FormatError, NotFiniteError, ShapeError
from streamlearn.hardware import DeviceName, resolve_hardware
from streamlearn.memory import Memory
from streamlearn.models import Model, NetworkModel, ScaledModel, Scores, Seen, Taken
from streamlearn.models.base import tensor_bytes
from streamlearn.saving import read_learner, write_learner
from streamlearn.settings import LearnerSettings, settings_of
from streamlearn.state import StateTree
from streamlearn.streams.base import Rows
from streamlearn.tasks import Classes, Outputs, Task, task_from
from streamlearn.thumbnails import of_samples

__all__ = ["Learner", "Scores"]

_PREDICT_ROWS = 256


class Learner:
    """What learns each sample once, classes or numbers: an encoder, and a model over its codes.

    Args:
        classes: their number, or their names in the order of the targets' indices; or a `Task`.
        settings: all settings at once; or as keyword arguments by section, such as
            `encoder="pca"`, `network={"hidden": 2}`, `layer={"kind": "rbf", "gamma": 2}`, `seed=3`.
        encoder: settings of a built-in encoder, or an encoder of one's own (a `ModuleEncoder`
            around any torch module, say), which must be given again to `load`.
        outputs: numbers of a target, for a regression, instead of classes.

    The first `encoder.fit` samples are held back: each is scored online by a small learner of its
    own, then the encoder is fitted on them and they are learnt in their order. `flush` does so
    earlier, when a stream ends.
    """

    def __init__(
        self,
        classes: int | Sequence[str] | Task | None = None,
        settings: LearnerSettings | None = None,
        *,
        outputs: int | None = None,
        encoder: Encoder | Mapping[str, Any] | str | None = None,
        **sections: Any,
    ) -> None:
        own = encoder if isinstance(encoder, Encoder) else None
        if settings is None:
            if encoder is not None and own is None:
                sections["encoder"] = encoder
            settings = settings_of(sections)
        elif sections or (encoder is not None and own is None):
            raise ConfigError("give settings or sections such as layer=…, not both")
        self.settings = settings
        self.task = task_from(classes, outputs)
        check_task(settings, self.task)
        if getattr(settings.learner, "members", 1) > 1:
            raise ConfigError(
                f"learner.members={settings.learner.members} is for records, of which networks "  # type: ignore[union-attr]
                "have different views; leave it out, or learn a stream of records"
            )
        self.hardware = resolve_hardware(self.settings.learner.device, self.settings.learner.dtype)
        self.loss = self.task.loss(settings.loss)
        self.encoder = own or build_encoder(self.settings, self.hardware)
        self.tiers = build_tiers(settings, self.hardware)
        self.model: Model | None = None
        self.samples = 0
        self.input_shape: tuple[int, ...] | None = None
        self._held: list[tuple[Tensor, Tensor, Tensor | None]] = []
        self._cold: ColdStart | RunningMean | None = self._new_cold_start()

    def _new_cold_start(self) -> ColdStart | RunningMean:
        if isinstance(self.task, Outputs):
            return RunningMean(self.task.width)
        return ColdStart(self.task.width, self.loss, self.settings.seed)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names; none in a regression."""
        return self.task.names

    @property
    def fitted(self) -> bool:
        """Whether the encoder is fitted and the model learns."""
        return self.model is not None

    @property
    def ready(self) -> bool:
        """Whether enough samples are held back for the encoder to be fitted."""
        return self.model is None and self.held >= self.settings.encoder.fit

    @property
    def held(self) -> int:
        """How many samples are held back for the encoder's fit."""
        return sum(len(targets) for _, targets, _ in self._held)

    # -- predicting and learning -----------------------------------------------------------------

    @torch.no_grad()
    def answer(self, features: Tensor) -> Tensor:
        """What it says of samples: class probabilities (B, classes), or values (B, outputs).

        Probabilities are float32 and values float64, on the CPU.

        Args:
            features: (B, …) as the stream yields them: uint8 images or float vectors.
        """
        features = self._checked(features)
        if self.model is None:
            return self._cold_answers(features)
        parts = []
        for start in range(0, len(features), _PREDICT_ROWS):
            codes = self.encode(features[start : start + _PREDICT_ROWS])
            parts.append(self.model.answer(codes))
        return torch.cat(parts) if parts else self.loss.blank(0, self.task.width)

    def see(self, features: Tensor) -> Seen | None:
        """What the network makes of samples (B, …), layer by layer; None without one.

        See `attribution` for which stored tuples made that.
        """
        if not isinstance(self.model, (NetworkModel, ScaledModel)):
            return None
        return self.model.see(self.encode(self._checked(features)))

    def predict_proba(self, features: Tensor) -> Tensor:
        """Class probabilities (B, classes), float32 on the CPU.

        Raises:
            ConfigError: this is a regression.
        """
        if not isinstance(self.task, Classes):
            raise ConfigError(
                "predict_proba gives probabilities of classes, but this learner answers with "
                "numbers; call predict"
            )
        return self.answer(features)

    def linearised(self) -> contextlib.ExitStack:
        """Answer with 1 + x for e^x in every growing layer until what is returned is closed.

        Raises:
            ConfigError: there is no growing layer.
        """
        network = self._network()
        if network is None:
            raise ConfigError(
                f"learner={self.settings.learner.kind} has no growing layer to linearise; leave "
                "evaluation.linearise out"
            )
        return network.linearised()

    def _network(self) -> NetworkModel | None:
        """The model, if it is a network."""
        model = self.model.model if isinstance(self.model, ScaledModel) else self.model
        return model if isinstance(model, NetworkModel) else None

    def boost(self, factor: float, samples: int) -> bool:
        """Multiply the rates of growing layers for the next samples; whether there are any."""
        network = self._network()
        if network is None or network.growth is None:
            return False
        network.boost(factor, samples)
        return True

    def forget(self, samples: int) -> bool:
        """Drop what growing layers stored before the last samples; whether there are any.

        What was written counts by whole steps, of `learner.batch` samples each.
        """
        network = self._network()
        if network is None or (network.growth is None and network.readout is None):
            return False
        network.forget(-(-samples // self.settings.learner.batch))
        return True

    def predict(self, features: Tensor) -> Tensor:
        """The most probable class of each sample, (B,) int64 indices, or values (B, outputs)."""
        answers = self.answer(features)
        return answers.argmax(-1) if isinstance(self.task, Classes) else answers

    def learn(
        self,
        features: Tensor,
        targets: Tensor,
        *,
        index: Tensor | None = None,
        fit: bool = True,
    ) -> Scores:
        """Score a batch, then learn it: test-then-train in one forward pass.

        Args:
            features: (B, …) uint8 images or float vectors, finite.
            targets: (B,) integer indices into `classes`, or numbers (B, outputs); (B,) for one
                output.
            index: (B,) integers that say which sample each is, each once, so that one that comes
                again is known (`learner.revisit=update`).
            fit: fit the encoder as soon as enough samples are held back; False leaves it to
                `flush`, which is wanted once `ready`.

        Returns:
            What was predicted before learning.

        Raises:
            ShapeError: shapes that do not fit each other or the samples before.
            NotFiniteError: NaN or infinity in the samples or the targets, or in what would be
                stored; nothing was learnt.
            ConfigError: a target outside the classes; nothing was learnt.
        """
        features = self._checked(features)
        targets = self.task.checked(targets, len(features))
        if len(features) == 0:
            return Scores(self.loss.blank(0, self.task.width), torch.zeros(0))
        if self.model is not None:
            return self._learn(self.model, features, self.encode(features), targets, index)
        if self.input_shape is None:
            self.encoder.check(tuple(features.shape[1:]))
        if self.settings.memory.thumbnails is not None:  # refused before anything is held back
            of_samples(features, self.settings.memory.thumbnails)
        # Copies, since whoever feeds samples may use the same buffer for the next batch, and
        # contiguous, as they are restored: a sum's last bit can depend on the layout.
        features = features.cpu().clone(memory_format=torch.contiguous_format)
        targets = targets.cpu().clone(memory_format=torch.contiguous_format)
        answers = self._cold_answers(features)
        if self._cold is not None and self.settings.learner.cold_start == "online":
            self._cold.learn(features, targets)
        self.input_shape = tuple(features.shape[1:])
        self._held.append((features, targets, None if index is None else index.cpu().clone()))
        if fit and self.ready:
            self.flush()
        return Scores(answers, self.loss.of_answers(answers, targets).to(torch.float32))

    def take(self, rows: Rows) -> Taken:
        """`learn` for rows of a stream; the encoder's fit is left to `flush`."""
        answers, losses = self.learn(rows.features, rows.targets, index=rows.index, fit=False)
        return Taken(answers, self.task.checked(rows.targets, len(answers)), losses)

    def labelled(self, rows: Rows) -> Rows:
        """The rows that have a label: all of them."""
        return rows

    @property
    def labels(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.classes

    def without_label(self, rows: Rows) -> list[int]:
        """The numbers of the rows that have none: there are none."""
        return []

    def truths(self, rows: Rows) -> list[Any]:
        """The class of each row, or its numbers, one of them as such."""
        targets = rows.targets.tolist()
        if isinstance(self.task, Classes):
            return [self.classes[target] for target in targets]
        return [target[0] if isinstance(target, list) and len(target) == 1 else target
                for target in targets]  # fmt: skip

    def losses(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss of each answer, (B,)."""
        return self.loss.of_answers(answers, targets).to(torch.float32)

    def rows_state(self, rows: Rows) -> StateTree:
        """Rows as a state tree."""
        return {"features": rows.features, "targets": rows.targets, "index": rows.index}

    def rows_from(self, state: StateTree) -> Rows:
        """The rows that `rows_state` described."""
        return Rows(state["features"], state["targets"], state["index"])

    def flush(self, pulse: Callable[[], None] = lambda: None) -> bool:
        """Fit the encoder on the samples held back so far and learn them, in their order.

        Args:
            pulse: called every so often; whatever it raises ends the work, and all is as before.

        Returns:
            Whether there was anything to do.

        Raises:
            StreamlearnError: the samples cannot be encoded or learnt; they are held back still.
        """
        if self.model is not None or not self._held:
            return False
        parts = [features for features, _, _ in self._held]
        if len({part.dtype for part in parts}) > 1:  # uint8 and float images have other scales
            parts = [as_float(part) for part in parts]
        features = torch.cat(parts)
        targets = torch.cat([targets for _, targets, _ in self._held])
        marks = [index for _, _, index in self._held if index is not None]
        index = torch.cat(marks) if len(marks) == len(self._held) else None
        batch = self.settings.learner.batch
        try:
            with torch.no_grad():
                codes = self.encoder.fit_encode(features, pulse)
                self.encoder.to(self.hardware.device)
            self._check_codes(codes, features)
            codes = codes.to(self.hardware.device)
            self.model = model = self._build(self.encoder.width)
            with torch.no_grad():
                model.start(codes, targets)
            for start in range(0, len(codes), batch):
                pulse()
                rows = slice(start, start + batch)
                self._learn(
                    model,
                    features[rows],
                    codes[rows],
                    targets[rows],
                    None if index is None else index[rows],
                )
        except BaseException:
            self.model, self.samples = None, 0
            raise
        self._held, self._cold = [], None
        return True

    def encode(self, features: Tensor) -> Tensor:
        """The codes of samples, (B, width), on the learner's device.

        Raises:
            NotFiniteError: a sample so large that its code, or the code's square, is not finite.
        """
        with torch.no_grad():
            codes = self.encoder(features.to(self.hardware.device))
        self._check_codes(codes, features)
        return codes

    def _check_codes(self, codes: Tensor, features: Tensor) -> None:
        square = codes.to(torch.float32).square().sum(-1)  # what a network divides by
        if not bool(torch.isfinite(square).all()):
            row = int((~torch.isfinite(square)).nonzero()[0])
            raise NotFiniteError(
                f"the encoder makes NaN or too large a code of row {row}, whose largest feature is "
                f"{features[row].abs().max().item():g}; leave such rows out or scale them down"
            )

    def _cold_answers(self, features: Tensor) -> Tensor:
        if self._cold is None or self.settings.learner.cold_start == "chance":
            return self.loss.blank(len(features), self.task.width)
        return self._cold.predict(features)

    def _build(self, width: int, *, identified: bool = True) -> Model:
        self.tiers = build_tiers(self.settings, self.hardware)
        return build_model(
            self.settings,
            width,
            self.task,
            self.hardware,
            self.tiers,
            self.input_shape,
            identified=identified,
            beside=tensor_bytes(self.encoder.state_dict()),
        )

    def _learn(
        self,
        model: Model,
        features: Tensor,
        codes: Tensor,
        targets: Tensor,
        index: Tensor | None,
    ) -> Scores:
        room, network = self.settings.memory.thumbnails, self._network()
        if room is None or network is None:
            scores = model.learn(codes, targets, index)
        else:
            with network.noting({LABEL: targets, THUMBNAIL: of_samples(features, room)}):
                scores = model.learn(codes, targets, index)
        self.samples += len(codes)
        return scores

    def _checked(self, features: Tensor) -> Tensor:
        if features.ndim < 2:
            raise ShapeError(
                f"features have shape {tuple(features.shape)} but must be a batch, (B, …); "
                "add a first dimension with features[None]"
            )
        shape = tuple(features.shape[1:])
        if self.input_shape is not None and shape != self.input_shape:
            raise ShapeError(
                f"samples have shape {shape} but this learner began with {self.input_shape}; "
                "bring them to that shape or start a new learner"
            )
        if features.is_floating_point() and not bool(torch.isfinite(features).all()):
            row, column = (~torch.isfinite(features.flatten(1))).nonzero()[0].tolist()
            raise NotFiniteError(
                f"feature {column} of row {row} is {features.flatten(1)[row, column].item()}; "
                "leave such rows out or fill in the value (data.on_error=skip does so in a run)"
            )
        return features.detach()

    # -- state -----------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        """The model's memories by layer name; none before the encoder is fitted."""
        return {} if self.model is None else self.model.memories()

    @property
    def nbytes(self) -> int:
        """Bytes that the model needs to predict and to go on learning, its encoder's left out."""
        return 0 if self.model is None else self.model.nbytes

    def bounds(self) -> dict[str, int]:
        """Bounds of the memory, and what they have cost; empty where there are none.

        rows: the most of each growing layer. left: tuples of each that went for others. budget:
        bytes, and used: of these, where a budget is set.
        """
        network = self._network()
        if network is None:
            return {}
        found = {}
        growth = network.growth
        if growth is not None and growth.rows is not None:
            found = {"rows": growth.rows, "left": growth.left}
        if self.settings.memory.budget is not None:
            used = self.nbytes + tensor_bytes(self.encoder.state_dict())
            found |= {"budget": int(self.settings.memory.budget), "used": used}
        return found

    def state_dict(self) -> StateTree:
        """Everything but the tuples of `memories()`, which are saved by block."""
        state: StateTree = {
            **self.task.state_dict(),
            "input_shape": None if self.input_shape is None else list(self.input_shape),
            "samples": self.samples,
            "encoder_type": type(self.encoder).__name__,
            "width": None if self.model is None else self.encoder.width,
            "dtype": str(self.hardware.dtype).removeprefix("torch."),
        }
        if self.model is not None:
            state["encoder"] = self.encoder.state_dict()
            state["model"] = self.model.state_dict()
            state["identified"] = all(memory.identified for memory in self.memories().values())
        else:
            state["held"] = [list(part) for part in self._held]
            state["cold"] = None if self._cold is None else self._cold.state_dict()
        return state

    def load_state_dict(self, state: StateTree) -> None:
        """Restore everything but the tuples; `memories()` are empty afterwards and want them.

        Raises:
            FormatError: the state belongs to another learner.
        """
        self.task.check_state(state)
        dtype = str(self.hardware.dtype).removeprefix("torch.")
        if state["dtype"] != dtype:
            raise FormatError(
                f"the saved learner keeps its tuples in {state['dtype']} but this one in {dtype}; "
                f"set learner.dtype={state['dtype']}"
            )
        encoder_type = type(self.encoder).__name__
        if state["encoder_type"] != encoder_type:
            raise FormatError(
                f"the saved learner has a {state['encoder_type']} as its encoder but this one a "
                f"{encoder_type}; give an encoder of your own again with encoder=…"
            )
        shape = state["input_shape"]
        self.input_shape = None if shape is None else tuple(int(side) for side in shape)
        self.samples = int(state["samples"])
        if state["width"] is None:
            self.model = None
            self._held = [(part[0], part[1], part[2]) for part in state["held"]]
            self._cold = self._new_cold_start()
            if state["cold"] is not None:
                self._cold.load_state_dict(state["cold"])
            return
        self.encoder.load_state_dict(state["encoder"])
        self.encoder.to(self.hardware.device)
        # What began before there was such a column goes on without it.
        identified = bool(state.get("identified", False))
        self.model = self._build(int(state["width"]), identified=identified)
        self.model.load_state_dict(state["model"])
        self._held, self._cold = [], None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole learner to one safetensors file, replaced only once complete.

        Raises:
            StorageError: the system refused; a file that was there before is as it was.
        """
        write_learner(Path(path), self.settings, self.state_dict(), self.memories())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        encoder: Encoder | None = None,
        device: DeviceName | None = None,
    ) -> "Learner":
        """Read a learner that `save` wrote; it goes on with the same bits.

        Args:
            path: the file.
            encoder: an encoder of one's own, if the learner was made with one.
            device: where to compute from now on; None means as its settings say.

        Raises:
            DataNotFoundError: no such file.
            FormatError: not a learner, damaged, or written by a newer version.
        """

        def make(task: Task, settings: LearnerSettings) -> "Learner":
            return cls(task, settings, encoder=encoder)

        return read_learner(Path(path), make, device)
