"""SIGKILL at random moments of learning, checkpoints in their thread included.

`STREAMLEARN_KILLS=200 pytest tests/scenarios/test_killing.py` kills as often as that.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from .killing import STEPS

KILLS = int(os.environ.get("STREAMLEARN_KILLS", "8"))
SEED = int(os.environ.get("STREAMLEARN_KILLS_SEED", "3"))


def test_after_each_kill_the_run_is_whole_and_its_next_steps_are_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.killing", str(tmp_path), str(KILLS), str(SEED)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    kills = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kills) == KILLS
    for kill in kills:
        assert kill["killed"], kill
        assert kill["begun"], kill
        assert kill["damage"] == [], kill
        assert kill["step"] >= kill["acknowledged"], kill
        assert kill["steps"] >= STEPS, kill
        assert kill["same"], kill
        assert kill["missing"] == 0, kill
    assert any(kill["acknowledged"] for kill in kills)
