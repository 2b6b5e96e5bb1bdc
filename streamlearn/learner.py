"""The learner: encoder, growing network and optimizer behind predict, learn, save and load."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from streamlearn.build import build_encoder, build_network, build_optimizer
from streamlearn.coldstart import ColdStart
from streamlearn.encoders import Encoder
from streamlearn.errors import (
    ConfigError,
    DataNotFoundError,
    FormatError,
    NotFiniteError,
    ShapeError,
)
from streamlearn.hardware import resolve_hardware
from streamlearn.layers import GrowingLayer
from streamlearn.losses import LOSSES
from streamlearn.memory import Memory
from streamlearn.networks import ResNetMLP
from streamlearn.optim import FunctionalSGD
from streamlearn.settings import LearnerSettings, settings_of
from streamlearn.state import StateTree, flatten, unflatten

__all__ = ["Learner", "Scores"]

FORMAT = "streamlearn-learner"
FORMAT_VERSION = 1
_PREDICT_ROWS = 256


class Scores(NamedTuple):
    """What a learner said of a batch before it learnt from it.

    probabilities: (B, classes) float32. losses: (B,) float32, each sample's own.
    """

    probabilities: Tensor
    losses: Tensor


class Learner:
    """A classifier that learns each sample once and grows.

    Args:
        classes: their number, or their names in the order of the targets' indices.
        settings: all settings at once; or as keyword arguments by section, such as
            `encoder="pca"`, `network={"hidden": 2}`, `layer={"kind": "rbf", "gamma": 2}`, `seed=3`.
        encoder: settings of a built-in encoder, or an encoder of one's own (a `ModuleEncoder`
            around any torch module, say), which must be given again to `load`.

    The first `encoder.fit` samples are held back: each is scored online by a small learner of its
    own, then the encoder is fitted on them and they are learnt in their order. `flush` does so
    earlier, when a stream ends.
    """

    def __init__(
        self,
        classes: int | Sequence[str],
        settings: LearnerSettings | None = None,
        *,
        encoder: Encoder | Mapping[str, Any] | str | None = None,
        **sections: Any,
    ) -> None:
        own = encoder if isinstance(encoder, Encoder) else None
        if settings is None:
            if encoder is not None and own is None:
                sections["encoder"] = encoder
            settings = settings_of(sections)
        elif sections:
            raise ConfigError("give settings or sections such as layer=…, not both")
        self.settings = settings
        names = [str(index) for index in range(classes)] if isinstance(classes, int) else classes
        self.classes = tuple(names)
        if len(self.classes) < 2:
            raise ConfigError(
                f"a classifier needs at least 2 classes but was given {len(self.classes)}; "
                "look at the data's labels"
            )
        self.hardware = resolve_hardware(self.settings.learner.device, self.settings.learner.dtype)
        self.loss = LOSSES[self.settings.learner.loss]
        self.encoder = own or build_encoder(self.settings, self.hardware)
        self.network: ResNetMLP | None = None
        self.optimizer: FunctionalSGD | None = None
        self.samples = 0
        self.input_shape: tuple[int, ...] | None = None
        self._held: list[tuple[Tensor, Tensor]] = []
        self._cold: ColdStart | None = self._new_cold_start()

    def _new_cold_start(self) -> ColdStart:
        return ColdStart(len(self.classes), self.loss, self.settings.seed)

    @property
    def fitted(self) -> bool:
        """Whether the encoder is fitted and the network learns."""
        return self.network is not None

    @property
    def held(self) -> int:
        """How many samples are held back for the encoder's fit."""
        return sum(len(targets) for _, targets in self._held)

    # -- predicting and learning -----------------------------------------------------------------

    @torch.no_grad()
    def predict_proba(self, features: Tensor) -> Tensor:
        """Class probabilities (B, classes), float32 on the CPU.

        Args:
            features: (B, …) as the stream yields them: uint8 images or float vectors.
        """
        features = self._checked(features)
        if self.network is None:
            return self._cold_scores(features)
        self.network.eval()
        parts = []
        for start in range(0, len(features), _PREDICT_ROWS):
            codes = self.encode(features[start : start + _PREDICT_ROWS])
            parts.append(self.loss.probabilities(self.network(codes)).to("cpu", torch.float32))
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes))

    def predict(self, features: Tensor) -> Tensor:
        """The most probable class of each sample, (B,) int64 indices into `classes`."""
        return self.predict_proba(features).argmax(-1)

    def learn(self, features: Tensor, targets: Tensor) -> Scores:
        """Score a batch, then learn it: test-then-train in one forward pass.

        Args:
            features: (B, …) uint8 images or float vectors, finite.
            targets: (B,) integer indices into `classes`.

        Returns:
            What was predicted before learning.

        Raises:
            ShapeError: shapes that do not fit each other or the samples before.
            NotFiniteError: NaN or infinity; nothing was learnt.
            ConfigError: a target outside the classes; nothing was learnt.
        """
        features = self._checked(features)
        targets = self._checked_targets(targets, len(features))
        if len(features) == 0:
            return Scores(torch.zeros(0, len(self.classes)), torch.zeros(0))
        if self.network is not None:
            return self._learn(self.encode(features), targets)
        probabilities = self._cold_scores(features)
        if self._cold is not None and self.settings.learner.cold_start == "online":
            self._cold.learn(features, targets)
        self._held.append((features, targets))
        if self.held >= self.settings.encoder.fit:
            self.flush()
        return Scores(probabilities, self.loss.of_probabilities(probabilities, targets))

    def flush(self) -> bool:
        """Fit the encoder on the samples held back so far and learn them, in their order.

        Returns:
            Whether there was anything to do.
        """
        if self.network is not None or not self._held:
            return False
        features = torch.cat([features for features, _ in self._held])
        targets = torch.cat([targets for _, targets in self._held])
        with torch.no_grad():
            self.encoder.fit(features)
            self.encoder.to(self.hardware.device)
        self._build(self.encoder.width)
        self._held, self._cold = [], None
        batch = self.settings.learner.batch
        for start in range(0, len(features), batch):
            rows = slice(start, start + batch)
            self._learn(self.encode(features[rows]), targets[rows])
        return True

    def encode(self, features: Tensor) -> Tensor:
        """The codes of samples, (B, width), on the learner's device."""
        with torch.no_grad():
            return self.encoder(features.to(self.hardware.device))

    def _cold_scores(self, features: Tensor) -> Tensor:
        if self._cold is None or self.settings.learner.cold_start == "chance":
            return torch.full((len(features), len(self.classes)), 1.0 / len(self.classes))
        return self._cold.predict(features)

    def _build(self, width: int) -> None:
        self.network = build_network(self.settings, width, len(self.classes), self.hardware)
        self.optimizer = build_optimizer(self.settings, self.network)
        self._base_rates = [group["lr_value"] for group in self.optimizer.param_groups]

    def _learn(self, codes: Tensor, targets: Tensor) -> Scores:
        network, optimizer = self.network, self.optimizer
        if network is None or optimizer is None:
            raise ConfigError("the learner has no network yet; call learn() or flush() first")
        chosen = self.settings.optimizer
        if chosen.slowdown:
            factor = (1.0 + self.samples / chosen.slowdown_after) ** -chosen.slowdown
            for group, rate in zip(optimizer.param_groups, self._base_rates, strict=True):
                group["lr_value"] = rate * factor
        network.train()
        optimizer.zero_grad()
        output = network(codes)
        losses = self.loss.per_sample(output, targets.to(output.device))  # (B,)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        self.samples += len(codes)
        output = output.detach()
        return Scores(
            self.loss.probabilities(output).to("cpu", torch.float32),
            losses.detach().to("cpu", torch.float32),
        )

    def _checked(self, features: Tensor) -> Tensor:
        if features.ndim < 2:
            raise ShapeError(
                f"features have shape {tuple(features.shape)} but must be a batch, (B, …); "
                "add a first dimension with features[None]"
            )
        shape = tuple(features.shape[1:])
        if self.input_shape is None:
            self.input_shape = shape
        elif shape != self.input_shape:
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
        return features

    def _checked_targets(self, targets: Tensor, count: int) -> Tensor:
        if targets.shape != (count,) or targets.is_floating_point():
            raise ShapeError(
                f"targets have shape {tuple(targets.shape)} and dtype {targets.dtype} but must be "
                f"({count},) integers, one class index a sample"
            )
        targets = targets.to(torch.int64)
        if count and not 0 <= int(targets.min()) <= int(targets.max()) < len(self.classes):
            wrong = targets[(targets < 0) | (targets >= len(self.classes))][0].item()
            raise ConfigError(
                f"target {wrong} is outside the {len(self.classes)} classes; "
                f"targets are indices from 0 to {len(self.classes) - 1}"
            )
        return targets

    # -- state -----------------------------------------------------------------------------------

    def memories(self) -> dict[str, Memory]:
        """Each growing layer's memory by the layer's name; none before the encoder is fitted."""
        if self.network is None:
            return {}
        return {
            name: module.memory
            for name, module in self.network.named_modules()
            if isinstance(module, GrowingLayer)
        }

    def state_dict(self) -> StateTree:
        """Everything but the tuples of `memories()`, which are saved by block."""
        state: StateTree = {
            "classes": list(self.classes),
            "input_shape": None if self.input_shape is None else list(self.input_shape),
            "samples": self.samples,
            "width": None if self.network is None else self.encoder.width,
            "dtype": str(self.hardware.dtype).removeprefix("torch."),
        }
        if self.network is not None and self.optimizer is not None:
            state["encoder"] = self.encoder.state_dict()
            state["optimizer"] = self.optimizer.state_dict()
        else:
            state["held"] = [[features, targets] for features, targets in self._held]
            state["cold"] = None if self._cold is None else self._cold.state_dict()
        return state

    def load_state_dict(self, state: StateTree) -> None:
        """Restore everything but the tuples; `memories()` are empty afterwards and want them.

        Raises:
            FormatError: the state belongs to another learner.
        """
        if tuple(state["classes"]) != self.classes:
            raise FormatError(
                f"the saved learner knows the classes {state['classes']} but this one "
                f"{list(self.classes)}; build it with the same classes in the same order"
            )
        dtype = str(self.hardware.dtype).removeprefix("torch.")
        if state["dtype"] != dtype:
            raise FormatError(
                f"the saved learner keeps its tuples in {state['dtype']} but this one in {dtype}; "
                f"set learner.dtype={state['dtype']}"
            )
        shape = state["input_shape"]
        self.input_shape = None if shape is None else tuple(int(side) for side in shape)
        self.samples = int(state["samples"])
        if state["width"] is None:
            self.network = self.optimizer = None
            self._held = [(features, targets) for features, targets in state["held"]]
            self._cold = self._new_cold_start()
            if state["cold"] is not None:
                self._cold.load_state_dict(state["cold"])
            return
        self.encoder.load_state_dict(state["encoder"])
        self.encoder.to(self.hardware.device)
        self._build(int(state["width"]))
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self._held, self._cold = [], None
        for memory in self.memories().values():
            memory.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole learner to one safetensors file, replaced only once complete."""
        path = Path(path)
        tensors, tree = flatten(self.state_dict())
        for name, memory in self.memories().items():
            for index, columns in enumerate(memory.host_blocks()):
                for column, array in columns.items():
                    tensors[f"memory/{name}/{index}/{column}"] = torch.from_numpy(array)
        header = {
            "format": FORMAT,
            "version": str(FORMAT_VERSION),
            "settings": self.settings.model_dump_json(),
            "state": json.dumps(tree),
        }
        part = path.with_name(path.name + ".part")
        save_file(tensors, part, metadata=header)
        os.replace(part, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, encoder: Encoder | None = None) -> "Learner":
        """Read a learner that `save` wrote; it goes on with the same bits.

        Raises:
            DataNotFoundError: no such file.
            FormatError: not a learner, damaged, or written by a newer version.
        """
        path = Path(path)
        if not path.is_file():
            raise DataNotFoundError(
                f"{str(path)!r} is not a file; give the path of a saved learner"
            )
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise FormatError(f"{str(path)!r} is damaged or not a learner: {error}") from error
        if header.get("format") != FORMAT:
            raise FormatError(f"{str(path)!r} is not a saved learner; it has no such header")
        if int(header["version"]) > FORMAT_VERSION:
            raise FormatError(
                f"{str(path)!r} has format version {header['version']} but this program reads up "
                f"to {FORMAT_VERSION}; upgrade streamlearn"
            )
        state = unflatten(tensors, json.loads(header["state"]))
        settings = LearnerSettings.model_validate_json(header["settings"])
        learner = cls(state["classes"], settings, encoder=encoder)
        learner.load_state_dict(state)
        for name, memory in learner.memories().items():
            index = 0
            while f"memory/{name}/{index}/key" in tensors:
                memory.load_columns(
                    {
                        column: tensors[f"memory/{name}/{index}/{column}"].numpy()
                        for column in memory.column_widths()
                    }
                )
                index += 1
        return learner
