"""Thumbnails: of each stored sample a small picture, or its record or numbers as JSON.

They are notes beside its tuples as the sample's number is, with the sample's label: so they are
saved, resumed, dropped and compacted with the tuples, and nothing that is learnt or answered looks
at them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from streamlearn.blocks import LABEL, THUMBNAIL, Column
from streamlearn.errors import ConfigError
from streamlearn.records import Record, plain

__all__ = [
    "as_picture",
    "as_text",
    "enlarged",
    "is_picture",
    "of_pictures",
    "of_samples",
    "of_texts",
    "picture_shape",
    "text_of",
    "thumbnail_notes",
]

_CUT = "…"
_EXACT = 2.0**53
"""Whole numbers below it are written without a point, larger ones with an exponent."""


def thumbnail_notes(
    room: int | None, shape: Sequence[int] | None, outputs: int | None
) -> dict[str, Column]:
    """The columns of a thumbnail; none where there is no room for any.

    label: the class's index, or the K numbers. thumbnail: pixels or UTF-8, zeros behind a text.

    Args:
        room: bytes of a thumbnail, its label not counted; None for none.
        shape: of a sample, of which only pictures have pixels; None for records.
        outputs: K, where targets are numbers; None where they are classes.
    """
    if room is None:
        return {}
    label = Column(None, "int64") if outputs is None else Column(outputs, "float64")
    pixels = shape is not None and is_picture(shape)
    width = math.prod(picture_shape(shape or (), room)) if pixels else room
    return {LABEL: label, THUMBNAIL: Column(width, "uint8")}


def is_picture(shape: Sequence[int]) -> bool:
    """Whether a sample of this shape is one: (1 or 3 channels, height, width)."""
    return len(shape) == 3 and shape[0] in (1, 3)


def of_samples(features: Tensor, room: int) -> Tensor:
    """Thumbnails (B, bytes) uint8 of pictures (B, channels, height, width), or of any numbers.

    Raises:
        ConfigError: they are pictures, but not of bytes.
    """
    if is_picture(features.shape[1:]):
        return of_pictures(features, room)
    if features.dtype == torch.bfloat16:  # which numpy does not know
        features = features.to(torch.float32)
    elif features.dtype == torch.bool:
        features = features.to(torch.uint8)
    return of_texts([_numbers_text(row, room) for row in features.cpu().numpy()], room)


# -- pictures --------------------------------------------------------------------------------------


def picture_shape(shape: Sequence[int], room: int) -> tuple[int, int, int]:
    """(channels, height, width) of the largest picture in so many bytes, not larger than `shape`.

    height/width stay in proportion but for rounding down to whole pixels.
    """
    channels, height, width = shape
    factor = min(1.0, math.sqrt(room / (channels * height * width)))
    return channels, max(1, int(height * factor)), max(1, int(width * factor))


def of_pictures(features: Tensor, room: int) -> Tensor:
    """Thumbnails (B, bytes) uint8 of pictures (B, channels, height, width): means of their pixels.

    Raises:
        ConfigError: they are not of bytes.
    """
    if features.dtype != torch.uint8:
        raise ConfigError(
            f"memory.thumbnails={room} keeps pictures of bytes, and these are {features.dtype}; "
            "set memory.thumbnails=none"
        )
    size = picture_shape(features.shape[1:], room)[1:]
    features = features.cpu()
    if tuple(features.shape[2:]) != size:
        mean = F.adaptive_avg_pool2d(features.to(torch.float32), size)
        features = mean.round().to(torch.uint8)
    return features.flatten(1)


def as_picture(thumbnail: Tensor, shape: Sequence[int], room: int) -> NDArray[np.uint8]:
    """The pixels (channels, height, width) of a thumbnail (bytes,) of a sample of `shape`."""
    pixels: NDArray[np.uint8] = thumbnail.cpu().view(picture_shape(shape, room)).numpy()
    return pixels


def enlarged(pixels: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.uint8]:
    """A picture at the height and width of `shape`, bilinear."""
    if pixels.shape == tuple(shape):
        return pixels
    wide = torch.from_numpy(pixels.astype(np.float32))[None]
    large = F.interpolate(wide, size=tuple(shape[1:]), mode="bilinear", align_corners=False)
    found: NDArray[np.uint8] = large[0].round().clamp(0, 255).to(torch.uint8).numpy()
    return found


# -- records and numbers ---------------------------------------------------------------------------


def text_of(record: Record, room: int) -> bytes:
    """A record's features as JSON in UTF-8, in at most so many bytes; cut ones end in "…"."""
    values: Mapping[str, Any] = {str(name): plain(value) for name, value in record.items()}
    return _cut(json.dumps(values, ensure_ascii=False, default=str), room)


def _numbers_text(numbers: NDArray[Any], room: int) -> bytes:
    """The same for an array: each number in as few digits as say which one it is."""

    def shortest(value: Any) -> Any:
        if isinstance(value, list):
            return [shortest(one) for one in value]
        number = float(value)
        return int(number) if number.is_integer() and abs(number) < _EXACT else number

    return _cut(json.dumps(shortest(numbers.astype(str).tolist())), room)


def _cut(text: str, room: int) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= room:
        return data
    start = data[: room - len(_CUT.encode())].decode("utf-8", "ignore")
    return (start + _CUT).encode()


def of_texts(texts: Sequence[bytes], room: int) -> Tensor:
    """Thumbnails (B, room) uint8 of what `text_of` gave."""
    rows = b"".join(text.ljust(room, b"\0") for text in texts)
    return torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(len(texts), room)


def as_text(thumbnail: Tensor) -> str:
    """The text of a thumbnail (bytes,); it ends in "…" if it was cut."""
    return bytes(thumbnail.cpu().numpy()).rstrip(b"\0").decode("utf-8", "replace")
