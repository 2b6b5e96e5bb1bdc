"""The loop: its events, and that it can be left and taken up between any two of them."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn import Learner
from streamlearn.coldstart import ColdStart
from streamlearn.errors import DataError, FormatError, NotFiniteError
from streamlearn.evaluation import Prequential
from streamlearn.events import EncoderFitted, Notice, Progress, Skipped, Tested, Testing, as_json
from streamlearn.loop import Loop, held_out
from streamlearn.losses import LOSSES
from streamlearn.state import StateTree, flatten, unflatten
from streamlearn.streams.base import Rows, SkippedItem, Stream
from streamlearn.tasks import Classes

from .making import arrays
from .test_learner import CLASSES, blobs, content, learner, pictures


class Blobs:
    """Rows in memory, some of which cannot be used."""

    name = "blobs"
    classes = ("0", "1", "2")
    task = Classes(classes)
    feature_shape = (6,)

    def __init__(self, count: int, unusable: tuple[int, ...] = (), seed: int = 0) -> None:
        self.features, self.targets = blobs(count, seed=seed)
        self.unusable = set(unusable)

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, index: NDArray[np.int64]) -> Rows:
        kept = torch.tensor(
            [int(i) for i in index if int(i) not in self.unusable], dtype=torch.int64
        )
        skipped = tuple(
            SkippedItem(f"row {i}", "is torn") for i in index if int(i) in self.unusable
        )
        return Rows(self.features[kept], self.targets[kept], kept, skipped)


def made(dataset: Blobs, **sections: Any) -> Loop[Any]:
    model = learner(**sections)
    return Loop(model, Stream(dataset, seed=2), Prequential(CLASSES, 50))


def untimed(events: list[Any]) -> list[Any]:
    """Events without what a clock says."""
    return [
        dataclasses.replace(event, **{
            name: 0.0 for name in ("seconds", "rate") if hasattr(event, name)
        })
        for event in events
    ]  # fmt: skip


def test_every_batch_is_one_progress_and_the_fit_is_told_where_it_happens() -> None:
    loop = made(Blobs(100))  # fit at 40, batches of 8: 12 full ones and one of 4
    events = list(loop.events())
    names = [event.event for event in events]
    assert names == ["progress"] * 5 + ["notice", "encoder_fitted"] + ["progress"] * 9
    assert isinstance(events[5], Notice)
    assert events[5].text == "fitting the encoder on 40 samples and learning them"
    fitted = events[6]
    assert isinstance(fitted, EncoderFitted)
    assert (fitted.step, fitted.samples, fitted.encoder, fitted.width) == (5, 40, "standardise", 7)
    progress = [event for event in events if isinstance(event, Progress)]
    # The fit has a progress of its own, at the step where it happened.
    assert [event.step for event in progress] == [1, 2, 3, 4, 5, *range(5, 14)]
    assert [event.samples for event in progress] == [8, 16, 24, 32, 40,
                                                     *range(40, 97, 8), 100]  # fmt: skip
    assert [event.position for event in progress] == [event.samples for event in progress]
    assert {event.total_samples for event in progress} == {100}
    assert all(event.rate >= 0 and event.seconds >= 0 for event in progress)
    assert [event.seconds for event in progress] == sorted(event.seconds for event in progress)
    last = progress[-1]
    assert last.accuracy is not None
    assert last.accuracy == loop.evaluation.accuracy
    assert last.accuracy > 0.5
    assert last.windowed_accuracy == loop.evaluation.windowed_accuracy
    assert [(layer.name, layer.tuples) for layer in last.layers] == [
        ("hidden.0", 116), ("output", 116),
    ]  # fmt: skip
    assert last.layers[1].bytes == 116 * ((7 + 3) * 4 + 4 + 8 + 8)  # a constant beside 6 features
    assert progress[0].layers == ()
    for event in events:
        json.dumps(as_json(event), allow_nan=False)


def test_the_accuracy_told_is_of_scores_given_before_learning() -> None:
    loop, model = made(Blobs(100)), learner()
    stream = Stream(Blobs(100), seed=2)
    events = [event for event in loop.events() if isinstance(event, Progress)]
    del events[5]  # that of the fit
    hits = losses = 0.0
    for batch, event in zip(stream.batches(8), events, strict=True):
        scores = model.learn(batch.rows.features, batch.rows.targets)
        hits += float((scores.probabilities.argmax(-1) == batch.rows.targets).sum())
        losses += float(scores.losses.sum())
        assert event.accuracy == hits / event.samples
        assert event.loss == pytest.approx(float(scores.losses.mean()), rel=1e-6)
    assert loop.evaluation.loss == pytest.approx(losses / 100, rel=1e-5)


def test_a_stream_that_ends_before_the_fit_is_fitted_at_its_end() -> None:
    loop = made(Blobs(20))
    events = list(loop.events())
    names = [event.event for event in events]
    assert names == ["progress"] * 3 + ["notice", "encoder_fitted", "progress"]
    assert loop.learner.samples == 20
    assert (loop.step, loop.evaluation.samples) == (3, 20)  # nothing was counted twice
    last = events[-1]
    assert isinstance(last, Progress)
    assert last.step == 3
    assert last.layers[0].tuples == 36
    assert list(loop.events()) == []  # and there is nothing more to do


def test_unusable_items_are_named_counted_and_left_out() -> None:
    loop = made(Blobs(100, unusable=(3, 50, 51, 52, 99)))
    events = list(loop.events())
    skipped = [event for event in events if isinstance(event, Skipped)]
    assert sorted(event.item for event in skipped) == ["row 3", "row 50", "row 51", "row 52",
                                                       "row 99"]  # fmt: skip
    assert {event.reason for event in skipped} == {"is torn"}
    assert [event.skipped for event in skipped] == [1, 2, 3, 4, 5]
    last = events[-1]
    assert isinstance(last, Progress)
    assert (last.samples, last.position, last.skipped) == (95, 100, 5)
    assert loop.learner.samples == 95


def test_a_batch_of_unusable_items_only_is_a_step_without_samples() -> None:
    loop = made(Blobs(100, unusable=tuple(int(i) for i in Stream(Blobs(100), seed=2)._items[:8])))
    events = list(loop.events())
    assert [event.event for event in events[:9]] == ["skipped"] * 8 + ["progress"]
    first = events[8]
    assert isinstance(first, Progress)
    assert (first.step, first.samples, first.position, first.loss) == (1, 0, 8, 0.0)
    assert loop.learner.samples == 92


@pytest.mark.parametrize("count", [0, 5])
def test_a_stream_without_a_usable_sample_is_an_error(count: int) -> None:
    loop = made(Blobs(count, unusable=tuple(range(count))))
    with pytest.raises(DataError, match=rf"blobs held no usable sample \({count} skipped\)"):
        list(loop.events())


# -- left and taken up -----------------------------------------------------------------------------


def saved(loop: Loop[Any]) -> tuple[dict[str, Tensor], str, dict[str, list[Any]]]:
    """All that a run directory keeps of a loop, as copies."""
    tensors, tree = flatten(loop.state_dict())
    rows = {
        name: [{k: v.copy() for k, v in block.items()} for block in memory.host_blocks()]
        for name, memory in loop.learner.memories().items()
    }
    return tensors, json.dumps(tree), rows


def resumed(
    kept: tuple[dict[str, Tensor], str, dict[str, list[Any]]], loop: Loop[Any]
) -> Loop[Any]:
    tensors, tree, rows = kept
    loop.load_state_dict(unflatten(tensors, json.loads(tree)))
    for name, memory in loop.learner.memories().items():
        for block in rows[name]:
            memory.load_columns(block)
    return loop


SECTIONS: list[dict[str, Any]] = [
    {},
    {"optimizer": {"momentum": 0.6, "decay": 0.02}},
    {"encoder": {"kind": "pca", "fit": 40}, "layer": "gauge", "learner": {"dtype": "bfloat16",
                                                                           "batch": 8}},
    {"encoder": {"kind": "standardise", "fit": 500}, "layer": "rbf"},  # ends before the fit
]  # fmt: skip


@pytest.mark.parametrize("sections", SECTIONS)
def test_a_loop_left_after_any_event_and_taken_up_ends_with_the_same_bits(
    sections: dict[str, Any],
) -> None:
    unusable = (3, 50, 51, 90)
    whole = made(Blobs(100, unusable), **sections)
    wanted = untimed(list(whole.events()))
    end = content(whole.learner)
    for stop in range(0, len(wanted), 3):
        first = made(Blobs(100, unusable), **sections)
        events = first.events()
        seen = [next(events) for _ in range(stop)]
        kept = saved(first)
        second = resumed(kept, made(Blobs(100, unusable), **sections))
        rest = list(second.events())
        assert content(second.learner) == end
        assert second.evaluation.accuracy == whole.evaluation.accuracy
        assert second.evaluation.loss == whole.evaluation.loss
        assert torch.equal(
            second.evaluation.state_dict()["confusion"], whole.evaluation.state_dict()["confusion"]
        )
        assert (second.step, second.skipped) == (whole.step, whole.skipped)
        assert second.stream.position == 100
        if stop == 0 or isinstance(seen[-1], Progress):
            assert untimed(rest) == wanted[stop:]
        events.close()  # type: ignore[attr-defined]


def test_the_state_after_each_skipped_event_knows_of_all_that_were_skipped() -> None:
    items = [int(item) for item in Stream(Blobs(100), seed=2)._items[:3]]
    loop = made(Blobs(100, unusable=tuple(items)))
    events = loop.events()
    for number in (1, 2, 3):
        event = next(events)
        assert isinstance(event, Skipped)
        assert event.skipped == number
        assert loop.state_dict()["skipped"] == 3  # the cursor is past them all
        assert loop.state_dict()["stream"]["position"] == 8


def test_a_stop_asked_for_within_the_fit_undoes_it_and_the_fit_is_done_when_taken_up() -> None:
    whole = made(Blobs(100))
    wanted = untimed(list(whole.events()))
    for patience in range(12):  # asked before, while encoding, and between the batches learnt
        loop = made(Blobs(100))
        asked = itertools.count()

        def should_stop(asked: Iterator[int] = asked, patience: int = patience) -> bool:
            return next(asked) >= patience

        loop.should_stop = should_stop
        events = loop.events()
        seen = [next(events) for _ in range(7)]
        if isinstance(seen[-1], EncoderFitted):
            assert patience >= 1 + 1 + 5  # once, for each 64 samples, for each batch of 8
            break
        assert isinstance(seen[-1], Progress)
        assert seen[-1].samples == 40
        assert (loop.learner.held, loop.learner.samples, loop.learner.fitted) == (40, 0, False)
        again = resumed(saved(loop), made(Blobs(100)))
        assert untimed(list(again.events())) == wanted[5:]
        assert content(again.learner) == content(whole.learner)
    else:
        pytest.fail("the fit never came to its end")


def test_a_batch_that_cannot_be_learnt_is_the_next_one_again() -> None:
    dataset = Blobs(100)
    loop, whole = made(dataset), made(Blobs(100))
    list(whole.events())
    bad = int(loop.stream._items[61])  # type: ignore[attr-defined]
    good = dataset.features[bad].clone()
    dataset.features[bad, 3] = float("nan")
    with pytest.raises(NotFiniteError, match="feature 3 of row 5 is nan"):
        list(loop.events())
    assert (loop.step, loop.stream.position, loop.evaluation.samples) == (7, 56, 56)
    dataset.features[bad] = good
    again = resumed(saved(loop), made(dataset))
    list(again.events())
    assert content(again.learner) == content(whole.learner)


def test_a_state_of_another_stream_is_refused() -> None:
    with pytest.raises(FormatError, match="stream with items 100 but the data now has 90"):
        made(Blobs(90)).load_state_dict(made(Blobs(100)).state_dict())


def test_a_loop_broken_off_in_the_middle_goes_on_where_it_was() -> None:
    whole, broken = made(Blobs(100)), made(Blobs(100))
    list(whole.events())
    for event in broken.events():
        if isinstance(event, Progress) and event.step == 7:
            break
    list(broken.events())
    assert content(broken.learner) == content(whole.learner)


# -- held-out data ---------------------------------------------------------------------------------


def test_held_out_data_are_scored_with_progress_and_change_nothing() -> None:
    loop = made(Blobs(200))
    list(loop.events())
    before = content(loop.learner)
    test = Blobs(1100, unusable=(5, 700), seed=9)
    events = list(held_out(loop.learner, test))
    assert [event.event for event in events] == ["testing"] * 3 + ["tested"]
    assert [event.samples for event in events[:-1]] == [512, 1024, 1100]
    assert all(isinstance(e, Testing) and e.total_samples == 1100 for e in events[:-1])
    result = events[-1]
    assert isinstance(result, Tested)
    assert result.samples == 1098
    kept = [row for row in range(1100) if row not in (5, 700)]
    shares = loop.learner.predict_proba(test.features[kept])
    hits = shares.argmax(-1) == test.targets[kept]
    assert result.accuracy == pytest.approx(float(hits.double().mean()), abs=2e-3)
    assert result.accuracy is not None
    assert result.accuracy > 0.7
    assert result.loss > 0
    assert content(loop.learner) == before


def test_held_out_data_may_be_scored_before_anything_was_learnt() -> None:
    events = list(held_out(Learner(CLASSES), Blobs(30)))
    result = events[-1]
    assert isinstance(result, Tested)
    assert result.loss == pytest.approx(np.log(3), rel=1e-5)


# -- the scores of the cold start ------------------------------------------------------------------


def batches(features: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(targets), 8):
        yield features[start : start + 8], targets[start : start + 8]


def test_running_statistics_are_those_of_all_samples_seen() -> None:
    cold = ColdStart(CLASSES, LOSSES["cross_entropy"], seed=0)
    features, targets = blobs(60)
    features += 1000.0
    for rows, labels in batches(features, targets):
        cold.learn(rows, labels)
    assert cold.count == 60
    np.testing.assert_allclose(arrays(cold.mean), arrays(features).mean(0), rtol=1e-12)
    np.testing.assert_allclose(arrays(cold.moment / cold.count), arrays(features).var(0), rtol=1e-9)


@pytest.mark.parametrize("shape", ["vectors", "images"])
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_a_restored_cold_start_scores_with_the_same_bits(shape: str, cut: int) -> None:
    features, targets = blobs(64) if shape == "vectors" else pictures(64)
    cold = ColdStart(CLASSES, LOSSES["cross_entropy"], seed=3)
    parts = list(batches(features, targets))
    for rows, labels in parts[:cut]:
        cold.learn(rows, labels)
    tensors, tree = flatten(cold.state_dict())
    restored = ColdStart(CLASSES, LOSSES["cross_entropy"], seed=3)
    state: StateTree = unflatten(tensors, json.loads(json.dumps(tree)))
    kept = state["mean"].clone()
    restored.load_state_dict(state)
    for rows, labels in parts[cut:]:
        assert torch.equal(cold.predict(rows), restored.predict(rows))
        for one in (cold, restored):
            one.learn(rows, labels)
    assert torch.equal(cold.mean, restored.mean)
    assert torch.equal(state["mean"], kept)  # the state was not used up by the one that took it


def test_large_images_are_scored_by_their_averages() -> None:
    images = torch.zeros(4, 3, 50, 70, dtype=torch.uint8)
    images[2:] = 255
    cold = ColdStart(CLASSES, LOSSES["cross_entropy"], seed=0)
    for _ in range(20):
        cold.learn(images, torch.tensor([0, 0, 1, 1]))
    assert cold.predict(images).argmax(-1).tolist() == [0, 0, 1, 1]
    assert len(cold.mean) == 3 * 8 * 8
    assert torch.equal(cold.predict(images), cold.predict(images.float() / 255.0))
