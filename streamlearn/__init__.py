"""Single-pass, continual learning with growing retrieval networks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from streamlearn.learner import Learner, Scores
    from streamlearn.optim import FunctionalSGD

__all__ = ["FunctionalSGD", "Learner", "Scores", "__version__"]

_LAZY = {
    "FunctionalSGD": "streamlearn.optim",
    "Learner": "streamlearn.learner",
    "Scores": "streamlearn.learner",
}


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for: `--help` stays fast.

    The version is read from the metadata when it is asked for, which takes a tenth of a second.
    """
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("streamlearn")
        except PackageNotFoundError:  # a source tree that was never installed
            return "0+unknown"
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'streamlearn' has no attribute {name!r}")
