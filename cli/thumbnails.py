"""Pictures on a terminal: two pixels a character, the upper half block in two colours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console
    from rich.text import Text

__all__ = ["can_show", "strip", "thumbnail"]

SIDE = 16
"""Pixels of a picture's longer side, so characters of its width."""

_GAP = 2


def can_show(console: "Console") -> bool:
    """Whether a console has the colours and the half block."""
    unicode = console.encoding.lower().replace("-", "").startswith("utf")
    return unicode and console.color_system in ("256", "truecolor") and not console.no_color


def shrunk(pixels: "NDArray[np.uint8]", side: int) -> "NDArray[np.uint8]":
    """A picture (channels, height, width) as (height, width, 3) of at most so many pixels a side.

    It keeps its proportions, is never enlarged, and has an even height.
    """
    import numpy as np
    from PIL import Image

    grey = pixels.shape[0] == 1
    image = Image.fromarray(pixels[0] if grey else pixels.transpose(1, 2, 0)).convert("RGB")
    factor = min(1.0, side / max(image.size))
    width = max(1, round(image.width * factor))
    height = max(2, 2 * round(image.height * factor / 2))
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BOX)
    return np.asarray(image, dtype=np.uint8)


def thumbnail(pixels: "NDArray[np.uint8]", side: int = SIDE) -> "list[Text]":
    """A picture (channels, height, width) as lines of half blocks."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    def colour(pixel: "NDArray[np.uint8]") -> Color:
        red, green, blue = pixel.tolist()
        return Color.from_rgb(red, green, blue)

    image = shrunk(pixels, side)
    return [
        Text.assemble(
            *(
                ("▀", Style(color=colour(above), bgcolor=colour(below)))
                for above, below in zip(image[row], image[row + 1], strict=True)
            )
        )
        for row in range(0, len(image), 2)
    ]


def strip(
    pictures: "Sequence[tuple[NDArray[np.uint8], str]]", width: int, side: int = SIDE
) -> "list[Text]":
    """Pictures side by side with a line of text below each, as many as a line has room for."""
    from rich.text import Text

    count = max(1, (width + _GAP) // (side + _GAP))
    shown = [(thumbnail(pixels, side), text) for pixels, text in pictures[:count]]
    height = max((len(lines) for lines, _ in shown), default=0)
    gap = Text(" " * _GAP)
    found = []
    for row in range(height):
        cells = [lines[row].copy() if row < len(lines) else Text() for lines, _ in shown]
        for cell in cells:
            cell.pad_right(side - cell.cell_len)
        found.append(gap.join(cells))
    captions = [Text(text[:side]) for _, text in shown]
    for caption in captions:
        caption.pad_right(side - caption.cell_len)
    return [*found, gap.join(captions)] if shown else []
