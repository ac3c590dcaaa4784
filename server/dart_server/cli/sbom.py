"""`sbom`: the bill of materials of the farm or of a desktop image, as CycloneDX JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dart_server.cli.session import load_settings
from dart_server.cli.terminal import fail

app = typer.Typer()


@app.command()
def sbom(
    image: Annotated[str | None, typer.Option(help="Of this desktop image instead of the farm.")] = None,
    installed: Annotated[bool, typer.Option("--installed", help="What this environment holds, locked or not.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write it to this file.")] = None,
) -> None:
    """Write what the farm, or a desktop image, is made of: a CycloneDX document with versions and sha256."""
    from dart_server.process import sbom as bill
    from dart_server.wire.extras import package_version

    if image is not None and installed:
        fail("--image and --installed do not go together.")
    if image is None:
        packages = bill.installed_packages() if installed else bill.locked_packages()
        made = bill.document("dart-farm", package_version(), packages)
    else:
        place = load_settings().home / "images" / image / "current"
        try:
            found = bill.image_packages(place)
            digest = place.resolve().name
        except (OSError, ValueError) as error:
            fail(f"there is no image {image!r} to read ({error}); `dart-farm images` lists them.")
        made = bill.document(f"image-{image}", digest, found.packages)
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
