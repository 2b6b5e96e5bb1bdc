"""Single-pass, continual learning with growing retrieval networks."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

try:
    __version__ = version("streamlearn")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

if TYPE_CHECKING:
    from streamlearn.learner import Learner, Scores
    from streamlearn.optim import FunctionalSGD

__all__ = ["FunctionalSGD", "Learner", "Scores", "__version__"]

_LAZY = {
    "FunctionalSGD": "streamlearn.optim",
    "Learner": "streamlearn.learner",
    "Scores": "streamlearn.learner",
}


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for: `--help` stays fast."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'streamlearn' has no attribute {name!r}")
