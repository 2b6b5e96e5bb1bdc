"""The novelty gate: nearest keys as a loop would find them, and what it lets in."""

import numpy as np
import pytest
import torch
from torch import Tensor

from streamlearn.errors import ConfigError, NotFiniteError
from streamlearn.gates import ExactNearest, Gate
from streamlearn.memory import Memory, Tuples
from streamlearn.optim import FunctionalSGD
from streamlearn.tiers import Tiers

from .making import arrays, backward, make_layer, randn

D, C = 5, 2


def memory_of(count: int, dtype: torch.dtype = torch.float64, tiers: Tiers | None = None) -> Memory:
    memory = Memory(D, C, dtype=dtype, block_rows=512, tiers=tiers)
    memory.append(
        Tuples(randn(count, D, seed=1), torch.zeros(count), torch.zeros(count, C)), born=1
    )
    return memory


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("away", [False, True])
def test_nearest_keys_are_those_of_a_search_one_by_one(dtype: torch.dtype, away: bool) -> None:
    size = memory_of(1, dtype).layout.block_bytes
    tiers = Tiers(torch.device("cpu"), host_budget=5 * size) if away else None
    memory = memory_of(3000, dtype, tiers)
    assert bool(memory.tiers.disk_bytes) == away
    memory.drop(torch.arange(0, 3000, 7))
    query = randn(40, D, seed=2)
    distance, row = ExactNearest(memory).nearest(query, 3)
    keys = memory.gather(torch.arange(3000), ("key",))["key"].double()
    expected = torch.stack([(keys - q).square().sum(-1).sqrt() for q in query])
    expected[:, ::7] = torch.inf
    best = expected.topk(3, largest=False)
    assert torch.equal(row, best.indices)
    np.testing.assert_allclose(arrays(distance), arrays(best.values), rtol=1e-5)


def one_by_one(keys: Tensor, new: Tensor, threshold: float) -> list[int]:
    """A tuple after the other, as the rule says it."""
    every = torch.cat([keys, new])
    distances = arrays(torch.stack([(every - key).square().sum(-1).sqrt() for key in new]))
    stored, accepted = list(range(len(keys))), []
    for number, row in enumerate(distances):
        if row[stored].min() > threshold:
            accepted.append(number)
            stored.append(len(keys) + number)
    return accepted


def test_a_batch_is_let_in_as_one_tuple_after_another_would_be() -> None:
    memory = memory_of(60)
    keys = memory.gather(torch.arange(60), ("key",))["key"]
    new = Tuples(randn(300, D, seed=3), torch.zeros(300), torch.zeros(300, C))
    counts = []
    for threshold in (0.3, 1.0, 1.7):
        admission = Gate(memory, threshold).admit(new)
        accepted = admission.accepted.tolist()
        assert accepted == one_by_one(keys, new.key, threshold)
        counts.append(len(accepted))
        both = torch.cat([new.key[admission.accepted].flip(0), keys])  # −1 − j is from the end
        for refused, near in zip(admission.refused.tolist(), admission.near.tolist(), strict=True):
            distances = (both - new.key[refused]).square().sum(-1).sqrt()
            found = int(distances.argmin()) - len(accepted)
            assert near == found
            assert float(distances.min()) <= threshold
    assert counts[0] > counts[1] > counts[2] > 0  # a larger τ means fewer tuples
    with pytest.raises(ConfigError, match=r"layer.gate=0.0 must be finite and above 0"):
        Gate(memory, 0.0)


def test_what_is_refused_is_dropped_or_added_to_the_nearest() -> None:
    """Equal keys merge exactly, so that adding to the nearest changes no answer there."""
    query = torch.cat([randn(6, D, seed=4), randn(6, D, seed=4)[:3]])  # three come twice
    target = randn(9, C, seed=5)
    ends = {}
    for how in ("all", "nearest", "drop"):
        layer = make_layer("softmax", D, C)
        if how == "all":
            growth = FunctionalSGD(layer)
        else:
            growth = FunctionalSGD(
                layer, gate=1e-5, refused="nearest" if how == "nearest" else "drop"
            )
        for _ in range(2):
            backward((layer(query) - target).square().sum())
            growth.step()
        layer.eval()
        ends[how] = layer(randn(20, D, seed=6)), len(layer.memory)
    assert [count for _, count in ends.values()] == [16 + 18, 16 + 6, 16 + 6]
    torch.testing.assert_close(ends["nearest"][0], ends["all"][0], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(ends["drop"][0], ends["all"][0], rtol=1e-3)


def test_what_is_not_finite_is_refused_aloud() -> None:
    layer = make_layer("softmax", D, C)
    growth = FunctionalSGD(layer, gate=1.0)
    output = layer(randn(3, D))
    output.backward(torch.full_like(output, torch.nan))
    with pytest.raises(NotFiniteError):
        growth.step()
    assert len(layer.memory) == 16
    growth.zero_grad()
    backward(layer(randn(3, D)).sum())
    with pytest.raises(ConfigError, match="cannot be found by places"):
        growth.step(places=torch.arange(3), stored=0)
