"""Budgets: which blocks stay, which pass through buffers, and that no bit depends on it."""

import contextlib
import copy
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from streamlearn import retrieval
from streamlearn.buffers import Buffer, page_bytes
from streamlearn.errors import ConfigError, FormatError, StorageError
from streamlearn.layers import GrowingLayer
from streamlearn.learner import Learner
from streamlearn.memory import Memory, Tuples
from streamlearn.networks import ResNetMLP
from streamlearn.optim import FunctionalSGD
from streamlearn.retrieval import Forgetting
from streamlearn.spill import SpillStore
from streamlearn.tiers import Tiers

from .making import KINDS, Kind, backward, fill, make_layer, randn
from .stores import CPU, Shelf, least, resident_bytes, rows_of, tiers_for
from .test_changes import opened, same

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
WIDTH, OUTPUTS = 6, 5


def tuples(count: int, seed: int = 0, width: int = WIDTH, outputs: int = OUTPUTS) -> Tuples:
    return Tuples(
        randn(count, width, seed=seed),
        0.01 * randn(count, seed=seed + 1).abs(),
        0.1 * randn(count, outputs, seed=seed + 2),
    )


def memory_of(blocks: int | None, dtype: torch.dtype = torch.float32, **options: Any) -> Memory:
    tiers = None if blocks is None else tiers_for(WIDTH, OUTPUTS, dtype, blocks)
    return Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512, tiers=tiers, **options)


def reopened(layer: GrowingLayer, blocks: int | None) -> Shelf:
    """Let a layer's rows lie in a store, as after a run was opened."""
    tiers = None
    if blocks is not None:
        memory = layer.memory
        tiers = tiers_for(memory.key_width, memory.value_width, memory.dtype, blocks)
    shelf, snapshot = Shelf(), layer.memory.snapshot()
    shelf.commit(snapshot)
    old = layer.memory
    layer.memory = Memory(
        old.key_width, old.value_width, dtype=old.dtype, block_rows=512, tiers=tiers
    )
    layer.memory.open(len(old), max_key_square=old.max_key_square, live=old.live, store=shelf)
    return shelf


# -- bits ------------------------------------------------------------------------------------------


def learning(
    kind: Kind,
    dtype: torch.dtype,
    rates: dict[str, Any],
    prepare: Callable[[GrowingLayer], object],
) -> list[Tensor]:
    """What a hidden and an output layer say, pass back and store over several steps."""
    layers = [make_layer(kind, WIDTH, width, dtype=dtype) for width in (WIDTH, OUTPUTS)]
    for layer in layers:
        fill(layer, 512 * 5 + 450, size=1.0)  # a block fills as rows are appended
        prepare(layer)
    network = ResNetMLP(layers[:1], layers[1])
    optimizer = FunctionalSGD(network, lr_value=0.01, **rates)
    seen: list[Tensor] = []
    for step in range(4):
        query = randn(30, WIDTH, seed=step, dtype=torch.float32).requires_grad_()
        optimizer.zero_grad()
        output = network(query)
        backward((output * randn(30, OUTPUTS, seed=step + 9, dtype=torch.float32)).sum())
        optimizer.step()
        assert query.grad is not None
        seen += [output.detach(), query.grad]
    for layer in layers:
        seen += [torch.from_numpy(rows) for rows in rows_of(layer.memory).values()]
    return seen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rates", [{}, {"momentum": 0.5, "decay": 0.01}])
@pytest.mark.parametrize("cache", [1 << 30, 0])
def test_predictions_gradients_and_learning_have_the_same_bits_in_every_tier(
    kind: Kind,
    dtype: torch.dtype,
    rates: dict[str, float],
    cache: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrieval, "CACHE_BYTES", cache)
    expected = learning(kind, dtype, rates, lambda layer: None)
    for prepare in (
        lambda layer: reopened(layer, None),
        lambda layer: reopened(layer, 0),
        lambda layer: reopened(layer, 3),
    ):
        for found, wanted in zip(learning(kind, dtype, rates, prepare), expected, strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1.0, 40.0])
def test_rewritten_and_dropped_rows_answer_with_the_same_bits_in_every_tier(
    kind: Kind, dtype: torch.dtype, size: float
) -> None:
    answers: list[list[Tensor]] = []
    for blocks in (None, 0, 2):
        tiers = None if blocks is None else tiers_for(WIDTH, OUTPUTS, dtype, blocks)
        layer = make_layer(kind, WIDTH, OUTPUTS, dtype=dtype, tiers=tiers)
        fill(layer, 512 * 5, size=size)
        layer.forgetting = Forgetting(9, 0.5, 0.1)
        rows = torch.arange(100, 2560, 7)
        layer.memory.rewrite(rows, key=size * randn(len(rows), WIDTH, seed=4), born=8)
        layer.memory.rewrite(rows[::2], weight=randn(len(rows[::2])).abs())
        layer.memory.drop(torch.arange(1000, 1100))
        query = size * randn(5, WIDTH, seed=3, dtype=torch.float32)
        query.requires_grad_()
        output = layer(query)
        backward(output.sum())
        assert query.grad is not None
        answers.append([output.detach(), query.grad])
    for found in answers[1:]:
        for one, other in zip(found, answers[0], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("blocks", [0, 2])
def test_scans_in_inference_mode_do_not_spoil_later_training(blocks: int) -> None:
    layer = make_layer("rbf", WIDTH, OUTPUTS, dtype=torch.float32)
    fill(layer, 512 * 4 + 9)
    reopened(layer, blocks)
    query = randn(3, WIDTH, dtype=torch.float32)
    with torch.inference_mode():
        before = layer(query)
    after = layer(query.clone().requires_grad_())
    backward(after.sum())
    layer.memory.append(tuples(600), born=9)
    # Without a gradient to the query the product is laid out otherwise.
    assert torch.allclose(before, after.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_buffer_has_the_strides_and_the_alignment_of_a_block(dtype: torch.dtype) -> None:
    for width, outputs in ((6, 5), (33, 16), (1, 1)):
        memory = Memory(width, outputs, dtype=dtype, block_rows=512)
        memory.append(tuples(512, 0, width, outputs), born=1)
        buffer = Buffer(page_bytes(memory.layout, staging=True), CPU, staging=True)
        resident, passing = memory.blocks[0].tensors(), buffer.block(memory.layout).tensors()
        for name, tensor in resident.items():
            assert passing[name].stride() == tensor.stride()
            assert passing[name].shape == tensor.shape
            assert passing[name].data_ptr() % 64 == tensor.data_ptr() % 64 == 0


# -- which blocks stay -----------------------------------------------------------------------------


def staying(memory: Memory) -> list[int]:
    return [index for index, slot in enumerate(memory.slots) if slot.block is not None]


def test_the_blocks_that_stay_lie_evenly_and_only_thin_out_as_the_memory_grows() -> None:
    memory = memory_of(4)
    before: set[int] = set()
    for step in range(34):
        memory.append(tuples(512, step), born=step)
        now = set(staying(memory))
        assert now - before <= {step}
        before = now
    assert len(before) == 4
    gaps = [b - a for a, b in zip(sorted(before), sorted(before)[1:], strict=False)]
    assert max(gaps) <= 2.62 * min(gaps)  # φ²


def test_an_opened_memory_keeps_what_a_grown_one_kept() -> None:
    grown = memory_of(3)
    for step in range(21):
        grown.append(tuples(512, step), born=step)
    layer = make_layer("rbf", WIDTH, OUTPUTS, dtype=torch.float32)
    layer.memory = grown
    shelf = reopened(layer, 3)
    assert staying(layer.memory) == []
    assert shelf.reads == []
    assert layer.memory.tiers.host_bytes == 0
    assert layer.memory.tiers.disk_bytes == grown.nbytes
    assert sum(block.count for block in layer.memory.scan()) == len(grown)
    assert staying(layer.memory) == staying(grown)
    tiers = layer.memory.tiers
    assert tiers.host_bytes == len(staying(grown)) * 512 * grown.row_bytes
    assert tiers.host_bytes + tiers.disk_bytes == grown.nbytes
    shelf.reads.clear()
    assert sum(block.count for block in layer.memory.scan()) == len(grown)
    assert [index for index, _ in shelf.reads] != []
    assert not {index for index, _ in shelf.reads} & set(staying(grown))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_budget_is_never_exceeded_while_several_memories_grow(dtype: torch.dtype) -> None:
    shapes = ((WIDTH, WIDTH), (WIDTH, 40), (31, 3))
    probe = Tiers(CPU, host_budget=1)
    for width, outputs in shapes:
        probe.add(Memory(width, outputs, dtype=dtype, block_rows=512))
    budget = 0
    kept = [Memory(w, o, dtype=dtype, block_rows=512) for w, o in shapes]
    probe = Tiers(CPU, host_budget=1)
    for memory in kept:
        probe.add(memory)
    budget = probe.least + 100_000
    tiers = Tiers(CPU, device_budget=budget + 5, host_budget=budget)  # the smaller one counts
    memories = [
        Memory(width, outputs, dtype=dtype, block_rows=512, tiers=tiers)
        for width, outputs in shapes
    ]
    tiers.check()
    for step in range(40):
        for memory, (width, outputs) in zip(memories, shapes, strict=True):
            memory.append(tuples(1 + 37 * step, step, width, outputs), born=step)
            assert resident_bytes(tiers, *memories) <= budget
            for _ in memory.scan():
                assert resident_bytes(tiers, *memories) <= budget
    assert resident_bytes(tiers, *memories) > budget - 2 * max(m.layout.block_bytes for m in kept)
    assert tiers.disk_bytes > 0
    assert tiers.host_bytes + tiers.disk_bytes == sum(memory.nbytes for memory in memories)
    assert tiers.device_bytes == 0


def test_a_budget_below_the_least_is_refused_with_both_numbers() -> None:
    memory = Memory(WIDTH, OUTPUTS)
    needed = least(memory)
    for name, budgets in (
        ("host", {"host_budget": needed - 1}),
        ("device", {"device_budget": needed - 1, "host_budget": needed}),
    ):
        tiers = Tiers(CPU, **budgets)
        tiers.add(memory)
        message = rf"memory.{name}_budget={needed - 1} is less than the {needed} bytes .*block_rows"
        with pytest.raises(ConfigError, match=message):
            tiers.check()
    tiers = Tiers(CPU, host_budget=needed)
    tiers.add(memory)
    tiers.check()


def test_a_memory_without_a_check_refuses_to_grow_beyond_a_budget_that_is_too_small() -> None:
    memory = Memory(WIDTH, OUTPUTS, block_rows=512, tiers=Tiers(CPU, host_budget=1000))
    memory.append(tuples(600), born=1)
    with pytest.raises(ConfigError, match=r"memory\.host_budget=1000 is less than"):
        memory.append(tuples(1), born=2)
    assert len(memory) == 600


def test_kept_scores_are_limited_by_the_budget() -> None:
    assert Tiers(CPU, host_budget=8000).score_bytes(1 << 30) == 1000
    assert Tiers(CPU, host_budget=8000).score_bytes(10) == 10
    assert Tiers(CPU).score_bytes(1 << 30) == 1 << 30


# -- buffers and readers ---------------------------------------------------------------------------


def test_blocks_are_read_ahead_in_order_by_other_threads_and_without_what_is_not_needed() -> None:
    layer = make_layer("rbf", WIDTH, OUTPUTS, dtype=torch.float32)
    fill(layer, 512 * 8)
    shelf = reopened(layer, 0)
    names: set[str] = set()
    read = shelf.read
    waiting = threading.Event()

    def watched(index: int, out: Any) -> None:
        names.add(threading.current_thread().name)
        if index == 2:
            waiting.set()
        read(index, out)

    shelf.read = watched  # type: ignore[method-assign]
    with contextlib.closing(layer.memory.scan(born=False)) as blocks:
        next(blocks)
        assert waiting.wait(30)  # two blocks beyond the one that is looked at
        assert sum(1 for _ in blocks) == 7
    assert threading.current_thread().name not in names
    assert sorted(index for index, _ in shelf.reads) == list(range(8))
    assert {columns for _, columns in shelf.reads} == {frozenset({"key", "weight", "value"})}


def test_a_memory_that_is_all_there_is_scanned_without_threads_or_buffers() -> None:
    memory = memory_of(9)
    memory.append(tuples(512 * 5), born=1)
    before = threading.active_count()
    assert [block.count for block in memory.scan()] == [512] * 5
    assert threading.active_count() == before
    assert memory.tiers.buffer_bytes == 0


def test_a_scan_that_is_left_gives_its_buffers_back() -> None:
    memory = memory_of(0)
    memory.append(tuples(512 * 6), born=1)
    for _ in range(20):
        with contextlib.closing(memory.scan()) as blocks:
            next(blocks)
            next(blocks)
    assert memory.tiers.buffer_bytes == 3 * page_bytes(memory.layout, staging=True)
    assert sum(block.count for block in memory.scan()) == 512 * 6
    assert memory.tiers.buffer_bytes == 3 * page_bytes(memory.layout, staging=True)


def test_scans_within_scans_and_in_several_threads_see_every_block() -> None:
    memory = memory_of(1)
    memory.append(tuples(512 * 6), born=1)
    sums = [float(block.key.sum()) for block in memory.scan()]
    for outer in memory.scan():
        del outer
        assert [float(block.key.sum()) for block in memory.scan()] == sums
    found: list[list[float]] = []

    def scan() -> None:
        for _ in range(5):
            found.append([float(block.key.sum()) for block in memory.scan()])

    threads = [threading.Thread(target=scan) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [sums] * 20
    assert memory.tiers.buffer_bytes == 3 * page_bytes(memory.layout, staging=True)


def test_an_error_of_a_reader_surfaces_and_the_next_scan_is_whole() -> None:
    layer = make_layer("softmax", WIDTH, OUTPUTS, dtype=torch.float32)
    fill(layer, 512 * 6)
    query = randn(4, WIDTH, dtype=torch.float32)
    expected = layer(query)
    shelf = reopened(layer, 0)
    shelf.refuses_to_read = {3}
    for _ in range(3):
        with pytest.raises(FormatError, match="block 3 is damaged"):
            layer(query)
    shelf.refuses_to_read = set()
    assert torch.equal(layer(query), expected)
    assert layer.memory.tiers.buffer_bytes == 3 * page_bytes(layer.memory.layout, staging=True)


# -- stores ----------------------------------------------------------------------------------------


def test_a_store_that_refuses_is_an_error_before_anything_is_learnt_and_loses_nothing() -> None:
    layers = [
        make_layer("rbf", WIDTH, OUTPUTS, dtype=torch.float32,
                   tiers=tiers_for(WIDTH, OUTPUTS, torch.float32, 0))
        for _ in range(2)
    ]  # fmt: skip
    network = ResNetMLP([], layers[0])
    memory = layers[0].memory
    memory.store = shelf = Shelf()
    optimizer = FunctionalSGD(network, lr_value=0.1)

    def step() -> None:
        optimizer.zero_grad()
        backward(network(randn(300, WIDTH, dtype=torch.float32)).square().sum() + 0.0)
        optimizer.step()

    memory.append(tuples(300), born=0)
    shelf.refuses_to_write = True
    step()
    before = {name: column.copy() for name, column in rows_of(memory).items()}
    for _ in range(2):
        with pytest.raises(StorageError, match="no room on the shelf"):
            step()
    assert same(rows_of(memory), before)
    assert optimizer.steps == 1
    shelf.refuses_to_write = False
    step()
    assert len(memory) == 900
    assert shelf.writes == [0]


def test_a_block_is_written_only_if_the_store_does_not_have_it() -> None:
    memory = memory_of(0)
    memory.store = shelf = Shelf()
    memory.append(tuples(512), born=1)
    assert shelf.writes == [0]
    memory.append(tuples(511), born=1)
    snapshot = memory.snapshot()
    assert [block.index for block in snapshot.blocks] == [1]  # block 0 is the store's
    shelf.commit(snapshot)
    memory.saved(snapshot)
    away, store = opened_in(memory, 1)
    assert sum(block.count for block in away.scan()) == 1023
    away.append(tuples(513), born=2)
    away.append(tuples(1), born=2)
    assert 0 not in store.writes


def opened_in(memory: Memory, blocks: int) -> tuple[Memory, Shelf]:
    found, shelf = opened(memory)
    del found
    source = memory.store
    assert isinstance(source, Shelf)
    shelf.kept = dict(source.kept)
    again = memory_of(blocks)
    again.open(len(memory), max_key_square=memory.max_key_square, live=memory.live, store=shelf)
    return again, shelf


def test_blocks_that_were_spilled_reach_a_store_that_comes_later() -> None:
    memory, plain = memory_of(0), memory_of(None)
    for one in (memory, plain):
        one.append(tuples(1700), born=1)
    memory.store = shelf = Shelf()
    memory.rewrite(torch.tensor([3, 600]), weight=torch.ones(2))
    plain.rewrite(torch.tensor([3, 600]), weight=torch.ones(2))
    assert same(rows_of(memory), rows_of(plain))
    snapshot = memory.snapshot()
    assert [block.index for block in snapshot.blocks] == [0, 1, 2, 3]
    shelf.commit(snapshot)
    memory.rewrite(torch.tensor([4]), weight=torch.ones(1))
    plain.rewrite(torch.tensor([4]), weight=torch.ones(1))
    memory.saved(snapshot)
    shelf.reads.clear()
    assert same(rows_of(memory), rows_of(plain))
    assert {index for index, _ in shelf.reads} == {0, 1, 2}
    assert not list(spill_folder(memory).iterdir())


def spill_folder(memory: Memory) -> Path:
    assert memory._spill is not None
    return memory._spill.path


def test_temporary_files_go_with_the_memory() -> None:
    memory = memory_of(0)
    memory.append(tuples(1700), born=1)
    folder = spill_folder(memory)
    assert len(list(folder.iterdir())) == 12
    memory.clear()
    assert not folder.exists()
    assert memory.tiers.host_bytes == memory.tiers.disk_bytes == 0
    memory.append(tuples(1700), born=1)
    folder = spill_folder(memory)
    assert folder.exists()
    del memory
    gc.collect()
    assert not folder.exists()


def test_a_spill_store_names_what_is_gone_too_short_or_cannot_be_written(tmp_path: Path) -> None:
    memory = memory_of(None)
    memory.append(tuples(512), born=1)
    columns = memory.host_columns(0)
    store = SpillStore(tmp_path)
    store.write(0, columns, frozenset(columns), rewritten=frozenset())
    out = {name: column.empty(300) for name, column in memory.columns().items()}
    store.read(0, out)
    assert all(rows.tobytes() == columns[name][:300].tobytes() for name, rows in out.items())
    (store.path / "0.key").write_bytes(b"short")
    with pytest.raises(FormatError, match=r"0\.key' is too short"):
        store.read(0, out)
    with pytest.raises(FormatError, match=r"7\.key' is gone"):
        store.read(7, out)
    (store.path / "1.born.part").mkdir()
    with pytest.raises(StorageError, match=r"1\.born' cannot be written"):
        store.write(1, columns, frozenset({"born"}), rewritten=frozenset())
    with pytest.raises(StorageError, match=r"cannot be kept .* set TMPDIR"):
        SpillStore(tmp_path / "nowhere")


# -- layers and learners ---------------------------------------------------------------------------


def test_a_memory_with_a_budget_cannot_be_moved_and_says_why() -> None:
    layer = make_layer(
        "rbf",
        WIDTH,
        OUTPUTS,
        dtype=torch.float32,
        tiers=tiers_for(WIDTH, OUTPUTS, torch.float32, 1),
    )
    with pytest.raises(ConfigError, match="with budgets on cpu cannot be moved to meta"):
        layer.to("meta")
    layer.to("cpu")


def test_a_copy_has_the_same_bits_budgets_and_files_of_its_own() -> None:
    tiers = tiers_for(WIDTH, OUTPUTS, torch.float32, 1)
    layer = make_layer("rbf", WIDTH, OUTPUTS, dtype=torch.float32, tiers=tiers)
    fill(layer, 512 * 5)
    layer.memory.drop(torch.tensor([3, 700]))
    twin = copy.deepcopy(layer)
    query = randn(4, WIDTH, dtype=torch.float32)
    expected = layer(query)
    assert torch.equal(twin(query), expected)
    assert twin.memory.live == layer.memory.live
    assert twin.memory.tiers is not tiers
    assert twin.memory.tiers.host_budget == tiers.host_budget
    assert spill_folder(twin.memory) != spill_folder(layer.memory)
    del layer
    gc.collect()
    assert torch.equal(twin(query), expected)


def test_a_state_dict_is_complete_in_every_tier() -> None:
    tiers = tiers_for(WIDTH, OUTPUTS, torch.bfloat16, 1)
    layer = make_layer("softmax", WIDTH, OUTPUTS, dtype=torch.bfloat16, tiers=tiers)
    fill(layer, 512 * 5)
    other = make_layer("softmax", WIDTH, OUTPUTS, dtype=torch.bfloat16)
    other.load_state_dict(layer.state_dict())
    query = randn(4, WIDTH, dtype=torch.float32)
    assert torch.equal(layer(query), other(query))
    assert other.memory.max_key_square == layer.memory.max_key_square


def learner(**memory: Any) -> Learner:
    return Learner(
        3,
        encoder={"kind": "standardise", "fit": 64},
        network={"hidden": 1},
        learner={"batch": 128, "dtype": "float32"},
        memory={"block_rows": 512, **memory},
    )


def feed(model: Learner, batches: range) -> list[Tensor]:
    seen = []
    for step in batches:
        features = randn(128, 6, seed=step, dtype=torch.float32)
        scores = model.learn(features, torch.arange(128) % 3)
        seen += [scores.probabilities, scores.losses]
    return seen


def test_a_learner_with_a_budget_learns_saves_and_goes_on_with_the_same_bits(
    tmp_path: Path,
) -> None:
    free = learner()
    expected = feed(free, range(24))
    needed = free.tiers.least
    budget = needed + free.tiers.host_bytes // 10
    tight = learner(host_budget=budget)
    for found, wanted in zip(feed(tight, range(24)), expected, strict=True):
        assert torch.equal(found, wanted)
    assert tight.tiers.disk_bytes > tight.tiers.host_bytes
    assert resident_bytes(tight.tiers, *tight.memories().values()) <= budget
    tight.save(tmp_path / "a")
    again = Learner.load(tmp_path / "a")
    assert again.settings.memory.host_budget == budget
    assert again.tiers.disk_bytes > 0
    expected = feed(free, range(24, 30))
    for model in (tight, again):
        for found, wanted in zip(feed(model, range(24, 30)), expected, strict=True):
            assert torch.equal(found, wanted)


def test_a_learner_whose_budget_is_too_small_says_so_and_keeps_its_samples() -> None:
    model = learner(host_budget=1000)
    message = "memory.host_budget=1000 is less than the .* that the last blocks of 2 layers"
    with pytest.raises(ConfigError, match=message):
        feed(model, range(1))
    assert model.held == 128
    assert model.model is None


def test_tiers_forget_memories_that_are_gone() -> None:
    tiers = Tiers(CPU, host_budget=10_000_000)
    for step in range(3):
        memory = Memory(WIDTH, OUTPUTS, block_rows=512, tiers=tiers)
        memory.append(tuples(2000, step), born=1)
        assert tiers.host_bytes == memory.nbytes
        del memory
        gc.collect()
    assert tiers.host_bytes == 0


@pytest.mark.parametrize(("given", "expected"), [
    ("2GiB", 2 << 30), ("400MB", 400_000_000), ("1.5 GB", 1_500_000_000), ("none", None),
    (4096, 4096), ("65536", 65536), (None, None),
])  # fmt: skip
def test_budgets_are_given_in_bytes_or_words_for_them(given: Any, expected: int | None) -> None:
    assert learner(host_budget=given).settings.memory.host_budget == expected


@pytest.mark.parametrize("given", ["2Gb?", "much", "-3", "", "0", -5, "1e3 MB"])
def test_a_budget_that_is_none_is_refused_in_a_sentence(given: Any) -> None:
    if given == "":
        assert learner(device_budget=given).settings.memory.device_budget is None
        return
    with pytest.raises(ConfigError, match=r"^memory.device_budget=\S+.* cannot be used: \w.+"):
        learner(device_budget=given)
