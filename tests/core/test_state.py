"""State trees, events, errors and hardware: the small contracts everything else relies on."""

import builtins
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from streamlearn import errors, events
from streamlearn.errors import ConfigError, FormatError, StreamlearnError
from streamlearn.events import LayerStatus, MemoryStatus, as_json
from streamlearn.hardware import resolve_hardware
from streamlearn.state import flatten, unflatten

# -- state trees -----------------------------------------------------------------------------------

KEYS = st.text(min_size=1, max_size=4) | st.sampled_from(["a", "a.b", "a.b.c", "b", "0", "1", "."])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
TENSORS = st.builds(
    lambda shape, dtype, seed: torch.randint(
        0, 255, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    DTYPES,
    st.integers(0, 100),
)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | TENSORS
    | st.floats(allow_nan=False)
)  # fmt: skip
TREES = st.dictionaries(
    KEYS.filter(lambda key: key != "$tensor"),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(KEYS.filter(lambda key: key != "$tensor"), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return (
            isinstance(right, Tensor)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and torch.equal(left, right)
        )
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and list(left) == list(right)
            and all(same(left[key], right[key]) for key in left)
        )
    if isinstance(left, list):
        return (
            isinstance(right, list)
            and len(left) == len(right)
            and all(same(a, b) for a, b in zip(left, right, strict=True))
        )
    return type(left) is type(right) and bool(left == right)


@given(TREES)
@settings(max_examples=150, deadline=None)
def test_unflatten_is_the_exact_inverse_of_flatten_through_json(tree: dict[str, Any]) -> None:
    tensors, value = flatten(tree)
    assert same(unflatten(tensors, json.loads(json.dumps(value))), tree)


def test_a_tree_survives_a_safetensors_file_to_the_bit(tmp_path: Path) -> None:
    tree = {
        "a.b": torch.tensor([0.1, float("inf"), -0.0, float("nan")]),
        "a": {"b": torch.tensor(3, dtype=torch.int64), "list": [torch.zeros(0, 3), None, "ñ"]},
    }
    tensors, value = flatten(tree)
    save_file(tensors, tmp_path / "tree.safetensors")
    found = unflatten(load_file(tmp_path / "tree.safetensors"), json.loads(json.dumps(value)))
    assert torch.equal(found["a.b"].view(torch.int32), tree["a.b"].view(torch.int32))  # type: ignore[attr-defined]
    assert found["a"]["b"].item() == 3
    assert found["a"]["list"][0].shape == (0, 3)
    assert found["a"]["list"][1:] == [None, "ñ"]


def test_flattened_tensors_are_copies_that_later_learning_cannot_change() -> None:
    live = torch.zeros(3, 4)
    tensors, _ = flatten({"live": live.T, "gradient": torch.ones(2, requires_grad=True)})
    live += 1.0
    assert torch.equal(tensors["live"], torch.zeros(4, 3))
    assert tensors["live"].is_contiguous()
    assert not tensors["gradient"].requires_grad


@pytest.mark.parametrize(("tree", "message"), [
    ({"a": {"b": {1, 2}}}, "state at 'a.b' is a set, which cannot be saved; keep tensors"),
    ({"a": [b"bytes"]}, "state at 'a.0' is a bytes"),
    ({"a": {3: 1}}, "state at 'a' has the key 3, which cannot be saved"),
    ({"a": {"$tensor": "x"}}, r"state at 'a' has the key '\$tensor'"),
])  # fmt: skip
def test_what_cannot_be_saved_is_named(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        flatten(tree)


def test_a_damaged_tree_is_refused() -> None:
    with pytest.raises(FormatError, match=r"tensor 'x' that is missing; .*earlier commit"):
        unflatten({}, {"a": {"$tensor": "x"}})
    with pytest.raises(FormatError, match="dictionary at its root"):
        unflatten({}, [1, 2])


# -- events ----------------------------------------------------------------------------------------

OF_TYPE: dict[Any, Any] = {
    int: 3, float: 0.5, str: "ñ \u2028", int | None: None, float | None: 0.25,
    MemoryStatus | None: MemoryStatus(1, 2, 3, 4), bool: True, tuple[str, ...]: ("a", "b"),
    Mapping[str, float | None]: {"mae": 0.5, "r2": None}, Mapping[str, int]: {"rows": 9},
    Mapping[str, Any] | None: {"matrix": [[0.5]]}, tuple[float, ...] | None: (0.5, 0.25),
    tuple[LayerStatus, ...]: (LayerStatus("hidden.0", 5, 80), LayerStatus("output", 5, 60)),
}  # fmt: skip
EVENTS = list(events.Event.__args__)


def example(kind: type[Any]) -> Any:
    return kind(**{field.name: OF_TYPE[field.type] for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_becomes_one_line_of_strict_json_with_its_name_first(kind: type[Any]) -> None:
    event = example(kind)
    line = json.dumps(as_json(event), allow_nan=False)
    assert "\n" not in line
    found = json.loads(line)
    assert next(iter(found)) == "event"
    assert found.pop("event") == kind.event
    seldom = {"outputs"} if hasattr(event, "outputs") else set()  # None here
    assert set(found) == {field.name for field in dataclasses.fields(kind)} - seldom
    if "layers" in found:
        assert found["layers"][0] == {"name": "hidden.0", "tuples": 5, "bytes": 80}


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_an_event_cannot_be_changed(kind: type[Any]) -> None:
    event = example(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, dataclasses.fields(kind)[0].name, 0)


def test_events_have_names_of_their_own() -> None:
    names = [kind.event for kind in EVENTS]
    assert len(set(names)) == len(names)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n != "StreamlearnError"])
def test_every_error_is_ours_and_a_builtin_and_prints_its_sentence(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, StreamlearnError)
    builtin = [
        base for base in kind.__mro__
        if getattr(builtins, base.__name__, None) is base
        and base not in (Exception, BaseException, object)
    ]  # fmt: skip
    assert builtin
    assert str(kind("one sentence; one remedy")) == "one sentence; one remedy"
    assert str(kind()) == ""


def test_every_error_is_exported() -> None:
    found = {
        name for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, StreamlearnError)
    }  # fmt: skip
    assert found == set(errors.__all__)


# -- hardware --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_dtype_is_taken_as_asked(dtype: Any) -> None:
    hardware = resolve_hardware("cpu", dtype)
    assert hardware.device == torch.device("cpu")
    assert hardware.dtype == getattr(torch, dtype)
    assert hardware.reason == f"{dtype} as asked"


@pytest.mark.parametrize("tiles", [True, False])
def test_auto_takes_bfloat16_where_it_is_fast(tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamlearn.hardware._cpu_has_bfloat16_tiles", lambda: tiles)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    hardware = resolve_hardware()
    assert hardware.device.type == "cpu"
    assert hardware.dtype == (torch.bfloat16 if tiles else torch.float32)
    assert "AMX" in hardware.reason or "no bfloat16" in hardware.reason


@pytest.mark.parametrize(("capability", "dtype"), [
    ((9, 0), torch.bfloat16), ((8, 0), torch.bfloat16), ((7, 5), torch.float32),
])  # fmt: skip
def test_auto_takes_a_gpu_where_there_is_one(
    capability: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    hardware = resolve_hardware()
    assert hardware.device.type == "cuda"
    assert hardware.dtype == dtype
    assert resolve_hardware("cpu", "float32").device.type == "cpu"


def test_cuda_where_there_is_none_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"learner.device=cuda but .*set learner.device=cpu"):
        resolve_hardware("cuda")
