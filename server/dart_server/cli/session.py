"""What every command starts from: the settings, and the farm that answers.

Rule: the farm of `DART_FARM_URL`, else the one that runs in this user's runtime directory, wherever it listens; the key of
`DART_API_KEY`, else, for a farm of this host, the one that it keeps for its user. Non-goals: what is asked, and what is said of a
connection that fails (`dart_server.wire.connection`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dart_server.cli.terminal import fail, show_rows

if TYPE_CHECKING:
    import httpx

    from dart_server.settings import FarmSettings
    from dart_server.wire.connection import ConnectionProblem

ANSWER_TIMEOUT_S = 30.0


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


@dataclass(frozen=True, slots=True)
class RemoteFarm:
    """The farm that `DART_FARM_URL` names, and the file with its key if it is this user's. It needs no farm's settings."""

    url: str
    key_path: Path


def farm_location() -> FarmSettings | RemoteFarm:
    """Where to look for the farm. Only without `DART_FARM_URL` the settings are read, which takes the extra `server`."""
    given = os.environ.get("DART_FARM_URL")
    if not given:
        return load_settings()
    from dart_server.wire import paths

    return RemoteFarm(given, paths.state_dir(paths.runtime_dir()) / paths.KEY_FILE)


def address(location: FarmSettings | RemoteFarm) -> str:
    """Where the farm is looked for, as clients take it."""
    if isinstance(location, RemoteFarm):
        return location.url
    from dart_server.process import instance

    given = os.environ.get("DART_FARM_URL")
    return given or instance.running_url(location) or f"unix://{location.uds or location.socket_path}"


def request(
    location: FarmSettings | RemoteFarm,
    path: str,
    method: str = "GET",
    *,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Any | None:
    """A request to the farm; None when none answers, an answer without content is an empty text.

    A refusal ends the program with what the farm says: exit code 2 for what is wrong with the request, else 1.
    """
    import httpx

    from dart_server.wire.connection import certificate_file_problem, connection_problem

    if problem := certificate_file_problem():
        _fail_with(problem)
    url = address(location)
    key = key_for(location, url)
    socket = url.removeprefix("unix://") if url.startswith("unix://") else ""
    wanted = {name: value for name, value in (params or {}).items() if value is not None}
    try:
        transport = httpx.HTTPTransport(uds=socket or None)
        base_url = "http://farm" if socket else url
        with httpx.Client(transport=transport, base_url=base_url, timeout=ANSWER_TIMEOUT_S) as client:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            reply = client.request(method, path, headers=headers, json=body, params=wanted)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        fail(
            f"DART_FARM_URL: {url!r} is not the address of a farm; use http://HOST:PORT, https://HOST or unix:///PATH."
        )
    except httpx.TimeoutException:
        fail(f"the farm at {url} did not answer within {ANSWER_TIMEOUT_S:g} s.", 1, error="timeout")
    except httpx.TransportError as error:
        if problem := connection_problem(url, error):
            _fail_with(problem)
        return None
    if not reply.is_success:
        _refused(reply, url, key)
    return reply.json() if reply.content else ""


def key_for(location: FarmSettings | RemoteFarm, url: str) -> str:
    """`DART_API_KEY`, else the key of this user's own farm, which a farm of another host must not learn; empty where there is none."""
    from dart_server.wire.connection import is_own_host

    if given := os.environ.get("DART_API_KEY"):
        return given
    if not is_own_host(url) or not location.key_path.exists():
        return ""
    return location.key_path.read_text(encoding="utf-8").strip()


def _fail_with(problem: ConnectionProblem) -> NoReturn:
    fail(problem.message, 2 if problem.code == "invalid" else 1, error=problem.code, hint=problem.hint)


def _refused(reply: httpx.Response, url: str, key: str) -> NoReturn:
    from dart_server.wire.connection import KEY_NEEDED, key_problem

    try:
        body = reply.json()
        code, detail, hint = str(body["error"]), str(body["detail"]), body.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, detail, hint = f"http_{reply.status_code}", f"it answered with status {reply.status_code}", None
    if code == "unauthenticated" and detail == KEY_NEEDED:
        _fail_with(key_problem(url, key))
    exit_code = 2 if code == "invalid" else 1
    fail(f"the farm refused: {detail.rstrip('.')}.", exit_code, error=code, hint=hint)


def request_or_fail(
    path: str,
    method: str = "GET",
    *,
    body: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    location: FarmSettings | RemoteFarm | None = None,
) -> Any:
    """The same of a farm that must be running; else the end with exit code 1."""
    chosen = location or farm_location()
    answer = request(chosen, path, method, body=body, params=params)
    if answer is None:
        from dart_server.wire.connection import nobody_answers

        _fail_with(nobody_answers(address(chosen)))
    return answer


def show_table(path: str, columns: Sequence[str], as_json: bool, *, params: Mapping[str, Any] | None = None) -> None:
    """The rows that the farm answers with."""
    show_rows(request_or_fail(path, params=params), columns, as_json)
