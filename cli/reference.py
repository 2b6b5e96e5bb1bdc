"""Writes what is generated from the code: docs/cli.md, docs/settings.md, and the keys to complete.

    python -m streamlearn.cli.reference [--check]

With --check nothing is written, and the exit code is 1 if a file is not what the code says.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["files", "main"]

_ROOT = Path(__file__).resolve().parents[1]
_REGENERATE = "python -m streamlearn.cli.reference"
_MADE = f"<!-- Made from the code by `{_REGENERATE}`; changes here are lost. -->"


def files() -> dict[Path, str]:
    """Each generated file, with what has to be in it."""
    return {
        _ROOT / "docs" / "cli.md": _commands(),
        _ROOT / "docs" / "settings.md": _settings(),
        _ROOT / "cli" / "keys.json": _keys(),
    }


def main(argv: Sequence[str]) -> int:
    """Write the files, or check them."""
    code = 0
    for path, text in files().items():
        there = path.read_text(encoding="utf-8") if path.exists() else None
        if there == text:
            continue
        if "--check" in argv:
            print(f"{path} is not what the code says; run {_REGENERATE}", file=sys.stderr)
            code = 1
            continue
        path.write_text(text, encoding="utf-8")
        print(path)
    return code


# -- commands ------------------------------------------------------------------------------------


def _commands() -> str:
    import typer.main

    from .app import app

    group: Any = typer.main.get_command(app)
    lines = ["# The command line", "", _MADE, "", group.help, "", *_USAGE, ""]
    context = group.make_context("streamlearn", [], resilient_parsing=True)
    names = group.list_commands(context)
    lines += ["| command | |", "|---|---|"]
    for name in names:
        first = group.commands[name].help.partition("\n")[0]
        lines.append(f"| [`{name}`](#{name}) | {_cell(first)} |")
    for name in names:
        lines += ["", *_command(group.commands[name])]
    return "\n".join(lines) + "\n"


_USAGE = """\
Results go to standard output, progress and errors to standard error. Exit codes: 0 done;
1 `verify` found damage; 2 a mistake or a full disk, said in one line; 130, 143 and 129 stopped by
SIGINT, SIGTERM and SIGHUP; 141 nobody reads the output any more. Where RUN is asked for, the name
of a run in the folder `runs` or the path of any run will do. Settings, such as `data.limit=2000`,
are explained in [settings.md](settings.md) and by `streamlearn explain-config`.
`streamlearn --install-completion` lets the shell complete commands, scenarios, settings and
runs.""".splitlines()


def _command(command: Any) -> Iterator[str]:
    yield f"## {command.name}"
    yield ""
    yield "```text"
    yield " ".join([f"streamlearn {command.name}", *map(_usage, command.params)])
    yield "```"
    yield ""
    yield from command.help.splitlines()
    rows = [_parameter(parameter) for parameter in command.params]
    if rows:
        yield ""
        yield "| word | meaning |"
        yield "|---|---|"
        yield from rows


def _usage(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    option = _option(parameter, 0)
    return option if parameter.required else f"[{option}]"


def _option(parameter: Any, which: int) -> str:
    name = parameter.opts[which]
    return name if parameter.is_flag else f"{name} {parameter.metavar}"


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"| `{_cell(parameter.metavar)}` | {_cell(parameter.help)} |"
    words = ", ".join(f"`{_option(parameter, index)}`" for index in range(len(parameter.opts)))
    default = parameter.default
    shown = "" if default in (None, False) or callable(default) else f" Default: {default}."
    return f"| {words} | {_cell(parameter.help)}{shown} |"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", r"\|").replace("\n", " ")


# -- settings ------------------------------------------------------------------------------------


def _settings() -> str:
    from streamlearn.scenarios.keys import UNSET, all_keys, sections_of

    keys = all_keys()
    lines = [
        "# Settings",
        "",
        _MADE,
        "",
        "What a scenario can be told, as words of a command line (`layer.kappa=4`) or tables of a",
        "TOML file. `streamlearn explain-config scenario=NAME` shows those of one scenario with",
        "their values there, and `streamlearn explain-config layer.kappa` one of them. ↻ may also",
        "be given when a run is resumed.",
    ]
    for section in [None, *sections_of()]:
        inside = [key for key in keys if key.section == (section.name if section else "")]
        # Of `data` the kinds are values of a key; other sections have keys of their own for each.
        kinds: list[str | None] = [None]
        if section is not None and inside[0].kind is not None:
            kinds = list(section.kinds)
        if section is not None:
            lines += ["", f"## {section.name}", "", _sentence(section.meaning)]
            if kinds != [None]:
                named = ", ".join(section.kinds)
                lines[-1] += f" `{section.name}=KIND` chooses one of: {named}."
        for kind in kinds:
            own = [key for key in inside if key.kind == kind]
            if kind is not None and section is not None:
                lines += ["", f"### {section.name}={kind}", "", _sentence(section.kinds[kind])]
            lines += ["", "| key | meaning | unit | default | may be | raising it |",
                      "|---|---|---|---|---|---|"]  # fmt: skip
            for key in own:
                mark = " ↻" if key.resumable else ""
                default = key.default if key.default == UNSET else f"`{key.default}`"
                cells = (f"`{key.name}`{mark}", key.meaning, key.unit,
                         default if key.default else "", key.range, key.more)  # fmt: skip
                lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    return "\n".join(lines) + "\n"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _keys() -> str:
    """The settings as completion offers them, kinds of sections first, a line each."""
    from streamlearn.scenarios.keys import UNSET, all_keys, sections_of

    found: dict[str, dict[str, Any]] = {}
    for section in sections_of():
        if section.kinds:
            found[section.name] = {"values": list(section.kinds), "meaning": section.meaning,
                                   "resumable": False}  # fmt: skip
    for key in all_keys():
        values = list(key.choices) or ["" if key.default == UNSET else key.default]
        entry = found.setdefault(key.name, {"values": [], "meaning": key.meaning,
                                            "resumable": key.resumable})  # fmt: skip
        entry["values"] += [value for value in values if value not in entry["values"]]
    lines = [json.dumps({"key": key, **entry}, ensure_ascii=False) for key, entry in found.items()]
    return "[\n" + ",\n".join(lines) + "\n]\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
