"""SIGKILL in the middle of primitives of commits and of going back, of every kind of them.

`STREAMLEARN_EVERY=1 pytest tests/storage/test_kill.py` kills at every single one.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamlearn.storage import RunReader, RunStore, files
from streamlearn.storage.verify import verify

from .power import fingerprint, read_tree
from .story import PARTS, begin, go_on, memory_at, part_of
from .support import PRIMITIVES, assert_same_bits, load


@pytest.mark.timeout(900)  # hundreds of kills
def test_a_run_killed_at_any_primitive_is_whole_and_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = begin(tmp_path / "runs")
    command = [sys.executable, "-m", "tests.storage.killing", str(original), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    monkeypatch.setattr(files, "sync", lambda descriptor: None)
    seen: set[str] = set()
    parts: set[int] = set()
    end = memory_at(PARTS - 1)
    checked: set[tuple[int, int]] = set()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root, env=environment
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            facts = json.loads(line)
            path, acknowledged = Path(facts["path"]), facts["part"]
            seen.add(facts["at"] and facts["at"].split()[0])
            # Many a kill leaves what the one before it left, for a sync changes no file.
            left = acknowledged, fingerprint(read_tree(path))
            if left in checked:
                shutil.rmtree(path)
                continue
            checked.add(left)
            assert verify(path).damage == (), facts
            part = part_of(path, acknowledged)
            with RunStore.open(path) as store:
                for _ in go_on(store, part):
                    pass
            assert_same_bits(load(RunReader(path)), end)
            said = [event.get("step", "compacted") for event in RunReader(path).events()[0]]
            assert said == [0, 1, 9, "compacted"]
            assert verify(path).damage == (), facts
            parts.add(part)
            shutil.rmtree(path)
    assert child.returncode == 0
    assert seen == {*PRIMITIVES, None}
    assert parts == set(range(PARTS))
