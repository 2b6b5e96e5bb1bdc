"""Saved learners: the same bits, complete or not at all, and refusals of what is no learner."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from streamlearn import Learner
from streamlearn.encoders import ModuleEncoder
from streamlearn.errors import ConfigError, DataNotFoundError, FormatError, StorageError
from streamlearn.state import flatten, unflatten

from .test_learner import CLASSES, KINDS, blobs, content, feed, learner, pictures


def header(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata())


@pytest.mark.parametrize("fed", [0, 3, 39, 40, 41, 104])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_saved_learner_goes_on_with_the_same_bits_before_and_after_the_fit(
    fed: int, dtype: str, tmp_path: Path
) -> None:
    model = learner(
        learner={"dtype": dtype, "batch": 8},
        optimizer={"momentum": 0.5, "decay": 0.01},
    )
    feed(model, *blobs(fed))
    model.save(tmp_path / "one.safetensors")
    restored = Learner.load(tmp_path / "one.safetensors")
    assert content(restored) == content(model)
    probe, _ = blobs(300, seed=7)
    assert torch.equal(restored.predict_proba(probe), model.predict_proba(probe))
    for one in (model, restored):
        one.scores = feed(one, *blobs(120, seed=5))  # type: ignore[attr-defined]
    for found, wanted in zip(restored.scores, model.scores, strict=True):  # type: ignore[attr-defined]
        assert torch.equal(found.probabilities, wanted.probabilities)
        assert torch.equal(found.losses, wanted.losses)
    assert content(restored) == content(model)
    restored.save(tmp_path / "two.safetensors")
    model.save(tmp_path / "one.safetensors")
    first, second = (load_file(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ["standardise", "pca", "patch"])
def test_every_layer_and_encoder_can_be_saved(kind: str, encoder: str, tmp_path: Path) -> None:
    model = learner(layer=kind, encoder={"kind": encoder, "fit": 16}, network={"hidden": 2},
                    memory={"block_rows": 512})  # fmt: skip
    feed(model, *pictures(32))
    model.save(tmp_path / "a")
    assert content(Learner.load(str(tmp_path / "a"))) == content(model)


@pytest.mark.parametrize("fed", [16, 56])
@pytest.mark.parametrize("encoder", ["standardise", "pca", "patch"])
def test_images_that_are_not_contiguous_are_restored_to_the_bit(
    encoder: str, fed: int, tmp_path: Path
) -> None:
    """As images are that were decoded as rows of pixels: the last bits follow the layout."""
    model = learner(encoder={"kind": encoder, "fit": 40})
    images, targets = pictures(200)
    images = (images.float() / 255.0).expand(-1, 3, -1, -1)
    images = (images * torch.tensor([1.0, 0.7, 0.3])[:, None, None]).contiguous(
        memory_format=torch.channels_last
    )
    feed(model, images[:fed], targets[:fed])
    model.save(tmp_path / "a")
    restored = Learner.load(tmp_path / "a")
    for one in (model, restored):
        feed(one, images[fed:], targets[fed:])
    assert content(restored) == content(model)


def test_a_learner_of_several_blocks_with_odd_class_names_can_be_saved(tmp_path: Path) -> None:
    names = ["año", 'a"b', "x/y", "$tensor", "", "1"]
    model = Learner(names, encoder={"kind": "standardise", "fit": 16},
                    memory={"block_rows": 512}, learner={"batch": 64})  # fmt: skip
    features, _ = blobs(1100)
    feed(model, features, torch.arange(1100) % 6, size=64)
    model.save(tmp_path / "a")
    restored = Learner.load(tmp_path / "a")
    assert restored.classes == tuple(names)
    assert [len(memory.blocks) for memory in restored.memories().values()] == [3, 3]
    assert content(restored) == content(model)


def test_saving_does_not_change_the_learner(tmp_path: Path) -> None:
    model, twin = learner(), learner()
    features, targets = blobs(96)
    for start in range(0, 96, 8):
        rows = slice(start, start + 8)
        for one in (model, twin):
            one.learn(features[rows], targets[rows])
        model.save(tmp_path / "a")
    assert content(model) == content(twin)


def test_a_state_through_json_and_the_memories_columns_restore_a_learner() -> None:
    """What a run directory does: the state by itself, then the tuples, block by block."""
    for fed in (20, 104):
        model, restored = learner(), learner()
        feed(restored, *blobs(64, seed=3))  # what it knew is replaced
        feed(model, *blobs(fed))
        tensors, tree = flatten(model.state_dict())
        restored.load_state_dict(unflatten(tensors, json.loads(json.dumps(tree))))
        assert set(restored.memories()) == set(model.memories())
        for name, memory in model.memories().items():
            assert len(restored.memories()[name]) == 0
            for columns in memory.host_blocks():
                restored.memories()[name].load_columns(columns)
        assert content(restored) == content(model)
        for one in (model, restored):
            feed(one, *blobs(64, seed=5))
        assert content(restored) == content(model)


def test_a_state_of_other_classes_dtype_or_encoder_is_refused() -> None:
    model = learner()
    state = model.state_dict()
    with pytest.raises(FormatError, match=r"knows the classes .* but this one \['0', '1'\]"):
        Learner(2).load_state_dict(state)
    with pytest.raises(FormatError, match=r"in float32 but .* in bfloat16; set learner.dtype="):
        learner(learner={"dtype": "bfloat16"}).load_state_dict(state)
    with pytest.raises(FormatError, match=r"has a Standardise .* but this one a PCA; .*encoder="):
        learner(encoder="pca").load_state_dict(state)


# -- encoders of one's own -------------------------------------------------------------------------


@pytest.mark.parametrize("fed", [8, 80])
def test_an_encoder_of_ones_own_must_be_given_again(fed: int, tmp_path: Path) -> None:
    def own() -> ModuleEncoder:
        torch.manual_seed(0)
        return ModuleEncoder(nn.Linear(6, 5))

    model = Learner(CLASSES, learner().settings, encoder=own())
    feed(model, *blobs(fed))
    model.save(tmp_path / "a")
    with pytest.raises(FormatError, match="give an encoder of your own again with encoder="):
        Learner.load(tmp_path / "a")
    restored = Learner.load(tmp_path / "a", encoder=own())
    assert content(restored) == content(model)
    assert torch.equal(restored.predict_proba(blobs(9)[0]), model.predict_proba(blobs(9)[0]))
    learner().save(tmp_path / "b")
    with pytest.raises(FormatError, match=r"has a Standardise as its encoder but .* ModuleEncoder"):
        Learner.load(tmp_path / "b", encoder=own())


# -- other machines --------------------------------------------------------------------------------


def test_a_learner_keeps_its_dtype_on_a_machine_where_auto_means_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("streamlearn.hardware._cpu_has_bfloat16_tiles", lambda: True)
    model = learner(learner={"batch": 8})
    feed(model, *blobs(64))
    assert model.hardware.dtype == torch.bfloat16
    model.save(tmp_path / "a")
    monkeypatch.setattr("streamlearn.hardware._cpu_has_bfloat16_tiles", lambda: False)
    restored = Learner.load(tmp_path / "a")
    assert restored.hardware.dtype == torch.bfloat16
    assert content(restored) == content(model)


def test_a_learner_saved_for_a_gpu_can_be_loaded_onto_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model = learner()
    feed(model, *blobs(64))
    training = model.settings.learner.model_copy(update={"device": "cuda"})
    model.settings = model.settings.model_copy(update={"learner": training})
    model.save(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"learner.device=cuda but this PyTorch sees no CUDA"):
        Learner.load(tmp_path / "a")
    assert content(Learner.load(tmp_path / "a", device="cpu")) == content(model)


# -- complete or not at all ------------------------------------------------------------------------


def half_written(tensors: Any, path: Path, metadata: Any) -> None:
    path.write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_a_save_that_fails_leaves_the_older_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    model = learner()
    feed(model, *blobs(64))
    model.save(path)
    before = path.read_bytes()
    feed(model, *blobs(64, seed=2))
    monkeypatch.setattr("streamlearn.files.save_file", half_written)
    with pytest.raises(StorageError, match=r"'.*a.safetensors' cannot be written \(.*No space"):
        model.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]


def test_a_save_that_is_cut_off_leaves_the_older_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    model = learner()
    model.save(path)
    before = path.read_bytes()

    def cut_off(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", cut_off)
    feed(model, *blobs(64))
    with pytest.raises(KeyboardInterrupt):
        model.save(path)
    assert path.read_bytes() == before


def test_saving_where_there_is_no_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"none/a' cannot be written .*No such file"):
        learner().save(tmp_path / "none" / "a")


# -- what is no learner ----------------------------------------------------------------------------


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(DataNotFoundError, match="is not a file; give the path of a saved"):
            Learner.load(path)


@pytest.mark.parametrize("data", [b"", b"hello", b"\x00" * 100, b"\xff" * 100])
def test_a_foreign_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a.safetensors' is damaged or not a learner"):
        Learner.load(path)


def test_a_safetensors_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for metadata in (None, {"format": "pt"}):
        save_file({"a": torch.zeros(2)}, tmp_path / "a", metadata=metadata)
        with pytest.raises(FormatError, match="is not a saved learner; it has no such header"):
            Learner.load(tmp_path / "a")


def saved(path: Path) -> None:
    model = learner()
    feed(model, *blobs(64))
    model.save(path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    saved(path)
    data = path.read_bytes()
    for length in (4, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError, match="damaged"):
            Learner.load(path)


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "a"
    saved(path)
    metadata = {**header(path), "version": "7", "settings": '{"from_the_future": 1}'}
    save_file(load_file(path), path, metadata=metadata)
    with pytest.raises(FormatError, match=r"format version 7 but .* up to 2; upgrade streamlearn"):
        Learner.load(path)


def without(name: str) -> Callable[[dict[str, str], dict[str, Any]], None]:
    def change(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        (metadata if name in metadata else tensors).pop(name)

    return change


def put(name: str, value: str) -> Callable[[dict[str, str], dict[str, Any]], None]:
    def change(metadata: dict[str, str], tensors: dict[str, Any]) -> None:
        metadata[name] = value

    return change


@pytest.mark.parametrize("change", [
    without("version"), without("state"), without("settings"), without("tuples"),
    put("version", "x"), put("version", "-1"), put("state", "{"), put("state", "[]"),
    put("state", "{}"), put("settings", "{}}"), put("settings", '{"seed": -1}'),
    put("settings", '{"encoder": {"kind": "pca"}}'), put("tuples", "{}"), put("tuples", "[]"),
    without("memory/output/0/weight"), without("memory/output/0/key"),
    without("encoder.mean"), without("memory/hidden.0/0/born"),
])  # fmt: skip
def test_a_learner_with_a_part_missing_or_damaged_is_refused(
    change: Callable[[dict[str, str], dict[str, Any]], None], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    saved(path)
    metadata, tensors = header(path), load_file(path)
    change(metadata, tensors)
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(FormatError) as caught:
        Learner.load(path)
    assert "\n" not in str(caught.value)
