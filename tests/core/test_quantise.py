"""int8 keys: what rounding loses, that it is done once, and that nothing else changes."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from streamlearn.errors import ConfigError, FormatError, NotFiniteError
from streamlearn.gates import ExactNearest
from streamlearn.hybrid import HybridAdamW, hybrid_notes
from streamlearn.layers import WeightedSoftmax
from streamlearn.memory import KEY_SCALE, Memory, Tuples
from streamlearn.quantise import LEAST, dequantised, quantised
from streamlearn.ring import Ring
from streamlearn.settings import settings_of
from streamlearn.widening import widen_memory

from .making import KINDS, Dense, Kind, arrays, fill, make_layer, randn, relative
from .stores import rows_of, tiers_for


def numbers(codes: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return dequantised(codes, scale, torch.empty(codes.shape, dtype=dtype))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 40),
    width=st.integers(1, 70),
    exponent=st.integers(-45, 36),
)
def test_a_number_moves_by_half_a_scale_and_what_was_rounded_stays(
    seed: int, rows: int, width: int, exponent: int
) -> None:
    key = (randn(rows, width, seed=seed) * 10.0**exponent).to(torch.float32)
    key[::7] = 0.0
    codes, scale = quantised(key)
    there = numbers(codes, scale, torch.float64)
    assert ((key - there).abs() <= (0.5 + 1e-5) * scale[:, None].clamp_min(LEAST)).all()
    assert (scale <= (1 + 2**-15) * key.abs().amax(1) / 127).logical_or(scale <= LEAST).all()
    assert (scale[::7] == 0).all()
    once = numbers(codes, scale)
    assert torch.equal(once.double(), there)  # exact in float32
    again, same = quantised(once)
    assert torch.equal(again, codes)
    assert torch.equal(same, scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 0.04)],
)
def test_answers_are_those_of_the_numbers_that_codes_stand_for(
    kind: Kind, dtype: torch.dtype, tolerance: float
) -> None:
    layer = make_layer(kind, 16, 5, dtype=dtype, keys="int8")
    fill(layer, 1300)
    query = randn(6, 16, seed=3).requires_grad_()
    gradient = randn(6, 5, seed=4)
    output = layer(query)
    (pull,) = torch.autograd.grad(output, query, gradient.to(output.dtype))
    dense = Dense.of(layer)
    answers = np.array([dense.output(layer, row) for row in arrays(query)])
    pulls = np.array(
        [dense.gradient(layer, *pair) for pair in zip(arrays(query), arrays(gradient), strict=True)]
    )
    assert relative(output, answers) < tolerance
    assert relative(pull, pulls) < tolerance


def changed(memory: Memory) -> None:
    """Every way in which rows are written."""
    ring = Ring(memory, 1800)
    for step in range(1, 8):
        given = Tuples(randn(300, 9, seed=step), randn(300, seed=step).abs(), randn(300, 3, seed=5))
        ring.put(ring.plan(300), memory.check(given, step), step)
    memory.rewrite(torch.arange(5, 1700, 9), key=3 * randn(189, 9, seed=40))
    memory.drop(torch.arange(0, 1500, 11))
    memory.rewrite(torch.tensor([3, 900]), value=randn(2, 3, seed=8))


def test_scores_and_rows_have_the_same_bits_in_every_tier() -> None:
    """Also after keys were rewritten in blocks that lie in a store only, and in a copy."""
    whole = make_layer("softmax", 9, 3, dtype=torch.float32, keys="int8")
    probe = tiers_for(9, 3, torch.float32, 1)
    away = make_layer("softmax", 9, 3, dtype=torch.float32, keys="int8", tiers=probe)
    for layer in (whole, away):
        layer.memory.clear()
        changed(layer.memory)
    assert len(away.memory.blocks) < len(whole.memory.blocks)
    assert whole.memory.max_key_square == away.memory.max_key_square
    copies = [whole.memory, away.memory, copy.deepcopy(away.memory)]
    rows = [rows_of(memory) for memory in copies]
    for name, column in rows[0].items():
        assert all(column.tobytes() == other[name].tobytes() for other in rows), name
    dead = rows[0]["born"] == -2
    assert not rows[0]["key"][dead].any()
    assert not rows[0][KEY_SCALE][dead].any()
    query = randn(4, 9, seed=2, dtype=torch.float32)
    assert torch.equal(whole(query), away(query))
    one, two = (ExactNearest(layer.memory).nearest(query, 5) for layer in (whole, away))
    assert all(torch.equal(*pair) for pair in zip(one, two, strict=True))


def test_gathered_keys_written_again_are_the_same_bits() -> None:
    memory = Memory(33, 2, dtype=torch.bfloat16, block_rows=512, keys="int8")
    memory.append(Tuples(randn(700, 33), randn(700).abs(), randn(700, 2)), born=1)
    before = rows_of(memory)
    key = memory.gather(torch.arange(700), ("key",))["key"]
    assert key.dtype == torch.float32  # bfloat16 could not hold them
    memory.rewrite(torch.arange(700), key=key)
    after = rows_of(memory)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    assert set(memory.gather(torch.arange(2))) == {"key", "weight", "value", "born"}


def test_a_key_takes_a_byte_a_number_and_four() -> None:
    plain, short = (Memory(64, 10, dtype=torch.bfloat16, keys=keys) for keys in ("plain", "int8"))
    assert plain.row_bytes - short.row_bytes == 2 * 64 - (64 + 4)
    arrays_of = {name: column.row_bytes for name, column in short.columns().items()}
    assert sum(arrays_of.values()) == short.row_bytes


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_key_that_is_not_finite_or_too_long_is_refused(number: float) -> None:
    memory = Memory(5, 3, keys="int8")
    key = randn(3, 5)
    key[1, 2] = number
    with pytest.raises(NotFiniteError):
        memory.append(Tuples(key, torch.ones(3), randn(3, 3)), born=1)
    assert len(memory) == 0


def test_widened_keys_answer_as_before_but_for_one_more_rounding() -> None:
    source = Memory(16, 3, block_rows=512, keys="int8")
    source.append(Tuples(randn(600, 16), randn(600).abs(), randn(600, 3)), born=1)
    wider = Memory(20, 4, block_rows=512, keys="int8")
    widen_memory(wider, source)
    rows = torch.arange(600)
    old, new = (memory.gather(rows, ("key",))["key"] for memory in (source, wider))
    scale = torch.from_numpy(rows_of(wider)[KEY_SCALE])[:, None]
    assert ((new[:, :16] - (20 / 16) ** 0.5 * old).abs() <= 0.51 * scale).all()
    assert not new[:, 16:].any()


def test_codes_do_not_become_plain_keys_by_accident() -> None:
    short = Memory(4, 2, keys="int8")
    short.append(Tuples(randn(3, 4), torch.ones(3), randn(3, 2)), born=1)
    columns = dict(short.host_columns(0))
    with pytest.raises(FormatError, match=r"build it with memory\.keys=int8"):
        Memory(4, 2).load_columns(columns)
    del columns[KEY_SCALE]
    with pytest.raises(FormatError, match="column 'key_scale' has shape None"):
        Memory(4, 2, keys="int8").load_columns(columns)


def test_what_cannot_be_kept_in_int8_is_refused_with_what_to_set() -> None:
    notes = hybrid_notes(4, 2, torch.float32, "all", weighted=True)
    layer = WeightedSoftmax(4, 2, notes=notes, keys="int8")
    with pytest.raises(ConfigError, match="int8 keys would lose such small moves; give train="):
        HybridAdamW([layer], "all")
    with pytest.raises(ConfigError, match=r"memory\.keys=int8 would lose .* set memory.keys=plain"):
        settings_of({"memory": {"keys": "int8"}, "optimizer": {"train": "all"}})
    with pytest.raises(ConfigError, match=r"memory\.keys=int8 is about growing layers, of which"):
        settings_of({"memory": {"keys": "int8"}, "learner": {"kind": "knn"}})
