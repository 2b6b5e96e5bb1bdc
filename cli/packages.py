"""The packages that this one asks for, as its own metadata lists them, and which are there."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

__all__ = ["GIVES", "Package", "packages"]

_NAME = "streamlearn"

GIVES = {
    "matplotlib": "pictures of curves: compare --png",
    "obstore": "runs in an object store: run.dir=s3://BUCKET/FOLDER",
    "pandas": "tables in river's pipelines: learn_many, predict_many",
    "pyarrow": "streams of Parquet files: data=parquet, and such files in data=watch",
    "usearch": "approximate nearest keys: layer.nearest=approximate",
}
"""What optional packages are for."""

_FOR_TESTS = "test"


@dataclass(frozen=True, slots=True)
class Package:
    """A package that is asked for.

    range: versions that are supported, such as ">=2.9". extra: what installs it, "" where it must
    be there. found: its version, None where it is missing. fits: whether it is there and in range.
    """

    name: str
    range: str
    extra: str
    found: str | None
    fits: bool


def packages() -> list[Package]:
    """All packages but those for tests, the ones that must be there first.

    Raises:
        importlib.metadata.PackageNotFoundError: this package is not installed.
    """
    found = [
        package
        for text in metadata.requires(_NAME) or ()
        for package in _packages(Requirement(text))
    ]
    return sorted(found, key=lambda package: (bool(package.extra), package.name))


def _packages(wanted: Requirement) -> Iterator[Package]:
    extras = metadata.metadata(_NAME).get_all("Provides-Extra") or []
    if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
        yield _package(wanted, "")
        return
    for extra in extras:
        if extra != _FOR_TESTS and wanted.marker.evaluate({"extra": extra}):
            yield _package(wanted, extra)


def _package(wanted: Requirement, extra: str) -> Package:
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Package(wanted.name, str(wanted.specifier), extra, None, fits=False)
    fits = wanted.specifier.contains(found, prereleases=True)
    return Package(wanted.name, str(wanted.specifier), extra, found, fits)
