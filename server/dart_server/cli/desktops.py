"""`desktops`: what the farm has."""

from __future__ import annotations

import typer

from dart_server.cli.session import show_table
from dart_server.cli.terminal import Json

app = typer.Typer()


@app.command()
def desktops(as_json: Json = False) -> None:
    """The desktops."""
    show_table("/v1/desktops", ("desktop_id", "state", "fence", "lease_id", "setup_key"), as_json)
