"""Everything that README and docs say to type does what they say, in an empty folder each."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.documents import Block, Reader, blocks

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
BLOCKS = {path.name: blocks(path) for path in DOCUMENTS}
RUN = {name: [block for block in found if block.mark != "not run" and block.language in
              ("sh", "python")] for name, found in BLOCKS.items()}  # fmt: skip
NOT_RUN = [block for found in BLOCKS.values() for block in found if block.mark == "not run"]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    yield Reader(tmp_path, {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [name for name, found in RUN.items() if found])
def test_a_document_can_be_followed(name: str, reader: Reader) -> None:
    for block in RUN[name]:
        reader.do(block)


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda block: block.place)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    pytest.skip(f"{block.place}: {block.said}")


def test_no_block_escapes() -> None:
    languages = {block.language for found in BLOCKS.values() for block in found}
    assert languages <= {"sh", "python", "text", ""}, languages
    for found in BLOCKS.values():
        for block in found:  # what is shown without a language is no command
            assert block.language or "streamlearn run" not in block.text, block.place


def test_links_between_documents_lead_somewhere() -> None:
    import re

    for path in [*DOCUMENTS, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
