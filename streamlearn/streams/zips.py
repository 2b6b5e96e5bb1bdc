"""Class folders of image files in a zip file, which is read in place and never unpacked."""

import os
import struct
import weakref
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from streamlearn.errors import DataError

from .trees import in_order, is_image, is_visible, printable

__all__ = ["ZipTree", "open_zip"]

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_SIGNATURE = b"PK\x03\x04"


class _Archive:
    """An open zip file, closed when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.place = printable(str(path))
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)


class ZipTree:
    """The class folders below a prefix in a zip file; see `Tree`.

    Of the directory of the zip file only names, offsets and checksums are kept. A member is read
    by `pread`, which neither moves a shared cursor nor takes a lock, so that threads and forked
    processes may read at the same time; that is also several times faster than `ZipFile.read`.
    """

    def __init__(
        self, archive: _Archive, members: Mapping[str, zipfile.ZipInfo], prefix: str
    ) -> None:
        self.place = f"{archive.place}/{printable(prefix)}".rstrip("/")
        self._archive = archive
        self._prefix = prefix
        inside = [n[len(prefix) :] for n in members if n.startswith(prefix)]
        self.folders = sorted({n.split("/")[0] for n in inside if "/" in n}, key=os.fsencode)
        self.names = in_order(n for n in inside if "/" in n and is_image(n))
        infos = [members[prefix + name] for name in self.names]
        self._table = np.array(
            [
                (i.header_offset, i.compress_size, i.compress_type, i.CRC, i.flag_bits & 1)
                for i in infos
            ],
            dtype=np.int64,
        ).reshape(len(infos), 5)

    def read(self, position: int) -> bytes:
        """The bytes of a member, checked against its checksum."""
        offset, size, packed, checksum, encrypted = self._table[position].tolist()
        if encrypted or packed not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            how = "with a password" if encrypted else f"by method {packed}"
            raise DataError(f"it is packed {how}, which cannot be read")
        try:
            head = os.pread(self._archive.descriptor, _LOCAL_HEADER.size, offset)
            if len(head) < _LOCAL_HEADER.size or head[:4] != _LOCAL_SIGNATURE:
                raise DataError("the zip file is damaged where it should begin")
            _, name_size, extra_size = _LOCAL_HEADER.unpack(head)
            start = offset + _LOCAL_HEADER.size + name_size + extra_size
            data = os.pread(self._archive.descriptor, size, start)
            if packed == zipfile.ZIP_DEFLATED:
                data = zlib.decompress(data, -zlib.MAX_WBITS)
        except (OSError, zlib.error) as error:
            raise DataError(f"it cannot be read from the zip file ({error})") from error
        if zlib.crc32(data) != checksum:
            raise DataError("its checksum in the zip file is wrong")
        return data

    def where(self, position: int) -> str:
        """The zip file's path and the member's in it."""
        return f"{self._archive.place}/{printable(self._prefix + self.names[position])}"


def open_zip(path: Path) -> tuple[ZipTree, ZipTree | None]:
    """The class folders in a zip file, and those of its test part.

    Folders around all class folders are looked through; below them train/ and test/ are the two
    parts, and without train/ everything is the first part and there is no second.

    Raises:
        DataError: the file is no zip file, or may not be read.

    """
    try:
        with zipfile.ZipFile(path) as file:
            members = {_name(info): info for info in file.infolist()}
        archive = _Archive(path)
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{printable(str(path))} cannot be read as a zip file ({reason}); "
            "replace it by a whole one"
        ) from error
    members = {name: i for name, i in members.items() if all(map(is_visible, name.split("/")))}
    images = [name for name in members if is_image(name)]
    prefix = _wrapping(images)
    # A folder called train that holds images itself is a class of trains.
    if not any(name.startswith(f"{prefix}train/") and _depth(name, prefix) > 2 for name in images):
        return ZipTree(archive, members, prefix), None
    train = ZipTree(archive, members, f"{prefix}train/")
    test = ZipTree(archive, members, f"{prefix}test/")
    return train, test if test.names else None


def _wrapping(images: Iterable[str]) -> str:
    """The folders that stand around all class folders, as a prefix."""
    prefix = ""
    while True:
        images = [name for name in images if name.startswith(prefix) and _depth(name, prefix) > 1]
        heads = {name[len(prefix) :].split("/")[0] for name in images}
        if len(heads) != 1 or all(_depth(name, prefix) == 2 for name in images):
            return prefix
        prefix += f"{heads.pop()}/"


def _depth(name: str, prefix: str) -> int:
    return name.count("/", len(prefix)) + 1


def _name(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & 0x800:  # the name is marked as UTF-8
        return info.filename
    try:  # many packers write UTF-8 without marking it, and Python takes it for code page 437
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename
