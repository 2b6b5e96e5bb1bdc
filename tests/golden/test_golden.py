"""A run that an earlier version wrote opens, is whole, predicts, and goes on."""

import hashlib
import json
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from streamlearn.events import Finished
from streamlearn.scenarios.session import Session
from streamlearn.storage import FORMAT_VERSION, RunReader, files
from streamlearn.storage.verify import verify

from .make import first_digits, load_learner

HERE = Path(__file__).parent
VERSIONS = sorted(path.stem for path in HERE.glob("v*.json"))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def run(version: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / version, tmp_path / "run"))


@pytest.fixture
def expected(version: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((HERE / f"{version}.json").read_text())
    return facts


def test_there_is_a_small_run_of_this_version() -> None:
    assert f"v{FORMAT_VERSION}" in VERSIONS
    assert files.tree_bytes(HERE / f"v{FORMAT_VERSION}") < 400_000


def test_it_is_whole_as_it_lies(version: str, expected: dict[str, Any]) -> None:
    found = verify(HERE / version)
    assert found.damage == ()
    assert [commit.step for commit in found.commits] == expected["steps"]


def test_its_rows_are_those_that_were_written(run: Path, expected: dict[str, Any]) -> None:
    reader = RunReader(run)
    manifest = reader.manifest()
    assert manifest is not None
    assert manifest.samples == expected["samples"]
    assert {name: entry.rows for name, entry in manifest.layers.items()} == expected["rows"]
    for name, entry in manifest.layers.items():
        for column, values in reader.columns(name, 0, entry.rows).items():
            digest = hashlib.sha256(values.tobytes()).hexdigest()
            assert digest == expected["sha256"][f"{name}/{column}"]


def test_it_predicts_what_it_did(run: Path, expected: dict[str, Any]) -> None:
    found = load_learner(run).predict_proba(first_digits())
    torch.testing.assert_close(found, torch.tensor(expected["probabilities"]), rtol=0, atol=1e-3)


@pytest.mark.parametrize("older", [False, True])
def test_it_goes_on_to_its_end(run: Path, expected: dict[str, Any], older: bool) -> None:
    with Session.resume(run, at=expected["steps"][0] if older else None) as session:
        finished = list(session.events())[-1]
    assert isinstance(finished, Finished)
    assert finished.samples == 900
    assert finished.test_accuracy is not None
    assert finished.test_accuracy > 0.6
    assert verify(run).damage == ()


def read_by_the_document(run: Path) -> dict[str, Any]:
    """The rows of a run, by docs/format.md and public libraries alone."""
    text = (run / "manifest.json").read_bytes()
    manifest = json.loads(text)
    checksum = manifest.pop("checksum")
    compact = json.dumps(manifest, separators=(",", ":")).encode("ascii") + b"\n"
    assert f"{zlib.crc32(compact):08x}" == checksum
    assert manifest["version"] == 1
    state = (run / manifest["state_file"]).read_bytes()
    assert f"{zlib.crc32(state):08x}" == manifest["state_checksum"]
    events = (run / "events.jsonl").read_bytes()[: manifest["event_bytes"]]
    assert f"{zlib.crc32(events):08x}" == manifest["event_checksum"]
    for kept in manifest["kept"]:
        older = (run / "commits" / f"{kept['commit']:08d}.json").read_bytes()
        assert f"{zlib.crc32(older):08x}" == kept["checksum"]
    found = {}
    group = zarr.open_group(run / "memory.zarr", mode="r")
    for layer, entry in manifest["layers"].items():
        table = entry["table"]
        data = (run / table["file"]).read_bytes()[: 16 * table["records"]] if table["file"] else b""
        assert f"{zlib.crc32(data):08x}" == table["checksum"]
        said = {}
        for shard, place, version, checksum in struct.iter_unpack("<IIII", data):
            said[shard, list(entry["columns"])[place]] = version, f"{checksum:08x}"
        for column, tail in entry["tail"].items():
            last = entry["rows"] // entry["block_rows"]
            said[last, column] = tail["version"], tail["checksum"]
        for column in entry["columns"]:
            array = group[f"layers/{layer}/{column}"]
            assert isinstance(array, zarr.Array)
            rows = np.asarray(array[: entry["rows"]])
            for start in range(0, len(rows), entry["block_rows"]):
                part = rows[start : start + entry["block_rows"]]
                version, expected = said[start // entry["block_rows"], column]
                assert f"{zlib.crc32(part.tobytes()):08x}" == expected
                shard = f"versions/{layer}/{column}/{start // entry['block_rows']}.{version}"
                assert version == 0 or (run / shard).is_file()
            path = run / "memory.zarr" / "layers" / layer / column / "zarr.json"
            metadata = json.loads(path.read_bytes())
            checksum = metadata["attributes"].pop("checksum")
            text = json.dumps(metadata, indent=2, separators=(",", ": ")).encode("ascii") + b"\n"
            assert f"{zlib.crc32(text):08x}" == checksum
            found[f"{layer}/{column}"] = rows
    return found


def test_a_reader_that_knows_only_the_document_reads_it(expected: dict[str, Any]) -> None:
    found = read_by_the_document(HERE / "v1")
    digests = {name: hashlib.sha256(rows.tobytes()).hexdigest() for name, rows in found.items()}
    assert digests == expected["sha256"]
