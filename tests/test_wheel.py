"""The wheel installs one top-level name, scenarios included, and imports from anywhere."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    # setuptools builds inside the tree and would pack what an earlier build left there.
    tree = tmp_path_factory.mktemp("tree") / "streamlearn"
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=unwanted)
    command = (
        "import setuptools.build_meta as backend, sys; print(backend.build_wheel(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, str(out)], cwd=tree, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next(out.glob("*.whl"))


def test_the_wheel_holds_one_top_level_name_and_every_scenario(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info" not in name.split("/")[0]}
    assert top == {"streamlearn"}
    packed = {Path(name).name for name in names if name.startswith("streamlearn/scenarios/")}
    assert {path.name for path in (ROOT / "scenarios").glob("*.toml")} <= packed
    modules = {name for name in names if name.endswith(".py")}
    for folder in ("storage", "cli", "scenarios"):
        for path in (ROOT / folder).glob("*.py"):
            assert f"streamlearn/{folder}/{path.name}" in modules


def test_the_wheel_imports_and_lists_its_scenarios_from_another_folder(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import streamlearn, streamlearn.cli.main, streamlearn.storage, streamlearn.learner\n"
        "from streamlearn.scenarios import catalogue\n"
        "print(streamlearn.__file__, len(catalogue()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    place, count = done.stdout.split()
    assert place.startswith(str(tmp_path / "site"))
    assert int(count) == len(list((ROOT / "scenarios").glob("*.toml")))
