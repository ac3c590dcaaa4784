"""`dart-farm`: serve, look, stop, clean up; one module per family of commands.

Rule: nothing heavy is imported before a command needs it; a wrong setting or a host that lacks something is one sentence on
standard error and exit code 2, before anything starts; 1 means that the command itself failed.
"""

from __future__ import annotations

import os

import typer

from dart_server.cli import (
    desktops,
    doctor,
    events,
    images,
    keys,
    leases,
    pools,
    process,
    sbom,
    setup,
    snapshots,
    status,
    terminal,
    upkeep,
)

app = typer.Typer(
    name="dart-farm",
    cls=terminal.JsonErrorGroup,
    help="The farm: live desktops by lease.",
    no_args_is_help=True,
    add_completion=False,
    callback=terminal.reset_output_mode,
)
for family in (process, setup, doctor, sbom, status):
    app.add_typer(family.app)
app.add_typer(pools.app, name="pools")
app.add_typer(leases.leases, name="leases")
app.add_typer(leases.claims, name="claims")
app.add_typer(keys.app, name="keys")
app.add_typer(keys.key_app)
app.add_typer(desktops.app, name="desktops")
app.add_typer(images.app, name="images")
app.add_typer(snapshots.app, name="snapshots")
for family in (events, upkeep):
    app.add_typer(family.app)


def main() -> None:
    """Entry point of `dart-farm`."""
    try:
        app()
    except ModuleNotFoundError as error:
        from dart_server.wire.extras import missing_module

        elsewhere = None if os.environ.get("DART_FARM_URL") else "To use a farm that runs elsewhere, set DART_FARM_URL."
        try:
            terminal.fail(f"{missing_module(error, 'server')}.", 1, error="missing_extra", hint=elsewhere)
        except typer.Exit as end:
            raise SystemExit(end.exit_code) from None
