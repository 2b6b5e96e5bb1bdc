"""One image file to pixels: every mode that PIL reads, as 8-bit grey or RGB of a given size."""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from streamlearn.errors import DataError

__all__ = ["IMAGE_SUFFIXES", "Header", "decode_image", "read_header"]

IMAGE_SUFFIXES = frozenset(
    [
        ".avif",
        ".bmp",
        ".gif",
        ".jfif",
        ".jpe",
        ".jpeg",
        ".jpg",
        ".jp2",
        ".pbm",
        ".pgm",
        ".png",
        ".pnm",
        ".ppm",
        ".tga",
        ".tif",
        ".tiff",
        ".webp",
    ]
)
"""What the name of an image file may end with; other files are not looked at."""

_GREY = frozenset(("1", "L", "LA", "La", "I", "F"))


@dataclass(frozen=True, slots=True)
class Header:
    """What an image file says before its pixels are read: pixels, and whether it has colours."""

    height: int
    width: int
    grey: bool


def read_header(data: bytes) -> Header:
    """The header of an image file.

    Raises:
        DataError: the bytes are no image; the message is only the reason.

    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            grey = image.mode in _GREY or image.mode.startswith("I;16")
            return Header(image.height, image.width, grey)
    except Exception as error:  # damaged files make PIL's readers raise nearly anything
        raise DataError(_reason(data, error)) from error


def decode_image(data: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The pixels of an image file, resized bilinearly where it has another size.

    Transparent pixels are shown on white, 16-bit grey keeps its upper eight bits, and of a moving
    picture the first frame counts.

    Args:
        data: the bytes of the file.
        shape: (channels, height, width) to be returned, with 1 channel or 3.

    Raises:
        DataError: the bytes are no image, or damaged; the message is only the reason.

    """
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(io.BytesIO(data)) as file:
            if file.width >= 4 * width and file.height >= 4 * height:
                # A JPEG this much larger than needed is decoded at a half, a quarter, an eighth.
                file.draft(None, (2 * width, 2 * height))
            plain = file.mode == mode and "transparency" not in file.info
            image: Image.Image = file if plain else _converted(file, mode)
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            pixels: NDArray[np.uint8] = np.asarray(image, dtype=np.uint8)
    except Exception as error:  # damaged files make PIL's readers raise nearly anything
        raise DataError(_reason(data, error)) from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if image.mode == "I" or image.mode.startswith("I;16"):
        # 16 bits a pixel; 32 where PIL widens them or a TIFF has more.
        values = np.asarray(image).astype(np.int64).clip(0, 65535) >> 8
        image = Image.fromarray(values.astype(np.uint8))
    elif image.mode == "F":
        numbers = np.asarray(image)
        if not np.isfinite(numbers).all():
            raise DataError("it has pixels that are NaN or infinite")
        scale = 255.0 if numbers.max() <= 1.0 else 1.0
        image = Image.fromarray((numbers * scale).round().clip(0, 255).astype(np.uint8))
    elif image.mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        image = Image.new("RGBA", clear.size, "white")
        image.alpha_composite(clear)
    return image.convert(mode)


def _reason(data: bytes, error: Exception) -> str:
    if isinstance(error, DataError):
        return str(error)
    if not data:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "it is no image in a known format"
    return f"the image is damaged ({error})"
