"""`leases`: who uses what."""

from __future__ import annotations

import typer

from dart_server.cli.session import show_table
from dart_server.cli.terminal import Json

app = typer.Typer()


@app.command()
def leases(as_json: Json = False) -> None:
    """The active leases."""
    show_table("/v1/leases", ("lease_id", "desktop_id", "fence", "owner", "expires_at"), as_json)
