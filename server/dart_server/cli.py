"""`dart-farm`: serve, look, stop, clean up. Rule: nothing heavy is imported before a command needs it; a wrong setting or a host that lacks
something is one sentence on standard error and exit code 2, before anything starts; 1 means that the command itself failed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

import typer

from dart_server import image_cli

if TYPE_CHECKING:
    from dart_server.settings import FarmSettings

app = typer.Typer(
    name="dart-farm", help="The farm: live desktops by lease.", no_args_is_help=True, add_completion=False
)
app.add_typer(image_cli.app, name="images")
STOP_TIMEOUT_S = 60.0
LEASE_POLL_S = 0.2
EXPIRY_TICKS = 5
"""A lease that nobody renews has ended this many ticks of the farm after its time."""
Json = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def fail(message: str, code: int = 2) -> NoReturn:
    """One sentence, then the end."""
    typer.echo(f"dart-farm: {message}", err=True)
    raise typer.Exit(code)


def load_settings(**given: Any) -> FarmSettings:
    """Settings from the environment and from options; a wrong one ends the program with exit code 2."""
    from pydantic import ValidationError

    from dart_server.settings import FarmSettings

    try:
        return FarmSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        fail(f"{'DART_' + name.upper() if name else 'settings'}: {problem['msg']}.")


@app.command()
def serve(
    uds: Annotated[Path | None, typer.Option(help="Listen on this Unix socket.")] = None,
    host: Annotated[str | None, typer.Option(help="Loopback address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    provider: Annotated[str | None, typer.Option(help="runc, docker, libvirt or sim.")] = None,
    max_desktops: Annotated[int | None, typer.Option(help="Live desktops at once.")] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="One per user: on farm.sock, stops itself when idle.")
    ] = False,
    idle_shutdown_s: Annotated[
        float | None, typer.Option(help="With --embedded: stop after this long without leases.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None,
) -> None:
    """Run the farm in the foreground until SIGINT or SIGTERM."""
    from dart_server import daemon, logs, preflight
    from dart_server.errors import ConfigError
    from dart_server.providers.base import ProviderError

    if embedded and (uds or host or port):
        fail("--embedded listens on farm.sock in the runtime directory; leave --uds, --host and --port away.")
    settings = load_settings(
        uds=uds,
        host=host,
        port=port,
        provider=provider,
        max_desktops=max_desktops,
        idle_shutdown_s=idle_shutdown_s,
        log_format=log_format,
    )
    if embedded:
        settings = settings.model_copy(update={"uds": settings.socket_path})
    logs.configure(settings.log_format, settings.log_level)
    os.umask(0o077)
    try:
        daemon.private_directory(settings.runtime_dir)
        with daemon.sole_farm(settings):
            preflight.require(settings)
            asyncio.run(daemon.serve(settings, idle_shutdown_s=settings.idle_shutdown_s if embedded else None))
    except daemon.AlreadyRunning as running:
        if not embedded:
            fail(
                f"{running} in {settings.runtime_dir}; stop it with `dart-farm stop`, or set DART_RUNTIME_DIR to another directory."
            )
        typer.echo(f"dart-farm: {running}", err=True)
    except ConfigError as error:
        fail(str(error))
    except ProviderError as error:
        fail(f"{error} {error.hint}".strip())


@app.command()
def stop(timeout_s: Annotated[float, typer.Option(help="How long to wait for its end.")] = STOP_TIMEOUT_S) -> None:
    """Stop the farm of this runtime directory: its desktops and snapshots go with it."""
    from dart_server import daemon
    from dart_server.errors import ConfigError

    try:
        stopped = daemon.stop_running(load_settings(), timeout_s)
    except ConfigError as error:
        fail(str(error), 1)
    typer.echo("stopped" if stopped else "no farm is running")


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


@app.command()
def leases(as_json: Json = False) -> None:
    """The active leases."""
    _table("/v1/leases", ("lease_id", "desktop_id", "fence", "owner", "expires_at"), as_json)


@app.command()
def desktops(as_json: Json = False) -> None:
    """The desktops."""
    _table("/v1/desktops", ("desktop_id", "state", "fence", "lease_id", "setup_key"), as_json)


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
    _table(f"/v1/snapshots?state={state}", ("snapshot_id", "kind", "name", "parent", "bytes", *columns), as_json)


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="Whom it is for.")],
    scope: Annotated[str, typer.Option(help="read, lease or admin.")] = "lease",
) -> None:
    """Make a bearer key and print it, once: only its hash is kept."""
    from dart_server import daemon
    from dart_server.errors import ConfigError
    from dart_server.keys import Scope, make_key

    if scope not in set(Scope):
        fail(f"--scope: {scope} is none of {', '.join(Scope)}.")
    settings = load_settings()
    try:
        daemon.private_directory(settings.runtime_dir)
    except ConfigError as error:
        fail(str(error))
    typer.echo(asyncio.run(make_key(settings.database_url, name, Scope(scope))))


@app.command()
def doctor(
    provider: Annotated[str | None, typer.Option(help="runc, docker, libvirt or sim.")] = None,
    as_json: Json = False,
) -> None:
    """What this host has and lacks for the farm, with the cures. Exit code 2 when something that is needed is missing."""
    from dart_server import preflight

    checks = preflight.examine(load_settings(provider=provider))
    if as_json:
        typer.echo(json.dumps([check.as_dict() for check in checks]))
    else:
        for check in checks:
            typer.echo(
                f"{'ok ' if check.ok else 'NO '} {check.name}: {check.detail}" + ("" if check.ok else f" {check.cure}")
            )
    if not all(check.ok for check in checks):
        raise typer.Exit(2)


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
    from dart_server import daemon, reaper
    from dart_server.errors import ConfigError
    from dart_server.providers.base import ProviderError

    settings = load_settings(provider=provider)
    if not force and not dry_run and daemon.running_pid(settings) is not None:
        leases_left = outwait_the_dead(settings)
        if leases_left:
            fail(
                f"the farm is running and its {leases_left} leases are being renewed; stop it with `dart-farm stop`, or give --force.",
                1,
            )
    try:
        if not dry_run:
            daemon.stop_running(settings, STOP_TIMEOUT_S)
        removed = asyncio.run(reaper.reap(settings, dry_run=dry_run))
    except (ConfigError, ProviderError) as error:
        fail(f"{error} {getattr(error, 'hint', '')}".strip(), 1)
    if as_json:
        typer.echo(json.dumps({"dry_run": dry_run, "removed": removed}))
        return
    for name in removed:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {name}")
    if not removed:
        typer.echo("nothing to remove")


def ask(settings: FarmSettings, path: str, method: str = "GET") -> Any | None:
    """A request to the farm of DART_FARM_URL, else to the one on this runtime directory's socket; None when none answers, an answer without
    content is an empty text."""
    import httpx

    url = os.environ.get("DART_FARM_URL")
    key = os.environ.get("DART_API_KEY") or (
        settings.key_path.read_text().strip() if settings.key_path.exists() else ""
    )
    transport = httpx.HTTPTransport() if url else httpx.HTTPTransport(uds=str(settings.uds or settings.socket_path))
    try:
        with httpx.Client(transport=transport, base_url=url or "http://farm", timeout=10.0) as client:
            reply = client.request(method, path, headers={"authorization": f"Bearer {key}"})
    except httpx.TransportError:
        return None
    if not reply.is_success:
        fail(f"the farm refused: {reply.text}", 1)
    return reply.json() if reply.content else ""


def outwait_the_dead(settings: FarmSettings) -> int:
    """Number of leases of the running farm that are still there when all that nobody renews have expired."""

    def held() -> int:
        view = ask(settings, "/v1/farm")
        return view["leases_active"] if view else 0

    count = held()
    if not count:
        return 0
    ends_s = [datetime.fromisoformat(lease["expires_at"]).timestamp() for lease in ask(settings, "/v1/leases") or ()]
    now_s = time.time()
    wait_s = max([now_s, *ends_s]) - now_s + EXPIRY_TICKS * settings.tick_s
    typer.echo(
        f"dart-farm: the farm has {count} leases; waiting up to {wait_s:.0f} s for those of clients that are gone"
        " (--force does not wait)",
        err=True,
    )
    give_up_s = time.monotonic() + wait_s
    while (count := held()) and time.monotonic() < give_up_s:
        time.sleep(LEASE_POLL_S)
    return count


def _table(path: str, columns: tuple[str, ...], as_json: bool) -> None:
    rows = ask(load_settings(), path)
    if rows is None:
        fail("no farm is running.", 1)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_table(rows, columns)


def print_table(rows: Sequence[Mapping[str, Any]], columns: tuple[str, ...]) -> None:
    """Columns under their names."""
    cells = [
        list(columns),
        *(["-" if row.get(column) is None else str(row[column]) for column in columns] for row in rows),
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main() -> None:
    """Entry point of `dart-farm`."""
    app()


if __name__ == "__main__":
    main()
