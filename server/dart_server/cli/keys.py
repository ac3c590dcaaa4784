"""`keys`: who may call, what, how much, until when.

Rule: a farm that answers is asked; where none runs, the database of this user's farm is written directly. A secret is shown once.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from dart_server.cli.session import farm_location, load_settings, request, request_or_fail
from dart_server.cli.terminal import Json, fail, plain, printable, show, show_rows

if TYPE_CHECKING:
    from dart_server.keys import KeyStore
    from dart_server.settings import FarmSettings

T = TypeVar("T")
COLUMNS = (
    *("key_id", "name", "scope", "created_at", "expires_at", "revoked_at", "last_used_at"),
    *("max_leases", "max_waiting", "weight", "max_priority"),
)
DAY_S = 86_400.0
HINTS = {"expires-at": "Write it with its zone, as 2030-01-31T12:00:00Z."}

app = typer.Typer(help="The keys: list (the default), add, revoke.", invoke_without_command=True)
key_app = typer.Typer()
"""`key`, the short form of `keys add`."""

Name = Annotated[str, typer.Argument(help="Whom it is for.")]
ScopeOption = Annotated[str, typer.Option(help="read, lease or admin.")]
Offline = Annotated[bool, typer.Option("--offline", help="Write this user's database even when a farm answers.")]


@app.callback()
def keys(context: typer.Context, as_json: Json = False) -> None:
    """The keys."""
    if context.invoked_subcommand is None:
        list_keys(as_json=as_json)


@app.command("list")
def list_keys(offline: Offline = False, as_json: Json = False) -> None:
    """Every key, revoked ones too; no secrets."""
    rows = None if offline else _online("/v1/keys")
    if rows is None:

        async def read(keys: KeyStore) -> list[dict[str, Any]]:
            return [view.model_dump(mode="json") for view in await keys.all()]

        rows = _in_database(load_settings(), read)
    show_rows(rows, COLUMNS, as_json)


@app.command()
def add(
    name: Name,
    scope: ScopeOption = "lease",
    expires_at: Annotated[str | None, typer.Option(help="Refused from then on, as 2030-01-31T12:00:00Z.")] = None,
    expires_in_days: Annotated[float | None, typer.Option(help="The same, counted from now.")] = None,
    max_leases: Annotated[
        int | None,
        typer.Option(help="Leases that it may hold at a time; by default DART_MAX_LEASES_PER_KEY of the farm."),
    ] = None,
    max_waiting: Annotated[int | None, typer.Option(help="Claims that may wait at a time.")] = None,
    weight: Annotated[float, typer.Option(help="Its share against other keys when claims wait.")] = 1.0,
    max_priority: Annotated[int, typer.Option(help="The highest priority that its claims may have.")] = 0,
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Make a bearer key and print its secret, once: only its hash is kept."""
    from pydantic import ValidationError

    from dart_server.wire import KeyRequest

    if expires_at is not None and expires_in_days is not None:
        fail("give --expires-at or --expires-in-days, not both.")
    until: str | datetime | None = expires_at
    if expires_in_days is not None:
        try:
            until = datetime.now(UTC) + timedelta(days=expires_in_days)
        except OverflowError:
            fail(f"--expires-in-days: {expires_in_days:g} is too far away.")
    given = {"name": name, "scope": scope, "max_leases": max_leases, "max_waiting": max_waiting, "weight": weight}
    given["max_priority"] = max_priority
    try:
        request = KeyRequest.model_validate({**given, "expires_at": until})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        option = str(problem["loc"][0]).replace("_", "-")
        if option == "name":
            fail("NAME: 1 to 64 characters are needed, none of them a control character.")
        fail(f"--{option}: {plain(problem['msg'])}.", hint=HINTS.get(option))
    body = request.model_dump(mode="json")
    made = None if offline else _online("/v1/keys", "POST", body)
    if made is None:

        async def make(keys: KeyStore) -> dict[str, Any]:
            return (await keys.make(request)).model_dump(mode="json")

        made = _in_database(load_settings(), make)
    typer.echo(json.dumps(made, ensure_ascii=False) if as_json else made["secret"])


@key_app.command("key")
def key(name: Name, scope: ScopeOption = "lease", as_json: Json = False) -> None:
    """Make a bearer key and print it, once: `keys add` without its options."""
    add(name, scope, as_json=as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `dart-farm keys` shows it.")],
    offline: Offline = False,
    as_json: Json = False,
) -> None:
    """Refuse a key from now on; what runs under it ends."""
    if offline or _online(f"/v1/keys/{quote(key_id, safe='')}", "DELETE") is None:
        _in_database(load_settings(), lambda keys: keys.revoke(key_id))
    show({"revoked": key_id}, f"revoked {key_id}", as_json)


def _online(path: str, method: str = "GET", body: dict[str, Any] | None = None) -> Any | None:
    """What the farm answers; None when this user's own does not run. One that `DART_FARM_URL` names must answer."""
    if os.environ.get("DART_FARM_URL"):
        return request_or_fail(path, method, body=body)
    return request(farm_location(), path, method, body=body)


def _in_database(settings: FarmSettings, work: Callable[[KeyStore], Awaitable[T]]) -> T:
    """Do it in the database. A farm that runs on it hears of it at its next look."""
    from sqlalchemy.exc import SQLAlchemyError

    from dart_server.clock import SystemClock
    from dart_server.database.repository import Repository
    from dart_server.database.write_queue import Database
    from dart_server.errors import ApiError, FarmConfigError
    from dart_server.keys import KeyStore, ignore_key_end
    from dart_server.process import instance, state_directory

    async def run() -> T:
        database = Database(settings.database_url)
        await database.start()
        try:
            clock = SystemClock()
            return await work(KeyStore(Repository(database, clock), clock, ignore_key_end))
        finally:
            await database.aclose()

    try:
        state_directory.make_directories(settings)
        if instance.running_pid(settings) is None:
            state_directory.migrate_legacy_layout(settings)
        return asyncio.run(run())
    except FarmConfigError as error:
        fail(str(error))
    except SQLAlchemyError as error:
        fail(
            f"the database cannot be used ({printable(str(error).splitlines()[0])}).", 1, hint="See `dart-farm doctor`."
        )
    except ApiError as error:
        fail(
            f"{error.detail.rstrip('.')}.", 2 if error.code == "invalid" else 1, error=error.code.value, hint=error.hint
        )
