"""A run's tuples as one file or folder of a common format, block by block, whole or not at all.

The suffix decides: `.safetensors` (bfloat16 stays bfloat16), `.npz` (numpy has none: bfloat16 comes
as the float32 that it equals), and a plain zarr group otherwise (the same). Arrays are called
`layers/<layer>/<column>` in all of them. What is written has another name until it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlearn.errors import ConfigError, RunStateError

from . import files
from .documents import FORMAT_VERSION
from .endpoints import SCHEMES
from .objects import RunPath
from .reader import RunReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from numpy.typing import NDArray

    from .manifest import LayerEntry, Manifest

__all__ = ["Exported", "export_run"]

_SAFETENSORS = {
    "int64": "I64",
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "int8": "I8",
    "uint8": "U8",
}
_SIZES = {"int64": 8, "float64": 8, "float32": 4, "bfloat16": 2, "int8": 1, "uint8": 1}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: where, in which format, tuples of all layers, bytes, and of which step."""

    path: Path
    format: str
    step: int
    tuples: int
    bytes: int


class _Source:
    """The arrays of one commit, read block by block."""

    def __init__(self, reader: RunReader) -> None:
        commit = reader.manifest()
        if commit is None:
            raise RunStateError(
                f"the run {str(reader.path)!r} has never committed, so there is nothing to "
                "export; start it again under another name"
            )
        self.commit: Manifest = commit
        self._reader = reader

    def facts(self) -> dict[str, Any]:
        """What the file says of where it comes from."""
        header = self._reader.header
        return {
            "format": "streamlearn-export",
            "version": FORMAT_VERSION,
            "run": header.name,
            "id": header.id,
            "scenario": header.scenario,
            "step": self.commit.step,
            "samples": self.commit.samples,
        }

    def arrays(self) -> Iterator[tuple[str, LayerEntry, str]]:
        """Each array's name, its layer and its column."""
        for layer, entry in self.commit.layers.items():
            for column in entry.columns:
                yield f"layers/{layer}/{column}", entry, column

    def blocks(self, entry: LayerEntry, column: str) -> Iterator[NDArray[Any]]:
        """The committed rows of an array."""
        for shard in range(entry.shards):
            yield self._reader.shard(entry.name, column, shard)


def export_run(path: str | RunPath, to: Path) -> Exported:
    """Write the tuples of a run's newest commit; also while the run goes on.

    Args:
        path: the directory of the run, or its place in an object store.
        to: what is to be made; its suffix chooses the format.

    Raises:
        ConfigError: there is something of that name, or no such folder.
        RunStateError: the run has never committed.
        FormatError: a file of the run is damaged; names it.
        StorageError: the system refused; nothing is left.
    """
    suffix = Path(to).suffix.lower()
    if suffix not in ("", ".zarr", *_WRITERS):
        raise ConfigError(
            f"--to={str(to)!r} has a suffix that no format goes with; use .safetensors, .npz, or "
            ".zarr or none for a zarr group"
        )
    if any(str(to).startswith(f"{scheme}:/") for scheme in SCHEMES):
        raise ConfigError(f"--to={str(to)!r} is no file; export to one, then copy it to its place")
    source = _Source(RunReader(path))
    target = Path(to).absolute()
    _check_target(target)
    write = _WRITERS.get(suffix)
    made = target.parent / f".{uuid.uuid4().hex}.partial"
    try:
        with files.translated("write", target):
            if write is None:
                _write_zarr(source, made)
                _sync_tree(made)
            else:
                with made.open("xb") as file:
                    write(source, file)
                    file.flush()
                    files.sync(file.fileno())
            _check_target(target)
            files.rename(made, target)
        files.sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True) if made.is_dir() else made.unlink(missing_ok=True)
        raise
    return Exported(
        path=target,
        format=target.suffix.lower().lstrip(".") if write else "zarr",
        step=source.commit.step,
        tuples=sum(entry.rows for entry in source.commit.layers.values()),
        bytes=files.tree_bytes(target) if target.is_dir() else files.size_of(target),
    )


def _check_target(target: Path) -> None:
    if os.path.lexists(target):
        raise ConfigError(
            f"--to={str(target)!r} is already there and is not written over; "
            "choose another name, or delete it first"
        )
    if not target.parent.is_dir():
        raise ConfigError(
            f"--to={str(target)!r} lies in a folder that is not there; make {str(target.parent)!r}"
        )


def _write_safetensors(source: _Source, file: BinaryIO) -> None:
    entries = []
    for name, entry, column in source.arrays():
        entries.append((entry.columns[column].dtype, name, entry, column))
    # The widest numbers first, so that all of them are aligned.
    entries.sort(key=lambda item: -_SIZES[item[0]])
    header: dict[str, Any] = {"__metadata__": {"streamlearn": json.dumps(source.facts())}}
    end = 0
    for dtype, name, entry, column in entries:
        width = entry.columns[column].width
        shape = [entry.rows] if width is None else [entry.rows, width]
        begin, end = end, end + entry.rows * (width or 1) * _SIZES[dtype]
        header[name] = {
            "dtype": _SAFETENSORS[dtype],
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode("ascii")
    text = text.ljust(-(-len(text) // 8) * 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for dtype, _, entry, column in entries:
        for rows in source.blocks(entry, column):
            file.write(_bytes(rows, dtype))


def _bytes(rows: NDArray[Any], dtype: str) -> bytes:
    import numpy as np

    little = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    if dtype != "bfloat16":
        return little.tobytes()
    # These float32 equal bfloat16: the lower half of each is zero.
    return (little.view("<u4") >> 16).astype(np.dtype("<u2")).tobytes()


def _wide(dtype: str) -> str:
    """What numpy can hold a column in."""
    return "float32" if dtype == "bfloat16" else dtype


def _write_npz(source: _Source, file: BinaryIO) -> None:
    import numpy as np

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, entry, column in source.arrays():
            stored = entry.columns[column]
            row = () if stored.width is None else (stored.width,)
            header = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(_wide(stored.dtype))),
                "fortran_order": False,
                "shape": (entry.rows, *row),
            }
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(member, header)
                for rows in source.blocks(entry, column):
                    member.write(rows.tobytes())
        with archive.open(zipfile.ZipInfo("streamlearn.npy"), "w") as member:
            np.lib.format.write_array(member, np.array(json.dumps(source.facts())))


def _write_zarr(source: _Source, path: Path) -> None:
    import zarr

    group = zarr.create_group(path, attributes={"streamlearn": source.facts()}, zarr_format=3)
    layers = group.create_group("layers")
    for entry in source.commit.layers.values():
        layers.create_group(entry.name, attributes={"dtype": entry.dtype})
    for name, entry, column in source.arrays():
        stored = entry.columns[column]
        row = () if stored.width is None else (stored.width,)
        array = group.create_array(
            name,
            shape=(entry.rows, *row),
            chunks=(entry.block_rows, *row),
            dtype=_wide(stored.dtype),
            fill_value=0,
            config={"write_empty_chunks": True},
        )
        start = 0
        for rows in source.blocks(entry, column):
            array[start : start + len(rows)] = rows
            start += len(rows)


def _sync_tree(path: Path) -> None:
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            descriptor = os.open(Path(folder) / name, os.O_RDONLY)
            try:
                files.sync(descriptor)
            finally:
                os.close(descriptor)
        files.sync_directory(Path(folder))


_WRITERS = {".safetensors": _write_safetensors, ".npz": _write_npz}
