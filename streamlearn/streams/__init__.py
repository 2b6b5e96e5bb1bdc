"""Streams of labelled items and the data sets that they come from."""

from .base import Batch, Dataset, OnError, Order, Rows, SkippedItem, Stream
from .catalogue import KINDS, open_data
from .endless import EndlessStream
from .experiences import Experience
from .splits import Splits
from .teachers import TeacherSpec

__all__ = [
    "KINDS",
    "Batch",
    "Dataset",
    "EndlessStream",
    "Experience",
    "OnError",
    "Order",
    "Rows",
    "SkippedItem",
    "Splits",
    "Stream",
    "TeacherSpec",
    "open_data",
]
