"""Streams of labelled items and the data sets that they come from."""

from .base import Batch, Dataset, OnError, Order, Rows, SkippedItem, Stream
from .catalogue import KINDS, open_data
from .domains import DomainName, Domains
from .endless import EndlessStream
from .experiences import Experience
from .splits import InDomains, Splits
from .teachers import TeacherSpec

__all__ = [
    "KINDS",
    "Batch",
    "Dataset",
    "DomainName",
    "Domains",
    "EndlessStream",
    "Experience",
    "InDomains",
    "OnError",
    "Order",
    "Rows",
    "SkippedItem",
    "Splits",
    "Stream",
    "TeacherSpec",
    "open_data",
]
