"""Scenarios: named TOML files, their schema, and the one place that builds runs from them."""

from .catalogue import DEFAULT, Entry, catalogue

__all__ = ["DEFAULT", "Entry", "catalogue"]
