"""`pools`: how many desktops of what are ready before anybody asks."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from dart_server.cli.session import request_or_fail
from dart_server.cli.terminal import Json, fail, plain, printable, show, show_fields, show_rows

COLUMNS = ("name", "kind", "ready", "standby", "creating", "leased", "hits", "misses", "in_backoff", "labels")
Name = Annotated[str, typer.Argument(metavar="POOL", help="name of the pool")]

app = typer.Typer(help="The pools: list (the default), show, set, rm.", invoke_without_command=True)


@app.callback()
def pools(context: typer.Context, as_json: Json = False) -> None:
    """The pools."""
    if context.invoked_subcommand is None:
        list_pools(as_json)


@app.command("list")
def list_pools(as_json: Json = False) -> None:
    """Every pool as it is now."""
    rows = request_or_fail("/v1/pools")
    show_rows(rows if as_json else [{**row, **_told(row)} for row in rows], COLUMNS, as_json)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    """What a pool is of, in a few words, beside the wanted numbers."""
    spec, shape = row["spec"], row["spec"]["shape"]
    width, height = shape["resolution"]
    of = spec["snapshot_id"] or (spec["setup_key"] or "")[:12] or "base"
    return {
        "kind": f"{shape['image']} {width}x{height} {of}",
        "ready": f"{row['ready']}/{spec['warm']}",
        "standby": f"{row['standby']}/{spec['standby']}",
        "labels": spec["labels"],
    }


@app.command("show")
def show_pool(name: Name, as_json: Json = False) -> None:
    """One pool with its specification."""
    show_fields(request_or_fail(_path(name)), as_json)


@app.command("set")
def set_pool(
    name: Name,
    image: Annotated[str | None, typer.Option(help="Image of its desktops.")] = None,
    resolution: Annotated[str | None, typer.Option(help="Their screen, as 1920x1080.")] = None,
    setup_key: Annotated[str | None, typer.Option(help="Copies of the prepared state of this key.")] = None,
    snapshot: Annotated[str | None, typer.Option(help="Copies of this snapshot, by id or name.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, for claims to ask for; may be repeated.")] = None,
    warm: Annotated[int, typer.Option(help="Copies that run and wait.")] = 0,
    standby: Annotated[int, typer.Option(help="Copies that are frozen and wait.")] = 0,
    minimum: Annotated[int, typer.Option("--min", help="Desktops of this kind at least, leased ones too.")] = 0,
    maximum: Annotated[int | None, typer.Option("--max", help="At most so many, leased ones too.")] = None,
    refill_per_minute: Annotated[float | None, typer.Option(help="Copies made ahead of need, at most.")] = None,
    as_json: Json = False,
) -> None:
    """Make a pool, or give it a new specification: what is not said here is as in a new one."""
    from pydantic import ValidationError

    from dart_server.wire import PoolSpec

    _checked(name)
    shape: dict[str, Any] = {} if image is None else {"image": image}
    if resolution is not None:
        shape["resolution"] = _size(resolution)
    given: dict[str, Any] = {
        "shape": shape,
        "setup_key": setup_key,
        "snapshot_id": snapshot,
        "labels": _labels(label or []),
    }
    given |= {"warm": warm, "standby": standby, "min": minimum, "max": maximum, "refill_per_minute": refill_per_minute}
    try:
        spec = PoolSpec.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        option = ".".join(str(part) for part in problem["loc"])
        fail(f"{option + ': ' if option else ''}{plain(problem['msg'])}.")
    show_fields(request_or_fail(_path(name), "PUT", body=spec.model_dump(mode="json")), as_json)


@app.command("rm")
def remove_pool(name: Name, as_json: Json = False) -> None:
    """Remove a pool: what waits in it goes, what is leased stays with its leases."""
    request_or_fail(_path(name), "DELETE")
    show({"removed": name}, f"removed {name}", as_json)


def _checked(name: str) -> None:
    from pydantic import TypeAdapter, ValidationError

    from dart_server.wire.pools import PoolName

    try:
        TypeAdapter(PoolName).validate_python(name)
    except ValidationError:
        fail(f"POOL: {printable(name)!r} is no name of a pool; use up to 64 small letters, digits, dots, _ and -.")


def _size(text: str) -> list[int]:
    width, _, height = text.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        fail(f"--resolution: {printable(text)!r} is not WIDTHxHEIGHT, as 1920x1080.")
    return [int(width), int(height)]


def _labels(texts: list[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            fail(f"--label: {printable(text)!r} is not NAME=VALUE.")
        labels[name] = value
    return labels


def _path(name: str) -> str:
    return f"/v1/pools/{quote(name, safe='')}"
