"""Storage against what it stands on: ratios within one run, each beside the plain thing.

    python -m bench.storage [append] [retrieval] [budget] [--gigabytes 4] [--folder FOLDER]

append: 128-row batches into a memory and commits of it by a thread, against writing the same bytes
to one file with one fsync; before and after, for a disk that slows down under way. PyTorch has one
thread meanwhile: its own would wait for the processor that the commit has. A virtual machine may
hand out fresh memory more slowly than a disk takes it, and an append needs twice what a plain file
does; MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_, if set to many gigabytes, let the process
keep what it had in the round before.

retrieval: queries to a memory that lies wholly on the disk, and with half of it in memory, against
a plain sequential read of the same files. The page cache is dropped before each of them
(POSIX_FADV_DONTNEED on every file), so all of it comes from the disk.

budget: one run of that size, filled with made-up tuples, is resumed by the command line twice: with
all of its memory in RAM and under a tenth of that. Final states and shards are compared to the bit;
then `info`, `inspect`, `verify` are timed on it, imports included.

--folder decides which disk is measured. The table goes to stdout.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from streamlearn.layers import WeightedSoftmax
from streamlearn.memory import Memory, Tuples
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import resolve
from streamlearn.storage import RunReader, RunStore
from streamlearn.tiers import Tiers

BATCH = 128
QUERIES = 64  # at a time: a batch of learning, unless it is set
CLASSES = 10
PIECE = 16 << 20
LAYER = "output"
CPU = torch.device("cpu")
ROUNDS = 3


def pool(width: int, count: int = 8) -> list[Tuples]:
    """Made-up batches; the same ones are used again and again, which nothing here notices."""
    random = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        key = torch.randn(BATCH, width, generator=random)
        key /= key.square().mean(-1, keepdim=True).sqrt()
        value = 0.01 * torch.randn(BATCH, CLASSES, generator=random)
        batches.append(Tuples(key, torch.rand(BATCH, generator=random) * 0.01, value))
    return batches


def commit(store: RunStore, memory: Memory, step: int, *, wait: bool = True) -> Any:
    """Commit, or begin to, what there is."""
    return store.begin(
        step=step,
        samples=step * BATCH,
        status="running",
        state={"step": step},
        memories={LAYER: memory},
        summary={},
        wait=wait,
    )


# -- append --------------------------------------------------------------------------------------


def plain_write(path: Path, size: int) -> float:
    """Seconds to write this many bytes to one file, with one fsync at its end."""
    data = np.random.default_rng(0).bytes(PIECE)
    began = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    left = size
    while left > 0:
        left -= os.write(descriptor, data[: min(left, PIECE)])
    os.fsync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def append(
    folder: Path, width: int, dtype: torch.dtype, size: int, interval: float
) -> Iterator[list[str]]:
    """Rows of the table: appending this many bytes, a few times, between plain files."""
    batches = pool(width)
    stored = (width + CLASSES) * dtype.itemsize + 4 + 8  # bytes of a row on the disk
    steps = size // (stored * BATCH)
    rows = steps * BATCH * stored
    name = f"D={width} {str(dtype).removeprefix('torch.')}"
    os.sync()
    warm(3 * rows)
    plain = plain_write(folder / "plain", rows)
    ratios = []
    for _ in range(ROUNDS):
        before = plain
        os.sync()
        warm(3 * rows)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        seconds, waited, written = append_once(folder, batches, width, dtype, steps, interval)
        torch.set_num_threads(threads)
        os.sync()
        warm(3 * rows)
        plain = plain_write(folder / "plain", rows)
        ratios.append(0.5 * (before + plain) / seconds)
        yield [name, f"{rows / 1e9:.2f} GB", f"{rows / before / 1e6:.0f}, {rows / plain / 1e6:.0f}",
               f"{rows / seconds / 1e6:.0f}", f"{ratios[-1]:.0%}", f"{written / rows:.3f}",
               f"{waited / seconds:.1%}"]  # fmt: skip
    yield [name, "median", "", "", f"{statistics.median(ratios):.0%}", "", ""]


def warm(size: int) -> None:
    """Touch memory and let it go: a virtual machine may hand it out slowly the first time."""
    pages = np.empty(size, np.uint8)
    pages[::4096] = 1


def append_once(
    folder: Path, batches: list[Tuples], width: int, dtype: torch.dtype, steps: int, interval: float
) -> tuple[float, float, int]:
    """Seconds to append and commit, of these waited for commits, and bytes written."""
    memory = Memory(width, CLASSES, dtype=dtype)
    written, waited = 0, 0.0
    with RunStore.create(folder, "append", scenario={}, scenario_name="bench") as store:
        commit(store, memory, 0).result()
        began = last = time.perf_counter()
        pending = None
        for step in range(1, steps + 1):
            memory.append(batches[step % len(batches)], born=step)
            now = time.perf_counter()
            if pending is not None and pending.done:
                written += pending.result().bytes_written
                pending = None
            if pending is None and now - last > interval:
                last = now
                pending = commit(store, memory, step, wait=False)
                waited += time.perf_counter() - now
            elif pending is None:
                store.write_ahead({LAYER: memory})
        end = time.perf_counter()
        if pending is not None:
            written += pending.result().bytes_written
        written += commit(store, memory, steps + 1).result().bytes_written
        seconds = time.perf_counter() - began
        waited += time.perf_counter() - end
    shutil.rmtree(folder / "append")
    return seconds, waited, written


# -- retrieval -----------------------------------------------------------------------------------


def shards(run: Path) -> list[Path]:
    """The files of a run's shards, in the order in which a scan needs them."""
    columns = run / "memory.zarr" / "layers" / LAYER
    found: list[tuple[int, Path]] = []
    for column in ("key", "value", "weight"):
        for path in (columns / column).glob("c.*"):
            found.append((int(path.name.split(".")[1]), path))
    return [path for _, path in sorted(found)]


def drop_cache(paths: list[Path]) -> None:
    """Let the system forget what it holds of files."""
    os.sync()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def plain_read(paths: list[Path]) -> float:
    """Seconds to read files one after the other."""
    buffer = np.empty(PIECE, np.uint8)
    began = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        offset = 0
        while count := os.preadv(descriptor, [buffer.data], offset):
            offset += count
        os.close(descriptor)
    return time.perf_counter() - began


def make_run(folder: Path, width: int, dtype: torch.dtype, size: int) -> Path:
    """A run with this many bytes of tuples."""
    batches = pool(width)
    tiers = Tiers(CPU, host_budget=1 << 30)
    memory = Memory(width, CLASSES, dtype=dtype, tiers=tiers)
    with RunStore.create(folder, "retrieval", scenario={}, scenario_name="bench") as store:
        commit(store, memory, 0).result()
        step = 0
        while memory.nbytes < size:
            step += 1
            memory.append(batches[step % len(batches)], born=step)
        commit(store, memory, step).result()
    return folder / "retrieval"


def retrieval(folder: Path, width: int, dtype: torch.dtype, size: int) -> Iterator[list[str]]:
    """Rows of the table: answering from the disk, and from half of it, in turn."""
    run = make_run(folder, width, dtype, size)
    paths = shards(run)
    total = sum(path.stat().st_size for path in paths)
    random = torch.Generator().manual_seed(1)
    query = torch.randn(QUERIES, width, generator=random)
    query /= query.square().mean(-1, keepdim=True).sqrt()
    store = RunStore.open(run)
    alone = Memory(width, CLASSES, dtype=dtype)
    least = alone.tiers.least
    layers = [
        open_layer(store, width, dtype, room) for room in (least, least + total // 2, 1 << 40)
    ]
    name = f"D={width} {str(dtype).removeprefix('torch.')}"
    found: list[tuple[float, ...]] = []
    with torch.inference_mode():
        for layer in layers:
            layer(query)  # what stays in memory comes in
        for _ in range(ROUNDS):
            drop_cache(paths)
            times, outputs = [plain_read(paths)], []
            for layer in layers:
                drop_cache(paths)
                began = time.perf_counter()
                outputs.append(layer(query))
                times.append(time.perf_counter() - began)
            if not all(torch.equal(outputs[0], output) for output in outputs):
                raise SystemExit("the answers differ")
            found.append(tuple(times))
            yield [name, f"{total / 1e9:.2f} GB", *_rates(total, found[-1])]
    ratios = [(plain / disk, disk / half) for plain, disk, half, _ in found]
    disk, half = (statistics.median(column) for column in zip(*ratios, strict=True))
    yield [name, "median", "", "", "", "", f"{disk:.0%}", f"{half:.2f}"]
    store.close()
    shutil.rmtree(run)


def open_layer(store: RunStore, width: int, dtype: torch.dtype, budget: int) -> WeightedSoftmax:
    """A layer whose memory is a run's, under a budget."""
    layer = WeightedSoftmax(width, CLASSES, dtype=dtype)
    layer.eval()
    layer.memory = Memory(width, CLASSES, dtype=dtype, tiers=Tiers(CPU, host_budget=budget))
    store.open_memory(LAYER, layer.memory)
    return layer


def _rates(total: int, times: tuple[float, ...]) -> list[str]:
    plain, disk, half, _ = times
    rates = [f"{total / seconds / 1e6:.0f}" for seconds in times]
    return [*rates, f"{plain / disk:.0%}", f"{disk / half:.2f}"]


# -- budget --------------------------------------------------------------------------------------


def made_up_data(path: Path, samples: int, width: int) -> None:
    """Ten noisy shapes."""
    random = np.random.default_rng(3)
    shapes = random.normal(0, 1, (CLASSES, width)).astype(np.float32)
    labels = random.integers(0, CLASSES, samples)
    features = shapes[labels] + random.normal(0, 3, (samples, width)).astype(np.float32)
    np.savez(path, x=features.astype(np.float32), y=labels)


def settings(folder: Path, name: str) -> list[str]:
    """The words of a run on the made-up data."""
    return ["data=npz", f"data.path={folder / 'data.npz'}", "data.holdout=0.1", "data.limit=3072",
             "encoder=standardise", "encoder.fit=512", "encoder.constant=0", "network.hidden=0",
             "layer=softmax", "learner.batch=128", "learner.dtype=float32",
             f"run.dir={folder}", f"run.name={name}"]  # fmt: skip


def fill(folder: Path, width: int, size: int) -> Path:
    """A stopped run in the middle of its stream, whose memory holds this many bytes."""
    batches = pool(width)
    with Session.start(resolve(settings(folder, "big"))) as session:
        for _ in session.events():
            memories = session._loop.learner.memories()
            if not memories:
                continue
            memory = memories[LAYER]
            while memory.nbytes < size:
                tuples = batches[(len(memory) // BATCH) % len(batches)]
                memory.append(tuples._replace(weight=0 * tuples.weight), born=1)
            session.request_stop("filled")
    return folder / "big"


def digest(run: Path) -> str:
    """Of everything that a run's tuples and results are."""
    reader = RunReader(run)
    manifest = reader.manifest()
    if manifest is None:
        raise SystemExit("the run was never committed")
    total = hashlib.sha256()
    for name, entry in manifest.layers.items():
        for shard in range(entry.shards):
            for column in entry.columns:
                total.update(reader.shard(name, column, shard).tobytes())
    kept = {k: v for k, v in manifest.summary.items() if k != "seconds"}
    total.update(json.dumps(kept, sort_keys=True).encode())
    return total.hexdigest()


def command(*words: str) -> tuple[float, int, list[dict[str, Any]]]:
    """Seconds, peak of resident bytes and JSON lines of one command."""
    began = time.perf_counter()
    peak = 0
    with tempfile.TemporaryFile("w+") as output:
        process = psutil.Popen([sys.executable, "-m", "streamlearn.cli", *words], stdout=output)
        while process.poll() is None:
            # What the system says afterwards would count the parent too, from before the exec.
            with contextlib.suppress(psutil.Error):
                peak = max(peak, process.memory_info().rss)
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} failed")
        output.seek(0)
        lines = [json.loads(line) for line in output if line.startswith("{")]
    return seconds, peak, lines


def copy(run: Path, name: str) -> Path:
    """Another run with the same shards; they are never written to, so links will do."""

    def link(source: str, target: str) -> None:
        os.link(source, target) if "/c." in source else shutil.copy2(source, target)

    return Path(shutil.copytree(run, run.with_name(name), copy_function=link))


def budget(folder: Path, width: int, size: int) -> Iterator[list[str]]:
    """Rows of the table: the same run with and without a budget."""
    made_up_data(folder / "data.npz", 6000, width)
    _, peak, _ = command("run", *settings(folder, "bare"), "--json")
    yield ["the same run without those tuples", "", f"peak RSS {peak / 1e6:.0f} MB"]
    run = fill(folder, width, size)
    manifest = RunReader(run).manifest()
    stored = sum(entry.nbytes for entry in manifest.layers.values()) if manifest else 0
    yield ["memory", f"{stored / 1e9:.2f} GB", ""]
    yield ["budget", f"{size / 1e10:.3f} GB", ""]
    found = {}
    for name, words in (("in RAM", []), ("budget", [f"memory.host_budget={size // 10}"])):
        other = copy(run, name.replace(" ", "-"))
        seconds, peak, lines = command("resume", str(other), "--json", *words)
        found[name] = digest(other)
        yield [f"{name}: resume, learn, test", f"{seconds:.1f} s", f"peak RSS {peak / 1e6:.0f} MB"]
        began = next(line for line in lines if line["event"] == "progress")
        yield [f"{name}: first batch learnt", f"{began['seconds']:.2f} s of the run", ""]
        shutil.rmtree(other) if name == "in RAM" else None
    same = "yes" if found["in RAM"] == found["budget"] else "NO"
    yield ["final tuples and results the same to the bit", same, ""]
    for what in (["info", str(run)], ["inspect", str(run)], ["verify", str(run), "--json"]):
        repeats = 1 if what[0] == "verify" else 5
        times = [command(*what)[0] for _ in range(repeats)]
        yield [what[0], f"{statistics.median(times):.2f} s", f"median of {repeats}"]


def show(title: str, heads: list[str], rows: Iterable[list[str]]) -> None:
    """Print a table, and on stderr each row as soon as it is known."""
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head)
    for row in rows:
        print(*row, sep=" | ", file=sys.stderr, flush=True)
        table.add_row(*row)
    Console(width=140).print(table)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", default=["append", "retrieval", "budget"])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between commits")
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args()
    size = int(chosen.gigabytes * 1e9)
    kinds = ((256, torch.bfloat16), (3072, torch.float32))
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        parts: dict[str, Callable[[], None]] = {
            "append": lambda: show(
                f"append, commits every {chosen.interval:g} s",
                ["rows", "bytes of rows", "plain file before, after, MB/s", "appended, MB/s",
                 "ratio", "written/rows", "waited"],
                (row for kind in kinds
                 for row in append(folder, *kind, size, chosen.interval)),
            ),
            "retrieval": lambda: show(
                f"retrieval, {QUERIES} queries, page cache dropped",
                ["rows", "files", "plain read, MB/s", "on disk", "half on disk", "in RAM",
                 "on disk/plain", "half/on disk"],
                (row for kind in (*kinds, (256, torch.float32))
                 for row in retrieval(folder, *kind, size)),
            ),
            "budget": lambda: show(
                "one run under a tenth of its memory", ["what", "figure", ""],
                budget(folder, 3072, size),
            ),
        }  # fmt: skip
        for part in chosen.parts:
            parts[part]()


if __name__ == "__main__":
    main()
