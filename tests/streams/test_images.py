import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streamlearn.errors import DataError
from streamlearn.streams.images import decode_image, read_header

from .making import pixels

RGB, GREY = (3, 24, 40), (1, 24, 40)


def _saved(image: Image.Image, form: str = "PNG", **how: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **how)
    return buffer.getvalue()


def _constant(mode: str, colour: Any) -> Image.Image:
    return Image.new(mode, (40, 24), colour)


def _sixteen(value: int) -> Image.Image:
    return Image.fromarray(np.full((24, 40), value, dtype=np.uint16))


@pytest.mark.parametrize(
    ("data", "grey", "expected"),
    [
        (_saved(_constant("RGB", (10, 20, 30))), False, (10, 20, 30)),
        (_saved(_constant("L", 77)), True, (77, 77, 77)),
        (_saved(_constant("1", 1)), True, (255, 255, 255)),
        (_saved(_constant("LA", (100, 255))), True, (100, 100, 100)),
        (_saved(_constant("LA", (0, 0))), True, (255, 255, 255)),
        (_saved(_constant("RGBA", (9, 9, 9, 0))), False, (255, 255, 255)),
        (_saved(_constant("P", 0), transparency=0), False, (255, 255, 255)),
        (_saved(_constant("P", 0), transparency=bytes([255])), False, (0, 0, 0)),
        (_saved(_constant("RGB", (1, 2, 3)), transparency=(1, 2, 3)), False, (255, 255, 255)),
        (_saved(_sixteen(32768)), True, (128, 128, 128)),
        (_saved(_sixteen(65535)), True, (255, 255, 255)),
        (_saved(_sixteen(32768), "TIFF"), True, (128, 128, 128)),
        (_saved(_constant("I", 32768), "TIFF"), True, (128, 128, 128)),
        (_saved(_constant("F", 0.5), "TIFF"), True, (128, 128, 128)),
        (_saved(_constant("F", 200.0), "TIFF"), True, (200, 200, 200)),
        (_saved(_constant("P", 0), "GIF"), False, (0, 0, 0)),
    ],
)
def test_every_mode_is_shown_as_it_looks(
    data: bytes, grey: bool, expected: tuple[int, int, int]
) -> None:
    header = read_header(data)
    assert (header.height, header.width, header.grey) == (24, 40, grey)
    colours = decode_image(data, RGB)
    assert colours.dtype == np.uint8
    assert np.array_equal(colours, np.full(RGB, np.reshape(expected, (3, 1, 1))))
    if grey:
        assert np.array_equal(decode_image(data, GREY), np.full(GREY, expected[0]))


def test_a_cmyk_jpeg_keeps_its_colours() -> None:
    data = _saved(_constant("RGB", (200, 40, 90)).convert("CMYK"), "JPEG", quality=95)
    assert not read_header(data).grey
    colours = decode_image(data, RGB).astype(int)
    assert np.abs(colours - np.reshape((200, 40, 90), (3, 1, 1))).max() <= 4


def test_another_size_is_resized() -> None:
    data = _saved(Image.fromarray(pixels(1, 48, 80)))
    image = Image.open(io.BytesIO(data)).resize((40, 24), Image.Resampling.BILINEAR)
    assert np.array_equal(decode_image(data, RGB), np.asarray(image).transpose(2, 0, 1))


def test_a_photograph_is_scaled_down_to_what_it_shows() -> None:
    small = np.array([[[250, 10, 10], [10, 250, 10]], [[10, 10, 250], [240, 240, 240]]], np.uint8)
    large = Image.fromarray(small.repeat(200, 0).repeat(200, 1))
    got = decode_image(_saved(large, "JPEG", quality=95), (3, 10, 10)).astype(int)
    assert np.abs(got[:, [1, 1, 8, 8], [1, 8, 1, 8]].T - small.reshape(4, 3)).max() <= 6


def test_a_moving_picture_counts_by_its_first_frame() -> None:
    frames = [_constant("RGB", colour) for colour in ((255, 0, 0), (0, 0, 255))]
    data = _saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(data, RGB)[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n", "the image is damaged|no image in a known format"),
        (b"plain text", "it is no image in a known format"),
        (_saved(Image.fromarray(pixels(1)), "JPEG")[:-60], "the image is damaged"),
        (_saved(Image.fromarray(pixels(1)))[:-40], "the image is damaged"),
        (_saved(_constant("F", float("nan")), "TIFF"), "pixels that are NaN"),
    ],
)
def test_a_damaged_image_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        decode_image(data, RGB)
