"""Each tuple says which sample it is of, through all that happens to tuples."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamlearn.layers import GaugeSoftmax
from streamlearn.learner import Learner
from streamlearn.memory import PRIOR, SAMPLE, SAMPLE_NOTE, UNKNOWN, Memory
from streamlearn.openworld import OpenLearner
from streamlearn.optim import FunctionalSGD
from streamlearn.settings import settings_of

D, C = 5, 3


def features(samples: Tensor, *shape: int) -> Tensor:
    """Features that say which sample they are of."""
    return torch.cat([row(int(sample), *shape) for sample in samples])


def row(sample: int, *shape: int) -> Tensor:
    return torch.randn(1, *(shape or (D,)), generator=torch.Generator().manual_seed(sample))


def learner(**sections: Any) -> Learner:
    every: dict[str, Any] = {"encoder": {"kind": "standardise", "fit": 8}, "network": {"hidden": 1}}
    every["learner"] = {"dtype": "float64", "device": "cpu", "batch": 4}
    for name, section in sections.items():
        every[name] = {**every.get(name, {}), **section}
    return Learner(C, **every)


def learn(into: Learner, samples: Tensor) -> None:
    for part in torch.split(samples, 4):
        into.learn(features(part), part % C, index=part)


def known(memory: Memory) -> list[int]:
    rows = torch.arange(len(memory))
    there = memory.gather(rows, ("born", SAMPLE))
    assert bool((there[SAMPLE][there["born"] == PRIOR] == UNKNOWN).all())
    return there[SAMPLE][there["born"] != PRIOR].tolist()


def is_of_its_sample(found: Learner) -> None:
    """The first layer's keys are the codes of their samples, scaled to length √D."""
    memory = next(iter(found.memories().values()))
    samples = known(memory)
    key = memory.gather(torch.arange(len(memory) - len(samples), len(memory)), ("key",))["key"]
    codes = found.encode(features(torch.tensor(samples))).to(key.dtype)
    expected = codes / codes.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(key, expected, rtol=1e-5, atol=1e-6)


SAMPLES = torch.tensor([7, 100, 3, 55, 21, 8, 9, 31, 4, 62, 90, 17, 2, 5, 6, 11])


def test_held_back_and_learnt_samples_are_known_in_every_layer_and_resumed(tmp_path: Path) -> None:
    one = learner()
    learn(one, SAMPLES[:12])
    one.save(tmp_path / "one")
    again = Learner.load(tmp_path / "one")
    learn(again, SAMPLES[12:])
    assert [known(m) for m in again.memories().values()] == [SAMPLES.tolist()] * 2
    is_of_its_sample(again)


def test_without_an_index_samples_are_counted() -> None:
    one = learner()
    for part in torch.split(SAMPLES, 4):
        one.learn(features(part), part % C)
    assert [known(m) for m in one.memories().values()] == [list(range(16))] * 2


def test_rehearsal_and_updates_keep_the_sample_of_a_row() -> None:
    for how in ({"rehearsal": 3}, {"revisit": "update"}, {"revisit": "update", "rehearsal": 2}):
        one = learner(learner=how)
        for _ in range(2):
            learn(one, SAMPLES)
        twice = "revisit" not in how
        expected = SAMPLES.tolist() * (2 if twice else 1)
        assert [known(m) for m in one.memories().values()] == [expected] * 2
        is_of_its_sample(one)


def test_new_tuples_in_a_ring_bring_their_samples() -> None:
    one = learner(memory={"rows": 16 + 6}, learner={"rehearsal": 2})
    learn(one, SAMPLES)
    samples = SAMPLES.tolist()
    assert [known(m) for m in one.memories().values()] == [[*samples[12:], *samples[10:12]]] * 2
    is_of_its_sample(one)


def test_dropped_tuples_and_samples_without_a_gradient_leave_others_as_they_are() -> None:
    layer = GaugeSoftmax(D, C, dtype=torch.float64, notes=SAMPLE_NOTE)
    growth = FunctionalSGD(layer)
    layer.train()
    loss = layer(features(SAMPLES[:4]).double()) * torch.tensor([[1.0], [0.0], [2.0], [0.0]])
    loss.sum().backward()
    growth.step(notes={SAMPLE: SAMPLES[:4]})
    assert known(layer.memory) == [7, 3]
    layer(features(SAMPLES[:2]).double()).sum().backward()
    growth.step()  # nobody says which samples these are
    assert known(layer.memory) == [7, 3, UNKNOWN, UNKNOWN]
    layer.memory.drop(torch.tensor([16]))
    assert known(layer.memory) == [7, 3, UNKNOWN, UNKNOWN]


def test_each_token_of_a_vision_transformer_is_of_its_image() -> None:
    one = learner(
        encoder={"constant": 0},
        network={"kind": "vit", "hidden": 1, "layers": "growing", "patch": 2, "width": 8,
                 "heads": 2, "output": "growing"},
        learner={"kind": "parametric"},
    )  # fmt: skip
    for part in torch.split(SAMPLES, 4):
        one.learn(features(part, 1, 4, 4), part % C, index=part)
    tokens, output = (known(memory) for memory in one.memories().values())
    assert tokens == [sample for sample in SAMPLES.tolist() for _ in range(4)]
    assert output == SAMPLES.tolist()


def test_records_are_known_through_the_warm_up_widening_and_bytes() -> None:
    def make() -> OpenLearner:
        return OpenLearner(settings_of({"learner": {"batch": 4, "dtype": "float64"}}), warmup=8)

    def records(part: list[int]) -> list[dict[str, float]]:
        wide = 3 if part[0] < 100 else 20  # more features than there was room for
        return [{f"x{i}": float((sample * (i + 3)) % 7) for i in range(wide)} for sample in part]

    one, counted = make(), make()
    samples = [*range(40, 53), *range(100, 107)]
    for start in range(0, 20, 3):
        part = samples[start : start + 3]
        one.learn(records(part), [sample % 2 for sample in part], part)
        counted.learn(records(part), [sample % 2 for sample in part])
        if start == 3:  # in the warm-up
            one, _ = OpenLearner.from_bytes(one.to_bytes()[0])
    assert one.widened == 1
    assert [known(memory) for memory in one.memories().values()] == [samples] * 2
    assert [known(memory) for memory in counted.memories().values()] == [list(range(20))] * 2


def test_identity_costs_eight_bytes_and_changes_no_bit() -> None:
    one, bare = learner(), learner()
    learn(one, SAMPLES[:8])
    state = one.state_dict()
    del state["identified"]  # as before there was such a column
    bare.load_state_dict(state)
    for name, memory in bare.memories().items():
        for columns in one.memories()[name].host_blocks():
            memory.load_columns({n: c for n, c in columns.items() if n != SAMPLE})
    learn(one, SAMPLES[8:])
    learn(bare, SAMPLES[8:])
    for name, memory in one.memories().items():
        other = bare.memories()[name]
        assert memory.row_bytes == other.row_bytes + 8
        for column, values in other.host_columns(0).items():
            assert values.tobytes() == memory.host_columns(0)[column].tobytes()
