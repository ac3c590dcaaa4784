"""The pages of the command-line programs.

Role: one page per program, from the program's own help. Rule: every command and option that the program has. Non-goals: tutorials.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer.main

from dart_docs.markdown import code, table

PROGRAMS: Mapping[str, tuple[str, str]] = {
    "dart-farm": ("dart_server.cli", "The farm: start it, look at it, make keys, build images."),
    "dart-envs": ("dart_envs.cli.main", "Tasks: list, check, evaluate a policy on them, record demonstrations."),
    "dart-agent": (
        "dart_agent.cli",
        "Policies: serve a model, run rollouts, point at the screen, explore applications.",
    ),
    "dart-train": ("dart_train.cli", "Training: run a recipe, simulate a run, look at its data."),
}
"""Module of the program's `app`, and what the program is for."""


def walk_commands(program: str) -> Iterator[tuple[str, Any]]:
    """Every command of a program with its full name, groups included.

    Args:
        program: Name of the program.

    Yields:
        Full name and click command.
    """
    module = importlib.import_module(PROGRAMS[program][0])
    yield from _walk(program, typer.main.get_command(module.app))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child in sorted(getattr(command, "commands", {})):
        if not command.commands[child].hidden:
            yield from _walk(f"{name} {child}", command.commands[child])


def commands_page(program: str) -> str:
    """Render the page of one program.

    Args:
        program: Its name.

    Returns:
        Markdown.
    """
    parts = [
        f"# {program}\n\n",
        f"{PROGRAMS[program][1]} This page is for people who use `{program}`. After it you know every command, with its "
        "arguments, options and "
        "defaults. ",
        "\n\n",
    ]
    for name, command in walk_commands(program):
        if name != program:
            parts.append(f"{'#' * min(2 + name.count(' ') - 1, 4)} `{name}`\n\n")
        if command.help:
            parts.append(f"{command.help.strip()}\n\n")
        parameters = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
        if parameters:
            parts.append(table(("argument or option", "default", "meaning"), (_row(each) for each in parameters)))
    return "".join(parts)


def _row(parameter: Any) -> tuple[str, str, str]:
    """Name, default and meaning of an argument or option."""
    if parameter.param_type_name == "argument":
        shown = code(parameter.name.upper())
    else:
        shown = ", ".join(code(each) for each in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    if parameter.required:
        given = "required"
    else:
        given = (
            "" if default is None or default is False or callable(default) else code(getattr(default, "value", default))
        )
    return shown, given, (parameter.help or "").strip()
