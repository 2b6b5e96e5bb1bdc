"""What the tests of storage share: memories with known rows, and faults in the primitives."""

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from streamlearn.memory import Memory, Tuples
from streamlearn.storage import Commit, RunPath, RunReader, RunStore, ahead, files
from streamlearn.storage.reader import widened

KEY_WIDTH = 6
VALUE_WIDTH = 3
BLOCK_ROWS = 512
LAYER = "hidden.0"
PRIMITIVES = (
    "open_file",
    "write_all",
    "truncate",
    "sync",
    "rename",
    "link",
    "remove",
    "make_directory",
    "remove_directory",
)


EVERY = int(os.environ.get("STREAMLEARN_EVERY", "8"))
"""Of steps of the same kind each so-many-th is tried; `STREAMLEARN_EVERY=1` tries all of them."""


def spread(kinds: Sequence[Hashable], every: int = EVERY) -> list[int]:
    """Which steps of a sequence let something happen: of each kind the first and every n-th more.

    The number behind the last step comes at the end: nothing happens then.
    """
    seen: Counter[Hashable] = Counter()
    chosen = []
    for number, kind in enumerate(kinds):
        if seen[kind] % every == 0:
            chosen.append(number)
        seen[kind] += 1
    return [*chosen, len(kinds)]


class Kinds:
    """What kind of step a call of a primitive is: its name, and which sort of file it is about.

    The columns of a layer are of one sort, and so are files that differ in numbers alone.
    """

    def __init__(self) -> None:
        self._open: dict[int, Path] = {}

    def kind(self, name: str, *arguments: Any) -> str:
        """The kind of a call with some arguments."""
        place = arguments[1 if name in ("rename", "link") else 0]
        if isinstance(place, int):
            if stat.S_ISDIR(os.fstat(place).st_mode):
                return f"{name} of a directory"
            if place not in self._open:
                return f"{name} of another file"
            place = self._open[place]
        words = re.sub(r"\d+", "#", "/".join(place.parts[-2:]))
        return f"{name} of {re.sub('^(key|weight|value|born)/', 'column/', words)}"

    def opened(self, path: Path, descriptor: int | None) -> None:
        """Note that a file was opened."""
        assert descriptor is not None
        self._open[descriptor] = path


def make_memory(dtype: torch.dtype = torch.float32) -> Memory:
    return Memory(KEY_WIDTH, VALUE_WIDTH, dtype=dtype, block_rows=BLOCK_ROWS)


def grow(memory: Memory, rows: int, step: int) -> None:
    """Append rows that depend on nothing but their number and the step."""
    random = torch.Generator().manual_seed(1000 * step + rows)
    key = torch.randn(rows, memory.key_width, generator=random, dtype=torch.float64)
    value = torch.randn(rows, memory.value_width, generator=random, dtype=torch.float64)
    key[::3] = -0.0
    key[1::7] *= 1e-40  # numbers that are subnormal in float32
    weight = torch.rand(rows, generator=random, dtype=torch.float64)
    memory.append(Tuples(key, weight, value), step)


def change(memory: Memory, rows: list[int], step: int) -> None:
    """Give some rows other weights and values, which depend on nothing but these arguments."""
    random = torch.Generator().manual_seed(7000 + step)
    weight = torch.rand(len(rows), generator=random, dtype=torch.float64)
    value = torch.randn(len(rows), memory.value_width, generator=random, dtype=torch.float64)
    memory.rewrite(torch.tensor(rows), weight=weight, value=value)


def write_ahead(store: RunStore, memory: Memory, *, wait: bool = True) -> None:
    """Let a thread write the blocks that are full, however small they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "_LEAST_BYTES", 1)
        store.write_ahead({LAYER: memory})
    if wait and store._pending is not None:
        store._pending.wait()


def make_store(runs: RunPath, name: str = "run") -> RunStore:
    return RunStore.create(runs, name, scenario={"seed": 1}, scenario_name="test")


def commit(store: RunStore, memory: Memory, step: int, **changes: Any) -> Commit:
    arguments: dict[str, Any] = {
        "step": step,
        "samples": step * 10,
        "status": "running",
        "state": {"step": step, "rows": len(memory), "tensor": torch.arange(step + 1.0)},
        "memories": {LAYER: memory},
        "summary": {"accuracy": 0.5},
    }
    return store.commit(**{**arguments, **changes})


def load(reader: RunReader, dtype: torch.dtype = torch.float32, name: str = LAYER) -> Memory:
    memory = make_memory(dtype)
    reader.load_memory(name, memory)
    return memory


def assert_same_bits(found: Memory, expected: Memory) -> None:
    assert (len(found), found.live) == (len(expected), expected.live)
    assert found.max_key_square == expected.max_key_square
    assert found.block_count == expected.block_count
    for index in range(expected.block_count):
        one, other = found.host_columns(index), expected.host_columns(index)
        assert list(one) == list(other)
        for name, column in other.items():
            assert one[name].dtype == column.dtype
            np.testing.assert_array_equal(
                one[name].reshape(-1).view(np.uint8), column.reshape(-1).view(np.uint8), name
            )


def committed_columns(memory: Memory) -> dict[str, np.ndarray[Any, Any]]:
    blocks = [memory.host_columns(index) for index in range(memory.block_count)]
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def readable_columns(memory: Memory) -> dict[str, np.ndarray[Any, Any]]:
    """The rows as numbers: bfloat16 as the float32 that it equals."""
    dtypes = {name: column.dtype for name, column in memory.columns().items()}
    return {name: widened(rows, dtypes[name]) for name, rows in committed_columns(memory).items()}


def assert_zarr_shows(path: Path, rows: Mapping[str, Any], most: int, least: int) -> None:
    """A plain zarr reader sees between `least` and `most` rows, and they are right."""
    group = zarr.open_group(path / "memory.zarr", mode="r")
    layers = group["layers"]
    assert isinstance(layers, zarr.Group)
    if least == 0 and LAYER not in layers:
        return
    for name, expected in rows.items():
        array = group[f"layers/{LAYER}/{name}"]
        assert isinstance(array, zarr.Array)
        assert least <= array.shape[0] <= most
        found = np.asarray(array[...])
        assert found.tobytes() == expected[: len(found)].tobytes()


class Crash(BaseException):
    """The process ends here, as far as the files are concerned."""


class Faults:
    """Lets the n-th call of any primitive fail, and counts the calls.

    A crash fails every later call too, and a write that fails has written half. Syncs are counted
    but not made: it is not the loss of power that is simulated, and they are slow.
    """

    NEVER = 1 << 30

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.tried = 0
        self.kinds: list[str] = []
        self._kinds = Kinds()
        self._at: int | None = None
        self._failure: Callable[[], BaseException] = Crash
        self._for_ever = True
        for name in PRIMITIVES:
            patch.setattr(files, name, self._wrap(name, getattr(files, name)))

    def crash_at(self, call: int) -> None:
        self.calls, self._at, self._failure, self._for_ever = 0, call, Crash, True
        self.kinds = []

    def fail_at(self, call: int, number: int) -> None:
        self.calls, self._at, self._for_ever = 0, call, False
        self.kinds = []
        self._failure = lambda: OSError(number, os.strerror(number))

    def none(self) -> None:
        self.calls, self._at = 0, None

    def steps(self, every: int = EVERY) -> Iterator[int]:
        """Which calls to let fail, one after the other.

        The first is never reached, so that its turn tells of what kinds the calls are.
        """
        yield self.NEVER
        chosen = spread(self.kinds, every)[:-1]
        self.tried = len(chosen)
        yield from chosen

    def _wrap(self, name: str, primitive: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            hit = self._at is not None and (
                number >= self._at if self._for_ever else number == self._at
            )
            if self._at is not None:
                self.kinds.append(self._kinds.kind(name, *arguments))
            if not hit:
                done = None if name == "sync" else primitive(*arguments, **more)
                if name == "open_file":
                    self._kinds.opened(arguments[0], done)
                return done
            if name == "write_all" and number == self._at:
                descriptor, data, *rest = arguments
                primitive(descriptor, data[: len(data) // 2], *rest)
            raise self._failure()

        return call


def snapshot(path: Path, *, folders: bool = True) -> dict[str, tuple[int, int, int]]:
    """Every file (and directory) below a path with inode, size and time of change."""
    found = {}
    for folder, below, names in os.walk(path):
        for name in (*(below if folders else ()), *names):
            entry = Path(folder) / name
            facts = entry.stat()
            found[str(entry.relative_to(path))] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return found


REFUSALS = (errno.ENOSPC, errno.EIO)
