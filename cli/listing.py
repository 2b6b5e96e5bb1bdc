"""`scenarios`: the built-in scenarios, one a line."""

from streamlearn.scenarios.catalogue import DEFAULT, catalogue

from .format import clean
from .json_lines import to_json
from .output import Output

__all__ = ["list_scenarios"]


def list_scenarios(output: Output, json: bool) -> None:
    """Print the name and the summary of each scenario, the default one marked by the word."""
    entries = catalogue()
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        default = entry.name == DEFAULT
        if json:
            fact = {"name": entry.name, "summary": entry.summary, "default": default}
            output.line(to_json(fact))
        else:
            mark = " (default)" if default else ""
            output.line(f"{entry.name:<{width}}  {clean(entry.summary)}{mark}")
