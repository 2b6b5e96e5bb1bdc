"""Sections of settings: what all of them share, and the one sentence for what is wrong in one."""

import difflib
import re
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

__all__ = [
    "About",
    "OptionalBool",
    "OptionalFloat",
    "OptionalInt",
    "Settings",
    "about",
    "bare_kind",
    "explain",
    "kind_or",
    "none_word",
    "variants",
]


class Settings(BaseModel):
    """A section of settings: unknown keys are errors, and a section never changes once made."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class About(NamedTuple):
    """What a setting means, the unit of its values, and what a larger one does; "" where unsaid."""

    meaning: str
    unit: str
    more: str


_ABOUT = re.compile(
    r"(?P<meaning>.*?)(?: \[(?P<unit>[^]]+)\])?(?:; more: (?P<more>.+))?", re.DOTALL
)


def about(description: str | None) -> About:
    """The parts of a setting's description, `MEANING [UNIT]; more: WHAT RAISING IT DOES`."""
    found = _ABOUT.fullmatch(description or "")
    return About(*(part or "" for part in found.groups())) if found else About("", "", "")


def bare_kind(value: Any) -> Any:
    """`"pca"` as `{"kind": "pca"}`; anything else as it is."""
    return {"kind": value} if isinstance(value, str) else value


def kind_or(default: str) -> Callable[[Any], Any]:
    """As `bare_kind`, for a section that need not name its kind: it is `default` then."""

    def completed(value: Any) -> Any:
        value = bare_kind(value)
        if isinstance(value, dict) and "kind" not in value:
            return {"kind": default, **value}
        return value

    return completed


def none_word(value: Any) -> Any:
    """The words none and null mean "not set" where a number is expected."""
    if isinstance(value, str) and value.lower() in ("none", "null", ""):
        return None
    return value


OptionalBool = Annotated[bool | None, BeforeValidator(none_word)]
OptionalFloat = Annotated[float | None, BeforeValidator(none_word)]
OptionalInt = Annotated[int | None, BeforeValidator(none_word)]


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One sentence that names the first wrong key and its value, and says what would be right."""
    first = error.errors()[0]
    if first["type"] == "value_error":  # settings that do not fit each other say so themselves
        return str(first["ctx"]["error"])
    kinds = _kinds(model)
    # pydantic puts the kind of a tagged section into the path: layer.softmax.kappa → layer.kappa
    path = [
        str(part)
        for index, part in enumerate(first["loc"])
        if not (index == 1 and str(part) in kinds.get(str(first["loc"][0]), ()))
    ]
    key = ".".join(path)
    value = first["input"]
    if first["type"] == "extra_forbidden":
        tag = str(first["loc"][1]) if len(first["loc"]) > 2 else None
        known = _known_keys(model, path[:-1], tag)
        nearest = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        hint = (
            f"did you mean {'.'.join([*path[:-1], nearest[0]])}?"
            if nearest
            else (f"known here: {', '.join(known)}")
        )
        return f"{key} is not a setting; {hint}"
    choices = list(kinds.get(path[0], ())) if path else []
    if first["type"] == "union_tag_not_found":
        return f"{key}.kind is missing; choose {', '.join(choices)}"
    if first["type"] == "union_tag_invalid":
        given = value.get("kind") if isinstance(value, dict) else value
        nearest = difflib.get_close_matches(str(given), choices, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"choose {', '.join(choices)}"
        return f"{key}={given} is not a kind of {key}; {hint}"
    if first["type"] in ("model_type", "model_attributes_type"):
        inner = (_known_keys(model, path, None) or ["kind"])[0]
        return f"{key}={value} cannot be used: {key} is a section, set {key}.{inner}=…"
    reason = first["msg"].replace("Input should be", "it should be")
    if first["type"].startswith("byte_size"):
        return f"{key}={value} cannot be used: give bytes, such as 400MB, 2GiB or none"
    if first["type"] == "missing":
        return f"{key} is missing; set {key}=…"
    return f"{key}={value} cannot be used: {reason[0].lower() + reason[1:]}"


def _kinds(model: type[BaseModel]) -> dict[str, tuple[str, ...]]:
    """The kinds of each section that has kinds."""
    result = {}
    for name, field in model.model_fields.items():
        tags = [str(variant.model_fields["kind"].default) for variant in variants(field.annotation)
                if "kind" in variant.model_fields]  # fmt: skip
        if len(tags) > 1:
            result[name] = tuple(tags)
    return result


def variants(annotation: Any) -> list[type[BaseModel]]:
    """The sections that an annotation allows: one, or one for each kind; none of a value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in variants(part)]


def _known_keys(model: type[BaseModel], path: list[str], tag: str | None) -> list[str]:
    """The settings that stand at a path, of the kind `tag` where the section has kinds."""
    if not path:
        return list(model.model_fields)
    if path[0] not in model.model_fields:
        return []
    found = variants(model.model_fields[path[0]].annotation)
    chosen = [
        variant
        for variant in found
        if len(found) == 1 or variant.model_fields["kind"].default == tag
    ]
    return _known_keys(chosen[0], path[1:], None) if chosen else []
