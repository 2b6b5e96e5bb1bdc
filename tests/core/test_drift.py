"""Drift: what is signalled, that it is the same after every stop, and what learners do about it."""

import importlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import streamlearn.drift
from streamlearn import Learner
from streamlearn.drift import Action, Drift, DriftMonitor, DriftSettings
from streamlearn.errors import ConfigError, FormatError
from streamlearn.evaluation import Prequential
from streamlearn.events import ClassArrived, DriftDetected, Progress
from streamlearn.loop import Loop
from streamlearn.memory import DEAD, PRIOR
from streamlearn.scenarios.words import resolve
from streamlearn.state import flatten, unflatten
from streamlearn.streams.base import Rows, Stream
from streamlearn.tasks import Classes

from .test_learner import content, growth_of, learner

DETECTORS = ("adwin", "kswin", "page-hinkley", "ddm")


def monitor(detector: str = "adwin", binary: bool = True, **options: Any) -> DriftMonitor:
    return DriftMonitor(
        DriftSettings.model_validate({"detector": detector, **options}), binary=binary
    )


def errors(*rates: float, length: int = 1000, seed: int = 0) -> Tensor:
    """Errors of one rate after another."""
    chances = torch.tensor(rates).repeat_interleave(length)
    drawn = torch.rand(len(chances), generator=torch.Generator().manual_seed(seed))
    return (drawn < chances).to(torch.float64)


def heard(listener: DriftMonitor, values: Tensor, sizes: list[int]) -> list[Drift]:
    found, start = [], 0
    for size in sizes:
        found += listener.update(values[start : start + size], start)
        start += size
    return found


@pytest.mark.parametrize("detector", DETECTORS)
def test_an_abrupt_rise_is_found_within_a_thousand_samples(detector: str) -> None:
    found = heard(monitor(detector), errors(0.1, 0.6, length=1200), [40] * 60)
    after = [drift for drift in found if drift.sample > 1200]
    assert after
    assert after[0].sample <= 2200
    assert after[0].after > after[0].before
    assert after[0].window >= 1


@pytest.mark.parametrize("detector", ["adwin", "page-hinkley"])
def test_errors_that_stay_or_fall_are_no_drift(detector: str) -> None:
    for rates in ((0.3, 0.3, 0.3, 0.3), (0.9, 0.5, 0.1, 0.1)):
        assert heard(monitor(detector), errors(*rates), [100] * 40) == []


def test_adwin_signals_as_river_does_where_only_rises_come() -> None:
    values = errors(0.05, 0.5, 0.95, length=2000)
    adwin: Any = importlib.import_module("river.drift").ADWIN()
    wanted = []
    for place, value in enumerate(values.tolist(), start=1):
        adwin.update(value)
        if adwin.drift_detected:
            wanted.append(place)
    found = heard(monitor(gap=0), values, [64] * 94)
    assert len(found) >= 2
    assert [drift.sample for drift in found] == wanted


def test_the_figures_of_a_drift_are_means_of_what_was_heard() -> None:
    values = errors(0.1, 0.9)
    (drift, *_) = heard(monitor(), values, [2000])
    split = drift.sample - drift.window
    assert drift.before == pytest.approx(float(values[:split].mean()))
    assert drift.after == pytest.approx(float(values[split : drift.sample].mean()))
    assert 900 < split < 1300


def test_no_drift_follows_another_within_the_gap() -> None:
    values = errors(0.0, 0.3, 0.6, 1.0, length=300)
    close = [drift.sample for drift in heard(monitor(gap=0), values, [1200])]
    far = [drift.sample for drift in heard(monitor(gap=500), values, [1200])]
    assert min(np.diff(close)) < 500
    assert min(np.diff(far)) >= 500


def test_numbers_are_heard_too_and_ddm_refuses_them() -> None:
    values = errors(0.2, 0.8) * 3.5 + 0.25
    assert heard(monitor(binary=False), values, [50] * 40)
    with pytest.raises(ConfigError, match=r"drift\.detector=ddm hears only .* choose adwin"):
        monitor("ddm", binary=False)


def again(listener: DriftMonitor) -> DriftMonitor:
    tensors, tree = flatten(listener.state_dict())
    other = DriftMonitor(listener.settings, binary=listener.binary)
    other.load_state_dict(unflatten(tensors, json.loads(json.dumps(tree))))
    return other


@given(
    st.sampled_from(DETECTORS),
    st.booleans(),
    st.lists(st.integers(1, 90), min_size=2, max_size=12),
    st.data(),
)
@settings(max_examples=30, deadline=None)
def test_stops_change_no_signal(
    detector: str, binary: bool, sizes: list[int], data: st.DataObject
) -> None:
    binary = binary or detector == "ddm"
    values = errors(0.1, 0.8, 0.2, 0.9, length=sum(sizes) // 4 + 1, seed=len(sizes))
    if not binary:
        values = values + torch.rand(len(values), generator=torch.Generator().manual_seed(1)) / 3
    with pytest.MonkeyPatch.context() as patch:
        kinds = streamlearn.drift._KINDS
        kind = kinds[detector]._replace(most=130, kept=110)  # begins anew often
        patch.setitem(kinds, detector, kind)
        whole = monitor(detector, binary, gap=20)
        wanted = heard(whole, values, sizes)
        stopped, found, start = monitor(detector, binary, gap=20), [], 0
        for size in sizes:
            if data.draw(st.booleans()):
                stopped = again(stopped)
            found += stopped.update(values[start : start + size], start)
            start += size
    assert found == wanted
    assert stopped.summary() == whole.summary()
    tensors, tree = flatten(stopped.state_dict())
    others, same = flatten(whole.state_dict())
    assert tree == same
    assert all(torch.equal(tensors[name], others[name]) for name in others)


def test_what_is_kept_of_a_long_stream_is_small() -> None:
    listener = monitor()
    values = errors(0.25, length=120_000)
    for start in range(0, len(values), 5000):
        listener.update(values[start : start + 5000], start)
    state = listener.state_dict()
    assert 25_000 <= state["heard"] < 50_000
    assert state["values"].nbytes <= 6250
    assert listener.count <= 1


def test_a_state_belongs_to_its_detector() -> None:
    with pytest.raises(FormatError, match=r"listened with drift\.detector=adwin but .* kswin"):
        monitor("kswin").load_state_dict(monitor().state_dict())


# -- what learners do ------------------------------------------------------------------------------


class Turning:
    """Two classes at two places, which change places half-way; a third comes at the end."""

    name = "turning"
    classes = ("0", "1", "2")
    task = Classes(classes)
    feature_shape = (4,)

    def __init__(self, count: int = 3000) -> None:
        generator = torch.Generator().manual_seed(4)
        side = torch.randint(2, (count,), generator=generator)
        self.features = torch.randn(count, 4, generator=generator) * 0.5
        self.features[:, 0] += 2.0 * side
        self.targets = torch.where(torch.arange(count) < count // 2, side, 1 - side)
        self.targets[-5:] = 2

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, index: Any) -> Rows:
        rows = torch.from_numpy(index)
        return Rows(self.features[rows], self.targets[rows], rows, ())


def turned(action: Action = "none", count: int = 3000, **options: Any) -> Loop[Any]:
    chosen = DriftSettings.model_validate({"action": action, **options})
    model = learner(network={"hidden": 0}, layer={"kind": "softmax", "lr_value": 0.005})
    return Loop(model, Stream(Turning(count), order="given"), Prequential(3, 500), None,
                DriftMonitor(chosen))  # fmt: skip


def windowed(loop: Loop[Any], sample: int) -> float:
    """The windowed accuracy once so many samples were learnt."""
    for event in loop.events():
        if isinstance(event, Progress) and event.samples >= sample:
            return float(event.windowed_accuracy or 0.0)
    raise AssertionError("the stream is too short")


def test_a_drift_and_a_class_that_comes_late_are_told() -> None:
    loop = turned()
    events = list(loop.events())
    drifts = [event for event in events if isinstance(event, DriftDetected)]
    assert 1500 < drifts[0].samples < 2500
    assert (drifts[0].action, drifts[0].detector) == ("none", "adwin")
    assert drifts[0].step == -(-drifts[0].samples // 8)
    arrived = [event for event in events if isinstance(event, ClassArrived)]
    assert arrived == [ClassArrived(375, 2996, "2")]  # the others came with the first samples
    assert loop.drift is not None
    assert [drift.sample for drift in loop.drift.recent] == [drift.samples for drift in drifts]


@pytest.mark.parametrize("action", ["boost", "forget"])
def test_an_answer_to_drift_brings_accuracy_back_sooner(action: Action) -> None:
    answered, left = windowed(turned(action), 2000), windowed(turned(), 2000)
    assert answered > left + 0.2


def test_forgetting_drops_what_is_older_than_the_window_and_no_starting_rows() -> None:
    model = turned().learner
    data = Turning()
    for start in range(0, 400, 8):
        model.learn(data.features[start : start + 8], data.targets[start : start + 8])
    (memory,) = model.memories().values()
    before = memory.gather(torch.arange(len(memory)))
    started = int((before["born"] == PRIOR).sum())
    assert started
    assert model.forget(100)  # 13 steps of 8
    after = memory.gather(torch.arange(len(memory)))
    steps = growth_of(model).steps
    old = (before["born"] > PRIOR) & (before["born"] <= steps - 13)
    assert torch.equal(after["born"], torch.where(old, DEAD, before["born"]))
    assert memory.live == started + 13 * 8
    assert not after["weight"][old].any()
    assert torch.equal(after["value"][~old], before["value"][~old])
    assert model.forget(100)  # nothing is left to do
    assert memory.live == started + 13 * 8


def test_a_boost_multiplies_rates_for_so_many_samples() -> None:
    plain, boosted = turned().learner, turned().learner
    factored = turned().learner
    data = Turning()
    for start in range(0, 120, 8):
        rows = slice(start, start + 8)
        for model in (plain, boosted, factored):
            if start == 80 and model is boosted:
                assert model.boost(3.0, 16)
            if model is factored:
                for group in growth_of(model).param_groups if start > 32 else ():
                    by = 3.0 if start in (80, 88) else 1.0
                    rates = growth_of(plain).param_groups[0]
                    group["lr_value"] = by * rates["lr_value"]
                    group["lr_weight"] = by * rates["lr_weight"]
            model.learn(data.features[rows], data.targets[rows])
    assert content(boosted)[2] == content(factored)[2] != content(plain)[2]


@pytest.mark.parametrize("action", ["boost", "forget"])
@pytest.mark.parametrize("stops", [(90,), (189, 200, 230)])
def test_a_stopped_loop_goes_on_to_the_same_bits(action: Action, stops: tuple[int, ...]) -> None:
    whole = turned(action, 2400, samples=400)
    told = [event for event in whole.events() if isinstance(event, DriftDetected)]
    assert told
    assert told[0].action == action
    loop, again = turned(action, 2400, samples=400), []
    for stop in (*stops, None):
        for event in loop.events():
            again += [event] if isinstance(event, DriftDetected) else []
            if isinstance(event, Progress) and event.step == stop:
                break
        if stop is None:
            break
        tensors, tree = flatten(loop.state_dict())
        rows = {name: list(m.host_blocks()) for name, m in loop.learner.memories().items()}
        loop = turned(action, 2400, samples=400)
        loop.load_state_dict(unflatten(tensors, json.loads(json.dumps(tree))))
        for name, memory in loop.learner.memories().items():
            for block in rows[name]:
                memory.load_columns(block)
    assert again == told
    assert content(loop.learner) == content(whole.learner)
    assert loop.evaluation.summary() == whole.evaluation.summary()


def test_before_the_encoder_is_fitted_nothing_can_be_done() -> None:
    model = learner()
    assert not model.boost(3.0, 10)
    assert not model.forget(10)
    ridge = Learner(2, learner={"kind": "ridge"}, encoder={"kind": "standardise", "fit": 4})
    ridge.learn(torch.randn(8, 3), torch.tensor([0, 1] * 4))
    assert ridge.fitted
    assert not ridge.boost(3.0, 10)
    assert not ridge.forget(10)


@pytest.mark.parametrize(("words", "reason"), [
    (("drift.action=boost", "learner=ridge"),
     "drift.action=boost means nothing for learner=ridge without growing layers; set "
     "drift.action=none"),
    (("drift.action=forget", "learner=knn"), "drift.action=forget means nothing for learner=knn"),
    (("drift.action=boost", "drift.detector=none"), "means nothing for drift.detector=none; set"),
    (("drift.action=forget", "learner.revisit=update"), "set learner.revisit=append, or"),
    (("drift.detector=adwn",), "drift.detector=adwn cannot be used: it should be 'none', 'adwin'"),
    (("drift.delta=2",), "drift.delta=2 cannot be used"),
    (("drift.boots=2",), "drift.boots is not a setting; did you mean drift.boost?"),
    (("drift=adwin",), "drift is a section"),
])  # fmt: skip
def test_settings_that_mean_nothing_are_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(words)
    assert reason in str(caught.value)
