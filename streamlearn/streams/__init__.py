"""Streams of labelled items and the data sets that they come from."""

from .base import Batch, Dataset, OnError, Order, Rows, SkippedItem, Stream
from .catalogue import KINDS, open_data
from .splits import Splits

__all__ = [
    "KINDS",
    "Batch",
    "Dataset",
    "OnError",
    "Order",
    "Rows",
    "SkippedItem",
    "Splits",
    "Stream",
    "open_data",
]
