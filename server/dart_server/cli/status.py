"""`status`: the running farm in numbers."""

from __future__ import annotations

import json

import typer

from dart_server.cli.session import ask, load_settings
from dart_server.cli.terminal import Json

app = typer.Typer()


@app.command()
def status(as_json: Json = False) -> None:
    """The running farm in numbers."""
    settings = load_settings()
    view = ask(settings, "/v1/farm")
    if view is None:
        typer.echo(json.dumps({"running": False}) if as_json else "no farm is running")
        return
    if as_json:
        typer.echo(json.dumps({"running": True, **view}))
        return
    desktops = ", ".join(f"{count} {state}" for state, count in sorted(view["desktops"].items())) or "none"
    used, quota = view["snapshot_bytes"] / 1e6, view["snapshot_quota_bytes"] / 1e6
    typer.echo(
        f"provider   {view['provider']}\ndesktops   {desktops} (at most {view['max_desktops']})\nleases     {view['leases_active']}"
    )
    typer.echo(f"snapshots  {view['snapshots']} ({used:.0f} of {quota:.0f} MB)")
