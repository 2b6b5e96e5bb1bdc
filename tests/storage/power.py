"""A loss of power, simulated: which files may be left if the power goes after any step.

`Recorder` follows the primitives of `streamlearn.storage.files` and keeps, for every file and every
directory, what is on the medium and what is only promised. What is promised may be lost: of the
writes to a file since its last sync any number from the first on are there, and the last of these
may be torn or zero; of the names given or taken in a directory since it was synced, any number from
the first on are there. Files and directories are independent of each other, so a rename between
directories may be seen in one and not in the other.
"""

import os
import random
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, Union

import pytest

from streamlearn.storage import files

from .support import PRIMITIVES, Kinds

__all__ = ["Recorder"]


@dataclass(eq=False)
class File:
    """Bytes on the medium, and changes that are only promised: (offset, data), or a size."""

    durable: bytes = b""
    promised: list[tuple[int, bytes] | int] = field(default_factory=list)

    def content(self, changes: int, tear: str = "whole") -> bytes:
        """The bytes with the first of the promised changes, the last of them torn or zero."""
        data = bytearray(self.durable)
        for index, change in enumerate(self.promised[:changes]):
            if isinstance(change, int):
                del data[change:]
                data.extend(bytes(change - len(data)))
                continue
            offset, piece = change
            if index == changes - 1 and tear == "torn":
                piece = piece[: len(piece) // 2]
            elif index == changes - 1 and tear == "zero":
                piece = bytes(len(piece))
            data.extend(bytes(max(0, offset - len(data))))
            data[offset : offset + len(piece)] = piece
        return bytes(data)


@dataclass(eq=False)
class Folder:
    """Names on the medium, and changes that are only promised: a name, and what has it now."""

    durable: dict[str, "Node"] = field(default_factory=dict)
    promised: list[tuple[str, "Node | None"]] = field(default_factory=list)

    def names(self, changes: int) -> dict[str, "Node"]:
        """The names with the first of the promised changes."""
        names = dict(self.durable)
        for name, node in self.promised[:changes]:
            names.pop(name, None)
            if node is not None:
                names[name] = node
        return names

    @property
    def now(self) -> dict[str, "Node"]:
        """The names as a process sees them."""
        return self.names(len(self.promised))


Node: TypeAlias = Union[File, Folder]  # noqa: UP007  (the names are not known yet)
Choice: TypeAlias = Callable[[Node], tuple[int, str]]
Choices: TypeAlias = dict[int, tuple[int, str]]
Tree: TypeAlias = dict[str, "bytes | Tree"]


class Recorder:
    """Follows what happens below a directory, all of which is on the medium at first.

    Args:
        root: the directory.
        patch: puts the primitives back at the end.

    Attributes:
        steps: the kind of each change that there was.
        looks: what each change may leave is asked of this, if it is set.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self._kinds = Kinds()
        self.looks: Callable[[], None] | None = None
        self._root = root
        self._top = _load(root)
        self._open: dict[int, File] = {}
        for name in PRIMITIVES:
            patch.setattr(files, name, self._wrap(name, getattr(files, name)))

    def states(self, rng: random.Random, samples: int) -> Iterator[Tree]:
        """What may be left now: all of the promised, none of it, each part alone, and samples."""
        pending = [node for node in _nodes(self._top) if node.promised]
        count = {id(node): len(node.promised) for node in pending}

        def all_of(node: Node) -> tuple[int, str]:
            return count.get(id(node), 0), "whole"

        def none_of(node: Node) -> tuple[int, str]:
            return 0, "whole"

        yield _left(self._top, all_of)
        yield _left(self._top, none_of)
        for odd in pending:

            def without(node: Node, odd: Node = odd) -> tuple[int, str]:
                return (count[id(node)] - 1, "whole") if node is odd else all_of(node)

            def alone(node: Node, odd: Node = odd) -> tuple[int, str]:
                return all_of(node) if node is odd else none_of(node)

            yield _left(self._top, without)
            yield _left(self._top, alone)
        for _ in range(samples if pending else 0):
            chosen = {
                id(node): (
                    rng.randint(0, len(node.promised)),
                    rng.choice(["whole", "torn", "zero"]),
                )
                for node in pending
            }

            def some_of(node: Node, chosen: Choices = chosen) -> tuple[int, str]:
                return chosen.get(id(node), (0, "whole"))

            yield _left(self._top, some_of)

    def _wrap(self, name: str, primitive: Callable[..., Any]) -> Callable[..., Any]:
        follow = getattr(self, f"_{name}")

        def call(*arguments: Any, **more: Any) -> Any:
            kind = self._kinds.kind(name, *arguments)
            result = None if name == "sync" else primitive(*arguments, **more)
            if name == "open_file":
                self._kinds.opened(arguments[0], result)
            follow(result, *arguments, **more)
            self.steps.append(kind)
            if self.looks is not None:
                self.looks()
            return result

        return call

    def _folder(self, path: Path) -> Folder:
        folder = self._top
        for part in path.relative_to(self._root).parts:
            inner = folder.now[part]
            assert isinstance(inner, Folder)
            folder = inner
        return folder

    def _open_file(self, descriptor: int, path: Path, *, empty: bool = False) -> None:
        folder = self._folder(path.parent)
        file = folder.now.get(path.name)
        if file is None:
            file = File()
            folder.promised.append((path.name, file))
        assert isinstance(file, File)
        if empty:
            file.promised.append(0)
        self._open[descriptor] = file

    def _write_all(self, _: None, descriptor: int, data: bytes, offset: int = 0) -> None:
        self._open[descriptor].promised.append((offset, bytes(data)))

    def _truncate(self, _: None, descriptor: int, size: int) -> None:
        self._open[descriptor].promised.append(size)

    def _sync(self, _: None, descriptor: int) -> None:
        facts = os.fstat(descriptor)
        if not stat.S_ISDIR(facts.st_mode):
            file = self._open[descriptor]
            file.durable, file.promised = file.content(len(file.promised)), []
            return
        for path in (self._root, *self._root.rglob("*")):
            if path.is_dir() and os.path.samestat(path.stat(), facts):
                folder = self._folder(path)
                folder.durable, folder.promised = folder.now, []

    def _rename(self, _: None, source: Path, target: Path) -> None:
        before, after = self._folder(source.parent), self._folder(target.parent)
        node = before.now[source.name]
        after.promised.append((target.name, node))
        before.promised.append((source.name, None))

    def _link(self, _: None, source: Path, target: Path) -> None:
        node = self._folder(source.parent).now[source.name]
        self._folder(target.parent).promised.append((target.name, node))

    def _remove(self, _: None, path: Path) -> None:
        self._folder(path.parent).promised.append((path.name, None))

    def _make_directory(self, _: None, path: Path) -> None:
        self._folder(path.parent).promised.append((path.name, Folder()))

    _remove_directory = _remove


def write_tree(path: Path, tree: Tree) -> None:
    """Make a directory of what is left."""
    path.mkdir()
    for name, inner in tree.items():
        if isinstance(inner, bytes):
            (path / name).write_bytes(inner)
        else:
            write_tree(path / name, inner)


def read_tree(path: Path) -> Tree:
    """What is left in a directory."""
    return {
        entry.name: read_tree(entry) if entry.is_dir() else entry.read_bytes()
        for entry in path.iterdir()
    }


def fingerprint(tree: Tree) -> int:
    """The same for the same files, leaving out those that have no name yet."""
    return hash(
        tuple(
            (name, inner if isinstance(inner, bytes) else fingerprint(inner))
            for name, inner in sorted(tree.items())
            if name != "tmp"
        )
    )


def _load(path: Path) -> Folder:
    return Folder(
        {
            entry.name: _load(entry) if entry.is_dir() else File(entry.read_bytes())
            for entry in path.iterdir()
        }
    )


def _nodes(folder: Folder) -> Iterator[Node]:
    """Everything that may be left of a directory, each once."""
    seen: dict[int, Node] = {}
    waiting: list[Node] = [folder]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if isinstance(node, Folder):
            waiting += node.durable.values()
            waiting += (inner for _, inner in node.promised if inner is not None)
    return iter(seen.values())


def _left(folder: Folder, choose: Choice) -> Tree:
    tree: Tree = {}
    for name, node in folder.names(choose(folder)[0]).items():
        tree[name] = (
            _left(node, choose) if isinstance(node, Folder) else node.content(*choose(node))
        )
    return tree
