"""`doctor`: what the host has and lacks."""

from __future__ import annotations

from typing import Annotated

import typer

from dart_server.cli.session import load_settings
from dart_server.cli.terminal import Json, show

app = typer.Typer()


@app.command()
def doctor(
    provider: Annotated[str | None, typer.Option(help="runc, docker, libvirt or sim.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port that `serve` shall listen on.")] = None,
    as_json: Json = False,
) -> None:
    """What this host has and lacks for the farm, with the fixes. Exit code 2 when something that is needed is missing."""
    from dart_server.process import preflight

    checks = preflight.run_checks(load_settings(provider=provider, port=port))
    lines = [
        f"{'ok ' if check.ok else 'NO '} {check.name}: {check.detail}" + ("" if check.ok else f" {check.fix}")
        for check in checks
    ]
    show([check.as_dict() for check in checks], "\n".join(lines), as_json)
    if not all(check.ok for check in checks):
        raise typer.Exit(2)
