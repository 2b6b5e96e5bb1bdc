"""Bounded memories: first in, first out, in place, by whoever learns, and the same bits after."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from streamlearn import Learner
from streamlearn.adapters.recipe import recipe
from streamlearn.adapters.river import GrowingClassifier
from streamlearn.errors import (
    ConfigError,
    FormatError,
    NotFiniteError,
    RunStateError,
    ShapeError,
    StorageError,
)
from streamlearn.layers import RBFLayer
from streamlearn.memory import DEAD, PRIOR, Checked, Column, Memory, Tuples
from streamlearn.models import NetworkModel
from streamlearn.openworld import OpenLearner
from streamlearn.optim import FunctionalSGD
from streamlearn.ring import Ring
from streamlearn.tiers import Tiers

from .making import backward, make_layer, randn
from .stores import CPU, Shelf, least, rows_of
from .test_learner import blobs, content, feed, growth_of, learner

WIDTH, OUTPUTS, STARTING = 3, 2, 4
NOTES = {"target": Column(None, "int64")}
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def tuples(count: int, seed: int) -> Tuples:
    return Tuples(
        randn(count, WIDTH, seed=seed),
        randn(count, seed=seed + 1).abs(),
        randn(count, OUTPUTS, seed=seed + 2),
    )


def started(dtype: torch.dtype = torch.float32, **options: Any) -> Memory:
    memory = Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512, notes=NOTES, **options)
    memory.append(tuples(STARTING, 7), born=PRIOR)
    return memory


def room_for(blocks: int, dtype: torch.dtype = torch.float32) -> Tiers:
    """Tiers in which so many full blocks stay in memory."""
    memory = started(dtype)
    return Tiers(CPU, host_budget=least(memory) + blocks * memory.layout.block_bytes)


def contents(memory: Memory) -> NDArray[np.uint8]:
    """The bytes of all rows, a line each."""
    columns, rows = memory.columns(), rows_of(memory)
    lines = [
        np.frombuffer(rows[name].tobytes(), np.uint8).reshape(len(memory), column.row_bytes)
        for name, column in columns.items()
    ]
    return np.concatenate(lines, 1)


def alike(one: Memory, other: Memory) -> bool:
    return np.array_equal(contents(one), contents(other))


def put(ring: Ring, count: int, seed: int, born: int) -> None:
    targets = torch.arange(count) + seed
    checked = ring.memory.check(tuples(count, seed), born, {"target": targets})
    ring.put(ring.plan(count), checked, born)


# -- the ring itself -------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_a_ring_keeps_what_a_list_keeps_that_drops_its_first(data: st.DataObject) -> None:
    """The starting rows and the last M others, dropped ones as such, in any tier and dtype."""
    dtype = data.draw(st.sampled_from(DTYPES))
    away = data.draw(st.booleans())
    tiers = room_for(1, dtype) if away else None
    memory, shelf = started(dtype, tiers=tiers), Shelf()
    if data.draw(st.booleans()):
        memory.store = shelf
    rows = data.draw(st.integers(STARTING + 1, 1700))
    ring = Ring(memory, rows)
    first = contents(memory)
    kept, alive = first[:0], np.zeros(0, np.bool_)
    dead = np.concatenate([np.zeros(first.shape[1] - 16, np.uint8), np.array([DEAD]).view("u1")])
    for step in range(1, data.draw(st.integers(1, 7)) + 1):
        count = data.draw(st.integers(0, 900))
        put(ring, count, 10 * step, step)
        alone = Memory(WIDTH, OUTPUTS, dtype=dtype, block_rows=512, notes=NOTES)
        alone.append(tuples(count, 10 * step), step, {"target": torch.arange(count) + 10 * step})
        kept = np.concatenate([kept, contents(alone)])[STARTING - rows :]
        alive = np.concatenate([alive, np.ones(count, np.bool_)])[STARTING - rows :]
        where = (STARTING + np.arange(ring.written) % (rows - STARTING))[ring.written - len(kept) :]
        if len(kept) and data.draw(st.booleans()):
            chosen = sorted(data.draw(st.sets(st.integers(0, len(kept) - 1), max_size=9)))
            memory.drop(torch.from_numpy(where[chosen]))
            kept[chosen, :-8] = dead  # notes stay, which are the last column
            alive[chosen] = False
        if memory.store is not None and data.draw(st.booleans()):
            snapshot = memory.snapshot()
            shelf.commit(snapshot)
            memory.saved(snapshot)
        assert len(memory) == STARTING + len(kept) <= rows
        found = contents(memory)
        assert np.array_equal(found[:STARTING], first)
        assert np.array_equal(found[where], kept)
        assert memory.live == STARTING + alive.sum()


@settings(max_examples=12, deadline=None)
@given(
    size=st.integers(1, 40),
    parts=st.lists(st.integers(0, 50), min_size=1, max_size=5),
)
def test_how_tuples_are_parted_into_steps_does_not_matter(size: int, parts: list[int]) -> None:
    one, other = (Ring(started(), STARTING + size) for _ in range(2))
    whole = tuples(sum(parts), 1)
    for ring, counts in ((one, parts), (other, [1] * sum(parts))):
        start = 0
        for count in counts:
            part = Tuples(*(column[start : start + count] for column in whole))
            ring.put(ring.plan(count), ring.memory.check(part, 5), 5)
            start += count
    assert alike(one.memory, other.memory)
    assert one.written == other.written == sum(parts)


def test_a_ring_that_is_made_over_a_full_memory_goes_on_with_the_oldest() -> None:
    ring = Ring(started(), 20)
    for step in range(1, 8):
        put(ring, 5, 10 * step, step)
        again = Ring(ring.memory, 20)
        assert again.first == STARTING
        assert again.written % 16 == ring.written % 16 or ring.written < 16


def test_settings_without_room_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"memory.rows=4 leaves no room .* 4 starting rows"):
        Ring(started(), STARTING)
    memory = started()
    memory.append(tuples(30, 1), born=1)
    with pytest.raises(ConfigError, match=r"memory.rows=20 is less than the 34 tuples"):
        Ring(memory, 20)


def test_rows_of_another_moment_are_refused() -> None:
    ring = Ring(started(), 20)
    put(ring, 30, 1, 1)
    ring.written = 3
    with pytest.raises(RunStateError, match=r"has 20 tuples where its ring has written 7"):
        ring.plan(1)


def test_rows_that_are_not_there_are_not_overwritten() -> None:
    memory = started()
    checked = memory.check(tuples(3, 1), 1)
    with pytest.raises(ShapeError, match="rows 2 to 5 are not all among the 4 rows"):
        memory.overwrite(2, checked, 1)
    assert Checked.joined([checked]) is checked


def test_an_open_snapshot_stays_as_it_was() -> None:
    ring = Ring(started(), 700)
    put(ring, 700, 1, 1)
    before = rows_of(ring.memory)
    snapshot = ring.memory.snapshot()
    put(ring, 300, 50, 2)
    for name, rows in before.items():
        parts = [block.columns()[name] for block in snapshot.blocks]
        assert np.array_equal(np.concatenate(parts), rows)
        assert not np.array_equal(rows_of(ring.memory)[name], rows)


# -- as an optimizer -------------------------------------------------------------------------------


def trained(rows: int | None, steps: int, batch: int = 7, kind: Any = "softmax") -> Any:
    layers = [make_layer(kind, 5, 5), make_layer(kind, 5, 2)]
    network = torch.nn.Sequential(*layers)
    optimizer = FunctionalSGD(network, lr_value=0.05, momentum=0.4, decay=0.01, rows=rows)
    go_on(network, optimizer, range(steps), batch)
    return network, optimizer


def go_on(network: Any, optimizer: FunctionalSGD, steps: range, batch: int = 7) -> None:
    for step in steps:
        backward(network(randn(batch, 5, seed=step)).square().sum())
        optimizer.step()


@pytest.mark.parametrize("kind", ["softmax", "gauge", "rbf", "linear"])
def test_nothing_differs_until_a_layer_is_full(kind: str) -> None:
    bounded, _ = trained(16 + 7 * 20, 20, kind=kind)
    free, _ = trained(None, 20, kind=kind)
    for one, other in zip(bounded, free, strict=True):
        assert alike(one.memory, other.memory)


def test_a_step_of_more_tuples_than_rows_keeps_its_last() -> None:
    network, _ = trained(16 + 5, 3, batch=40)
    free, _ = trained(None, 1, batch=40)
    memory = network[0].memory
    assert len(memory) == 21
    assert set(rows_of(memory)["born"].tolist()) == {PRIOR, 3}
    wanted = randn(40, 5, seed=2)[-5:]
    key = torch.from_numpy(rows_of(memory)["key"][16:].copy())
    assert {tuple(row) for row in key.tolist()} == {tuple(row) for row in wanted.tolist()}
    assert len(free[0].memory) == 56


def test_several_forward_passes_before_a_step_are_stored_one_after_the_other() -> None:
    layer = RBFLayer(3, 2, dtype=torch.float64)
    optimizer = FunctionalSGD(layer, rows=5)
    loss = torch.zeros((), dtype=torch.float64)
    for seed in range(3):
        loss = loss + layer(randn(3, 3, seed=seed)).sum()
    backward(loss)
    optimizer.step()
    keys = torch.cat([randn(3, 3, seed=seed) for seed in range(3)])[-5:]
    found = rows_of(layer.memory)["key"]
    assert {tuple(row) for row in found.tolist()} == {tuple(row) for row in keys.tolist()}
    assert optimizer.rings[0].written == 9


def test_layers_are_written_all_or_none() -> None:
    network, optimizer = trained(40, 9)
    before = [contents(layer.memory) for layer in network], optimizer.state_dict()
    output = network(randn(7, 5, seed=99))
    backward(torch.where(torch.arange(7)[:, None] == 3, output * torch.nan, output).sum())
    with pytest.raises(NotFiniteError):
        optimizer.step()
    assert optimizer.state_dict() == before[1]
    for layer, rows in zip(network, before[0], strict=True):
        assert np.array_equal(contents(layer.memory), rows)


def test_a_store_that_cannot_be_read_stops_a_step_before_anything_is_written() -> None:
    """Where rows were dropped, those to be taken are looked at before a layer is written."""
    memory, shelf = started(tiers=room_for(0)), Shelf()
    memory.store = shelf
    ring = Ring(memory, 2000)
    put(ring, 1996, 1, 1)
    memory.drop(torch.tensor([1999]))
    shelf.refuses_to_read = {0}
    with pytest.raises(FormatError, match="block 0 is damaged"):
        ring.plan(3)
    shelf.refuses_to_read = set()
    shelf.refuses_to_write = True
    put(ring, 1300, 2, 2)  # what was rewritten takes more than a block, and cannot be stored
    before, written = contents(memory), ring.written
    with pytest.raises(StorageError, match="no room on the shelf"):
        put(ring, 3, 99, 99)
    assert ring.written == written
    assert np.array_equal(contents(memory), before)


def test_a_saved_network_and_optimizer_go_on_with_the_same_bits() -> None:
    network, optimizer = trained(45, 11)
    saved, state = copy.deepcopy(network.state_dict()), optimizer.state_dict()
    go_on(network, optimizer, range(11, 20))
    for reload in (True, False):
        other, again = trained(45, 0)
        other.load_state_dict(saved)
        if reload:
            again.load_state_dict(state)
        else:  # what the ring stands at is seen by the births
            again = FunctionalSGD(other, lr_value=0.05, momentum=0.4, decay=0.01, rows=45)
        go_on(other, again, range(11, 20))
        for one, two in zip(network, other, strict=True):
            assert alike(one.memory, two.memory)


def test_a_state_of_another_bound_is_refused() -> None:
    _, optimizer = trained(45, 3)
    _, other = trained(None, 0)
    with pytest.raises(FormatError, match=r"saved with memory.rows=45 but here it is None"):
        other.load_state_dict(optimizer.state_dict())
    with pytest.raises(FormatError, match=r"saved with memory.rows=None but here it is 45"):
        optimizer.load_state_dict(other.state_dict())


def test_forgetting_drops_by_birth_wherever_the_ring_stands() -> None:
    network, optimizer = trained(45, 11)
    optimizer.forget(2)
    for layer in network:
        born = rows_of(layer.memory)["born"]
        assert set(born[16:].tolist()) == {DEAD, 10, 11}
        assert layer.memory.live == 16 + 14
    go_on(network, optimizer, range(11, 14))
    for layer in network:
        assert set(rows_of(layer.memory)["born"][16:].tolist()) == {10, 11, 12, 13, 14}
        assert layer.memory.live == len(layer.memory) == 45


# -- learners --------------------------------------------------------------------------------------


def bounded(rows: int = 60, **sections: Any) -> Learner:
    memory = {"rows": rows, **sections.pop("memory", {})}
    return learner(memory=memory, **{"network": {"hidden": 1}, **sections})


def rehearsing(how: str, *, count: int = 12, **sections: Any) -> Learner:
    section = {"batch": 8, "dtype": "float32", "rehearsal": count, "rehearse": how}
    return bounded(learner=section, **sections)


@pytest.mark.parametrize("how", [None, "uniform", "balanced", "loss"])
def test_a_learner_goes_on_with_the_same_bits_once_it_was_saved(
    tmp_path: Path, how: str | None
) -> None:
    model = bounded() if how is None else rehearsing(how)
    features, targets = blobs(260)
    feed(model, features[:203], targets[:203])
    growth_of(model).forget(3)
    model.save(tmp_path / "model.safetensors")
    loaded = Learner.load(tmp_path / "model.safetensors")
    for start in range(203, 260, 30):
        for one in (model, loaded):
            feed(one, features[start : start + 30], targets[start : start + 30])
        assert content(loaded) == content(model)
    assert all(len(memory) == 60 for memory in model.memories().values())


@pytest.mark.parametrize("how", ["uniform", "balanced", "loss"])
@settings(max_examples=5, deadline=None)
@given(forget=st.lists(st.integers(5, 24), max_size=2), rows=st.integers(17, 90))
def test_draws_follow_from_what_is_stored_alone(how: str, forget: list[int], rows: int) -> None:
    """What was noted of rows before they were taken by others plays no part."""
    model = rehearsing(how, rows=rows)
    features, targets = blobs(200)
    feed(model, features[:40], targets[:40])
    assert isinstance(model.model, NetworkModel)
    rehearsal, growth = model.model.rehearsal, growth_of(model)
    assert rehearsal is not None
    for start in range(40, 200, 8):
        feed(model, features[start : start + 8], targets[start : start + 8])
        if start // 8 in forget:
            growth.forget(4)
        drawn = rehearsal.draw(growth.steps)
        fresh = copy.copy(rehearsal)
        fresh.forget()
        again = fresh.draw(growth.steps)
        assert torch.equal(drawn.rows, again.rows)
        assert torch.equal(drawn.targets, again.targets)
        assert bool((drawn.rows >= 16).all())
        assert len(set(drawn.rows.tolist())) == len(drawn.rows) <= 12


def test_a_drawn_sample_whose_row_is_taken_leaves_the_new_tuple_as_it_is() -> None:
    """Updates in place come first, then the oldest rows are taken."""
    model = rehearsing("uniform", count=500, rows=16 + 24)
    features, targets = blobs(160)
    feed(model, features[:80], targets[:80])
    born: Tensor | None = None
    for start in range(80, 160, 8):
        feed(model, features[start : start + 8], targets[start : start + 8])
        memory = model.memories()["hidden.0"]
        found = memory.gather(torch.arange(16, 40))
        newest = found["born"] == growth_of(model).steps
        assert int(newest.sum()) == 8
        assert torch.equal(found["target"][newest], targets[start : start + 8])
        born = found["born"]
    assert born is not None
    assert len(set(born.tolist())) == 3


@pytest.mark.parametrize("how", [None, "balanced"])
def test_a_budget_of_bytes_beside_it_changes_no_bit(how: str | None) -> None:
    section = {"batch": 64, "dtype": "float32"}
    section |= {"rehearsal": 40, "rehearse": how} if how else {}
    free, tight = (
        bounded(1600, learner=section, memory={"block_rows": 512, "host_budget": budget})
        for budget in (None, 460_000)
    )
    features, targets = blobs(2560)
    for model in (free, tight):
        feed(model, features, targets, size=64)
    assert tight.tiers.disk_bytes > 0
    assert content(tight)[1:] == content(free)[1:]


def test_a_block_has_no_more_room_than_the_layer() -> None:
    features, targets = blobs(60)
    model = bounded(700)
    feed(model, features, targets)
    assert {memory.block_rows for memory in model.memories().values()} == {1024}
    assert bounded(700, memory={"block_rows": 2048}).settings.memory.block_rows == 2048


def test_learners_that_cannot_be_bounded_say_so() -> None:
    with pytest.raises(ConfigError, match=r"memory.rows=90 lets tuples go"):
        bounded(90, learner={"revisit": "update"})
    with pytest.raises(ConfigError, match=r"memory.rows=9 is about growing layers"):
        bounded(9, learner="ridge")
    with pytest.raises(ConfigError, match=r"memory.rows"):
        bounded(0)
    with pytest.raises(ConfigError, match=r"memory.rows=16 leaves no room"):
        bounded(16)


# -- open learners and river -----------------------------------------------------------------------


def records(count: int, seed: int = 0) -> tuple[list[dict[str, float]], list[str]]:
    """A class and many features come half-way."""
    random = np.random.default_rng(seed)
    labels = [str(random.integers(2 if row < count // 2 else 3)) for row in range(count)]
    features = [
        {f"x{i}": float(label) + random.normal() for i in range(3 if row < count // 2 else 20)}
        for row, label in enumerate(labels)
    ]
    return features, labels


def test_a_network_that_is_made_wider_keeps_its_ring(tmp_path: Path) -> None:
    memory = {"rows": 50}
    model = OpenLearner(recipe(0, memory=memory, learner={"batch": 4}), warmup=8)
    features, labels = records(240)
    model.learn(features[:100], labels[:100])
    model.save(tmp_path / "model.safetensors")
    before = model.widened
    model.learn(features[100:], labels[100:])
    assert model.widened > before
    loaded, _ = OpenLearner.load(tmp_path / "model.safetensors")
    loaded.learn(features[100:], labels[100:])
    (one,), (other,) = model.memories().values(), loaded.memories().values()
    assert alike(one, other)
    born = rows_of(one)["born"]
    assert len(one) == 50
    newest = growth_of_open(model).steps
    assert sorted(born.tolist()) == sorted(newest - np.arange(50) // 4)


def growth_of_open(model: OpenLearner) -> FunctionalSGD:
    (network,) = model._networks()
    assert network.growth is not None
    return network.growth


def test_rivers_estimator_is_bounded_and_goes_on_once_pickled() -> None:
    model = GrowingClassifier(memory={"rows": 30}, warmup=8)
    features, labels = records(160)
    for x, y in zip(features[:90], labels[:90], strict=True):
        model.learn_one(x, y)
    other = pickle.loads(pickle.dumps(model))
    for x, y in zip(features[90:], labels[90:], strict=True):
        assert other.predict_proba_one(x) == model.predict_proba_one(x)
        model.learn_one(x, y)
        other.learn_one(x, y)
    sizes = [len(memory) for memory in model._learner.memories().values()]
    assert sizes
    assert set(sizes) == {30}
    assert pickle.dumps(other) == pickle.dumps(model)


def test_a_stream_of_another_concept_is_learnt_in_the_rows_of_the_old_one() -> None:
    """With all rows kept, as many old tuples as new ones would speak against it."""
    accuracies = {}
    for rows in (None, 400):
        layer = {"kind": "rbf", "gamma": 3.0}
        model = learner(layer=layer, network={"hidden": 0}, memory={"rows": rows})
        features, targets = blobs(2400, spread=0.4)
        targets = torch.where(torch.arange(2400) < 1600, targets, (targets + 1) % 3)
        feed(model, features[:2000], targets[:2000], size=16)
        found = model.predict(features[2000:])
        accuracies[rows] = float((found == targets[2000:]).double().mean())
    assert accuracies[400] > 0.9
    assert accuracies[400] >= accuracies[None]
