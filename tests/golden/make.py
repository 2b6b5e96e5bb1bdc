"""Make the small run of this version of the format: `python -m tests.golden.make`.

Done once for each version; what is there is never made again, for it must open for ever.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits

from streamlearn import Learner
from streamlearn.events import Progress
from streamlearn.scenarios.build import build_loop, open_splits
from streamlearn.scenarios.session import Session
from streamlearn.scenarios.words import override, resolve
from streamlearn.storage import FORMAT_VERSION, RunReader, RunStore
from streamlearn.storage.objects import as_file

HERE = Path(__file__).parent
WORDS = (
    "scenario=digits-onepass",
    "data.limit=900",
    "encoder.fit=64",
    "encoder.width=8",
    "network.hidden=1",
    "memory.block_rows=512",
    "learner.batch=16",
    "learner.device=cpu",
    "learner.dtype=float32",
    "checkpoint.keep=2",
    "checkpoint.every_steps=20",
    "run.dir=runs",
    "run.name=digits",
)
STOP = 36
SAMPLES = 20


def first_digits() -> torch.Tensor:
    """The first digits, as the stream gives them."""
    return torch.tensor(load_digits().data[:SAMPLES] / 16, dtype=torch.float32)


def load_learner(path: Path) -> Learner:
    """The learner of a run's newest commit."""
    reader = RunReader(path)
    scenario = override(reader.scenario, [])
    loop = build_loop(scenario, open_splits(scenario)).loop
    loop.load_state_dict(reader.state()["loop"])
    for name, memory in loop.learner.memories().items():
        reader.load_memory(name, memory)
    learner: Learner = loop.learner
    return learner


def change_some_rows(path: Path) -> None:
    """A commit in which rows have other values and some are dead, as forgetting would make it."""
    with RunStore.open(path) as store:
        reader = store.read()
        before = reader.manifest()
        if before is None:
            raise SystemExit("the run has no commit")
        memories = load_learner(path).memories()
        for name, memory in memories.items():
            memory.clear()
            store.open_memory(name, memory)
            value = torch.linspace(-0.01, 0.01, 3 * memory.value_width).reshape(3, -1)
            memory.rewrite(torch.tensor([20, 511, 560]), value=value)
            memory.drop(torch.tensor([30, 565]))
        store.commit(
            step=before.step,
            samples=before.samples,
            status="stopped",
            state=reader.state(),
            memories=memories,
            summary=before.summary,
            keep=3,
        )


def make(target: Path) -> None:
    """Make a run that was stopped on the way, and what is expected of it."""
    torch.set_num_threads(1)
    with Session.start(resolve(WORDS)) as session:
        for event in session.events():
            if isinstance(event, Progress) and event.step == STOP:
                session.request_stop("SIGINT")
    change_some_rows(as_file(session.path))
    probabilities = load_learner(as_file(session.path)).predict_proba(first_digits())
    reader = RunReader(session.path)
    manifest = reader.manifest()
    if manifest is None:
        raise SystemExit("the run has no commit")
    rows = {
        f"{name}/{column}": hashlib.sha256(values.tobytes()).hexdigest()
        for name, entry in manifest.layers.items()
        for column, values in reader.columns(name, 0, entry.rows).items()
    }
    expected = {
        "steps": [*(kept.step for kept in manifest.kept), manifest.step],
        "samples": manifest.samples,
        "rows": {name: entry.rows for name, entry in manifest.layers.items()},
        "sha256": rows,
        "probabilities": probabilities.tolist(),
    }
    shutil.copytree(as_file(session.path), target)
    (target / "lock").write_bytes(b"")  # who made it is nobody's business
    text = json.dumps(expected, indent=1) + "\n"
    (target.parent / f"{target.name}.json").write_text(text)


if __name__ == "__main__":
    golden = HERE / f"v{FORMAT_VERSION}"
    if golden.exists():
        sys.exit(f"{golden} is there already and must stay as it is")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make(golden)
