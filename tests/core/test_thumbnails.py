"""A thumbnail of each stored sample stays beside its tuples, and learning does not look at it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from streamlearn.blocks import THUMBNAIL
from streamlearn.errors import ConfigError
from streamlearn.learner import Learner
from streamlearn.memory import DEAD, SAMPLE, Memory
from streamlearn.openworld import OpenLearner
from streamlearn.settings import settings_of
from streamlearn.thumbnails import (
    as_picture,
    as_text,
    enlarged,
    of_pictures,
    of_samples,
    of_texts,
    picture_shape,
    text_of,
)

ROOM = 128
SHAPE = (3, 8, 8)
SAMPLES = torch.tensor([7, 100, 3, 55, 21, 8, 9, 31, 4, 62, 90, 17, 2, 5, 6, 11])


def pictures(samples: Tensor) -> Tensor:
    rows = [
        torch.randint(0, 256, SHAPE, generator=torch.Generator().manual_seed(int(sample)))
        for sample in samples
    ]
    return torch.stack(rows).to(torch.uint8)


def learner(**sections: Any) -> Learner:
    every: dict[str, Any] = {
        "encoder": {"kind": "standardise", "fit": 8},
        "network": {"hidden": 1},
        "memory": {"thumbnails": ROOM},
        "learner": {"dtype": "float32", "device": "cpu", "batch": 4},
    }
    for name, section in sections.items():
        every[name] = {**every.get(name, {}), **section}
    return Learner(3, **every)


def learn(into: Learner, samples: Tensor) -> None:
    for part in torch.split(samples, 4):
        into.learn(pictures(part), part % 3, index=part)


def are_of_their_samples(memory: Memory) -> list[int]:
    """The samples of live tuples, each of which has its thumbnail and its label beside it."""
    found = memory.gather(torch.arange(len(memory)), (SAMPLE, "born", "label", THUMBNAIL))
    live = (found["born"] != DEAD) & (found[SAMPLE] >= 0)
    samples = found[SAMPLE][live]
    assert torch.equal(found[THUMBNAIL][live], of_pictures(pictures(samples), ROOM))
    assert torch.equal(found["label"][live], samples % 3)
    assert not found[THUMBNAIL][~live].any()
    return samples.tolist()


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"learner": {"rehearsal": 3}},
        {"learner": {"revisit": "update"}},
        {"memory": {"rows": 22}},
        {"memory": {"rows": 22, "policy": "balanced"}},
        {"layer": {"kind": "softmax", "gate": 1.0}},
        {"network": {"output": "least-squares"}},
        {"memory": {"keys": "int8"}},
    ],
)
def test_every_live_tuple_has_the_thumbnail_and_label_of_its_sample(
    sections: dict[str, Any], tmp_path: Path
) -> None:
    one = learner(**sections)
    learn(one, SAMPLES[:12])
    one.save(tmp_path / "one")
    again = Learner.load(tmp_path / "one")
    for each in (one, again):
        learn(each, SAMPLES[12:])
        learn(each, SAMPLES[:4])
    for name, memory in one.memories().items():
        assert are_of_their_samples(memory)
        other = again.memories()[name]
        for column, values in memory.host_columns(0).items():
            assert values.tobytes() == other.host_columns(0)[column].tobytes()


def test_dropped_tuples_lose_their_thumbnails() -> None:
    one = learner()
    learn(one, SAMPLES)
    for memory in one.memories().values():
        memory.drop(torch.arange(16, 24))
        assert are_of_their_samples(memory) == SAMPLES[8:].tolist()


def test_thumbnails_change_no_bit_and_are_counted() -> None:
    one, bare = learner(), learner(memory={"thumbnails": None})
    learn(one, SAMPLES)
    learn(bare, SAMPLES)
    kept = 8 + 3 * 6 * 6
    assert one.nbytes - bare.nbytes == kept * sum(len(m) for m in one.memories().values())
    for name, memory in bare.memories().items():
        assert one.memories()[name].row_bytes == memory.row_bytes + kept
        for column, values in memory.host_columns(0).items():
            assert values.tobytes() == one.memories()[name].host_columns(0)[column].tobytes()


def test_a_budget_counts_thumbnails() -> None:
    one = learner(memory={"budget": 100_000})
    bare = learner(memory={"budget": 100_000, "thumbnails": None})
    for each in (one, bare):
        learn(each, SAMPLES)
        assert each.bounds()["used"] <= 100_000
    assert one.bounds()["rows"] < bare.bounds()["rows"]


def test_a_picture_that_is_not_of_bytes_is_refused_before_it_is_learnt() -> None:
    one = learner()
    with pytest.raises(ConfigError, match=r"these are torch\.float32"):
        one.learn(torch.zeros(4, *SHAPE), torch.zeros(4, dtype=torch.int64))
    assert one.held == 0


def test_numbers_come_back_to_the_bit() -> None:
    numbers = torch.cat([torch.randn(4, 7), torch.tensor([[0.0, 16, -3, 1e-30, 2.5e30, 0.1, 7]])])
    for row, kept in zip(numbers, of_samples(numbers, 512), strict=True):
        assert torch.equal(torch.tensor(json.loads(as_text(kept)), dtype=torch.float32), row)
    assert as_text(of_samples(torch.arange(3.0)[None], 64)[0]) == "[0, 1, 2]"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (torch.tensor([[True, False]]), "[1, 0]"),
        (torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16), "[1.5, -2]"),
        (torch.tensor([[0.1, 2.0]], dtype=torch.float16), "[0.1, 2]"),
        (torch.tensor([[300, -1]]), "[300, -1]"),
        (torch.tensor([[1e30, 2.0**52]], dtype=torch.float64), "[1e+30, 4503599627370496]"),
    ],
)
def test_numbers_of_any_type_are_kept_in_few_digits(numbers: Tensor, text: str) -> None:
    assert as_text(of_samples(numbers, 64)[0]) == text


@given(st.integers(64, 4096), st.sampled_from([1, 3]), st.integers(1, 300), st.integers(1, 300))
def test_a_picture_fits_its_room(room: int, channels: int, height: int, width: int) -> None:
    shape = picture_shape((channels, height, width), room)
    assert shape[0] == channels
    assert shape[1] <= height
    assert shape[2] <= width
    if min(shape[1:]) > 1:
        assert np.prod(shape) <= room


def test_pictures_that_fit_are_kept_whole_and_others_keep_their_colours() -> None:
    whole = pictures(SAMPLES[:2])
    assert torch.equal(of_pictures(whole, 3 * 8 * 8).view(2, *SHAPE), whole)
    plain = torch.full((1, 3, 40, 20), 77, dtype=torch.uint8)
    small = as_picture(of_pictures(plain, 200)[0], plain.shape[1:], 200)
    assert small.shape == (3, 11, 5)
    assert (enlarged(small, (3, 40, 20)) == 77).all()


@given(
    st.dictionaries(
        st.text(max_size=8), st.integers() | st.floats(allow_nan=False) | st.text(max_size=40)
    ),
    st.integers(64, 200),
)
def test_a_record_that_fits_comes_back_and_others_are_cut(record: Any, room: int) -> None:
    text = as_text(of_texts([text_of(record, room)], room)[0])
    if text.endswith("…"):
        assert room - 6 <= len(text.encode()) <= room
    else:
        assert json.loads(text) == {key: record[key] for key in record}


def test_records_keep_theirs_through_warm_up_widening_and_bytes() -> None:
    def record(sample: int) -> dict[str, float]:
        wide = 3 if sample < 100 else 20
        return {f"x{i}": float((sample * (i + 3)) % 7) for i in range(wide)}

    settings = {"learner": {"batch": 4, "dtype": "float64"}, "memory": {"thumbnails": 512}}
    one = OpenLearner(settings_of(settings), warmup=8)
    samples = [*range(40, 53), *range(100, 107)]
    for start in range(0, 20, 3):
        part = samples[start : start + 3]
        one.learn([record(s) for s in part], [f"class {sample % 2}" for sample in part], part)
        if start == 3:  # in the warm-up
            one, _ = OpenLearner.from_bytes(one.to_bytes()[0])
    assert one.widened == 1
    for memory in one.memories().values():
        found = memory.gather(torch.arange(16, len(memory)), (SAMPLE, "label", THUMBNAIL))
        assert found[SAMPLE].tolist() == samples
        assert [one.labels[place] for place in found["label"]] == [
            f"class {sample % 2}" for sample in samples
        ]
        kept = [json.loads(as_text(row)) for row in found[THUMBNAIL]]
        assert kept == [record(sample) for sample in samples]
