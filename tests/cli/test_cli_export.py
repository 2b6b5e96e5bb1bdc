"""`info` and `export`: facts for scripts, and rows for other programs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamlearn.cli.main import main

Capture = pytest.CaptureFixture[str]
WriteRun = Callable[..., Path]


def test_info_is_what_inspect_says_and_where_a_run_comes_from(
    write_run: WriteRun, capsys: Capture
) -> None:
    path = write_run([])
    assert main(["inspect", str(path), "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert main(["info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    known.pop("age_seconds")
    assert known.items() <= facts.items()
    assert facts["format_version"] == 1
    assert len(facts["id"]) == 32
    assert main(["info", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in ("step=12", "steps=12", "layers.0.tuples=600", "pid=", "status=stopped"):
        assert line in lines


def test_info_needs_neither_torch_nor_zarr(
    write_run: WriteRun, environment: dict[str, str]
) -> None:
    program = (
        "import sys; from streamlearn.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'zarr', 'numpy', 'river', 'sklearn'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else code)"
    )
    command = [sys.executable, "-c", program, "info", str(write_run([])), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_export_says_what_it_made_and_refuses_to_write_over_it(
    write_run: WriteRun, tmp_path: Path, capsys: Capture
) -> None:
    path = write_run([])
    to = tmp_path / "rows.npz"
    assert main(["export", str(path), "--to", str(to)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{to}: 600 tuples of step 12 as npz, ")
    with np.load(to) as found:
        assert found["layers/output/key"].shape == (600, 4)
    assert main(["export", str(path), "--to", str(to)]) == 2
    assert "is already there and is not written over" in capsys.readouterr().err
    assert main(["export", str(path)]) == 2
    assert "--to" in capsys.readouterr().err
    folder = tmp_path / "rows"
    assert main(["export", str(path), "--to", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["path"], facts["format"], facts["tuples"]) == (str(folder), "zarr", 600)
