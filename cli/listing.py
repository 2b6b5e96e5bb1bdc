"""`scenarios`: the built-in scenarios, one a line, or with what each of them sets."""

from streamlearn.scenarios.catalogue import DEFAULT, catalogue

from .format import clean
from .json_lines import to_json
from .output import Output

__all__ = ["list_scenarios"]


def list_scenarios(output: Output, json: bool, verbose: bool = False) -> None:
    """Print the name and the summary of each scenario, the default one marked by the word.

    Args:
        output: where to.
        json: one JSON object a scenario.
        verbose: also each key that it sets to something else than the default, with its meaning.
    """
    entries = catalogue()
    width = max((len(entry.name) for entry in entries), default=0)
    for entry in entries:
        default = entry.name == DEFAULT
        keys = _changed(entry.name) if verbose else []
        if json:
            fact = {"name": entry.name, "summary": entry.summary, "default": default}
            sets = {"sets": {name: value for name, value, _ in keys}} if verbose else {}
            output.line(to_json(fact | sets))
            continue
        mark = " (default)" if default else ""
        output.line(f"{entry.name:<{width}}  {clean(entry.summary)}{mark}")
        widest = max((len(f"{name}={value}") for name, value, _ in keys), default=0)
        for name, value, meaning in keys:
            output.line(clean(f"    {name + '=' + value:<{widest}}  {meaning}"))
    if verbose and not json:
        output.line("`streamlearn explain-config scenario=NAME` explains every key of one")


def _changed(name: str) -> list[tuple[str, str, str]]:
    """What a scenario sets: key, value, meaning."""
    from streamlearn.scenarios.words import resolve

    from .explain_config import changed

    return changed(resolve([f"scenario={name}"]))
