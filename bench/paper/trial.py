"""One learner over an encoded stream: learnt once in order, scored on the held-out part."""

import contextlib
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamlearn.errors import NotFiniteError
from streamlearn.kinds import NETWORK_KINDS
from streamlearn.learner import Learner
from streamlearn.scenarios.build import settled
from streamlearn.scenarios.words import resolve

from .codes import Codes, Ready, encoded
from .records import Record

__all__ = ["hardware_line", "learn_and_score", "measure"]

_WINDOW = 2000  # samples of a point of the learning curve
_ROWS = 512
_TRAIN_ROWS = 2000  # of the training accuracy, evenly from the last epoch


def measure(
    words: Sequence[str], extra: Sequence[str], threads: int, scratch: Path, *, whole: bool = True
) -> Record:
    """Learn and score in a process of its own, so that its peak memory is its own.

    Args:
        words: as `streamlearn run` takes them.
        extra: words that say where the data is; they are not recorded.
        threads: that compute.
        scratch: folder of encoded streams.
        whole: also score samples that were learnt, and the linearised network.
    """
    context = multiprocessing.get_context("fork")  # PyTorch is imported once
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, words, extra, threads, scratch, whole))
    process.start()
    theirs.close()
    try:
        result: Record = ours.recv()
    except EOFError:
        result = {"error": "the process was killed"}
    process.join()
    fault = result.pop("fault", None)
    if fault is not None:
        raise SystemExit(f"{' '.join(words)}: {fault}")
    return {"words": list(words), **result, "threads": threads, **hardware_line()}


def _child(
    pipe: Any,
    words: Sequence[str],
    extra: Sequence[str],
    threads: int,
    scratch: Path,
    whole: bool,
) -> None:
    torch.set_num_threads(threads)
    try:
        pipe.send(learn_and_score([*words, *extra], scratch, whole))
    except NotFiniteError as error:  # too high a rate is a result too
        pipe.send({"error": str(error)})
    except Exception as error:
        pipe.send({"fault": repr(error)})
    pipe.close()


def learn_and_score(words: Sequence[str], scratch: Path, whole: bool = True) -> Record:
    """Learn and score in this process; see `measure`."""
    scenario = resolve(words)
    codes = encoded(scenario, scratch)
    settings = settled(scenario.learner_settings(), len(codes.train))
    torch.manual_seed(scenario.seed)
    learner = Learner(codes.classes, settings, encoder=Ready())
    began, cpu = time.perf_counter(), time.process_time()
    curve = _learn(learner, codes, settings.learner.batch)
    record: Record = {
        "seed": scenario.seed,
        "samples": len(codes.train),
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "encode_cpu_seconds": round(codes.seconds, 2),
    }
    began = time.perf_counter()
    record |= _score(learner, codes, codes.test, codes.test_targets, "accuracy", "loss")
    record["score_seconds"] = round(time.perf_counter() - began, 2)
    if whole:
        record |= _score_further(learner, codes)
    memories = learner.memories().values()
    return record | {
        "prequential": curve[-1][2],
        "curve": [[samples, round(accuracy, 4)] for samples, accuracy, _ in curve],
        "tuples": sum(len(memory) for memory in memories),
        "tuple_bytes": sum(memory.nbytes for memory in memories),
        "learner_bytes": learner.nbytes,
        "peak_rss_bytes": _peak_rss_bytes(),
    }


def _learn(learner: Learner, codes: Codes, batch: int) -> list[tuple[int, float, float]]:
    """The curve: samples so far, accuracy in the window before them, accuracy over all of them."""
    curve = []
    hits = window = seen = done = 0
    for epoch in range(0, len(codes.train), codes.epoch):
        stop = epoch + codes.epoch
        for start in range(epoch, stop, batch):
            rows = slice(start, min(start + batch, stop))
            targets = codes.targets[rows]
            scores = learner.learn(codes.rows(codes.train[rows]), targets, index=codes.sample[rows])
            right = int((scores.probabilities.argmax(-1) == targets).sum())
            done, hits, window, seen = rows.stop, hits + right, window + right, seen + len(targets)
            if seen >= _WINDOW or done == len(codes.train):
                curve.append((done, window / seen, hits / done))
                window = seen = 0
    learner.flush()
    return curve


def _score_further(learner: Learner, codes: Codes) -> Record:
    """Samples that were learnt, and half of the held-out ones without the exponential."""
    step = max(1, codes.epoch // _TRAIN_ROWS)
    last = slice(len(codes.train) - codes.epoch, None, step)
    record = _score(
        learner, codes, codes.train[last], codes.targets[last], "train_accuracy", "train_loss"
    )
    if learner.settings.learner.kind in NETWORK_KINDS and learner.memories():
        with learner.linearised():
            record |= _score(
                learner,
                codes,
                codes.test[::2],
                codes.test_targets[::2],
                "linearised",
                "linearised_loss",
            )
    return record


def _score(
    learner: Learner, codes: Codes, held: Tensor, targets: Tensor, accuracy: str, log_loss: str
) -> Record:
    right, total = 0, 0.0
    for start in range(0, len(held), _ROWS):
        rows = slice(start, start + _ROWS)
        probabilities = learner.predict_proba(codes.rows(held[rows]))
        right += int((probabilities.argmax(-1) == targets[rows]).sum())
        said = probabilities.gather(1, targets[rows, None]).double()
        total -= float(said.clamp_min(1e-12).log().sum())
    return {accuracy: right / len(held), log_loss: round(total / len(held), 4)}


def hardware_line() -> Record:
    """The processor, the version of PyTorch, and the day."""
    model, flags = "unknown processor", ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                known = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_bf16": "AMX"}
                flags = ", ".join(known[flag] for flag in known if flag in value.split())
    return {
        "hardware": f"{os.cpu_count()} cores, {model} ({flags})",
        "torch": torch.__version__,
        "day": time.strftime("%Y-%m-%d"),
    }


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
