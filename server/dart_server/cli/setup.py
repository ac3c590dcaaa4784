"""`setup`: prepare this host for live desktops.

The command installs system packages, the root helper with CRIU, a desktop image and the dashboard's viewer. Exit code 2: the host lacks
something, in one sentence with the fix. It does not start the farm.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from dart_server.cli.session import load_settings
from dart_server.cli.terminal import fail

app = typer.Typer()


@app.command()
def setup(
    image: Annotated[list[str] | None, typer.Option("--image", help="Desktop image to build; repeat for more.")] = None,
    no_image: Annotated[bool, typer.Option("--no-image", help="Build no desktop image.")] = False,
    user: Annotated[str | None, typer.Option(help="As root: the ordinary user who may start the root helper.")] = None,
) -> None:
    """Install what live desktops need on this host: packages, root helper, CRIU, the image `basic`, the viewer."""
    from dart_server.process import host_setup

    if image and no_image:
        fail("--image and --no-image do not go together.")
    home = load_settings().home
    started = time.monotonic()
    try:
        built_before = (home / "images").is_dir()
        host_setup.prepare(home, [] if no_image else image or ["basic"], check_disk=not built_before, user=user)
    except host_setup.SetupFailed as error:
        fail(str(error))
    host_setup.say(f"ready after {time.monotonic() - started:.0f} s")
