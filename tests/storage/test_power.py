"""The power goes at steps of commits and of going back: what is left opens at a commit.

Steps of every kind, of each every so-many-th; `STREAMLEARN_EVERY=1 pytest
tests/storage/test_power.py` lets it go at every single one.
"""

import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlearn.errors import StreamlearnError
from streamlearn.storage import RunReader, RunStore, files
from streamlearn.storage.objects import as_file
from streamlearn.storage.verify import verify
from streamlearn.storage.writing import Writing

from .power import Recorder, Tree, fingerprint, write_tree
from .story import PARTS, begin, go_on, memory_at, part_of
from .support import assert_same_bits, load, spread

SAMPLES = 1


def record(path: Path, patch: pytest.MonkeyPatch, *, syncs: bool = True) -> list[tuple[int, Tree]]:
    """What may be left after steps of the story, and which part had been acknowledged."""
    rehearsal = Path(shutil.copytree(path, path.parent / "rehearsal"))
    steps: list[tuple[int, str]] = []
    _tell(rehearsal, patch, syncs, lambda recorder, part: steps.append((part, recorder.steps[-1])))
    chosen = set(spread(steps))
    left: dict[tuple[int, int], Tree] = {}
    rng = random.Random(5)
    numbers = itertools.count()

    def look(recorder: Recorder, part: int) -> None:
        if next(numbers) in chosen:
            for tree in recorder.states(rng, SAMPLES):
                left.setdefault((part, fingerprint(tree)), tree)

    _tell(path, patch, syncs, look)
    assert len(steps) > 100
    return [(part, tree) for (part, _), tree in left.items()]


def _tell(
    path: Path, patch: pytest.MonkeyPatch, syncs: bool, look: Callable[[Recorder, int], None]
) -> None:
    """Let the story happen; look after each step, at the part that had been acknowledged, too."""
    acknowledged = 0
    with patch.context() as context:
        recorder = Recorder(path, context)
        if not syncs:
            context.setattr(files, "sync", lambda descriptor: None)
        recorder.looks = lambda: look(recorder, acknowledged)
        with RunStore.open(path) as store:
            for part in go_on(store, 0):
                acknowledged = part
                recorder.steps.append("acknowledged")
                look(recorder, acknowledged)


@pytest.mark.timeout(900)  # hundreds of losses
def test_whatever_a_loss_of_power_leaves_opens_at_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = as_file(begin(tmp_path / "runs"))
    # Something is there that no manifest names, and has to be put away first.
    shutil.copy(original / "manifest.json", original / "commits" / "00000002.json")
    (original / "state" / "000000000001.safetensors").write_bytes(b"stray")
    left = record(original, monkeypatch)
    monkeypatch.setattr(files, "sync", lambda descriptor: None)
    rng = random.Random(7)
    path = tmp_path / "left"
    parts = set()
    for acknowledged, tree in left:
        write_tree(path, tree)
        assert {damage.file for damage in verify(path).damage} <= {"lock"}
        with RunStore.open(path) as store:
            part = part_of(path, acknowledged)
            parts.add(part)
            if rng.random() < 0.1:
                for _ in go_on(store, part):
                    pass
                assert_same_bits(load(RunReader(path)), memory_at(PARTS - 1))
                assert verify(path).damage == ()
        shutil.rmtree(path)
    assert parts == set(range(PARTS))
    assert len(left) > 100


@pytest.mark.parametrize("omitted", ["files", "names", "directories"])
def test_the_simulation_finds_a_sync_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, omitted: str
) -> None:
    original = as_file(begin(tmp_path / "runs"))
    with monkeypatch.context() as patch:
        if omitted == "names":
            patch.setattr(Writing, "sync_directories", lambda self: None)
        elif omitted == "directories":
            patch.setattr(files, "sync_directory", lambda path: None)
        left = record(original, patch, syncs=omitted != "files")
    monkeypatch.setattr(files, "sync", lambda descriptor: None)
    path = tmp_path / "left"
    for acknowledged, tree in left:
        write_tree(path, tree)
        try:
            RunStore.open(path).close()
            part_of(path, acknowledged)
        except (StreamlearnError, AssertionError, StopIteration):
            return
        shutil.rmtree(path)
    pytest.fail("nothing was found")
