"""Numbers, sizes, times and paths as a person reads them; ASCII only, of bounded width."""

import math
import re
import time as clock_time
import unicodedata
from functools import lru_cache

__all__ = [
    "clean",
    "clock",
    "count",
    "duration",
    "figure",
    "layer_title",
    "number",
    "percent",
    "rate",
    "shortened",
    "size",
    "span",
]

_WIDENED = re.compile(r"^((?:\d+-)?(?:output|hidden\.\d+))\.\d+$")

MISSING = "-"
"""What stands where there is no number (yet)."""


def count(value: int | None) -> str:
    """A whole number with thousands separated: `26,112`."""
    return MISSING if value is None else f"{value:,}"


def number(value: float | None, digits: int = 3) -> str:
    """A plain number, or `-` where it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.{digits}e}"


def figure(value: float | None) -> str:
    """A number in any unit by four figures or more: `0.06214`, `12.5`, `61,914`, `1.24e+07`."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 9999999.5 else f"{value:.4g}"


def percent(fraction: float | None, digits: int = 2) -> str:
    """A fraction as a percentage: `0.6821` gives `68.21%`."""
    if fraction is None or not math.isfinite(fraction):
        return MISSING
    return f"{100 * fraction:.{digits}f}%"


def size(value: float | None) -> str:
    """Bytes in binary units with three or four figures: `312 MiB`, `1.25 GiB`."""
    if value is None or not math.isfinite(value):
        return MISSING
    amount = max(0.0, float(value))
    if amount < 1024:
        return f"{amount:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        amount /= 1024
        if amount < 1023.5 or unit == "PiB":
            break
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}"


def rate(value: float | None) -> str:
    """Samples a second: `1,310/s`."""
    if value is None or not math.isfinite(value) or value < 0:
        return MISSING
    return f"{value:,.0f}/s" if value >= 10 else f"{value:.2g}/s"


def duration(seconds: float | None) -> str:
    """A span of time, never negative: `0:07`, `1:02:33`, `3d 04:05`."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    whole = max(0, round(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        days, hour = divmod(hours, 24)
        return f"{days}d {hour:02d}:{minute:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def span(seconds: float | None) -> str:
    """A span of time that may be a moment: `0.02 s`, `7.3 s`, then as `duration`."""
    if seconds is None or not math.isfinite(seconds) or seconds >= 59.95:
        return duration(seconds)
    seconds = max(0.0, seconds)
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"


@lru_cache(maxsize=1024)
def layer_title(name: str) -> str:
    """A layer's name without the number that a network made wider gives it on the disk.

    `output.2` gives `output`, `hidden.0.2` gives `hidden.0`.
    """
    return _WIDENED.sub(r"\1", name)


def clock(time: float) -> str:
    """A moment as local time of day: `12:01:03`; `--:--:--` for one that no calendar has."""
    try:
        return clock_time.strftime("%H:%M:%S", clock_time.localtime(time))
    except (OverflowError, OSError, ValueError):
        return "--:--:--"


def clean(text: str) -> str:
    """Text on one line, without control characters that a terminal would obey.

    Names of files and runs come from outside and may hold escape sequences.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        " " if character in "\n\r\t" else "?" if _unprintable(character) else character
        for character in text
    )


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and dots in at most so many letters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _unprintable(character: str) -> bool:
    # Cc: C0 and C1 controls; Cf: direction marks; Cs: bytes that were no text; Zl, Zp: line ends.
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
