import copy
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamlearn.build import build_model, build_tiers
from streamlearn.errors import ConfigError, DataError, FormatError, NotFiniteError
from streamlearn.hardware import resolve_hardware
from streamlearn.learner import Learner
from streamlearn.members import companions
from streamlearn.memory import Memory
from streamlearn.models import Model, NetworkModel
from streamlearn.openworld import OpenLearner
from streamlearn.records import RecordEncoder, View
from streamlearn.settings import LearnerSettings, settings_of
from streamlearn.tasks import Classes
from streamlearn.widening import classes_room, features_room, loss_of_first, widen_model

LAYERS: dict[str, dict[str, Any]] = {
    "softmax": {"network": {"hidden": 1}, "layer": {"kind": "softmax"}},
    "gauge": {"network": {"hidden": 1}, "layer": {"kind": "gauge"}},
    "rbf": {"network": {"hidden": 1}, "layer": {"kind": "rbf", "lr_value": 1.0}},
    "rehearsal": {
        "network": {"hidden": 1},
        "layer": {"kind": "softmax", "lr_value": 0.05},
        "learner": {"rehearsal": 3},
    },
}


def settings(kind: str = "rbf", **more: Any) -> LearnerSettings:
    learner = {"kind": "growing", "batch": 1, "device": "cpu", "dtype": "float32"}
    learner |= LAYERS[kind].get("learner", {})
    return settings_of({**LAYERS[kind], "learner": learner, **more})


def model_of(chosen: LearnerSettings, width: int, classes: int) -> NetworkModel:
    hardware = resolve_hardware("cpu", "float32")
    task = Classes(tuple(str(index) for index in range(classes)))
    found: Model = build_model(chosen, width, task, hardware, build_tiers(chosen, hardware))
    assert isinstance(found, NetworkModel)
    return found


def samples(count: int, *, features: int = 3, seed: int = 0) -> list[tuple[dict[Any, Any], str]]:
    draw = np.random.default_rng(seed)
    rows = draw.normal(size=(count, features))
    return [
        ({f"f{place}": float(value) for place, value in enumerate(row)}, "ab"[int(row[0] > 0)])
        for row in rows
    ]


def learn(learner: OpenLearner, given: Sequence[tuple[dict[Any, Any], Any]]) -> None:
    learner.learn([x for x, _ in given], [y for _, y in given])


# -- widths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAYERS)
def test_three_classes_in_a_room_of_fifteen_are_learnt_alike(kind: str) -> None:
    small, roomy = model_of(settings(kind), 5, 3), model_of(settings(kind), 5, 15)
    roomy.loss = loss_of_first(roomy.loss, 3)
    draw = torch.Generator().manual_seed(1)
    codes, targets = torch.randn(40, 5, generator=draw), torch.arange(40) % 3
    for row in range(40):
        there = slice(row, row + 1)
        expected = small.learn(codes[there], targets[there])
        found = roomy.learn(codes[there], targets[there])
        # On some processors the last bit of a product depends on its width.
        assert torch.allclose(found.answers[:, :3], expected.answers, rtol=0, atol=1e-5)
        assert not found.answers[:, 3:].any()
        assert torch.allclose(found.losses, expected.losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_wider_model_answers_as_before_and_learns_alike(kind: str) -> None:
    narrow = model_of(settings(kind), 16, 15)
    narrow.loss = loss_of_first(narrow.loss, 3)
    draw = torch.Generator().manual_seed(2)
    codes, targets = torch.randn(60, 16, generator=draw), torch.arange(60) % 3
    for row in range(30):
        narrow.learn(codes[row : row + 1], targets[row : row + 1])
    wide = model_of(settings(kind), 64, 31)
    widen_model(wide, narrow)
    wide.loss = loss_of_first(wide.loss, 3)
    padded = torch.nn.functional.pad(codes, (0, 48))
    for row in range(30, 60):
        there = slice(row, row + 1)
        expected = narrow.learn(codes[there], targets[there]).answers
        found = wide.learn(padded[there], targets[there]).answers
        assert torch.allclose(found[:, :3], expected[:, :3], rtol=0, atol=2e-5)
    assert {name: len(memory) for name, memory in wide.memories().items()} == {
        name: len(memory) for name, memory in narrow.memories().items()
    }
    assert wide.growth is not None
    assert wide.growth.steps == 60


def test_rooms_grow_by_what_changes_no_bit() -> None:
    assert [features_room(width) for width in (1, 16, 17, 64, 65)] == [16, 16, 64, 64, 256]
    assert [classes_room(count) for count in (0, 15, 16, 32)] == [15, 15, 31, 63]


def test_models_of_fixed_parameters_are_not_widened() -> None:
    dense = settings_of({"learner": {"kind": "parametric", "device": "cpu"}})
    with pytest.raises(ConfigError, match="only networks of growing layers can be widened"):
        widen_model(model_of(dense, 16, 15), model_of(dense, 16, 15))


def test_a_learner_that_meets_more_classes_and_features_than_it_had_room_for_goes_on() -> None:
    learner = OpenLearner(settings("softmax"), warmup=4)
    learn(learner, samples(20))
    before = learner.answer([x for x, _ in samples(5)])
    learner.expect([f"class {index}" for index in range(20)])
    learner.learn([{f"new {index}": float(index) for index in range(40)}], ["class 3"])
    after = learner.answer([x for x, _ in samples(5)])
    assert after.shape == (5, 22)
    # One more sample was learnt, and classes that are known have a share.
    assert (after[:, :2].argmax(-1) == before.argmax(-1)).all()
    assert learner.answer([{}]).sum() == pytest.approx(1, abs=1e-12)


# -- classes -----------------------------------------------------------------------------------


def test_a_class_has_no_probability_before_its_first_sample() -> None:
    learner = OpenLearner(settings())
    assert learner.predict([{"a": 1.0}]) == [None]
    assert learner.answer([{"a": 1.0}]).shape == (1, 0)
    learner.learn([{"a": 1.0}], ["x"])
    assert learner.answer([{"a": 1.0}]).tolist() == [[1.0]]
    learner.learn([{"a": -1.0}, {"a": 1.0}], [("b", 2), True])
    assert learner.labels == ["x", ("b", 2), True]
    assert learner.answer([{"a": 1.0}])[0].min() > 0


def test_numpy_labels_are_the_python_ones_that_they_equal() -> None:
    learner = OpenLearner(settings())
    learner.learn([{"a": 1}] * 3, [np.bool_(True), True, np.True_])
    assert learner.labels == [True]
    assert type(learner.labels[0]) is bool


@pytest.mark.parametrize("label", [None, math.nan, [1]])
def test_a_label_that_is_missing_or_not_hashable_is_refused(label: Any) -> None:
    learner = OpenLearner(settings())
    with pytest.raises(DataError, match="cannot be a class"):
        learner.learn([{"a": 1.0}, {"a": 2.0}], ["x", label])
    assert (learner.samples, learner.labels) == (0, [])


def test_a_whole_table_is_learnt_as_its_rows_are_one_after_the_other() -> None:
    one, many = OpenLearner(settings()), OpenLearner(settings())
    given = [*samples(30), ({"other": 2, "f1": 0.5}, "c")]
    for sample in given:
        learn(one, [sample])
    learn(many, given)
    asked = [x for x, _ in samples(9, seed=3)]
    np.testing.assert_allclose(many.answer(asked), one.answer(asked), rtol=0, atol=1e-6)


# -- features ----------------------------------------------------------------------------------


def test_features_are_standardised_by_all_that_came_so_far() -> None:
    encoder = RecordEncoder()
    values = [3.0, 5.0, -1.0, 8.5]
    rows = [encoder.read({"a": value}, add=True) for value in values]
    encoder.track(rows)
    code = encoder.encode(rows, 16)
    expected = (np.array(values) - np.mean(values)) / np.std(values)
    np.testing.assert_allclose(code[:, 1].numpy(), expected, rtol=1e-12)
    assert code[:, 0].tolist() == [1.0] * 4
    assert not code[:, 2:].any()


def test_values_that_come_again_are_near_to_themselves_alone() -> None:
    encoder = RecordEncoder(values=True)
    given = [{"id": float(n % 80), "kind": "x", "noise": n / 7} for n in range(240)]
    rows = [encoder.read(record, add=True) for record in given]
    assert encoder.width_of("values") == 1 + 17 + 1 + 17
    encoder.track(rows[:80])
    plain, codes = encoder.encode(rows[:80], 4), encoder.encode(rows[:80], 40, "values")
    assert torch.equal(codes[:, [0, 1, 18, 19]], plain)
    assert not codes[:, 2:18].any()  # none came twice
    encoder.track(rows[80:])
    codes = encoder.encode(rows[:80], 40, "values")
    assert not codes[:, 20:].any()  # measurements have no codes
    alike = codes[:, 2:18] @ codes[:, 2:18].T
    torch.testing.assert_close(alike[:64, :64].diagonal(), torch.ones(64, dtype=torch.float64))
    alike.fill_diagonal_(0)
    assert alike.max() < 0.51  # another value
    assert not codes[64:, 2:18].any()  # there is no code left for them


def test_values_without_a_code_and_with_one_are_saved() -> None:
    chosen = settings(network={"hidden": 0})
    others = companions(chosen, regression=True)
    learner = OpenLearner(chosen, regression=True, warmup=8, others=others)
    given = [({"id": n % 7, "x": n / 3}, float(n % 7)) for n in range(40)]
    for x, y in given[:10]:
        learner.learn([x], [y])
    other = OpenLearner.from_bytes(*learner.to_bytes())[0]
    for one in (learner, other):
        for x, y in given[10:]:
            one.learn([x], [y])
    assert other.to_bytes() == learner.to_bytes()
    assert abs(learner.answer([{"id": 3, "x": 12.0}])[0] - 3) < 0.5


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, -math.inf, 1e200, 10**400])
def test_a_missing_feature_is_its_mean(missing: Any) -> None:
    encoder = RecordEncoder()
    encoder.track([encoder.read({"a": a, "b": 1.0 + a}, add=True) for a in (1.0, 2.0, 6.0)])
    gone = encoder.read({"b": 3.0}, add=False)
    held = encoder.read({"a": missing, "b": 3.0}, add=True)
    mean = encoder.read({"a": 3.0, "b": 3.0}, add=False)
    encoder.track([gone, held])
    codes = encoder.encode([gone, held, mean], 16)
    assert torch.equal(codes[0], codes[1])
    assert codes[0, 1] == 0
    assert codes[2, 1] == 0


def test_categories_have_columns_of_their_own_and_unknown_ones_none() -> None:
    encoder = RecordEncoder()
    rows = [encoder.read({"sky": sky, "on": True}, add=True) for sky in ("red", "blue", "red")]
    encoder.track(rows)
    names = list(encoder.columns)
    assert names == [("on", None), ("sky", ("red",)), ("sky", ("blue",))]
    assert encoder.encode(rows, 16)[:, 1:4].tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0]]
    unknown = encoder.encode([encoder.read({"sky": "green"}, add=False)], 16)
    assert not unknown[:, 1:].any()


def test_identifiers_do_not_get_columns_without_end() -> None:
    encoder = RecordEncoder()
    for number in range(600):
        encoder.read({"id": f"user {number}"}, add=True)
    assert len(encoder) == 257
    known = encoder.read({"id": "somebody else"}, add=False)
    assert known[256] == 1


def test_the_order_of_features_changes_no_bit() -> None:
    plain, turned = OpenLearner(settings()), OpenLearner(settings())
    for x, y in samples(20, features=6):
        backwards = dict(reversed(x.items()))
        assert (plain.answer([x]) == turned.answer([backwards])).all()
        plain.learn([x], [y])
        turned.learn([backwards], [y])


def test_a_feature_that_is_no_number_and_no_category_is_named() -> None:
    with pytest.raises(DataError, match="feature 'a' is a list, which is neither a number nor"):
        OpenLearner(settings()).learn([{"a": [1, 2]}], ["x"])


def test_a_refused_record_leaves_a_learner_that_answers() -> None:
    learner = OpenLearner(settings())
    learn(learner, samples(3))
    wide: dict[str, Any] = {f"w{index}": 1.0 for index in range(30)}
    with pytest.raises(DataError, match="neither a number nor"):
        learner.learn([{**wide, "z": {}}], ["a"])
    assert learner.answer([{**wide, "f0": 1.0}]).sum() == pytest.approx(1)


@pytest.mark.parametrize("count", [4, 6])
def test_a_batch_that_cannot_be_learnt_leaves_no_trace(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise NotFiniteError("a test's own refusal")

    learner, twin = OpenLearner(settings(), warmup=8), OpenLearner(settings(), warmup=8)
    known = [({"a": float(value)}, "ab"[value % 2]) for value in range(12)]
    learn(learner, known[: count - 1])
    learn(twin, known[: count - 1])
    with monkeypatch.context() as patched:
        patched.setattr(NetworkModel, "learn", refuse)
        with pytest.raises(NotFiniteError, match="own refusal"):
            learner.learn([{"a": 3.0}], ["new"])
    assert (learner.labels, learner.samples) == (["a", "b"], count - 1)
    twin.encoder.track([twin.encoder.read({"a": 3.0}, add=True)])
    learn(learner, known[count:])
    learn(twin, known[count:])
    assert learner.to_bytes() == twin.to_bytes()


def test_a_batch_that_one_network_refuses_is_learnt_by_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = settings(network={"hidden": 0})
    learner, twin = (
        OpenLearner(whole, warmup=8, others=companions(whole, regression=False)) for _ in range(2)
    )
    for one in (learner, twin):
        learn(one, samples(20))
    checked = Memory.check

    def refuse(memory: Memory, *given: Any) -> Any:
        if memory is list(learner.memories().values())[-1]:
            raise NotFiniteError("a test's own refusal")
        return checked(memory, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Memory, "check", refuse)
        with pytest.raises(NotFiniteError, match="own refusal"):
            learner.learn([{"f0": 3.0}], ["a"])
    twin.encoder.track([twin.encoder.read({"f0": 3.0}, add=True)])
    assert [len(memory) for memory in learner.memories().values()] == [20, 20, 20]
    assert learner.to_bytes() == twin.to_bytes()
    for one in (learner, twin):
        learn(one, samples(5, seed=2))
    assert learner.to_bytes() == twin.to_bytes()


def test_networks_share_a_budget_and_are_counted_together() -> None:
    whole = settings(network={"hidden": 0}, memory={"host_budget": 300_000_001})
    learner = OpenLearner(whole, warmup=8, others=companions(whole, regression=False))
    learn(learner, samples(20))
    assert [member.tiers.host_budget for member in learner._members] == [100_000_000] * 3
    assert learner.tiers.host_bytes == sum(m.nbytes for m in learner.memories().values())


@hypothesis.settings(max_examples=5, deadline=None)
@given(
    kind=st.sampled_from(("softmax", "rbf", "rehearsal")),
    policy=st.sampled_from(("oldest", "newest", "balanced", "least", "merge")),
    budget=st.integers(120_000, 250_000),
    parts=st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from((3, 14, 17, 70)), st.integers(1, 18)),
        min_size=3,
        max_size=5,
    ),
    pair=st.booleans(),
)
def test_a_budget_holds_while_records_bring_more_features_and_classes(
    kind: str, policy: str, budget: int, parts: list[tuple[int, int, int]], pair: bool
) -> None:
    chosen = settings(kind, memory={"budget": budget * (1 + pair), "policy": policy})
    batch = chosen.learner.model_copy(update={"batch": 4})
    chosen = chosen.model_copy(update={"learner": batch})
    others: list[tuple[View, LearnerSettings]] = [("thermometer", chosen)] if pair else []
    learner = OpenLearner(chosen, warmup=8, others=others)
    other: OpenLearner | None = None
    for number, (count, features, classes) in enumerate(parts):
        if number == len(parts) // 2:
            other = OpenLearner.from_bytes(*learner.to_bytes())[0]
        features = min(features, 17) if pair else features  # thermometer codes are seven as wide
        rows = [x for x, _ in samples(count, features=features, seed=number)]
        for start in range(0, count, 6):
            part = rows[start : start + 6]
            labels = [(learner.samples + place) % classes for place in range(len(part))]
            for one in (learner, other):
                if one is not None:
                    one.learn(part, labels)
            bounds = learner.bounds()
            assert bounds["used"] == learner.nbytes <= bounds["budget"]
            left = []
            for memory in learner.memories().values():
                there = memory.gather(torch.arange(len(memory)), ("sample", "born"))
                samples_there = there["sample"][there["born"] > 0]
                left.append(learner.samples - len(samples_there))
                if policy == "oldest":  # and so the newest are there
                    newest = torch.arange(learner.samples - len(samples_there), learner.samples)
                    assert torch.equal(samples_there.sort().values, newest)
            assert bounds["left"] == max(left)
    assert other is not None
    assert other.to_bytes() == learner.to_bytes()


def test_further_networks_forget_slowly_unless_stored_samples_are_rehearsed() -> None:
    chosen = settings(network={"hidden": 0})
    decays = [own.optimizer.decay for _, own in companions(chosen, regression=False)]
    assert decays == pytest.approx([1.25e-4] * 2, rel=1e-9)
    rehearsing = chosen.learner.model_copy(update={"rehearsal": 4})
    chosen = chosen.model_copy(update={"learner": rehearsing})
    others = companions(chosen, regression=False)
    assert [own.optimizer.decay for _, own in others] == [0, 0]
    learner = OpenLearner(chosen, warmup=8, others=others)
    learn(learner, samples(40))
    assert len(learner.memories()) == 3


def test_records_that_grow_too_wide_for_a_budget_are_refused_and_nothing_is_lost() -> None:
    learner = OpenLearner(settings("softmax", memory={"budget": 40_000}), warmup=4)
    learn(learner, samples(50))
    before = learner.to_bytes()
    with pytest.raises(ConfigError, match=r"memory.budget=40000 leaves no room: .* set memory"):
        learn(learner, samples(1, features=300))
    assert learner.samples == 50
    tuples = OpenLearner.from_bytes(*before)[0].memories()
    for name, memory in learner.memories().items():
        for column, rows in memory.gather(torch.arange(len(memory))).items():
            assert torch.equal(rows, tuples[name].gather(torch.arange(len(memory)))[column])
    assert np.isfinite(learner.answer([x for x, _ in samples(5)])).all()


# -- regression --------------------------------------------------------------------------------


def test_numbers_are_learnt_alike_in_any_unit() -> None:
    flat = settings(network={"hidden": 0})
    plain = OpenLearner(flat, regression=True, warmup=8)
    scaled = OpenLearner(flat, regression=True, warmup=8)
    assert plain.answer([{}]).tolist() == [0.0]
    for x, _ in samples(40):
        plain.learn([x], [x["f0"]])
        scaled.learn([x], [1e6 * x["f0"] + 5e6])
    asked = [x for x, _ in samples(20, seed=4)]
    expected = 1e6 * plain.answer(asked) + 5e6
    np.testing.assert_allclose(scaled.answer(asked), expected, rtol=0, atol=20)
    error = np.abs(plain.answer(asked) - [x["f0"] for x in asked]).mean()
    assert error < 0.6


def test_targets_that_are_no_numbers_are_refused() -> None:
    learner = OpenLearner(settings(), regression=True)
    with pytest.raises(DataError, match="'x' are no numbers"):
        learner.learn([{}], ["x"])
    with pytest.raises(NotFiniteError, match="target 0 of row 0 is nan"):
        learner.learn([{}], [math.nan])


# -- warm-up and settings ----------------------------------------------------------------------


def test_a_warm_up_ends_where_all_was_learnt_with_what_is_known_then() -> None:
    learner = OpenLearner(settings(), warmup=8)
    given = samples(8)
    for sample in given:
        learn(learner, [sample])
    known = RecordEncoder()
    known.track([known.read(x, add=True) for x, _ in given])
    codes = known.encode([known.read(x, add=False) for x, _ in given], 16)
    first = [y for _, y in given].index("b"), [y for _, y in given].index("a")
    order = "ba" if first[0] < first[1] else "ab"
    targets = torch.tensor([order.index(y) for _, y in given])
    fresh = model_of(settings(), 16, 15)
    fresh.loss = loss_of_first(fresh.loss, 2)
    for row in range(8):
        fresh.learn(codes[row : row + 1].float(), targets[row : row + 1])
    asked = [x for x, _ in samples(5, seed=9)]
    rows = known.encode([known.read(x, add=False) for x in asked], 16).float()
    expected = fresh.answer(rows)[:, :2].double()
    np.testing.assert_allclose(learner.answer(asked), expected, rtol=1e-6)
    assert not learner._early


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"learner": "ridge"}, "learner=ridge cannot grow by features and classes"),
        ({"layer": "linear"}, "layer=linear depends on how many features there are"),
        ({"layer": {"kind": "softmax", "temperature": 1.0}}, "layer.temperature depends on"),
        ({"learner": {"revisit": "update"}}, "learner.revisit=update needs samples"),
        ({"learner": {"loss": "absolute_error"}}, "learner.loss=absolute_error does not fit"),
    ],
)
def test_settings_that_cannot_grow_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpenLearner(settings_of(sections))
    with pytest.raises(ConfigError, match="warmup=0 must be at least 1"):
        OpenLearner(settings(), warmup=0)


# -- saving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [0, 5, 40])
def test_a_saved_learner_goes_on_with_the_same_bits(tmp_path: Path, seen: int) -> None:
    learner = OpenLearner(settings("softmax"), warmup=16)
    given = [({**x, "colour": y * 2, 7: None}, (y, 1.5, b"\x00")) for x, y in samples(60)]
    learn(learner, given[:seen])
    learner.save(tmp_path / "model", note={"k": [1, None]})
    loaded, extra = OpenLearner.load(tmp_path / "model")
    assert extra == {"note": {"k": [1, None]}}
    again = pickle.loads(pickle.dumps(learner))
    assert pickle.dumps(again) == pickle.dumps(loaded) == pickle.dumps(learner)
    for other in (loaded, again, copy.deepcopy(learner)):
        assert other.to_bytes() == learner.to_bytes()
    for x, y in given[seen:]:
        for other in (learner, loaded, again):
            other.learn([x], [y])
    assert loaded.to_bytes() == again.to_bytes() == learner.to_bytes()


class Odd:
    pass


def test_only_a_pickle_holds_labels_of_any_type(tmp_path: Path) -> None:
    learner = OpenLearner(settings())
    learner.learn([{"a": 1.0}, {"a": 2.0}], [Odd, "x"])
    assert pickle.loads(pickle.dumps(learner)).labels == [Odd, "x"]
    with pytest.raises(FormatError, match="which a file cannot hold; use strings"):
        learner.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_file_is_only_read_as_what_it_is(tmp_path: Path) -> None:
    OpenLearner(settings()).save(tmp_path / "open")
    Learner(classes=2).save(tmp_path / "plain")
    with pytest.raises(FormatError, match=r"holds a model of streamlearn\.adapters"):
        Learner.load(tmp_path / "open")
    with pytest.raises(FormatError, match=r"holds a Learner; load it with Learner\.load"):
        OpenLearner.load(tmp_path / "plain")
    with pytest.raises(FormatError, match="these bytes are no saved model"):
        OpenLearner.from_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00{}")
