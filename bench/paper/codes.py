"""A stream encoded once: what the first layer of every learner on the same features sees.

An encoder is fitted on the first samples of the stream and frozen, so the codes do not depend on
the learner. They are kept in a scratch folder under a name made of all that they depend on.
"""

import hashlib
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from streamlearn.build import build_encoder
from streamlearn.encoders import Encoder
from streamlearn.hardware import resolve_hardware
from streamlearn.scenarios.build import open_splits
from streamlearn.scenarios.schema import Scenario
from streamlearn.streams import Stream

__all__ = ["Codes", "Ready", "encoded"]

_ROWS = 512


class Codes(NamedTuple):
    """A whole stream and what it is scored on, encoded.

    train: (N, D), or (N, V, D) in V views, in the stream's order, over all epochs. sample: (N,)
    which sample each is. test: (M, D) or (M, V, D). epoch: samples of an epoch. seconds: that
    encoding took, CPU seconds.
    """

    train: Tensor
    targets: Tensor
    sample: Tensor
    test: Tensor
    test_targets: Tensor
    classes: int
    shape: tuple[int, ...]
    epoch: int
    seconds: float

    def rows(self, codes: Tensor) -> Tensor:
        """Codes as a learner with the encoder `Ready` takes them: pixels in the image's shape."""
        pixels = codes.ndim == 2 and codes.shape[1] == math.prod(self.shape)
        return codes.reshape(len(codes), *self.shape) if pixels else codes


class Ready(Encoder):
    """The encoder of samples that are codes already."""

    @property
    def width(self) -> int:
        """That of the codes."""
        return int(self.tensors["width"])

    def fit(self, features: Tensor) -> None:
        """Note the width."""
        self.tensors = {"width": torch.tensor(_views(features).shape[-1])}

    def __call__(self, features: Tensor) -> Tensor:
        """The codes as they are."""
        return _views(features)


def _views(features: Tensor) -> Tensor:
    """Codes (B, D) or (B, V, D); images are codes too."""
    return features if features.ndim == 3 else features.flatten(1)


def encoded(scenario: Scenario, scratch: Path) -> Codes:
    """The codes of the scenario's stream, from the scratch folder or made now."""
    folder = scratch / _name(scenario)
    if not (folder / "meta.json").exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _encode(scenario, part)
        part.rename(folder)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    arrays = {
        name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c"))
        for name in ("train", "targets", "sample", "test", "test_targets")
    }
    return Codes(
        **arrays,
        classes=meta["classes"],
        shape=tuple(meta["shape"]),
        epoch=meta["epoch"],
        seconds=meta["seconds"],
    )


def _name(scenario: Scenario) -> str:
    facts = scenario.model_dump(mode="json", include={"seed", "encoder", "data"})
    facts["dtype"] = str(_dtype(scenario))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _dtype(scenario: Scenario) -> torch.dtype:
    return resolve_hardware(scenario.learner.device, scenario.learner.dtype).dtype


def _encode(scenario: Scenario, folder: Path) -> None:
    """Do as a run does: hold the first samples back, fit on them, encode them and the rest."""
    began = time.process_time()
    splits = open_splits(scenario)
    data = scenario.data
    stream = Stream(
        splits.train,
        order=data.order,
        experiences=data.experiences,
        seed=scenario.seed,
        limit=data.limit,
        epochs=data.epochs,
        augment=data.augment,
    )
    hardware = resolve_hardware(scenario.learner.device, scenario.learner.dtype)
    encoder = build_encoder(scenario.learner_settings(), hardware)
    held: list[Tensor] = []
    targets, sample = [], []
    train: np.memmap[Any, Any] | None = None
    place = 0
    batch = scenario.learner.batch  # a run holds whole batches back
    for rows in (item.rows for item in stream.batches(batch)):
        targets.append(rows.targets)
        sample.append(rows.index)
        if train is None:
            held.append(rows.features)
            if sum(map(len, held)) < min(scenario.encoder.fit, len(stream)):
                continue
            with torch.no_grad():
                codes = encoder.fit_encode(torch.cat(held), lambda: None)
            train = np.lib.format.open_memmap(
                folder / "train.npy", "w+", np.float32, shape=(len(stream), *codes.shape[1:])
            )
        else:
            with torch.no_grad():
                codes = encoder(rows.features)
        train[place : place + len(codes)] = codes.to(torch.float32).numpy()
        place += len(codes)
    if train is None or splits.test is None or place != len(stream):
        raise SystemExit("the data is too short, has unusable images, or has nothing to score on")
    train.flush()
    _encode_test(splits.test, encoder, folder)
    np.save(folder / "targets.npy", torch.cat(targets).numpy())
    np.save(folder / "sample.npy", torch.cat(sample).numpy())
    meta: dict[str, Any] = {
        "classes": len(splits.train.classes),
        "shape": list(splits.train.feature_shape),
        "epoch": stream.epoch_items,
        "seconds": time.process_time() - began,
    }
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def _encode_test(dataset: Any, encoder: Any, folder: Path) -> None:
    codes, targets = [], []
    for start in range(0, len(dataset), _ROWS):
        rows = dataset.read(np.arange(start, min(start + _ROWS, len(dataset)), dtype=np.int64))
        with torch.no_grad():
            codes.append(encoder(rows.features).to(torch.float32))
        targets.append(rows.targets)
    np.save(folder / "test.npy", torch.cat(codes).numpy())
    np.save(folder / "test_targets.npy", torch.cat(targets).numpy())
