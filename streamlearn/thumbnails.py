"""Thumbnails: a small picture, or the record as JSON, of each stored sample, beside its tuples.

They are notes of a memory as the sample's number is, with the sample's label: so they are saved,
resumed, dropped and compacted with the tuples, and nothing that is learnt or answered looks at
them.
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
    "check_pictures",
    "enlarged",
    "of_pictures",
    "of_texts",
    "picture_shape",
    "text_of",
    "thumbnail_notes",
]

_CUT = "…"


def thumbnail_notes(
    room: int | None, shape: Sequence[int] | None, outputs: int | None
) -> dict[str, Column]:
    """The columns of a thumbnail; none where there is no room for any.

    label: the class's index, or the K numbers. thumbnail: pixels or UTF-8, zeros behind a text.

    Args:
        room: bytes of a thumbnail, its label not counted; None for none.
        shape: of a picture, (channels, height, width); None for records.
        outputs: K, where targets are numbers; None where they are classes.
    """
    if room is None:
        return {}
    label = Column(None, "int64") if outputs is None else Column(outputs, "float64")
    width = room if shape is None else math.prod(picture_shape(shape, room))
    return {LABEL: label, THUMBNAIL: Column(width, "uint8")}


def check_pictures(room: int | None, shape: Sequence[int]) -> None:
    """Refuse samples of which no thumbnail can be made.

    Args:
        room: bytes of a thumbnail; None for none.
        shape: of a sample.

    Raises:
        ConfigError: they are no pictures.
    """
    if room is not None and (len(shape) != 3 or shape[0] not in (1, 3)):
        raise ConfigError(
            f"memory.thumbnails={room} keeps pictures and records, and samples of shape "
            f"{list(shape)} are neither; set memory.thumbnails=none"
        )


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
    check_pictures(room, features.shape[1:])
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


# -- records ---------------------------------------------------------------------------------------


def text_of(record: Record, room: int) -> bytes:
    """A record's features as JSON in UTF-8, in at most so many bytes; cut ones end in "…"."""
    values: Mapping[str, Any] = {str(name): plain(value) for name, value in record.items()}
    text = json.dumps(values, ensure_ascii=False, default=str)
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
