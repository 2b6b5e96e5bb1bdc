"""A teacher's samples: read anywhere to the same bits, labelled as the formulas say."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from streamlearn.errors import ConfigError, FormatError
from streamlearn.streams import EndlessStream, Rows, Splits, TeacherSpec, open_data
from streamlearn.streams.teachers import Teacher, normals
from streamlearn.tasks import Outputs

SPEC: dict[str, Any] = {"features": 7, "outputs": 2, "width": 5, "test": 30, "seed": 3}
TEACHERS: dict[str, dict[str, Any]] = {
    "residual": {},
    "softmax": {"teacher": "softmax", "kappa": 4.0},
    "linear": {"teacher": "linear"},
    "normal": {"teacher": "linear", "inputs": "normal"},
    "noisy": {"noise": 0.3},
}


def opened(name: str = "residual", **changes: Any) -> Splits:
    return open_data("teacher", teacher=TeacherSpec(**{**SPEC, **TEACHERS[name], **changes}))


def read(splits: Splits, *index: int) -> Rows:
    return splits.train.read(np.array(index, dtype=np.int64))


@pytest.fixture(params=TEACHERS)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def same(one: Rows, other: Rows) -> bool:
    return all(
        torch.equal(getattr(one, part), getattr(other, part))
        for part in ("features", "targets", "index")
    )


def test_a_row_has_the_same_bits_wherever_and_with_whatever_it_is_read(name: str) -> None:
    whole = read(opened(name), *range(600))
    some = read(opened(name), 599, 0, 255, 256, 599)
    assert some.index.tolist() == [599, 0, 255, 256, 599]
    for place, row in enumerate(some.index.tolist()):
        assert torch.equal(some.features[place], whole.features[row])
        assert torch.equal(some.targets[place], whole.targets[row])
    far = 10**12 + 5
    assert same(read(opened(name), far), read(opened(name), far))


def test_rows_have_the_promised_shapes_and_types(name: str) -> None:
    splits = opened(name)
    assert splits.endless
    assert splits.test is not None
    assert len(splits.test) == 30
    for part in (splits.train, splits.test):
        rows = part.read(np.arange(30, dtype=np.int64))
        assert part.task == Outputs(2)
        assert part.classes == ()
        assert rows.features.shape == (30, *part.feature_shape) == (30, 7)
        assert rows.targets.shape == (30, 2)
        assert rows.features.dtype == rows.targets.dtype == torch.float32
        assert rows.skipped == ()
    assert read(splits).features.shape == (0, 7)


def test_the_test_is_another_stream_of_the_same_teacher() -> None:
    splits = opened()
    assert splits.test is not None
    train, test = read(splits, *range(30)), splits.test.read(np.arange(30, dtype=np.int64))
    assert not torch.isin(train.features, test.features).any()
    teacher = Teacher(TeacherSpec(**SPEC))
    for rows in (train, test):
        wanted = teacher(rows.features.double().numpy())
        np.testing.assert_allclose(rows.targets.numpy(), wanted, rtol=1e-6)


def test_the_numbers_are_the_same_for_ever() -> None:
    np.testing.assert_allclose(normals(3, 0, 1, 4), EXPECTED, rtol=1e-12)
    assert len(normals(0, 0, 0, 7)) == 7
    assert normals(2**63 - 1, 2, 2**40, 2).tolist() != normals(2**63 - 1, 2, 2**40 + 1, 2).tolist()


EXPECTED = [0.522143289876319, 0.853092768777175, -1.359001297491858, -0.1524365314884644]


def test_the_numbers_are_standard_normal_and_independent() -> None:
    found = np.stack([normals(9, part, place, 5000) for part in range(4) for place in range(5)])
    assert np.abs(found.mean(1)).max() < 0.06
    assert np.abs(found.std(1) - 1).max() < 0.05
    assert abs((found**4).mean() - 3) < 0.1
    assert np.abs(np.corrcoef(found) - np.eye(20)).max() < 0.07
    assert np.isfinite(found).all()


def test_inputs_are_on_the_sphere_or_normal() -> None:
    sphere = read(opened(), *range(500)).features
    torch.testing.assert_close(sphere.norm(dim=-1), torch.ones(500))
    wide = read(opened("normal"), *range(2000)).features
    assert float((wide.std(0) - 1).abs().max()) < 0.1


def test_noise_is_added_to_what_is_learnt_and_not_to_the_test() -> None:
    plain, noisy = (opened(noise=noise) for noise in (0.0, 0.3))
    one, other = read(plain, *range(1000)), read(noisy, *range(1000))
    assert torch.equal(one.features, other.features)
    assert float((other.targets - one.targets).std()) == pytest.approx(0.3, rel=0.1)
    assert plain.test is not None
    assert noisy.test is not None
    index = np.arange(30, dtype=np.int64)
    assert same(plain.test.read(index), noisy.test.read(index))


@pytest.mark.parametrize("change", [{"seed": 4}, {"width": 6}, {"hidden": 1}])
def test_another_seed_or_size_is_another_teacher(change: dict[str, Any]) -> None:
    one, other = read(opened(), *range(10)), read(opened(**change), *range(10))
    assert not torch.allclose(one.targets, other.targets, atol=1e-3)


def test_a_residual_teacher_is_the_network_of_the_formula() -> None:
    teacher = Teacher(TeacherSpec(**SPEC))
    for row in normals(1, 0, 0, 21).reshape(3, 7):
        stream = list(row)
        for first, second in teacher.blocks:
            size = (sum(e * e for e in stream) / 7) ** 0.5
            inner = [max(0.0, sum(w * e / size for w, e in zip(ws, stream, strict=True)))
                     for ws in first]  # fmt: skip
            stream = [e + sum(w * h for w, h in zip(ws, inner, strict=True))
                      for e, ws in zip(stream, second, strict=True)]  # fmt: skip
        size = (sum(e * e for e in stream) / 7) ** 0.5
        wanted = [sum(w * e / size for w, e in zip(ws, stream, strict=True))
                  for ws in teacher.weight]  # fmt: skip
        np.testing.assert_allclose(teacher(row[None])[0], wanted, rtol=1e-12)
    assert len(teacher.blocks) == 2
    assert teacher.blocks[0][0].shape == (5, 7)


def test_a_softmax_teacher_is_attention_over_its_keys() -> None:
    teacher = Teacher(TeacherSpec(**SPEC, teacher="softmax", kappa=4.0))
    np.testing.assert_allclose(np.linalg.norm(teacher.keys, axis=1), 7**0.5)
    row = normals(1, 0, 0, 7)
    query = row / np.sqrt(np.square(row).mean())
    temperature = 7**0.5 / 4.0
    pulls = [np.exp(key @ query / (temperature * 7**0.5)) for key in teacher.keys]
    wanted = sum(p * v for p, v in zip(pulls, teacher.values, strict=True)) / sum(pulls)
    np.testing.assert_allclose(teacher(row[None])[0], wanted, rtol=1e-12)


def test_matrices_are_lecun_normal() -> None:
    teacher = Teacher(TeacherSpec(features=100, width=200))
    (first, second), _ = teacher.blocks
    assert first.std() == pytest.approx(0.1, rel=0.02)
    assert second.std() == pytest.approx(200**-0.5, rel=0.02)


# -- the stream ------------------------------------------------------------------------------------


def taken(stream: EndlessStream, count: int, size: int = 8) -> list[Rows]:
    batches: Iterator[Any] = stream.batches(size, ahead=True)
    return [batch.rows for batch in islice(batches, count)]


def test_a_cursor_that_is_put_back_goes_on_with_the_same_rows() -> None:
    whole = taken(EndlessStream(opened().train), 40)
    stopped = EndlessStream(opened().train)
    first = taken(stopped, 13)
    assert stopped.position == 104
    resumed = EndlessStream(opened().train)
    resumed.load_state_dict(stopped.state_dict())
    rest = taken(resumed, 27)
    assert all(same(a, b) for a, b in zip(first + rest, whole, strict=True))


def test_a_stream_without_a_limit_has_no_total() -> None:
    stream = EndlessStream(opened().train)
    assert stream.total is None
    for counted in (stream, opened().train):
        with pytest.raises(ConfigError, match=r"no end to count to; set data.limit"):
            len(counted)
    stream.load_state_dict({**stream.state_dict(), "position": 10**15})
    (rows,) = taken(stream, 1)
    assert rows.index[0] == 10**15


def test_a_limit_ends_the_stream() -> None:
    stream = EndlessStream(opened().train, limit=20)
    assert [len(rows.index) for rows in taken(stream, 9)] == [8, 8, 4]
    assert stream.total == len(stream) == stream.position == 20
    with pytest.raises(FormatError, match="items 20 but the data now has None"):
        EndlessStream(opened().train).load_state_dict(stream.state_dict())
    with pytest.raises(FormatError, match="the cursor stands at 21 of 20 items"):
        stream.load_state_dict({**stream.state_dict(), "position": 21})
    with pytest.raises(ConfigError, match=r"data\.limit=0 must be at least 1"):
        EndlessStream(opened().train, limit=0)


def test_there_may_be_no_test() -> None:
    assert opened(test=0).test is None
    with pytest.raises(ConfigError, match="image_size=8 has no meaning"):
        open_data("teacher", image_size=8)
