"""Watching and listing runs must be quick to start."""

import subprocess
import sys
from pathlib import Path

from .support import commit, make_memory, make_store

SCRIPT = """
import sys
from pathlib import Path
from streamlearn.storage import RunReader, RunStore, find_run, list_runs
reader = RunReader(find_run("run", Path(sys.argv[1])))
reader.manifest(), reader.events(), reader.writer()
print([name for name in ("torch", "numpy", "zarr", "safetensors") if name in sys.modules])
"""


def test_neither_torch_nor_zarr_is_needed_for_manifests_and_events(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        commit(store, make_memory(), 0)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
