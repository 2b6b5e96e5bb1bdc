"""Later epochs that update a sample's own tuples in place."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamlearn import Learner
from streamlearn.errors import ConfigError, NotFiniteError
from streamlearn.models import NetworkModel
from streamlearn.models.places import Places

from .making import arrays
from .test_learner import CLASSES, blobs, content, growth_of, learner

COUNT = 56


def made(revisit: str, kind: str = "softmax", **sections: Any) -> Learner:
    section = {"batch": 8, "dtype": "float64", "revisit": revisit}
    return learner(**{"layer": kind, "learner": section, "network": {"hidden": 0}, **sections})


def epochs(model: Learner, count: int, first: int = 0) -> None:
    features, targets = blobs(COUNT)
    for epoch in range(first, first + count):
        order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(epoch))
        for start in range(0, COUNT, 8):
            index = order[start : start + 8]
            model.learn(features[index], targets[index], index=index)


@pytest.mark.parametrize("kind", ["softmax", "rbf", "linear", "unweighted"])
def test_a_sample_that_updates_its_tuple_teaches_what_another_tuple_would(kind: str) -> None:
    """Its key is the same each time, and tuples of one key merge exactly."""
    update, append = made("update", kind), made("append", kind)
    probe, _ = blobs(30, seed=5)
    for epoch in range(3):
        for model in (update, append):
            epochs(model, 1, epoch)
        np.testing.assert_allclose(
            arrays(update.predict_proba(probe)), arrays(append.predict_proba(probe)), atol=1e-6
        )
    start = 0 if kind in ("rbf", "linear") else 16
    assert len(update.memories()["output"]) == start + COUNT
    assert len(append.memories()["output"]) == start + 3 * COUNT


def test_every_layer_keeps_a_tuple_a_sample() -> None:
    model = made("update", network={"hidden": 2})
    epochs(model, 1)
    before = model.memories()["hidden.1"].gather(torch.arange(16, 16 + COUNT))
    epochs(model, 2, 1)
    assert [len(memory) for memory in model.memories().values()] == [16 + COUNT] * 3
    after = model.memories()["hidden.1"].gather(torch.arange(16, 16 + COUNT))
    assert torch.equal(after["key"], before["key"])
    assert torch.equal(after["born"], before["born"])
    assert (after["value"] != before["value"]).any(-1).all()


@pytest.mark.parametrize("parametric", [False, True])
def test_a_learner_that_knows_its_samples_is_saved(parametric: bool, tmp_path: Path) -> None:
    section = {"batch": 8, "dtype": "float32", "revisit": "update"}
    if parametric:
        section |= {"kind": "parametric", "optimizer": "sgd"}
    network = {"hidden": 2, **({"layers": "mixed", "width": 9} if parametric else {})}
    model = learner(learner=section, network=network)
    for fed in range(3):  # in the middle of holding back, and after one and two epochs
        model.save(tmp_path / "a")
        restored = Learner.load(tmp_path / "a")
        assert content(restored) == content(model)
        for one in (model, restored):
            epochs(one, 1, fed)
        assert content(restored) == content(model)


def test_new_samples_between_known_ones_and_without_an_index_are_appended() -> None:
    model = made("update")
    epochs(model, 1)
    features, targets = blobs(8, seed=9)
    model.learn(features, targets, index=torch.tensor([3, 90, 5, 91, 3, 7, 92, 92]))
    model.learn(features, targets)
    model.learn(features, targets, index=torch.tensor([90, 91, 92, 3, 4, 5, 6, 7]))
    # 90, 91, 92, and what came twice in a batch; then eight that nobody knows
    assert len(model.memories()["output"]) == 16 + COUNT + 5 + 8


def test_an_update_that_is_not_finite_changes_nothing() -> None:
    model = made("update", network={"hidden": 1})
    epochs(model, 1)
    before, growth = content(model), growth_of(model)
    rates = [group["lr_value"] for group in growth.param_groups]
    growth.param_groups[-1]["lr_value"] = 1e308
    features, targets = blobs(COUNT)
    features, targets, index = features[:8], targets[:8], torch.arange(8)
    growth.param_groups[-1]["lr_value"] = float("inf")
    with pytest.raises(NotFiniteError, match="NaN or infinity"):
        model.learn(features, targets, index=index)
    for group, rate in zip(growth.param_groups, rates, strict=True):
        group["lr_value"] = rate
    assert content(model) == before
    model.learn(features, targets, index=index)


def test_places_follow_the_order_of_first_coming() -> None:
    places = Places()
    for index, wanted in (([5, 2], [0, 1]), ([2, 9, 5], [1, 2, 0]), ([4, 4], [3, 4])):
        found = places.of(len(index), torch.tensor(index))
        assert found.tolist() == wanted
        places.keep(found, torch.tensor(index))
    assert places.of(2, None).tolist() == [5, 6]
    again = Places()
    again.load_state_dict(places.state_dict())
    assert again.of(3, torch.tensor([4, 5, 6])).tolist() == [3, 0, 5]


@pytest.mark.parametrize(("sections", "message"), [
    ({"layer": "gauge"}, r"needs one tuple a sample, and layer=gauge may .*revisit=append"),
    ({"optimizer": {"decay": 0.1}}, r"age does not matter; set optimizer\.momentum=0"),
    ({"learner": {"kind": "parametric", "revisit": "update"}, "network": "vit"}, "network=vit may"),
])  # fmt: skip
def test_what_cannot_be_updated_in_place_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Learner(CLASSES, **{"learner": {"revisit": "update"}, **sections})


def test_places_are_counted_among_the_bytes() -> None:
    update, append = made("update"), made("append")
    for model in (update, append):
        epochs(model, 1)
        assert isinstance(model.model, NetworkModel)
    assert update.nbytes == append.nbytes + 8 * COUNT
