"""Blocks of tuples: what they hold, refuse, give out and take back."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn import pages
from streamlearn.errors import FormatError, NotFiniteError, ShapeError
from streamlearn.memory import PRIOR, Columns, Memory, Tuples, decay_coefficients

from .. import reference
from .making import randn

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def tuples(count: int, width: int = 5, outputs: int = 3, seed: int = 0) -> Tuples:
    return Tuples(
        randn(count, width, seed=seed),
        randn(count, seed=seed + 1).abs(),
        randn(count, outputs, seed=seed + 2),
    )


def same_bits(left: Memory, right: Memory) -> bool:
    if len(left) != len(right) or len(left.blocks) != len(right.blocks):
        return False
    return left.max_key_square == right.max_key_square and all(
        a.count == b.count
        and torch.equal(a.key, b.key)
        and torch.equal(a.side, b.side)
        and torch.equal(a.weight, b.weight)
        and torch.equal(a.born, b.born)
        and torch.equal(a.key_square, b.key_square)
        for a, b in zip(left.blocks, right.blocks, strict=True)
    )


# -- appending -------------------------------------------------------------------------------------


def test_an_append_larger_than_several_blocks_fills_them_in_order() -> None:
    memory = Memory(5, 3, dtype=torch.float64, block_rows=512)
    rows = tuples(1300)
    memory.append(rows, born=4)
    assert [block.count for block in memory.blocks] == [512, 512, 276]
    assert len(memory) == 1300
    for name, column in zip(("key", "weight", "value"), rows, strict=True):
        stored = np.concatenate([block[name] for block in memory.host_blocks()])
        assert np.array_equal(stored, column.numpy())
    assert {int(born) for block in memory.host_blocks() for born in block["born"]} == {4}


def test_rows_never_change_place_or_content_as_the_memory_grows() -> None:
    memory = Memory(5, 3, block_rows=512)
    memory.append(tuples(700), born=1)
    before = [{k: v.copy() for k, v in block.items()} for block in memory.host_blocks()]
    for step in range(2, 9):
        memory.append(tuples(97, seed=step), born=step)
    for index, block in enumerate(before):
        after = memory.host_columns(index)
        for name, column in block.items():
            assert np.array_equal(after[name][: len(column)], column)


def test_appending_nothing_changes_nothing() -> None:
    memory = Memory(5, 3)
    memory.append(tuples(0), born=1)
    assert len(memory) == 0
    assert memory.blocks == []
    memory.append(tuples(2), born=1)
    memory.saved(memory.snapshot())
    memory.append(tuples(0), born=2)
    assert len(memory) == 2
    assert memory.snapshot().blocks == ()


@pytest.mark.parametrize(("dtype", "bytes_a_row"), [
    (torch.float32, (5 + 3) * 4 + 4 + 8),
    (torch.bfloat16, (5 + 3) * 2 + 4 + 8),
    (torch.float64, (5 + 3) * 8 + 8 + 8),
])  # fmt: skip
def test_a_tuple_takes_the_bytes_of_its_columns(dtype: torch.dtype, bytes_a_row: int) -> None:
    memory = Memory(5, 3, dtype=dtype)
    assert memory.nbytes == 0
    memory.append(tuples(7), born=1)
    assert memory.nbytes == 7 * bytes_a_row


def test_weights_of_a_bfloat16_memory_are_kept_in_float32() -> None:
    memory = Memory(5, 3, dtype=torch.bfloat16)
    rows = tuples(9)
    memory.append(rows, born=1)
    assert torch.equal(memory.blocks[0].weight[:9], rows.weight.to(torch.float32))


@pytest.mark.parametrize("rows", [0, -512, 100, 513])
def test_a_block_size_that_is_no_multiple_of_512_is_refused(rows: int) -> None:
    with pytest.raises(ShapeError, match=rf"memory.block_rows={rows} .* multiple of 512"):
        Memory(5, 3, block_rows=rows)


@pytest.mark.parametrize("wrong", [
    Tuples(torch.zeros(2, 6), torch.zeros(2), torch.zeros(2, 3)),
    Tuples(torch.zeros(2, 5), torch.zeros(2), torch.zeros(2, 4)),
    Tuples(torch.zeros(2, 5), torch.zeros(3), torch.zeros(2, 3)),
    Tuples(torch.zeros(2, 5), torch.zeros(2, 1), torch.zeros(2, 3)),
])  # fmt: skip
def test_tuples_of_another_width_are_refused_and_nothing_is_stored(wrong: Tuples) -> None:
    memory = Memory(5, 3)
    with pytest.raises(ShapeError, match=r"this memory stores .* widths that it was built with"):
        memory.append(wrong, born=1)
    assert len(memory) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_number_that_is_not_finite_is_refused_and_nothing_is_stored(
    dtype: torch.dtype, number: float, column: int
) -> None:
    memory = Memory(5, 3, dtype=dtype, block_rows=512)
    rows = tuples(700)
    rows[column].view(-1)[-1] = number
    with pytest.raises(NotFiniteError, match="step 3 would store a NaN or infinity"):
        memory.append(rows, born=3)
    assert len(memory) == 0


def test_infinities_of_both_signs_do_not_cancel() -> None:
    memory = Memory(2, 1)
    key = torch.tensor([[float("inf"), -float("inf")]])
    with pytest.raises(NotFiniteError):
        memory.append(Tuples(key, torch.zeros(1), torch.zeros(1, 1)), born=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_that_becomes_infinite_when_rounded_is_refused(dtype: torch.dtype) -> None:
    memory = Memory(5, 3, dtype=dtype)
    for column in range(3):
        rows = tuples(4)
        rows[column].view(-1)[0] = 1e39
        with pytest.raises(NotFiniteError):
            memory.append(rows, born=1)
    largest_float = torch.finfo(torch.float32).max  # infinite in bfloat16
    rows = tuples(4)
    rows.value[0, 0] = largest_float
    if dtype == torch.bfloat16:
        with pytest.raises(NotFiniteError):
            memory.append(rows, born=1)
    assert len(memory) == 0


def test_stored_tuples_keep_no_graph() -> None:
    memory = Memory(5, 3)
    rows = Tuples(*(column.requires_grad_() for column in tuples(4)))
    memory.append(rows, born=1)
    assert not memory.blocks[0].key.requires_grad
    assert not memory.blocks[0].side.requires_grad


def test_clear_leaves_an_empty_memory_that_can_be_filled_again() -> None:
    memory, fresh = Memory(5, 3), Memory(5, 3)
    memory.append(Tuples(*(100 * column for column in tuples(9))), born=1)
    memory.clear()
    assert len(memory) == 0
    memory.append(tuples(4), born=2)
    fresh.append(tuples(4), born=2)
    assert same_bits(memory, fresh)


# -- columns on the host ---------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=5),
    st.sampled_from(DTYPES),
    st.integers(1, 20),
    st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_columns_from_the_host_restore_a_memory_to_the_bit(
    parts: list[int], dtype: torch.dtype, width: int, seed: int
) -> None:
    memory = Memory(width, 3, dtype=dtype, block_rows=512)
    for step, part in enumerate(parts):
        memory.append(tuples(part, width, seed=seed + step), born=step - 1)
    restored = Memory(width, 3, dtype=dtype, block_rows=512)
    for columns in memory.host_blocks():
        assert list(columns) == list(memory.columns())
        restored.load_columns(columns)
    assert same_bits(memory, restored)
    assert memory.nbytes == restored.nbytes


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 3, 64, 3072, 40_000])
def test_norms_do_not_depend_on_how_many_rows_came_together(dtype: torch.dtype, width: int) -> None:
    whole = Memory(width, 1, dtype=dtype, block_rows=512)
    single = Memory(width, 1, dtype=dtype, block_rows=512)
    rows = tuples(6, width, 1)
    whole.append(rows, born=1)
    for index in range(6):
        single.append(Tuples(*(column[index : index + 1] for column in rows)), born=1)
    assert torch.equal(whole.blocks[0].key_square, single.blocks[0].key_square)
    assert whole.max_key_square == single.max_key_square


def test_tiny_and_signed_zero_numbers_survive_the_host() -> None:
    for dtype in DTYPES:
        memory, restored = Memory(3, 1, dtype=dtype), Memory(3, 1, dtype=dtype)
        key = torch.tensor([[-0.0, 1e-38, torch.finfo(dtype).tiny]], dtype=torch.float64)
        memory.append(Tuples(key, torch.tensor([1e-30]), torch.tensor([[-0.0]])), born=PRIOR)
        restored.load_columns(memory.host_columns(0))
        assert same_bits(memory, restored)
        assert torch.equal(memory.blocks[0].key.signbit(), restored.blocks[0].key.signbit())


def test_columns_that_cannot_be_written_to_are_loaded_without_a_warning() -> None:
    memory, restored = Memory(5, 3), Memory(5, 3)
    memory.append(tuples(6), born=1)
    columns = {
        name: np.frombuffer(column.tobytes(), column.dtype).reshape(column.shape)
        for name, column in memory.host_columns(0).items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restored.load_columns(columns)
    assert same_bits(memory, restored)


def test_loading_no_rows_is_loading_nothing() -> None:
    memory = Memory(5, 3)
    memory.load_columns({
        "key": np.zeros((0, 5), np.float32),
        "weight": np.zeros(0, np.float32),
        "value": np.zeros((0, 3), np.float32),
        "born": np.zeros(0, np.int64),
    })  # fmt: skip
    assert len(memory) == 0


@pytest.mark.parametrize("column", ["key", "weight", "value", "born"])
def test_a_missing_or_misshapen_column_is_named(column: str) -> None:
    memory = Memory(5, 3)
    memory.append(tuples(6), born=1)
    good = dict(memory.host_columns(0))
    missing: Columns = {name: rows for name, rows in good.items() if name != column}
    misshapen: Columns = {**good, column: good[column][..., None]}
    for columns in (missing, misshapen):
        restored = Memory(5, 3)
        with pytest.raises(FormatError, match=r"column '\w+' has shape .* or is damaged"):
            restored.load_columns(columns)
        assert len(restored) == 0


# -- momentum and decay ----------------------------------------------------------------------------

RATES = [
    (0.0, 0.0),
    (0.9, 0.0),
    (0.0, 0.05),
    (0.5, 0.3),
    (0.95, 0.3),  # μ above 1 − γ
    (0.75, 0.25),  # 1 − γ = μ, exactly
    (0.9, 0.1),  # equal but for rounding
    (0.9 + 1e-15, 0.1),
    (0.9 + 1e-12, 0.1),
    (0.9 - 1e-9, 0.1),
    (0.9 + 3e-7, 0.1),
    (0.9 - 2e-6, 0.1),
    (0.9 + 1e-4, 0.1),
    (0.999, 0.0009),
]


@pytest.mark.parametrize(("momentum", "decay"), RATES)
def test_coefficients_are_those_of_the_explicit_recursion(momentum: float, decay: float) -> None:
    steps = 300
    births = [1, 2, 50, 150, 250, 295, 299, 300]
    expected = reference.coefficients(births, steps, momentum, decay)
    age = torch.tensor([steps - birth for birth in births], dtype=torch.float64)
    found = decay_coefficients(age, momentum, decay).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-11)


@given(st.floats(0, 0.999), st.floats(0, 0.999), st.integers(0, 60), st.floats(-1e-5, 1e-5))
@settings(max_examples=80, deadline=None)
def test_coefficients_equal_the_sum_that_defines_them(
    momentum: float, decay: float, age: int, nudge: float
) -> None:
    near = min(max(1.0 - decay + nudge, 0.0), 0.9999)  # a momentum near or at 1 − γ
    for chosen in (momentum, near):
        keep = 1.0 - decay
        expected = sum(keep ** (age - j) * chosen**j for j in range(age + 1))
        found = decay_coefficients(torch.tensor(float(age), dtype=torch.float64), chosen, decay)
        assert float(found) == pytest.approx(expected, rel=1e-10, abs=1e-300)


@pytest.mark.parametrize(("momentum", "decay"), [(0.999999, 5e-7), (0.5, 1e-9), (0.0, 0.999)])
def test_coefficients_stay_exact_and_finite_after_a_million_steps(
    momentum: float, decay: float
) -> None:
    age = torch.tensor([0.0, 1e3, 1e6], dtype=torch.float64)
    found = decay_coefficients(age, momentum, decay)
    keep, count = np.longdouble(1.0 - decay), age.numpy().astype(np.longdouble) + 1
    expected = (keep**count - np.longdouble(momentum) ** count) / (keep - np.longdouble(momentum))
    np.testing.assert_allclose(found.numpy(), expected.astype(np.float64), rtol=1e-9, atol=1e-300)


def test_the_rows_that_a_memory_starts_with_count_fully_for_ever() -> None:
    memory = Memory(5, 3, dtype=torch.float64)
    memory.append(tuples(2), born=PRIOR)
    memory.append(tuples(2), born=1)
    counted = memory.coefficients(memory.blocks[0], 1000, momentum=0.3, decay=0.1)
    assert counted[:2].tolist() == [1.0, 1.0]
    assert counted[2:4].tolist() == pytest.approx(
        [float(reference.coefficients([1], 1000, 0.3, 0.1)[0])] * 2, rel=1e-10
    )


def test_a_tuple_counts_once_at_the_step_that_wrote_it() -> None:
    memory = Memory(5, 3, dtype=torch.float64)
    memory.append(tuples(1), born=5)
    assert float(memory.coefficients(memory.blocks[0], 5, momentum=0.9, decay=0.2)[0]) == 1.0


# -- blocks and the parts that are computed with ---------------------------------------------------


@pytest.mark.parametrize(
    ("width", "dtype", "rows"),
    [(3072, torch.float32, 4096), (256, torch.bfloat16, 16384), (256, torch.float32, 8192)],
)
def test_a_block_has_so_many_rows_that_it_is_worth_a_file(
    width: int, dtype: torch.dtype, rows: int
) -> None:
    memory = Memory(width, 10, dtype=dtype)
    assert memory.block_rows == rows
    assert memory.layout.block_bytes >= 8 << 20


@pytest.mark.parametrize("count", [1, 512, 4096, 4097, 9000, 10240])
def test_the_parts_of_a_block_are_its_rows_in_order(count: int) -> None:
    memory = Memory(5, 3, block_rows=10240)
    memory.append(tuples(count), born=1)
    parts = list(memory.tiles())
    assert [part.count for part in parts] == [4096] * (count // 4096) + (
        [count % 4096] if count % 4096 else []
    )
    assert torch.equal(torch.cat([p.key[: p.count] for p in parts]), memory.blocks[0].key[:count])
    assert sum(part.padded for part in parts) == memory.padded


@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_do_not_depend_on_the_rows_of_a_block(dtype: torch.dtype) -> None:
    from streamlearn.kernels import Kernel
    from streamlearn.retrieval import retrieve

    rows, query = tuples(9000, width=32), randn(7, 32, seed=9)
    found = []
    for block_rows in (4096, 8192, 16384):
        memory = Memory(32, 3, dtype=dtype, block_rows=block_rows)
        memory.append(rows, born=1)
        found.append(retrieve(query, memory, Kernel("exponential", 0.2, normalised=True)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_zeros_are_aligned_as_small_ones(dtype: torch.dtype) -> None:
    for shape in ((3, 5), (4096, 1023)):
        made = pages.zeros(shape, dtype)
        assert made.data_ptr() % 64 == 0
        assert (made.shape, made.dtype, made.is_contiguous()) == (shape, dtype, True)
        assert not made.any()
