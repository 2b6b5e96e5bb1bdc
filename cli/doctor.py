"""`doctor`: what will be used on this machine and why, and what is missing, with the remedy."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from .format import clean, count, size
from .json_lines import to_json
from .output import Output, output_code
from .packages import GIVES, packages

__all__ = ["Finding", "doctor", "findings"]

_MISTAKE = 2
_LITTLE = 1 << 30
"""Bytes of memory or disk below which something is said."""
_NONE_LEFT = 16 << 20
"""Bytes of disk below which not even a short run has room."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    state: "ok", "note" where something is less than it could be, "problem" where runs will fail.
    remedy: what to do, "" where there is nothing to do.
    """

    name: str
    state: Literal["ok", "note", "problem"]
    text: str
    remedy: str = ""


def doctor(folder: str, *, json: bool) -> int:
    """Print what was found, and give the exit code: 0, or 2 where something has to be mended."""
    output = Output(sys.stdout)
    found = list(findings(folder))
    problems = sum(finding.state == "problem" for finding in found)
    if json:
        output.line(to_json({"usable": not problems, "findings": [asdict(one) for one in found]}))
    else:
        width = max(len(finding.name) for finding in found)
        for finding in found:
            output.line(clean(f"{finding.state:<7}  {finding.name:<{width}}  {finding.text}"))
            if finding.remedy:
                output.line(clean(f"{'':<7}  {'':<{width}}  → {finding.remedy}"))
        what = "1 problem" if problems == 1 else f"{problems} problems"
        output.line(f"{what} to mend" if problems else "all that is needed is here")
    return output_code(output.failed) or (_MISTAKE if problems else 0)


def findings(folder: str) -> Iterator[Finding]:
    """Look at everything.

    Args:
        folder: where runs are kept, `run.dir`.
    """
    yield from _system()
    yield from _packages()
    yield from _computing()
    yield from _place(folder)
    yield from _terminal()


def _system() -> Iterator[Finding]:
    version = platform.python_version()
    place = f"{platform.system()} {platform.machine()}"
    if sys.platform in ("linux", "darwin"):
        yield Finding("system", "ok", f"Python {version} on {place}")
    else:
        yield Finding("system", "note", f"Python {version} on {place}, which is not tried",
                      "use Linux or macOS")  # fmt: skip


def _packages() -> Iterator[Finding]:
    try:
        asked = packages()
    except metadata.PackageNotFoundError:
        yield Finding("packages", "note", "streamlearn is not installed, so ranges are not known",
                      "install it: pip install -e . in its folder")  # fmt: skip
        return
    yield Finding("streamlearn", "ok", metadata.version("streamlearn"))
    for package in asked:
        wanted = f"{package.name}{package.range}"
        if package.fits:
            yield Finding(package.name, "ok", f"{package.found} (supported: {package.range})")
        elif package.extra and package.found is None:
            gives = GIVES.get(package.name, "what needs it")
            yield Finding(package.name, "note", f"not installed; it would give {gives}",
                          f"pip install 'streamlearn[{package.extra}]'")  # fmt: skip
        else:
            text = "missing" if package.found is None else (
                f"{package.found} is not supported, {package.range} is"
            )  # fmt: skip
            yield Finding(package.name, "problem", text, f"pip install '{wanted}'")


def _computing() -> Iterator[Finding]:
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("device", "problem", f"PyTorch cannot be imported: {error}",
                      "install it again: https://pytorch.org/get-started")  # fmt: skip
        return
    from streamlearn.hardware import resolve_hardware

    chosen = resolve_hardware()
    dtype = str(chosen.dtype).removeprefix("torch.")
    try:
        ones = torch.ones(8, 8, device=chosen.device, dtype=chosen.dtype)
        ones.matmul(ones).sum().item()
    except RuntimeError as error:
        yield Finding("device", "problem", f"{chosen.device} cannot compute: {error}",
                      "set learner.device=cpu")  # fmt: skip
    else:
        yield Finding("device", "ok", f"{chosen.device}{_about_device(chosen.device.type)}")
    yield Finding("dtype", "ok", f"{dtype}: {chosen.reason}")
    yield _threads(torch.get_num_threads())
    yield _memory()


def _about_device(kind: str) -> str:
    """What is known of the graphics card, or why there is none."""
    import torch

    if kind != "cuda":
        why = "has no CUDA" if torch.version.cuda is None else "finds no CUDA device"
        return f": this PyTorch {why}"
    free, total = torch.cuda.mem_get_info()
    return f": {torch.cuda.get_device_name()}, {size(free)} of {size(total)} free"


def _threads(used: int) -> Finding:
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{used} of {there} processors"
    if said := os.environ.get("OMP_NUM_THREADS"):
        return Finding("threads", "ok", f"{text}, as OMP_NUM_THREADS={said} says")
    return Finding("threads", "ok", f"{text}; OMP_NUM_THREADS=N for another number")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    text = f"{size(memory.available)} of {size(memory.total)} free"
    if memory.available < _LITTLE:
        return Finding("memory", "note", text, "keep tuples on disk: memory.host_budget=200MiB")
    return Finding("memory", "ok", text)


def _place(folder: str) -> Iterator[Finding]:
    from streamlearn.storage.objects import ObjectPath, resolve

    place = resolve(folder)
    if isinstance(place, ObjectPath):
        yield Finding("runs", "ok", f"{place}, an object store, which is not looked at")
        return
    place = place.absolute()
    there = next(path for path in (place, *place.parents) if path.exists())
    if not there.is_dir():
        yield Finding("runs", "problem", f"{there} is a file", "name another folder: run.dir=…")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding("runs", "problem", f"{there} cannot be written to",
                      "give yourself the permission, or name another: run.dir=…")  # fmt: skip
        return
    yield _disk(place, there)


def _disk(place: Path, there: Path) -> Finding:
    usage = shutil.disk_usage(there)
    text = f"{place}, {size(usage.free)} of {size(usage.total)} free"
    remedy = "make room, or name a folder on another disk: run.dir=…"
    if usage.free < _NONE_LEFT:
        return Finding("runs", "problem", text, remedy)
    if usage.free < _LITTLE:
        return Finding("runs", "note", text, remedy)
    return Finding("runs", "ok", text)


def _terminal() -> Iterator[Finding]:
    from rich.console import Console

    from .live import can_draw, speaks_unicode

    console = Console()
    if not can_draw():
        yield Finding(
            "terminal", "note", "the output is no terminal, so progress comes as plain lines"
        )
        return
    yield Finding(
        "terminal", "ok", f"{count(console.width)}×{count(console.height)}: the dashboard is shown"
    )
    if os.environ.get("NO_COLOR"):
        yield Finding("colour", "note", "off, as NO_COLOR says")
    elif console.color_system is None:
        yield Finding("colour", "note", "this terminal has none", "set TERM=xterm-256color")
    else:
        yield Finding("colour", "ok", console.color_system)
    if speaks_unicode(console):
        yield Finding("characters", "ok", console.encoding)
    else:
        yield Finding("characters", "note", f"{console.encoding}: curves are drawn in ASCII",
                      "use a locale of UTF-8, such as LC_ALL=C.UTF-8")  # fmt: skip
    if sys.stdin is not None and sys.stdin.isatty():
        yield Finding("keys", "ok", "the input is a terminal")
    else:
        yield Finding("keys", "note", "the input is no terminal, so keys are not heard")
