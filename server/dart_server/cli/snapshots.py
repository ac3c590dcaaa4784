"""`snapshots`: live desktops on the shelf."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from dart_server.cli.session import ask, load_settings, show_table
from dart_server.cli.terminal import Json, fail

app = typer.Typer()


@app.command()
def snapshots(
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Those that did not restore and are kept for inspection.")
    ] = False,
    remove: Annotated[str | None, typer.Option("--rm", metavar="NAME", help="Delete one, by id or name.")] = None,
    as_json: Json = False,
) -> None:
    """The snapshots: what they hold, what they stand on, how long their desktop stood still for them."""
    if remove is not None:
        if ask(load_settings(), f"/v1/snapshots/{quote(remove, safe='')}", method="DELETE") is None:
            fail("no farm is running.", 1)
        return
    columns = ("reason", "place") if quarantined else ("pause_ms", "last_used_at", "description")
    state = "quarantined" if quarantined else "ready"
    show_table(f"/v1/snapshots?state={state}", ("snapshot_id", "kind", "name", "parent", "bytes", *columns), as_json)
