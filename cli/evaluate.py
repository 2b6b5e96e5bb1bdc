"""`evaluate`: the held-out test of a run's last commit."""

import sys
from collections.abc import Iterable

from streamlearn.events import Event, Tested

from .describe import ERRORS, are_numbers
from .format import count, figure, number, percent
from .json_lines import JsonLines
from .output import Output
from .plain import PlainLines

__all__ = ["evaluate"]


_MORE = (
    ("balanced acc.", "balanced_accuracy", percent),
    ("macro F1", "macro_f1", percent),
    ("kappa", "kappa", number),
    ("log loss", "log_loss", number),
    ("calibration", "calibration_error", number),
)
"""Figures of classes: title, name, and how they look."""


def evaluate(events: Iterable[Event], output: Output, *, json: bool, quiet: bool) -> None:
    """Show the events of a test: progress on stderr, the result on `output`."""
    if json:
        lines = JsonLines(output, quiet)
        for event in events:
            lines.show(event)
        lines.close()
        return
    progress = PlainLines(Output(sys.stderr), output, "", quiet)
    for event in events:
        if isinstance(event, Tested):
            progress.close()
            if are_numbers(event.metrics):
                for name in ERRORS:
                    label = f"test {name}"
                    output.line(f"{label:<13}  {figure(event.metrics.get(name))}")
            else:
                output.line(f"test accuracy  {percent(event.accuracy)}")
            if event.linearised:
                output.line("linearised     1 + x for e^x in every growing layer")
            output.line(f"test loss      {number(event.loss, 4)}")
            output.line(f"samples        {count(event.samples)}")
            for title, name, show in _MORE:
                if name in event.metrics:
                    output.line(f"{title:<13}  {show(event.metrics[name])}")
        else:
            progress.show(event)
