"""`key`: who may call."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from dart_server.cli.session import load_settings
from dart_server.cli.terminal import fail

app = typer.Typer()


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Whom it is for.")],
    scope: Annotated[str, typer.Option(help="read, lease or admin.")] = "lease",
) -> None:
    """Make a bearer key and print it, once: only its hash is kept."""
    from dart_server import daemon, state
    from dart_server.errors import ConfigError
    from dart_server.keys import Scope, make_key

    if scope not in set(Scope):
        fail(f"--scope: {scope} is none of {', '.join(Scope)}.")
    settings = load_settings()
    try:
        state.make_directories(settings)
        if daemon.running_pid(settings) is None:
            state.take_over_old_layout(settings)
    except ConfigError as error:
        fail(str(error))
    typer.echo(asyncio.run(make_key(settings.database_url, name, Scope(scope))))
