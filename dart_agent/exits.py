"""Exit codes of `dart-agent`. Rule: an error of ours is one sentence; 2 for a mistake in what was asked, 1 for what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from dart_agent.errors import AgentError, ConfigError
from dart_envs.errors import DartEnvError, TaskError


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Errors of ours as one sentence: exit code 2 for mistakes in what was asked, 1 for what went wrong."""
    try:
        yield
    except (ConfigError, TaskError) as error:
        typer.echo(f"dart-agent: {error}", err=True)
        raise typer.Exit(2) from None
    except (AgentError, DartEnvError) as error:
        typer.echo(f"dart-agent: {error}", err=True)
        raise typer.Exit(1) from None
