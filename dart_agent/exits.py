"""Exit codes of `dart-agent`, the one sentence that goes with an error, and options that several commands read.

Role: what the modules of the command line share. Rule: wrong input is told on standard error. Non-goals: exit codes of components.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from dart_agent.errors import AgentError, ConfigError
from dart_envs.errors import DartEnvError, TaskError

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Errors of ours as one sentence: exit code 2 for mistakes in what was asked, 1 for what went wrong."""
    try:
        yield
    except (ConfigError, TaskError) as error:
        typer.echo(f"dart-agent: {error}", err=True)
        raise typer.Exit(EXIT_WRONG_INPUT) from None
    except (AgentError, DartEnvError) as error:
        typer.echo(f"dart-agent: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None


def parse_resolution(text: str) -> tuple[int, int]:
    """Read the option `--resolution`.

    Args:
        text: WIDTHxHEIGHT.

    Returns:
        (width, height) in pixels.

    Raises:
        ConfigError: It is none, or desktops cannot have it.
    """
    width, cross, height = text.partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise ConfigError(f"--resolution is WIDTHxHEIGHT, such as 640x400, not {text!r}")
    from dart_envs.envs.config import make_shape

    try:
        return make_shape("basic", (int(width), int(height)), None).resolution
    except ValueError as error:
        raise ConfigError(f"--resolution: {error}") from None
