"""The options that several commands of `dart-agent explore` share.

Role: one dataclass per set of options, and `share_options`, which gives a command all of a set. Rule: an option that two commands have is
defined here, with its default and its help, and nowhere else. Non-goals: options of one command (`commands`); what they lead to.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from dart_agent.explore.settings import ChooserName

PARAMETER = "options"


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Where an exploration is stored."""

    database_url: Annotated[str | None, typer.Option(help="URL of the database; default: SQLite in the folder")] = None


@dataclass(frozen=True, kw_only=True)
class ModelOptions(StoreOptions):
    """Where the model is that is asked, and how long it may take."""

    base_url: Annotated[str | None, typer.Option(help="model: such as http://127.0.0.1:8100/v1")] = None
    model_name: Annotated[str | None, typer.Option(help="model: its name there")] = None
    api_key_variable: Annotated[
        str | None, typer.Option(help="model: environment variable that holds the key; default: no key")
    ] = None
    model_timeout: Annotated[float, typer.Option(min=1.0, help="model: longest wait for an answer, in seconds")] = 90.0


@dataclass(frozen=True, kw_only=True)
class ExploringOptions(ModelOptions):
    """What an exploration is told when it begins, and told anew when it goes on."""

    steps: Annotated[int | None, typer.Option("--steps", min=1, help="most steps, those of before included")] = None
    chooser: Annotated[ChooserName | None, typer.Option(help="who chooses; qicrl and model need --base-url")] = None
    screens: Annotated[int | None, typer.Option(min=1, help="end with so many screens")] = None
    desktops: Annotated[
        int | None, typer.Option(min=1, max=64, help="desktops that explore at once: forks of the first")
    ] = None
    farm_url: Annotated[str | None, typer.Option(help="default: DART_FARM_URL, else the embedded farm")] = None
    keep_snapshots: Annotated[
        bool, typer.Option("--keep-snapshots", help="keep the snapshots of screens at the end, too")
    ] = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the exploration that they name."""
        return {
            "max_steps": self.steps,
            "chooser": self.chooser,
            "max_screens": self.screens,
            "desktops": self.desktops,
        }


def share_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, as typer reads it, an option for each field of its parameter `options`.

    Args:
        command: Takes `options`, a dataclass of this module.

    Returns:
        The command with the options themselves as parameters.
    """
    hints = get_type_hints(command, include_extras=True)
    kind = hints.pop(PARAMETER)
    shared = get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind)]

    def expanded(**given: Any) -> None:
        options = kind(**{name: given.pop(name) for name in names})
        command(**given, **{PARAMETER: options})

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != PARAMETER
    ]
    added = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=shared[field.name]
        )
        for field in dataclasses.fields(kind)
    ]
    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__annotations__ = hints | shared
    expanded.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    return expanded
