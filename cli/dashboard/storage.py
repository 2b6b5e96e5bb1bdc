"""Where bytes are and what is safe: tiers and their budgets, the disk, and the last checkpoints."""

from rich.text import Text

from streamlearn.cli.format import MISSING, clock, count, percent, size, span
from streamlearn.cli.plot import bar, styled

from .memory import bound, checkpoint_age
from .page import Page, listed, rule

__all__ = ["storage"]

_BAR = 24


def storage(page: Page, width: int, room: int) -> list[Text]:
    """Bytes by place, with what each may have at most, and what checkpoints cost."""
    model = page.model
    lines = [rule(page, "storage and cache", width), *_tiers(page)]
    every, steps = page.setting("checkpoint", "every_seconds"), page.setting(
        "checkpoint", "every_steps"
    )  # fmt: skip
    due = "" if every is None else f"every {span(float(every))}"
    due += f", every {count(steps)} steps" if steps else ""
    lines += [
        Text(),
        rule(page, "checkpoints", width),
        *listed(page, [("last", checkpoint_age(page)), *([("due", due)] if due else [])]),
    ]
    saved = list(model.checkpoints)
    if saved:
        cost = sum(event.waited for event in saved)
        written = sum(event.bytes_written for event in saved)
        lines += listed(page, [
            ("of late", f"{len(saved)}: {size(written)} written, {span(cost)} waited for them")
        ])  # fmt: skip
        head = f"{'at':<8} {'step':>12} {'written':>10} {'on disk':>10} {'took':>8} {'waited':>8}"
        lines.append(styled(head, "dim"))
        free = max(0, room - len(lines))
        for event in saved[-free:][::-1] if free else []:
            lines.append(styled(
                f"{clock(event.time):<8} {count(event.step):>12} {size(event.bytes_written):>10} "
                f"{size(event.disk_bytes):>10} {span(event.seconds):>8} {span(event.waited):>8}"
            ))  # fmt: skip
    return lines


def _tiers(page: Page) -> list[Text]:
    model, memory = page.model, page.model.memory
    tuples = sum(layer.bytes for layer in model.layers.values())
    near = 0 if memory is None else memory.device_bytes + memory.host_bytes
    host, device = (page.setting("memory", f"{tier}_budget") for tier in ("host", "device"))
    if model.device == "cpu" and device and host:
        host = min(device, host)  # both are budgets of the same memory
    rows: list[tuple[str, int | None, int | None]] = [
        ("tuples on the device", memory.device_bytes if memory else None, device),
        ("tuples in host memory", memory.host_bytes if memory else None, host),
        ("tuples on disk alone", max(0, tuples - near) if memory else None, None),
        ("process", memory.rss_bytes if memory else None, None),
        ("run on disk", model.disk_bytes, None),
    ]
    lines = []
    for name, used, most in rows:
        line = styled(f"{name:<22} ", "dim")
        line.append(f"{size(used):>10}")
        if most and used is not None:
            done, rest = bar(used / most, _BAR, page.unicode)
            line.append("  ").append(done, "magenta").append(rest, "dim")
            line.append(f" {percent(used / most, 0)} of {size(most)}")
        lines.append(line)
    if bound(page):
        lines += listed(page, bound(page))
    if memory and tuples and near < tuples:
        share = near / tuples
        lines.append(styled(f"{percent(share, 0)} of the tuples stay in memory; the others are "
                            "read at each step", "dim"))  # fmt: skip
    if memory is None:
        lines.append(styled(f"{MISSING}: not known before the first progress", "dim"))
    return lines
