"""`status`, `top`: the running farm in numbers, once and live."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dart_server.cli.session import address, farm_location, request, request_or_fail
from dart_server.cli.terminal import Json, format_cell, print_table, printable, show, table

if TYPE_CHECKING:
    from rich.console import Group

app = typer.Typer()
MB = 1e6
ROWS = 15
"""Rows of each table of `top`."""
EVENTS_BACK = 8
MAX_EVENT_ID = 2**62
PARTS: dict[str, tuple[str, ...]] = {
    "pools": ("name", "ready", "standby", "creating", "leased", "hits", "misses", "in_backoff"),
    "claims": ("claim_id", "position", "count", "priority", "waiting_for", "owner", "created_at"),
    "leases": ("lease_id", "desktop_id", "owner", "expires_at", "labels"),
    "desktops": ("desktop_id", "state", "lease_id", "setup_key"),
    "events": ("id", "at", "kind", "desktop_id", "lease_id"),
}


@app.command()
def status(as_json: Json = False) -> None:
    """The running farm in numbers; exit code 1 when none runs."""
    location = farm_location()
    view = request(location, "/v1/farm")
    if view is None:
        from dart_server.wire.connection import nobody_answers

        problem = nobody_answers(address(location))
        show({"running": False}, f"{problem.message} {problem.hint}", as_json)
        raise typer.Exit(1)
    show({"running": True, **view}, "\n".join(_numbers(view)), as_json)


def _numbers(view: dict[str, Any]) -> list[str]:
    desktops = ", ".join(f"{count} {state}" for state, count in sorted(view["desktops"].items())) or "none"
    used, quota = view["snapshot_bytes"] / MB, view["snapshot_quota_bytes"] / MB
    in_backoff = [f"held back  {format_cell(reason)}" for reason in view.get("in_backoff") or ()]
    return [
        f"provider   {view['provider']}",
        f"desktops   {desktops} (at most {view['max_desktops']})",
        f"leases     {view['leases_active']}",
        f"snapshots  {view['snapshots']} ({used:.0f} of {quota:.0f} MB)",
        *(["draining   no claim is granted until `dart-farm drain --undo`"] if view.get("draining") else []),
        *([f"short of   {view['capacity_limit_reason']}"] if view.get("capacity_limit_reason") else []),
        *in_backoff,
    ]


@app.command()
def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once and end; so it is where nobody watches.")] = False,
    interval_s: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    as_json: Json = False,
) -> None:
    """The farm live: pools, queue, leases, desktops and what happened last. End it with Ctrl-C.

    With --json one object per look: `farm`, `pools`, `claims`, `leases`, `desktops`, `events`.
    """
    if as_json:
        while True:
            typer.echo(json.dumps(_look(), ensure_ascii=False))
            if once:
                return
            sys.stdout.flush()
            time.sleep(interval_s)
    look = _look()
    if once or not sys.stdout.isatty():
        _print(look)
        return
    from rich.live import Live

    with Live(_screen(look), screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(_screen(_look()), refresh=True)
        except KeyboardInterrupt:
            return


def _look() -> dict[str, Any]:
    location = farm_location()
    farm = request_or_fail("/v1/farm", location=location)
    found = {part: request_or_fail(f"/v1/{part}", location=location) for part in PARTS if part != "events"}
    events = request_or_fail("/v1/events", location=location, params={"before": MAX_EVENT_ID, "limit": EVENTS_BACK})
    return {"farm": farm, **found, "events": events}


def _screen(look: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.text import Text

    head = Text("\n".join(printable(line) for line in _numbers(look["farm"])))
    return Group(
        head, *(table(look[part][:ROWS], columns, title=_title(look, part)) for part, columns in PARTS.items())
    )


def _print(look: dict[str, Any]) -> None:
    typer.echo("\n".join(printable(line) for line in _numbers(look["farm"])))
    for part, columns in PARTS.items():
        typer.echo(f"\n{_title(look, part)}")
        print_table(look[part][:ROWS], columns)


def _title(look: dict[str, Any], part: str) -> str:
    count = len(look[part])
    return f"{part} ({count})" if count <= ROWS else f"{part} (the first {ROWS} of {count})"
