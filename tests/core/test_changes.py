"""Rows that are rewritten, dropped and gathered, and snapshots of what changed."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamlearn.bits import from_bits, to_bits, widen
from streamlearn.errors import FormatError, GraphError, NotFiniteError, ShapeError, StorageError
from streamlearn.memory import DEAD, PRIOR, Memory, MemorySnapshot, Tuples

from .making import KINDS, Kind, fill, make_layer, randn
from .stores import CPU, Shelf, rows_of, tiers_for

WIDTH, OUTPUTS = 4, 3
DTYPES = (torch.float32, torch.bfloat16, torch.float64)
Rows = dict[str, NDArray[np.generic]]


def tuples(count: int, seed: int) -> Tuples:
    return Tuples(
        randn(count, WIDTH, seed=seed),
        randn(count, seed=seed + 1).abs(),
        randn(count, OUTPUTS, seed=seed + 2),
    )


def some_rows(count: int, total: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randperm(total, generator=random)[:count]


class Naive:
    """The same rows as plain arrays."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.memory = Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512)
        self.rows: Rows = {name: column.empty(0) for name, column in self.memory.columns().items()}

    def bits(self, name: str, tensor: torch.Tensor) -> NDArray[np.generic]:
        kinds = {"weight": self.memory.layout.wide, "born": torch.int64}
        return to_bits(tensor.to(kinds.get(name, self.memory.dtype)))

    def append(self, tuples: Tuples, born: int) -> None:
        columns = {**tuples._asdict(), "born": torch.full((len(tuples.key),), born)}
        for name, column in columns.items():
            self.rows[name] = np.concatenate([self.rows[name], self.bits(name, column)])

    def rewrite(self, rows: torch.Tensor, **columns: torch.Tensor) -> None:
        for name, column in columns.items():
            self.rows[name] = self.rows[name].copy()
            self.rows[name][rows.numpy()] = self.bits(name, column)

    def drop(self, rows: torch.Tensor) -> None:
        for name in self.rows:
            self.rows[name] = self.rows[name].copy()
            self.rows[name][rows.numpy()] = DEAD if name == "born" else 0

    @property
    def live(self) -> int:
        return int((self.rows["born"] != DEAD).sum())

    def largest(self, so_far: float) -> float:
        key = from_bits(self.rows["key"], self.memory.dtype).to(self.memory.layout.wide)
        return max(so_far, *key.square().sum(-1).tolist()) if len(key) else so_far


def same(found: Rows, wanted: Rows) -> bool:
    return all(
        found[name].dtype == rows.dtype and found[name].tobytes() == rows.tobytes()
        for name, rows in wanted.items()
    )


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_memory_holds_what_a_list_of_rows_would_whatever_happens_to_it(data: Any) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    blocks = data.draw(st.sampled_from([None, 0, 1, 2]))
    tiers = None if blocks is None else tiers_for(WIDTH, OUTPUTS, dtype, blocks)
    memory = Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512, tiers=tiers)
    naive, shelf = Naive(dtype), Shelf()
    attached = data.draw(st.booleans())
    if attached:
        memory.store = shelf
    # What is committed cannot depend on what was written to a store that nobody opens again.
    committed = shelf if attached else Shelf()
    taken: list[tuple[MemorySnapshot, Rows]] = []
    steps = st.sampled_from(
        ["append", "append", "rewrite", "drop", "gather", "scan", "take", "commit", "restore"]
    )
    for step, what in enumerate(data.draw(st.lists(steps, min_size=4, max_size=16))):
        total = len(memory)
        if what == "append":
            count = data.draw(st.integers(1, 900))
            memory.append(tuples(count, step), born=step)
            naive.append(tuples(count, step), born=step)
        elif what == "rewrite" and naive.live:
            live = torch.from_numpy(np.flatnonzero(naive.rows["born"] != DEAD))
            rows = live[some_rows(data.draw(st.integers(1, 60)), len(live), step)]
            new = tuples(len(rows), step)
            columns: dict[str, torch.Tensor] = {**new._asdict(), "born": rows % 7}
            names = data.draw(st.sets(st.sampled_from(sorted(columns)), min_size=1))
            chosen: Any = {name: columns[name] for name in names}
            memory.rewrite(rows, **chosen)
            naive.rewrite(rows, **chosen)
        elif what == "drop" and total:
            rows = some_rows(data.draw(st.integers(1, 60)), total, step)
            memory.drop(rows)
            naive.drop(rows)
        elif what == "gather" and total:
            rows = some_rows(50, total, step).repeat(2)
            for name, column in memory.gather(rows, ("value", "born")).items():
                assert to_bits(column).tobytes() == naive.rows[name][rows.numpy()].tobytes()
        elif what == "scan":
            assert sum(block.count for block in memory.scan()) == total
        elif what == "take" and not taken:
            taken.append((memory.snapshot(), dict(naive.rows)))
        elif what == "commit" and taken:
            snapshot, rows_then = taken.pop()
            committed.commit(snapshot)
            memory.saved(snapshot)
            assert snapshot.rows == len(rows_then["born"])
            assert snapshot.live == (rows_then["born"] != DEAD).sum()
            if not attached:
                again = Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512)
                again.open(snapshot.rows, max_key_square=0, live=snapshot.live, store=committed)
                assert same(rows_of(again), rows_then)
        elif what == "restore" and taken:
            memory.restore(taken.pop()[0])
        assert len(memory) == len(naive.rows["born"])
        assert memory.live == naive.live
    assert same(rows_of(memory), naive.rows)
    assert memory.max_key_square >= naive.largest(0.0)
    for snapshot, _ in taken:
        memory.restore(snapshot)
    last = memory.snapshot()
    committed.commit(last)
    memory.saved(last)
    again = Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512)
    again.open(len(memory), max_key_square=last.max_key_square, live=last.live, store=committed)
    assert same(rows_of(again), naive.rows)
    assert memory.snapshot().blocks == ()


# -- refusals --------------------------------------------------------------------------------------


def opened(memory: Memory) -> tuple[Memory, Shelf]:
    """The same rows as a run that is opened has them: in a store, and nothing read."""
    shelf, snapshot = Shelf(), memory.snapshot()
    shelf.commit(snapshot)
    memory.saved(snapshot)
    found = Memory(
        memory.key_width, memory.value_width, dtype=memory.dtype, block_rows=memory.block_rows
    )
    found.open(len(memory), max_key_square=memory.max_key_square, live=memory.live, store=shelf)
    return found, shelf


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize(("rows", "columns", "error", "message"), [
    ([700], {"weight": torch.ones(1)}, ShapeError, "row 700 is not among the 700 rows"),
    ([-1], {"weight": torch.ones(1)}, ShapeError, "row -1 is not among"),
    ([3, 600, 3], {"weight": torch.ones(3)}, ShapeError, "row 3 is there twice"),
    ([3, 4], {"weight": torch.ones(3)}, ShapeError, r"weight has shape \(3,\)"),
    ([3], {"key": torch.ones(1, 5)}, ShapeError, r"key has shape \(1, 5\) .* \(1, 4\)"),
    ([3], {"born": DEAD}, ShapeError, "born=-2 is no step; .*drop"),
    ([8], {"value": torch.ones(1, 3)}, ShapeError, "row 8 was dropped; give born="),
    ([3], {"value": torch.full((1, 3), torch.nan)}, NotFiniteError, "a rewrite would store a NaN"),
    ([3, 4], {"key": torch.full((2, 4), 1e39, dtype=torch.float64)}, NotFiniteError, "a NaN"),
])  # fmt: skip
def test_a_rewrite_that_cannot_be_is_refused_and_changes_nothing(
    away: bool, rows: list[int], columns: Any, error: type[Exception], message: str
) -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512)
    memory.append(tuples(700, 1), born=1)
    memory.drop(torch.tensor([8]))
    if away:
        memory, _ = opened(memory)
    before = {name: column.copy() for name, column in rows_of(memory).items()}
    with pytest.raises(error, match=message):
        memory.rewrite(torch.tensor(rows), **columns)
    assert same(rows_of(memory), before)
    assert memory.live == 699


def test_rows_must_be_a_list_of_whole_numbers_and_columns_must_exist() -> None:
    memory = Memory(WIDTH, OUTPUTS)
    memory.append(tuples(9, 1), born=1)
    with pytest.raises(ShapeError, match=r"must be \(n,\) int64"):
        memory.gather(torch.tensor([1.0]))
    with pytest.raises(ShapeError, match="'side' is no column; choose of key, weight, value, born"):
        memory.gather(torch.tensor([1]), ("side",))


def test_a_dropped_row_comes_back_with_its_birth_step() -> None:
    memory = Memory(WIDTH, OUTPUTS, dtype=torch.float64)
    memory.append(tuples(9, 1), born=1)
    memory.drop(torch.tensor([2, 5]))
    memory.drop(torch.tensor([5, 6]))
    assert memory.live == 6
    memory.rewrite(torch.tensor([5]), weight=torch.ones(1), born=4)
    assert memory.live == 7
    found = memory.gather(torch.tensor([6, 5]))
    assert found["born"].tolist() == [DEAD, 4]
    assert found["weight"].tolist() == [0.0, 1.0]
    assert not found["key"].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_dropped_rows_contribute_exactly_nothing(kind: Kind, size: float) -> None:
    dropped = make_layer(kind, WIDTH, OUTPUTS, dtype=torch.float32)
    zeroed = make_layer(kind, WIDTH, OUTPUTS, dtype=torch.float32)
    for layer in (dropped, zeroed):
        fill(layer, 700, size=size)
    rows = torch.arange(30, 650)
    dropped.memory.drop(rows)
    nothing: dict[str, Any] = {"key": torch.zeros(620, WIDTH), "value": torch.zeros(620, OUTPUTS)}
    zeroed.memory.rewrite(rows, weight=torch.zeros(620), **nothing)
    query = size * randn(5, WIDTH, dtype=torch.float32)
    assert torch.equal(dropped(query), zeroed(query))
    assert dropped(query).isfinite().all()


def test_rewriting_between_forward_and_backward_is_refused() -> None:
    layer = make_layer("rbf", WIDTH, OUTPUTS)
    fill(layer, 20)
    output = layer(randn(2, WIDTH).requires_grad_())
    layer.memory.drop(torch.tensor([3]))
    with pytest.raises(GraphError, match="rewritten between a forward pass and its backward pass"):
        output.sum().backward()


def test_the_largest_key_only_grows_and_is_the_same_wherever_rows_are() -> None:
    memory = Memory(WIDTH, OUTPUTS, dtype=torch.bfloat16, block_rows=512)
    memory.append(tuples(700, 1), born=1)
    away, _ = opened(memory)
    for one in (memory, away):
        one.rewrite(torch.tensor([600, 2, 3]), key=9 * randn(3, WIDTH, seed=4))
    assert memory.max_key_square == away.max_key_square > 81
    before = memory.max_key_square
    memory.drop(torch.tensor([600, 2, 3]))
    assert memory.max_key_square == before


# -- what is read ----------------------------------------------------------------------------------


def test_opening_reads_nothing_and_rewriting_does_not_read_either() -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512)
    memory.append(tuples(1700, 1), born=PRIOR)
    away, shelf = opened(memory)
    assert (len(away), away.live, away.nbytes) == (1700, 1700, memory.nbytes)
    for one in (memory, away):
        one.rewrite(torch.tensor([1600, 3]), weight=torch.ones(2))
        one.drop(torch.tensor([520]))
    assert shelf.reads == []
    for one in (memory, away):
        one.append(tuples(10, 5), born=1)
    assert shelf.reads == [(3, frozenset(away.columns()))]
    assert same(rows_of(away), rows_of(memory))


def test_a_memory_with_rows_cannot_be_opened_again() -> None:
    memory = Memory(WIDTH, OUTPUTS)
    memory.append(tuples(9, 1), born=1)
    with pytest.raises(ShapeError, match="has 9 rows already; open rows in an empty one"):
        memory.open(3, max_key_square=0.0, live=3, store=Shelf())


def test_a_store_that_was_taken_away_is_missed_by_name() -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512)
    memory.append(tuples(700, 1), born=1)
    away, _ = opened(memory)
    away.store = None
    with pytest.raises(StorageError, match="lie in a store that was taken away"):
        away.host_columns(0)


def test_a_block_that_cannot_be_read_is_an_error_wherever_it_is_asked_for() -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512)
    memory.append(tuples(1700, 1), born=1)
    away, shelf = opened(memory)
    shelf.refuses_to_read = {1}
    for ask in (
        lambda: list(away.scan()),
        lambda: away.host_columns(1),
        lambda: away.gather(torch.tensor([600])),
    ):
        with pytest.raises(FormatError, match="block 1 is damaged"):
            ask()
    shelf.refuses_to_read = set()
    assert sum(block.count for block in away.scan()) == 1700
    assert same(rows_of(away), rows_of(memory))


# -- snapshots -------------------------------------------------------------------------------------


def test_a_snapshot_names_what_changed_and_whether_rows_that_were_there_did() -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512)
    memory.append(tuples(600, 1), born=1)
    first = memory.snapshot()
    everything = frozenset(memory.columns())
    assert [(b.index, b.count, b.names, b.rewritten) for b in first.blocks] == [
        (0, 512, everything, frozenset()),
        (1, 88, everything, frozenset()),
    ]
    memory.saved(first)
    memory.append(tuples(1, 2), born=2)
    memory.rewrite(torch.tensor([600]), weight=torch.ones(1))  # no save has seen this row
    (grown,) = memory.snapshot().blocks
    assert (grown.index, grown.names, grown.rewritten) == (1, everything, frozenset())
    memory.rewrite(torch.tensor([3]), weight=torch.ones(1))
    (changed,) = memory.snapshot().blocks
    weight = frozenset({"weight"})
    assert (changed.index, changed.names, changed.rewritten) == (0, weight, weight)
    assert set(changed.columns()) == {"weight"}
    assert memory.snapshot().blocks == ()
    memory.touch_all()
    assert [(b.index, b.names) for b in memory.snapshot().blocks] == [
        (0, everything),
        (1, everything),
    ]


def test_what_was_not_saved_is_in_the_next_snapshot_with_what_came_after() -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512)
    memory.append(tuples(600, 1), born=1)
    memory.saved(memory.snapshot())
    memory.rewrite(torch.tensor([3]), weight=torch.ones(1))
    failed = memory.snapshot()
    memory.rewrite(torch.tensor([4]), value=torch.ones(1, OUTPUTS))
    memory.restore(failed)
    memory.restore(failed)  # once is enough
    (block,) = memory.snapshot().blocks
    assert block.rewritten == {"weight", "value"}


@pytest.mark.parametrize("blocks", [None, 0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_snapshot_stays_as_it_was_while_another_thread_reads_it(
    dtype: torch.dtype, blocks: int | None
) -> None:
    tiers = None if blocks is None else tiers_for(WIDTH, OUTPUTS, dtype, blocks)
    memory = Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512, tiers=tiers)
    memory.append(tuples(1300, 1), born=1)
    memory.rewrite(torch.tensor([5, 1250]), weight=torch.ones(2))
    expected = {name: column.copy() for name, column in rows_of(memory).items()}
    snapshot = memory.snapshot()
    started, stop = threading.Event(), threading.Event()
    wrong: list[int] = []

    def read() -> None:
        count = 0
        while not stop.is_set() or count < 3:
            parts = [block.columns() for block in snapshot.blocks]
            whole = {name: np.concatenate([part[name] for part in parts]) for name in expected}
            wrong.append(not same(whole, expected))
            count += 1
            started.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert started.wait(60)
    for step in range(2, 30):
        memory.append(tuples(97, step), born=step)
        rows = some_rows(200, 1300, step)
        memory.rewrite(rows, key=randn(200, WIDTH, seed=step), value=randn(200, OUTPUTS), born=step)
    stop.set()
    thread.join()
    assert not any(wrong)


def test_patches_are_written_once_they_take_as_much_as_a_block() -> None:
    tiers = tiers_for(WIDTH, OUTPUTS, torch.float32, 0)
    memory = Memory(WIDTH, OUTPUTS, block_rows=512, tiers=tiers)
    plain = Memory(WIDTH, OUTPUTS, block_rows=512)
    memory.store = shelf = Shelf()
    for one in (memory, plain):
        one.append(tuples(2100, 1), born=1)
    memory.saved(memory.snapshot())
    shelf.writes.clear()
    open_snapshot: MemorySnapshot | None = None
    for step in range(30):
        rows = some_rows(200, 2048, step)
        for one in (memory, plain):
            one.rewrite(rows, key=randn(200, WIDTH, seed=step), born=step)
        if step == 10:
            open_snapshot = memory.snapshot()
            then = {name: column.copy() for name, column in rows_of(plain).items()}
    assert same(rows_of(memory), rows_of(plain))
    assert shelf.writes
    assert open_snapshot is not None
    for block in open_snapshot.blocks:
        first = block.index * 512
        for name, column in block.columns().items():
            assert column.tobytes() == then[name][first : first + 512].tobytes()
    memory.saved(open_snapshot)
    memory.rewrite(torch.tensor([1]), weight=torch.zeros(1))
    patches = [slot.patch.nbytes for slot in memory.slots if slot.patch is not None]
    assert sum(patches) <= memory.layout.block_bytes


# -- bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_come_back_as_the_tensor_that_they_were(dtype: torch.dtype) -> None:
    tensor = torch.cat([randn(40, 3), torch.tensor([[-0.0, 0.0, 1e-40]])]).to(dtype)
    array = to_bits(tensor[:, :2])
    assert array.flags.c_contiguous
    assert array.dtype.itemsize == dtype.itemsize
    found = from_bits(array, dtype)
    assert found.dtype == dtype
    assert torch.equal(found, tensor[:, :2])
    assert torch.equal(found.signbit(), tensor[:, :2].signbit())


def test_bfloat16_bits_widen_to_the_float32_that_they_equal() -> None:
    tensor = randn(50, 3).to(torch.bfloat16)
    wide = widen(to_bits(tensor))
    assert wide.dtype == np.float32
    assert np.array_equal(wide, tensor.to(torch.float32).numpy())
    assert torch.equal(from_bits(wide, torch.bfloat16), tensor)


def test_a_bfloat16_column_may_come_as_the_float32_that_it_equals() -> None:
    memory, restored = (Memory(WIDTH, OUTPUTS, dtype=torch.bfloat16, device=CPU) for _ in "ab")
    memory.append(tuples(20, 1), born=1)
    columns = dict(memory.host_columns(0))
    assert str(columns["key"].dtype) == "uint16"
    assert memory.columns()["key"].dtype == "bfloat16"
    for name in ("key", "value"):
        columns[name] = widen(columns[name])
    restored.load_columns(columns)
    assert same(rows_of(restored), rows_of(memory))
