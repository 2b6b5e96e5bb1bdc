"""Domains in turn, and streams of rare classes: what changes, what stays, and where it resumes."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlearn.errors import ConfigError, FormatError
from streamlearn.streams import DomainName, Domains, InDomains, Splits, Stream, open_data
from streamlearn.streams.arrays import ArrayDataset
from streamlearn.streams.experiences import labels_of, long_tailed

KINDS: tuple[DomainName, ...] = get_args(DomainName)
SHAPE = (3, 12, 10)


def pictures(count: int = 90, seed: int = 0) -> ArrayDataset:
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, *SHAPE), dtype=np.uint8)
    return ArrayDataset("pictures", ["a", "b", "c"], images, np.arange(count, dtype=np.int64) % 3)


@pytest.fixture(scope="module")
def digits() -> Splits:
    return open_data("digits")


def rows_of(stream: Stream, size: int = 16, **options: Any) -> list[Any]:
    return [
        (batch.rows.features.numpy().tobytes(), batch.rows.targets.tolist())
        for batch in stream.batches(size, **options)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_domain_is_the_data_and_the_others_are_not(kind: DomainName) -> None:
    domains = Domains(kind, 4, SHAPE, seed=7)
    images = torch.from_numpy(pictures(6)._features)
    index = torch.arange(6)
    found = [domains(images, index, number) for number in range(4)]
    assert torch.equal(found[0], images)
    assert len({one.numpy().tobytes() for one in found}) == len(set(domains.names)) == 4
    for one in found:
        assert one.shape == images.shape
        assert one.dtype == torch.uint8
    again = Domains(kind, 4, SHAPE, seed=7)
    assert torch.equal(again(images, index, 3), found[3])
    assert torch.equal(again(images[4:5], index[4:5], 3), found[3][4:5])  # in any batch
    assert domains(images[:0], index[:0], 2).shape == (0, *SHAPE)
    if kind != "rotate":
        assert not torch.equal(Domains(kind, 4, SHAPE, seed=8)(images, index, 3), found[3])


def test_a_permutation_moves_whole_pixels_and_features_of_vectors() -> None:
    images = torch.from_numpy(pictures(2)._features)
    found = Domains("permute", 3, SHAPE, 1)(images, torch.arange(2), 2)
    before, after = (set(map(tuple, i[0].flatten(1).T.tolist())) for i in (images, found))
    assert before == after
    vectors = torch.arange(12.0).reshape(2, 6)
    moved = Domains("permute", 3, (6,), 1)(vectors, torch.arange(2), 1)
    assert sorted(moved[0].tolist()) == [0, 1, 2, 3, 4, 5]
    assert torch.equal(moved[1], moved[0] + 6)


def test_images_are_rotated_by_equal_steps() -> None:
    domains = Domains("rotate", 2, (1, 9, 9), 0)
    assert domains.names == ("rotate 0°", "rotate 90°")
    image = torch.randint(0, 256, (3, 1, 9, 9), generator=torch.Generator().manual_seed(1))
    found = domains(image.to(torch.uint8), torch.arange(3), 1)
    assert (found.int() - image.rot90(1, (2, 3)).int()).abs().max() <= 1
    assert Domains("rotate", 5, SHAPE, 0).names[1:3] == ("rotate 36°", "rotate 72°")


def test_noise_has_the_deviation_that_is_said_and_another_one_held_out() -> None:
    domains = Domains("noise", 5, (1, 50, 50), 3)
    assert domains.names[0::4] == ("noise σ 0.0", "noise σ 64.0")
    grey = torch.full((40, 1, 50, 50), 128, dtype=torch.uint8)
    for number, deviation in ((1, 32.0), (2, 64 / 2**0.5)):
        noise = domains(grey, torch.arange(40), number).double() - 128
        assert abs(float(noise.mean())) < 0.5
        assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
    train, test = (domains(grey, torch.arange(40), 2, held_out=held) for held in (False, True))
    assert (train != test).double().mean() > 0.9
    assert len({row.numpy().tobytes() for row in train}) == 40
    odd = Domains("noise", 2, (1, 3, 5), 3)(grey[:2, :, :3, :5], torch.arange(2), 1)
    assert odd.shape == (2, 1, 3, 5)


def test_brightness_and_contrast_are_those_of_the_name() -> None:
    domains = Domains("brightness", 6, SHAPE, 4)
    images = torch.from_numpy(pictures(3)._features)
    for number, name in enumerate(domains.names):
        first, second = name.split(", ")
        shift, contrast = int(first.split()[1]), float(second.split()[1])
        expected = (128 + contrast * (images.double() - 128) + shift).round().clamp(0, 255)
        assert torch.equal(domains(images, torch.arange(3), number).double(), expected)
        assert 0.4 <= contrast <= 1.6
        assert -64 <= shift <= 64


@pytest.mark.parametrize("kind", KINDS)
def test_domains_come_in_equal_parts_with_all_classes_in_each(kind: DomainName) -> None:
    dataset = pictures()
    stream = Stream(dataset, order="domains", experiences=4, domain=kind, seed=5, limit=82)
    assert [e.stop - e.start for e in stream.experiences] == [21, 21, 20, 20]
    assert stream.domains is not None
    assert [e.named(dataset.classes) for e in stream.experiences] == [
        (name,) for name in stream.domains.names
    ]
    shuffled = Stream(dataset, seed=5, limit=82)
    found = list(stream.batches(8))
    index = torch.cat([batch.rows.index for batch in found])
    assert torch.equal(index, torch.cat([b.rows.index for b in shuffled.batches(8)]))
    for batch in found:
        start = batch.position - len(batch.rows.index)
        number = next(n for n, e in enumerate(stream.experiences) if start < e.stop)
        assert batch.position <= stream.experiences[number].stop  # none has items of two
        plain = dataset.read(batch.rows.index.numpy()).features
        expected = stream.domains(plain, batch.rows.index, number)
        assert torch.equal(batch.rows.features, expected)
    for experience in stream.experiences:
        own = index[experience.start : experience.stop] % 3
        assert set(own.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("options", [
    *({"order": "domains", "experiences": 4, "domain": kind} for kind in KINDS),
    {"imbalance": 0.1}, {"imbalance": 0.3, "order": "given"},
    {"imbalance": 0.3, "order": "classes"},
    {"imbalance": 0.3, "order": "domains", "experiences": 2, "domain": "noise"},
    {"imbalance": 0.3, "epochs": 2},
])  # fmt: skip
def test_a_cursor_that_is_put_back_gives_the_same_batches(options: dict[str, Any]) -> None:
    whole = rows_of(Stream(pictures(), **options))
    for stop in range(1, len(whole)):
        stream = Stream(pictures(), **options)
        batches = stream.batches(16, ahead=True)
        for _ in range(stop):
            next(batches)
        again = Stream(pictures(), **options)
        again.load_state_dict(stream.state_dict())
        assert whole[:stop] + rows_of(again, ahead=True) == whole


def test_the_state_of_another_order_is_refused() -> None:
    def stream(**options: Any) -> Stream:
        return Stream(pictures(), **options)

    turned = stream(order="domains", experiences=3, domain="rotate")
    noisy = stream(order="domains", experiences=3, domain="noise")
    with pytest.raises(FormatError, match="with domain 'rotate' but the data now has 'noise'"):
        noisy.load_state_dict(turned.state_dict())
    with pytest.raises(FormatError, match=r"with imbalance None but the data now has 1\.0"):
        stream(imbalance=1.0).load_state_dict(stream().state_dict())
    assert {"domain", "imbalance"}.isdisjoint(stream().state_dict())


def test_held_out_items_are_spread_over_the_domains_or_all_in_one() -> None:
    dataset = pictures(40, seed=3)
    domains = Domains("noise", 3, SHAPE, 2)
    held = InDomains(dataset, domains)
    index = np.array([7, 3, 11, 30], np.int64)
    plain = dataset.read(index).features
    for number in range(3):
        found = held.read_in(number, index)
        expected = domains(plain, torch.from_numpy(index), number, held_out=True)
        assert torch.equal(found.features, expected)
        assert found.targets.tolist() == (index % 3).tolist()
    mixed = held.read(index).features
    for place, item in enumerate(index):
        assert torch.equal(mixed[place], held.read_in(int(item) % 3, index).features[place])
    assert len(held) == 40
    assert (held.labels() == labels_of(dataset)).all()
    assert (held.name, held.classes, held.feature_shape) == ("pictures", ("a", "b", "c"), SHAPE)
    assert held.task == dataset.task


# -- rare classes ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(lambda c: sum(c) > 0),
    ratio=st.floats(0.001, 1.0),
    seed=st.integers(0, 2**32),
)
def test_counts_of_classes_fall_to_the_ratio(counts: list[int], ratio: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    items = np.random.default_rng(seed).permutation(len(labels))
    kept = items[long_tailed(items, labels, len(counts), ratio, seed)]
    found = np.bincount(labels[kept], minlength=len(counts))
    steps = np.arange(len(counts)) / max(len(counts) - 1, 1)
    wanted = np.maximum(np.round(max(counts) * ratio**steps), 1)
    rank = np.argsort(_order_of(len(counts), seed))
    assert (found == np.minimum(counts, wanted[rank])).all()
    for label in range(len(counts)):  # the first ones of each class stay
        assert (
            kept[labels[kept] == label].tolist()
            == [item for item in items if labels[item] == label][: found[label]]
        )


def _order_of(classes: int, seed: int) -> Any:
    words = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(0x7A11,))).random_raw(classes)
    return np.argsort(words, kind="stable")


def test_a_long_tailed_stream_keeps_its_order(digits: Splits) -> None:
    labels = labels_of(digits.train)
    plain: dict[str, list[int]] = {}
    for order in ("given", "shuffled"):
        whole, part = (
            np.concatenate([b.rows.index.numpy() for b in Stream(
                digits.train, order=order, seed=3, imbalance=ratio).batches(64)])
            for ratio in (None, 0.05)
        )  # fmt: skip
        assert part.tolist() == [item for item in whole.tolist() if item in set(part.tolist())]
        plain[order] = sorted(part.tolist())
    assert plain["given"] == plain["shuffled"]
    counts = np.sort(np.bincount(labels[plain["given"]]))
    assert counts[0] == round(np.bincount(labels).max() * 0.05)
    assert counts[-1] > 130
    turns = Stream(digits.train, order="classes", experiences=5, seed=3, imbalance=0.05, limit=200)
    assert turns.total == 200
    other = Stream(digits.train, seed=4, imbalance=0.05)
    assert sorted(other._items.tolist()) != plain["given"]
    one = Stream(digits.train, seed=3, imbalance=1.0)  # classes have nearly as many as each other
    assert len(one) == len(digits.train)


def test_orders_that_cannot_be_are_refused(digits: Splits, tmp_path: Path) -> None:
    train = digits.train

    def refused(message: str, dataset: Any = train, **options: Any) -> None:
        with pytest.raises(ConfigError, match=message):
            Stream(dataset, **options)

    turn: dict[str, Any] = {"order": "domains", "experiences": 3, "domain": "permute"}
    for kind in ("rotate", "brightness", "noise"):
        refused(rf"domain={kind} needs images, but items have shape \(64,\)",
                **{**turn, "domain": kind})  # fmt: skip
    refused(r"epochs=2 is not possible where domains come in turn", **turn, epochs=2)
    refused(r"experiences=9000 is not possible with 1438 items", **{**turn, "experiences": 9000})
    refused(r"order=domains needs to know which and how many", order="domains", experiences=3)
    refused(r"order=domains needs to know which and how many", order="domains", domain="permute")
    refused(r"domain=permute means nothing for data\.order=shuffled", domain="permute")
    refused(r"imbalance=0 must be above 0 and at most 1", imbalance=0.0)
    refused(r"imbalance=2 must be above 0 and at most 1", imbalance=2.0)
    numbers = open_data("river", name="TrumpApproval").train
    refused(r"cannot be made imbalanced: it has no classes.*leave data\.imbalance out",
            numbers, imbalance=0.5)  # fmt: skip
    stream = Stream(numbers, **turn)  # targets may be numbers
    assert stream.experiences[1].named(()) == ("permute 2",)
