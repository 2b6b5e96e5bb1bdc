"""Approximate nearest keys: near ones, exact distances, and the same graph when made anew."""

import importlib
import math

import pytest
import torch

from streamlearn import approximate
from streamlearn.errors import ConfigError
from streamlearn.gates import ExactNearest
from streamlearn.layers import WeightedSoftmax
from streamlearn.memory import KeysName, Memory, Tuples
from streamlearn.optim import FunctionalSGD
from streamlearn.settings import settings_of

from .making import generator, randn


def grown(count: int, keys: KeysName = "plain") -> Memory:
    memory = Memory(12, 2, block_rows=512, keys=keys)
    memory.append(Tuples(randn(count, 12), torch.ones(count), randn(count, 2)), born=1)
    return memory


def searched(memory: Memory) -> approximate.ApproximateNearest:
    pytest.importorskip("usearch.index")
    return approximate.ApproximateNearest(memory)


@pytest.mark.parametrize("keys", ["plain", "int8"])
def test_nearly_all_nearest_keys_are_found_and_their_distances_are_exact(keys: KeysName) -> None:
    memory = grown(1500, keys)
    memory.drop(torch.arange(0, 1500, 3))
    query = randn(200, 12, seed=9)
    distance, rows = searched(memory).nearest(query, 4)
    exact, expected = ExactNearest(memory).nearest(query, 4)
    assert (rows % 3 != 0).all()
    assert (rows[:, 0] == expected[:, 0]).double().mean() > 0.97
    same = rows == expected
    torch.testing.assert_close(distance[same], exact[same])
    assert (distance >= exact - 1e-5).all()


def test_fewer_keys_than_wanted_and_one_query_are_answered() -> None:
    memory = Memory(12, 2, block_rows=512)
    keys = searched(memory)
    assert keys.nearest(randn(2, 12))[0].shape == (2, 0)
    memory.append(Tuples(randn(3, 12), torch.ones(3), randn(3, 2)), born=1)
    for count in (1, 2):
        distance, rows = keys.nearest(randn(3, 12)[:count], 5)
        assert distance.shape == (count, 3)
        assert rows[:, 0].tolist() == list(range(count))
        assert distance[:, 0].max() < 1e-6
    memory.clear()
    memory.append(Tuples(5 + randn(3, 12), torch.ones(3), randn(3, 2)), born=1)
    assert math.isclose(keys.nearest(5 + randn(3, 12)[:1])[0], 0, abs_tol=1e-5)


def test_a_graph_made_of_stored_rows_is_the_one_that_grew_with_them() -> None:
    """So that a run that is resumed goes on with the same bits."""
    memory = Memory(12, 2, block_rows=512)
    growing = searched(memory)
    key = randn(1300, 12)
    for start in range(0, 1300, 37):
        part = key[start : start + 37]
        growing.nearest(part[:3])
        memory.append(Tuples(part, torch.ones(len(part)), randn(len(part), 2)), born=start)
    again = searched(memory)
    query = randn(50, 12, seed=4)
    for one, two in zip(growing.nearest(query, 3), again.nearest(query, 3), strict=True):
        assert torch.equal(one, two)
    assert bytes(growing._index.save()) == bytes(again._index.save())


def test_a_gate_with_it_grows_as_the_exact_one() -> None:
    pytest.importorskip("usearch.index")
    kept = []
    for nearest in ("exact", "approximate"):
        layer = WeightedSoftmax(12, 2, start_rows=4, generator=generator())
        growth = FunctionalSGD(layer, lr_value=0.1, gate=3.5, nearest=nearest)
        for step in range(8):
            growth.zero_grad()
            layer(randn(40, 12, seed=step, dtype=torch.float32)).square().sum().backward()
            growth.step()
        kept.append(layer.memory)
    assert 20 < len(kept[0]) < 300
    assert len(kept[0]) == len(kept[1])
    one, two = (memory.gather(torch.arange(len(memory))) for memory in kept)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_it_cannot_be_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = {"kind": "softmax", "gate": 3.0, "nearest": "approximate"}
    for sections, said in (
        ({"layer": {**layer, "gate": None}}, r"means nothing where no gate asks .* layer\.gate"),
        ({"layer": layer, "memory": {"rows": 99}}, r"memory\.rows=99 puts others .*\.rows=none"),
        ({"layer": layer, "optimizer": {"train": "all"}}, r"train=all puts .*nearest=exact, or"),
    ):
        with pytest.raises(ConfigError, match=said):
            settings_of(sections)

    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'streamlearn\[ann\]'`, or set layer\.near"):
        approximate.ApproximateNearest(Memory(4, 2))
