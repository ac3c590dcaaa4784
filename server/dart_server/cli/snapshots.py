"""`snapshots`: live desktops on the shelf."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from dart_server.cli.session import request_or_fail, show_table
from dart_server.cli.terminal import Json, show, show_fields

Name = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id, or the name that its owner gave it.")]

app = typer.Typer(help="The snapshots: list (the default), show, rm.", invoke_without_command=True)


Quarantined = Annotated[
    bool, typer.Option("--quarantined", help="Those that did not restore and are kept for inspection.")
]


@app.callback()
def snapshots(
    context: typer.Context,
    quarantined: Quarantined = False,
    remove: Annotated[str | None, typer.Option("--rm", metavar="NAME", help="Delete one, by id or name.")] = None,
    as_json: Json = False,
) -> None:
    """The snapshots: what they hold, what they stand on, how long their desktop stood still for them."""
    if context.invoked_subcommand is not None:
        return
    if remove is not None:
        remove_snapshot(remove, as_json)
        return
    list_snapshots(quarantined, as_json)


@app.command("list")
def list_snapshots(quarantined: Quarantined = False, as_json: Json = False) -> None:
    """Every snapshot that can be restored, or every one that is kept for inspection."""
    columns = ("reason", "quarantine_path") if quarantined else ("pause_ms", "last_used_at", "description")
    show_table(
        "/v1/snapshots",
        ("snapshot_id", "kind", "name", "parent", "bytes", *columns),
        as_json,
        params={"state": "quarantined" if quarantined else "ready"},
    )


@app.command("show")
def show_snapshot(name: Name, as_json: Json = False) -> None:
    """One snapshot with its lineage."""
    show_fields(request_or_fail(_path(name)), as_json)


@app.command("rm")
def remove_snapshot(name: Name, as_json: Json = False) -> None:
    """Delete a snapshot; desktops made from it live on."""
    request_or_fail(
        _path(name)
    )  # the farm takes one that is not there for deleted: a person who mistyped wants to know
    request_or_fail(_path(name), "DELETE")
    show({"removed": name}, f"removed {name}", as_json)


def _path(name: str) -> str:
    return f"/v1/snapshots/{quote(name, safe='')}"
