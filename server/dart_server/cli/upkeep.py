"""`drain`, `reap`: ending what runs, and cleaning up after farms that are gone."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from dart_server.cli.process import STOP_TIMEOUT_S
from dart_server.cli.session import farm_location, load_settings, request, request_or_fail
from dart_server.cli.terminal import Json, fail, show

if TYPE_CHECKING:
    from dart_server.settings import FarmSettings

app = typer.Typer()
LEASE_POLL_S = 0.2
DRAIN_PATH = "/v1/farm/drain"
EXPIRY_TICKS = 5
"""A farm that is not busy has ended a lease that nobody renews this many ticks after its time."""


@app.command()
def drain(
    wait: Annotated[bool, typer.Option("--wait", help="Return when the last lease has ended.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Serve claims again.")] = False,
    timeout_s: Annotated[float | None, typer.Option(min=0, help="With --wait: give up after this long.")] = None,
    as_json: Json = False,
) -> None:
    """Take no more claims; leases that hold go on to their end. It holds until `--undo`."""
    if undo and wait:
        fail("--undo and --wait do not go together.")
    location = farm_location()
    if undo:
        request_or_fail(DRAIN_PATH, "DELETE", location=location)
        show({"draining": False}, "serving claims again", as_json)
        return
    request_or_fail(DRAIN_PATH, "POST", location=location)
    gives_up_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while (left := request_or_fail("/v1/farm", location=location)["leases_active"]) and wait:
        if time.monotonic() >= gives_up_s:
            fail(f"{left} leases are still held after {timeout_s:g} s; the farm goes on draining.", 1, error="timeout")
        time.sleep(LEASE_POLL_S)
    show({"draining": True, "leases_active": left}, f"draining, {left} leases are held", as_json)


@app.command()
def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Stop a running farm at once, whoever has leases.")] = False,
    provider: Annotated[str | None, typer.Option(help="runc, docker, libvirt or sim.")] = None,
    as_json: Json = False,
) -> None:
    """Remove everything of this user's farm from the host; works without a running farm, and stops one that nobody uses.

    Leases of clients that are gone are waited for until they expire; while a client renews its own, the farm is left alone.
    """
    from dart_server.errors import FarmConfigError
    from dart_server.process import instance, reaper
    from dart_server.providers.base import ProviderError

    settings = load_settings(provider=provider)
    if not force and not dry_run and instance.running_pid(settings) is not None:
        leases_left = wait_for_abandoned_leases(settings)
        if leases_left:
            fail(
                f"the farm is running and its {leases_left} leases are being renewed; stop it with `dart-farm stop`, or give --force.",
                1,
            )
    try:
        if not dry_run:
            instance.stop_running(settings, STOP_TIMEOUT_S)
        removed = asyncio.run(reaper.reap(settings, dry_run=dry_run))
    except (FarmConfigError, ProviderError) as error:
        fail(f"{error} {getattr(error, 'hint', '')}".strip(), 1)
    lines = [f"{'would remove' if dry_run else 'removed'} {name}" for name in removed] or ["nothing to remove"]
    show({"dry_run": dry_run, "removed": removed}, "\n".join(lines), as_json)


def wait_for_abandoned_leases(settings: FarmSettings) -> int:
    """Number of leases of the running farm that were renewed or made while those that nobody renews were waited for; 0 when none was."""
    first = lease_expiries(settings)
    if not first:
        return 0
    now_s = time.time()
    wait_s = max([now_s, *first.values()]) - now_s + EXPIRY_TICKS * settings.tick_interval_s
    typer.echo(
        f"dart-farm: the farm has {len(first)} leases; waiting up to {wait_s:.0f} s for those of clients that are gone"
        " (--force does not wait)",
        err=True,
    )
    give_up_s = time.monotonic() + wait_s
    while now := lease_expiries(settings):
        alive = [lease_id for lease_id, ends_s in now.items() if ends_s != first.get(lease_id)]
        if alive or time.monotonic() >= give_up_s:
            return len(alive)
        time.sleep(LEASE_POLL_S)
    return 0


def lease_expiries(settings: FarmSettings) -> dict[str, float]:
    """When each lease that holds ends unless it is renewed, in seconds of the epoch; empty when no farm answers."""
    leases = request(settings, "/v1/leases") or ()
    return {lease["lease_id"]: datetime.fromisoformat(lease["expires_at"]).timestamp() for lease in leases}
