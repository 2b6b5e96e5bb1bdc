"""What `plot` can draw, by name; without imports, for `--help` lists them."""

__all__ = ["CHARTS"]

CHARTS = {
    "quality": "prequential accuracy, or error, over the whole stream and in the window",
    "prequential": "the same over the whole stream alone",
    "windowed": "the same in the window alone",
    "tuples": "stored tuples of each layer",
    "memory": "bytes that they take",
    "process": "memory of the process",
    "throughput": "samples a second",
    "by-class": "recall of each class",
    "confusion": "which classes were answered for which",
    "accuracy-matrix": "accuracy of each experience after each",
}
