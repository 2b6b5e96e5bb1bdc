"""The one recipe of all adapters: settings that suit single samples of a few features."""

from collections.abc import Mapping
from typing import Any

from streamlearn.members import companions
from streamlearn.records import View
from streamlearn.sections import Settings
from streamlearn.settings import LearnerSettings, settings_of

__all__ = ["others", "recipe"]

_CLASSES = {"gamma": 10.0, "lr_value": 0.6}
"""Of an RBF layer; chosen by prequential accuracy over several streams at once."""

_NUMBERS = {"gamma": 1.0, "lr_value": 0.6}
"""The same where targets are numbers, by the mean absolute error."""

Section = Mapping[str, Any] | str | None


def recipe(
    seed: int,
    *,
    network: Section = None,
    layer: Section = None,
    optimizer: Section = None,
    learner: Section = None,
    memory: Section = None,
    regression: bool = False,
    dtype: str = "float32",
) -> LearnerSettings:
    """Settings of a growing learner, with the recipe's own defaults.

    No hidden layer, an RBF layer, one sample a step, on the CPU: single samples are too little
    work for anything else.

    Args:
        seed: of starting rows.
        network: the learner's section of that name, a dictionary or a bare kind; None means the
            recipe's. Settings that it does not name are the recipe's where the kind is.
        layer: likewise.
        optimizer: likewise.
        learner: likewise.
        memory: likewise.
        regression: whether targets are numbers.
        dtype: of keys and values where `learner` does not say.

    Raises:
        ConfigError: the first thing that is wrong, in one sentence.
    """
    given = _section(layer)
    if given.get("kind", "rbf") == "rbf":
        given = {"kind": "rbf", **(_NUMBERS if regression else _CLASSES), **given}
    sections = {
        "seed": seed,
        "network": {"hidden": 0, **_section(network)},
        "layer": given,
        "learner": {"batch": 1, "device": "cpu", "dtype": dtype, **_section(learner)},
        "optimizer": _section(optimizer),
        "memory": _section(memory),
    }
    return settings_of(sections)


def others(
    settings: LearnerSettings, layer: Section, *, regression: bool
) -> list[tuple[View, LearnerSettings]]:
    """The networks that learn beside the recipe's own.

    Args:
        settings: of the first network.
        layer: as it was given; a layer of one's own stays alone, but for `learner.members`.
        regression: whether targets are numbers.
    """
    members = getattr(settings.learner, "members", 1)
    if layer is None and members == 1:
        return companions(settings, regression=regression)
    return companions(settings, regression=regression)[: members - 1] if members > 1 else []


def _section(given: Section) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Settings):
        return given.model_dump()
    return {"kind": given} if isinstance(given, str) else dict(given)
