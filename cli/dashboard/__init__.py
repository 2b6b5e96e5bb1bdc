"""The picture of a run, in several views: pure functions from a `Model` and a size to text."""

from .frame import render
from .page import VIEWS

__all__ = ["VIEWS", "render"]
