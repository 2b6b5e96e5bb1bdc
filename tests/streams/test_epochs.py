"""Several passes over a stream, and images that are changed in each of them."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.errors import ConfigError, FormatError
from streamlearn.streams import Rows, Stream
from streamlearn.streams.augment import shifted
from streamlearn.tasks import Classes


@dataclass
class Pictures:
    """Images whose pixels say which item they are and where they stand."""

    count: int = 20
    name: str = "pictures"
    classes: tuple[str, ...] = ("a", "b")
    feature_shape: tuple[int, ...] = (2, 6, 7)
    reads: list[int] = field(default_factory=list)

    @property
    def task(self) -> Classes:
        return Classes(self.classes)

    def __len__(self) -> int:
        return self.count

    def image(self, item: int) -> NDArray[np.uint8]:
        places = np.arange(84).reshape(2, 6, 7)
        return ((places + 11 * item) % 251).astype(np.uint8)

    def read(self, index: NDArray[np.int64]) -> Rows:
        images = [self.image(int(item)) for item in index]
        features = torch.from_numpy(np.stack(images))
        return Rows(features, torch.from_numpy(index % 2), torch.from_numpy(index.copy()))


def items(stream: Stream, size: int = 3, ahead: bool = False) -> list[list[int]]:
    return [batch.rows.index.tolist() for batch in stream.batches(size, ahead=ahead)]


def flat(batches: list[list[int]]) -> list[int]:
    return [item for batch in batches for item in batch]


def images(stream: Stream, size: int = 3) -> list[tuple[int, int, bytes]]:
    """Epoch, item and pixels of everything that the stream gives."""
    found = []
    for batch in stream.batches(size, ahead=True):
        epoch = (batch.position - 1) // stream.epoch_items
        for item, image in zip(batch.rows.index.tolist(), batch.rows.features, strict=True):
            found.append((epoch, item, image.numpy().tobytes()))
    return found


@pytest.mark.parametrize("ahead", [False, True])
def test_every_epoch_has_the_same_items_in_another_order(ahead: bool) -> None:
    stream = Stream(Pictures(), seed=3, limit=10, epochs=3)
    assert len(stream) == 30
    batches = items(stream, ahead=ahead)
    assert [len(batch) for batch in batches] == [3, 3, 3, 1] * 3  # none spans two epochs
    epochs = [flat(batches[start : start + 4]) for start in (0, 4, 8)]
    assert epochs[0] == flat(items(Stream(Pictures(), seed=3, limit=10)))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({frozenset(epoch) for epoch in epochs}) == 1


def test_a_given_order_stays() -> None:
    found = flat(items(Stream(Pictures(), order="given", limit=4, epochs=2)))
    assert found == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("augment", ["none", "paper"])
def test_a_cursor_saved_within_an_epoch_goes_on_with_the_same_images(augment: str) -> None:
    def made() -> Stream:
        return Stream(Pictures(), seed=3, limit=10, epochs=2, augment=augment)  # type: ignore[arg-type]

    whole = images(made())
    first = made()
    parts = []
    for batch in first.batches(3):
        parts.append(batch)
        if len(parts) == 5:
            break
    second = made()
    second.load_state_dict(first.state_dict())
    assert whole[13:] == images(second)


def test_what_an_image_becomes_depends_on_seed_epoch_and_item_alone() -> None:
    def made(seed: int = 3, limit: int = 12) -> Stream:
        return Stream(Pictures(), seed=seed, limit=limit, epochs=2, augment="paper")

    whole = set(images(made()))
    assert set(images(made(), size=5)) == whole
    assert {pixels for _, _, pixels in images(made(seed=4))} != {pixels for _, _, pixels in whole}
    first, second = ({(i, p) for e, i, p in whole if e == epoch} for epoch in (0, 1))
    assert len(first - second) > 8  # hardly an image is the same in both


def naive(image: NDArray[np.uint8], down: int, right: int, flip: bool) -> NDArray[np.uint8]:
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="reflect")
    height, width = image.shape[1:]
    crop = padded[:, 4 + down : 4 + down + height, 4 + right : 4 + right + width]
    return crop[:, :, ::-1] if flip else crop


def test_shifts_and_flips_are_crops_of_reflected_images() -> None:
    source = Pictures()
    cases = [(d, r, f) for d in range(-4, 5) for r in range(-4, 5) for f in (False, True)]
    batch = torch.from_numpy(np.stack([source.image(i) for i in range(len(cases))]))
    columns: list[Tensor] = [torch.tensor(column) for column in zip(*cases, strict=True)]
    found = shifted(batch, *columns).numpy()
    for item, (case, image) in enumerate(zip(cases, found, strict=True)):
        np.testing.assert_array_equal(image, naive(source.image(item), *case))


def test_every_shift_and_flip_is_drawn_about_as_often() -> None:
    stream = Stream(Pictures(4000), seed=1, augment="paper", order="given")
    images_ = torch.cat([batch.rows.features for batch in stream.batches(1000)])
    flipped = (images_[:, 0, 0, 1].int() - images_[:, 0, 0, 0].int()) % 251
    assert 0.4 < (flipped == 1).double().mean().item() < 0.6


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.epochs=0 must be at least 1"):
        Stream(Pictures(), epochs=0)
    with pytest.raises(ConfigError, match=r"augment=paper needs images .* have shape \(5,\)"):
        Stream(Pictures(feature_shape=(5,)), augment="paper")
    with pytest.raises(ConfigError, match="more than 4 pixels a side"):
        Stream(Pictures(feature_shape=(1, 4, 9)), augment="paper")
    two = Stream(Pictures(), epochs=2)
    with pytest.raises(FormatError, match="with items 20 but the data now has 40"):
        two.load_state_dict(Stream(Pictures()).state_dict())
