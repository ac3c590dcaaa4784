"""`serve`, `stop`: the farm as a process."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dart_server.cli.session import load_settings
from dart_server.cli.terminal import Json, fail, show

if TYPE_CHECKING:
    from dart_server.settings import FarmSettings

app = typer.Typer()
log = logging.getLogger("dart_server.cli")
STOP_TIMEOUT_S = 60.0


@app.command()
def serve(
    uds: Annotated[Path | None, typer.Option(help="Listen on this Unix socket.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; beyond loopback only with TLS.")] = None,
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
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM): the farm speaks HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key (PEM) of the certificate.")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="A name by which clients call this farm.")] = None,
    cors_origin: Annotated[list[str] | None, typer.Option(help="An origin whose web pages may call this farm.")] = None,
    insecure_plain_http: Annotated[
        bool, typer.Option("--insecure-plain-http", help="Beyond loopback without TLS: keys can be read on the way.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the farm in the foreground until SIGINT or SIGTERM. With --json its pid, provider and url on one line once it serves."""
    from dart_server.errors import FarmConfigError
    from dart_server.observability import logs
    from dart_server.process import daemon, instance, preflight, state_directory
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
        tls_cert=tls_cert,
        tls_key=tls_key,
        allowed_hosts=tuple(allow_host) if allow_host else None,
        cors_origins=tuple(cors_origin) if cors_origin else None,
        insecure_plain_http=insecure_plain_http or None,
    )
    if embedded:
        settings = settings.model_copy(update={"uds": settings.socket_path})
    logs.configure(settings.log_format, settings.log_level)
    os.umask(0o077)
    try:
        state_directory.make_directories(settings)
        with instance.exclusive_farm(settings):
            state_directory.migrate_legacy_layout(settings)
            preflight.require(settings)
            idle_shutdown_s = settings.idle_shutdown_s if embedded else None
            daemon.run(
                settings,
                idle_shutdown_s=idle_shutdown_s,
                on_bound=None if embedded else ensure_admin_key,
                on_serving=print_address if as_json else None,
            )
    except instance.AlreadyRunning as running:
        if not embedded:
            fail(
                f"{running} in {settings.runtime_dir}; stop it with `dart-farm stop`, or set DART_RUNTIME_DIR to another directory."
            )
        typer.echo(f"dart-farm: {running}", err=True)
    except FarmConfigError as error:
        fail(str(error))
    except ProviderError as error:
        fail(f"{error} {error.hint}".strip())


def print_address(noted: Mapping[str, Any]) -> None:
    """One line of JSON for who started the farm and reads its output."""
    typer.echo(json.dumps(noted))


def ensure_admin_key(settings: FarmSettings) -> None:
    """Make the admin key before the first start and show it once, to a person at a terminal: standard error that leads elsewhere is a log,
    which hears only where the key lies. Raises `FarmConfigError`."""
    from dart_server.keys import read_or_create_secret

    if settings.key_path.exists():
        return
    secret = read_or_create_secret(settings.key_path, "dart")
    if sys.stderr.isatty():
        typer.echo(f"The admin key of this farm, shown this once: {secret}", err=True)
        typer.echo(
            f"Only its hash is in the database; commands on this host read it from {settings.key_path}.", err=True
        )
    else:
        log.info("made the admin key of this farm: it lies in %s", settings.key_path)


@app.command()
def stop(
    timeout_s: Annotated[float, typer.Option(help="How long to wait for its end.")] = STOP_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Stop the farm of this runtime directory: its desktops and snapshots go with it."""
    from dart_server.errors import FarmConfigError
    from dart_server.process import instance

    try:
        stopped = instance.stop_running(load_settings(), timeout_s)
    except FarmConfigError as error:
        fail(str(error), 1)
    show({"stopped": stopped}, "stopped" if stopped else "no farm is running", as_json)
