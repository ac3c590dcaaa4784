"""`desktops`: what the farm has, what happened to it, and taking one out of use."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from dart_server.cli.events import After, Kind, Limit, show_events
from dart_server.cli.session import request_or_fail, show_table
from dart_server.cli.terminal import Json, show

COLUMNS = ("desktop_id", "state", "fencing_token", "lease_id", "setup_key")
Desktop = Annotated[str, typer.Argument(metavar="DESKTOP", help="id of the desktop")]

app = typer.Typer(help="The desktops: list (the default), events, quarantine, release.", invoke_without_command=True)


@app.callback()
def desktops(context: typer.Context, as_json: Json = False) -> None:
    """The desktops."""
    if context.invoked_subcommand is None:
        list_desktops(as_json)


@app.command("list")
def list_desktops(as_json: Json = False) -> None:
    """Every desktop that exists now."""
    show_table("/v1/desktops", COLUMNS, as_json)


@app.command("events")
def events(desktop_id: Desktop, after: After = 0, limit: Limit = 500, kind: Kind = None, as_json: Json = False) -> None:
    """What happened to one desktop, those that are gone too."""
    params = {"after": after, "limit": limit, "kind": kind}
    show_events(request_or_fail(_path(desktop_id, "events"), params=params), as_json)


@app.command("quarantine")
def quarantine(
    desktop_id: Desktop,
    reason: Annotated[str | None, typer.Option(help="Why, for people.")] = None,
    as_json: Json = False,
) -> None:
    """Take a desktop out of use and keep it for inspection."""
    body: dict[str, Any] = {} if reason is None else {"reason": reason}
    done = request_or_fail(_path(desktop_id, "quarantine"), "POST", body=body)
    show(done or {"quarantined": desktop_id}, f"quarantined {desktop_id}", as_json)


@app.command("release")
def release(desktop_id: Desktop, as_json: Json = False) -> None:
    """End the quarantine of a desktop: it is made a fresh copy and used again, or removed."""
    done = request_or_fail(_path(desktop_id, "release"), "POST", body={})
    show(done or {"released": desktop_id}, f"released {desktop_id}", as_json)


def _path(desktop_id: str, verb: str) -> str:
    return f"/v1/desktops/{quote(desktop_id, safe='')}/{verb}"
