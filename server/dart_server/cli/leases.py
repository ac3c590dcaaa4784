"""`leases`, `claims`: who uses what, and who waits for it."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from dart_server.cli.session import request_or_fail, show_table
from dart_server.cli.terminal import Json, show, show_fields

LEASE_COLUMNS = ("lease_id", "desktop_id", "fencing_token", "owner", "expires_at", "claim_id", "labels")
CLAIM_COLUMNS = ("claim_id", "position", "count", "priority", "waiting_for", "owner", "deadline_at", "labels")

leases = typer.Typer(help="The active leases: list (the default), show, release.", invoke_without_command=True)
claims = typer.Typer(help="The queue of claims: list (the default), show, cancel.", invoke_without_command=True)


@leases.callback()
def list_of_leases(context: typer.Context, as_json: Json = False) -> None:
    """The active leases."""
    if context.invoked_subcommand is None:
        list_leases(as_json)


@leases.command("list")
def list_leases(as_json: Json = False) -> None:
    """The active leases that the key may see."""
    show_table("/v1/leases", LEASE_COLUMNS, as_json)


@leases.command("show")
def show_lease(
    lease_id: Annotated[str, typer.Argument(metavar="LEASE", help="id of the lease")], as_json: Json = False
) -> None:
    """One lease, ended ones too."""
    show_fields(request_or_fail(f"/v1/leases/{quote(lease_id, safe='')}"), as_json)


@leases.command("release")
def release_leases(
    lease_ids: Annotated[list[str], typer.Argument(metavar="LEASE…", help="ids of the leases")], as_json: Json = False
) -> None:
    """End leases; their desktops are taken back at once. One that has ended already is left alone."""
    _each("/v1/leases/", lease_ids, "released", as_json)


@claims.callback()
def list_of_claims(context: typer.Context, as_json: Json = False) -> None:
    """The queue of claims."""
    if context.invoked_subcommand is None:
        list_claims(as_json)


@claims.command("list")
def list_claims(as_json: Json = False) -> None:
    """The claims that wait, in the order in which they will be served."""
    show_table("/v1/claims", CLAIM_COLUMNS, as_json)


@claims.command("show")
def show_claim(
    claim_id: Annotated[str, typer.Argument(metavar="CLAIM", help="id of the claim")], as_json: Json = False
) -> None:
    """One claim; its leases are named, their tokens are not shown."""
    view: dict[str, Any] = request_or_fail(f"/v1/claims/{quote(claim_id, safe='')}")
    view.pop("leases", None)
    show_fields(view, as_json)


@claims.command("cancel")
def cancel_claims(
    claim_ids: Annotated[list[str], typer.Argument(metavar="CLAIM…", help="ids of the claims")], as_json: Json = False
) -> None:
    """Take claims out of the queue; desktops that they were granted are given back."""
    _each("/v1/claims/", claim_ids, "cancelled", as_json)


def _each(path: str, ids: list[str], done: str, as_json: bool) -> None:
    for name in ids:
        request_or_fail(path + quote(name, safe=""), "DELETE")
    show({done: ids}, "\n".join(f"{done} {name}" for name in ids), as_json)
