"""What every command starts from: the settings, and the farm that answers."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import typer

from dart_server.cli.terminal import fail, print_table

if TYPE_CHECKING:
    from dart_server.settings import FarmSettings


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


def show_table(path: str, columns: tuple[str, ...], as_json: bool) -> None:
    """The rows that the farm answers with."""
    rows = ask(load_settings(), path)
    if rows is None:
        fail("no farm is running.", 1)
    if as_json:
        typer.echo(json.dumps(rows))
    else:
        print_table(rows, columns)
