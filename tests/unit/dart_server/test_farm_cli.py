"""The command line against a stand-in for the farm's answers: tables, JSON, refusals, exit codes; keys offline in a real database."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from dart_server.cli import app
from dart_server.wire.connection import KEY_NEEDED

FARM = {
    "version": "0",
    "provider": "sim",
    "capabilities": {},
    "max_desktops": 4,
    "desktops": {"ready": 2},
    "leases_active": 1,
    "snapshots": 1,
    "snapshot_bytes": 5_000_000,
    "snapshot_quota_bytes": 10_000_000,
}
LEASE = {"lease_id": "lease_1", "desktop_id": "desk_1", "fencing_token": 3, "owner": "key_1", "labels": {"a": "1"}}
EVENT = {"id": 7, "at": "2026-01-01T00:00:00.123Z", "kind": "lease_granted", "desktop_id": "desk_1", "lease_id": None}


SPEC = {
    "shape": {"image": "basic", "resolution": [640, 400]},
    "setup_key": None,
    "snapshot_id": "calc",
    "labels": {"app": "calc"},
    "warm": 2,
    "standby": 1,
}
POOL = {
    "name": "calc",
    "spec": SPEC,
    "ready": 1,
    "standby": 0,
    "creating": 1,
    "leased": 3,
    "hits": 9,
    "misses": 1,
    "in_backoff": None,
    "owner": "key_1",
}
HTTP_TRANSPORT = httpx.HTTPTransport


class Answers:
    """What the farm answers, by method and path; everything that was asked."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], httpx.Response] = {}
        self.asked: list[httpx.Request] = []
        self.away = False

    def give(self, path: str, document: object = None, *, method: str = "GET", status: int = 200) -> None:
        content = httpx.Response(status) if document is None else httpx.Response(status, json=document)
        self.known[method, path] = content

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("nobody there")
        self.asked.append(request)
        known = self.known.get((request.method, request.url.path))
        error = {"error": "not_found", "detail": f"there is no {request.url.path}", "hint": None, "request_id": "r"}
        return httpx.Response(404, json=error) if known is None else known


Run = Callable[..., Result]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answers:
    answers = Answers()
    for name in ("DART_FARM_URL", "DART_API_KEY", "DART_STATE_DIR", "DART_DB_URL"):
        monkeypatch.delenv(name, raising=False)
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("DART_RUNTIME_DIR", str(place))
    monkeypatch.setenv("DART_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("DART_PROVIDER", "sim")
    monkeypatch.setattr(httpx, "HTTPTransport", lambda **_options: httpx.MockTransport(answers))
    return answers


@pytest.fixture
def run(answers: Answers) -> Run:
    def run(*argv: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, argv)
        assert result.exit_code == code, (result.output, result.stderr, result.exception)
        return result

    return run


def test_the_status_is_for_people_and_for_programs(run: Run, answers: Answers) -> None:
    answers.give("/v1/farm", FARM)
    assert "2 ready (at most 4)" in run("status").stdout
    assert json.loads(run("status", "--json").stdout) == {"running": True, **FARM}
    answers.give(
        "/v1/farm",
        {
            **FARM,
            "draining": True,
            "capacity_limit_reason": "the host is short of memory",
            "in_backoff": ["pool calc: no"],
        },
    )
    told = run("status").stdout
    for words in ("drain --undo", "short of   the host is short of memory", "held back  pool calc: no"):
        assert words in told
    answers.away = True
    told = run("status", code=1).stdout
    assert told.startswith("no farm is running: nobody answers at unix:///")
    assert "Start it with `dart-farm serve`, or set DART_FARM_URL to where it is." in told
    assert json.loads(run("status", "--json", code=1).stdout) == {"running": False}


@pytest.mark.parametrize(
    ("argv", "path", "row"),
    [
        (["leases"], "/v1/leases", LEASE),
        (["leases", "list"], "/v1/leases", LEASE),
        (["claims"], "/v1/claims", {"claim_id": "claim_1", "position": 0}),
        (["desktops"], "/v1/desktops", {"desktop_id": "desk_1", "state": "ready"}),
        (["snapshots"], "/v1/snapshots", {"snapshot_id": "snap_1", "kind": "user"}),
        (["snapshots", "list"], "/v1/snapshots", {"snapshot_id": "snap_1", "kind": "user"}),
        (["events"], "/v1/events", EVENT),
        (["pools"], "/v1/pools", POOL),
        (["keys"], "/v1/keys", {"key_id": "key_1", "name": "mine"}),
        (["desktops", "events", "desk_1"], "/v1/desktops/desk_1/events", EVENT),
    ],
)
def test_lists_are_tables_and_documents(run: Run, answers: Answers, argv: list[str], path: str, row: object) -> None:
    assert isinstance(row, dict)
    answers.give(path, [row])
    head, line = run(*argv).stdout.splitlines()
    assert next(iter(row)) in head.split()
    assert str(next(iter(row.values()))) in line.split()
    assert json.loads(run(*argv, "--json").stdout) == [row]


def test_the_newest_events_are_those_before_a_number_that_none_has(run: Run, answers: Answers) -> None:
    answers.give("/v1/events", [EVENT])
    run("events", "--latest", "--limit", "3")
    run("events")
    asked = [dict(request.url.params) for request in answers.asked]
    assert asked == [{"limit": "3", "after": "0", "before": str(2**62)}, {"limit": "500", "after": "0"}]


@pytest.mark.parametrize(
    ("argv", "method", "path"),
    [
        (["leases", "release", "lease_1"], "DELETE", "/v1/leases/lease_1"),
        (["claims", "cancel", "claim_1"], "DELETE", "/v1/claims/claim_1"),
        (["snapshots", "rm", "mine"], "DELETE", "/v1/snapshots/mine"),
        (["snapshots", "--rm", "mine"], "DELETE", "/v1/snapshots/mine"),
        (["pools", "rm", "calc"], "DELETE", "/v1/pools/calc"),
        (["keys", "revoke", "key_1"], "DELETE", "/v1/keys/key_1"),
        (["desktops", "quarantine", "desk_1", "--reason", "odd"], "POST", "/v1/desktops/desk_1/quarantine"),
        (["desktops", "release", "desk_1"], "POST", "/v1/desktops/desk_1/release"),
        (["drain", "--undo"], "DELETE", "/v1/farm/drain"),
    ],
)
def test_deeds_ask_the_farm_and_say_what_they_did(
    run: Run, answers: Answers, argv: list[str], method: str, path: str
) -> None:
    answers.give(path, {"id": "looked at first"})
    answers.give(path, method=method, status=204)
    assert run(*argv).stdout.strip()
    assert (answers.asked[-1].method, answers.asked[-1].url.path) == (method, path)
    assert json.loads(run(*argv, "--json").stdout)


@pytest.mark.parametrize("argv", [["snapshots", "rm", "mien"], ["snapshots", "--rm", "mien"]])
def test_a_snapshot_that_is_not_there_was_not_removed(run: Run, answers: Answers, argv: list[str]) -> None:
    answers.give("/v1/snapshots/mien", method="DELETE", status=204)
    assert "there is no" in run(*argv, code=1).stderr


def test_who_speaks_no_tls_is_named(run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")

    monkeypatch.setattr(httpx, "HTTPTransport", lambda **_options: httpx.MockTransport(plain))
    monkeypatch.setenv("DART_FARM_URL", "https://127.0.0.1:8700")
    told = json.loads(run("status", "--json", code=1).stderr)
    assert (told["error"], told["hint"]) == ("tls_required", "Use http://127.0.0.1:8700.")


@pytest.mark.parametrize("argv", [["status"], ["leases"]])
def test_a_farm_elsewhere_that_does_not_answer_is_named(
    run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    answers.away = True
    monkeypatch.setenv("DART_FARM_URL", "http://farm.example:8799")
    done = run(*argv, code=1)
    assert "no farm answers at http://farm.example:8799. Check host and port of DART_FARM_URL" in done.output
    assert "dart-farm serve" not in done.output


def test_a_key_that_the_farm_does_not_know_is_named(
    run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {"error": "unauthenticated", "detail": KEY_NEEDED, "hint": "Send it.", "request_id": "r"}
    answers.give("/v1/farm", refused, status=401)
    monkeypatch.setenv("DART_FARM_URL", "https://farm.example")
    assert "dart-farm: DART_API_KEY is not set, and the farm at https://farm.example" in run("status", code=1).stderr
    monkeypatch.setenv("DART_API_KEY", "dart_wrong")
    assert "dart-farm: DART_API_KEY is not valid at https://farm.example. Ask" in run("status", code=1).stderr


def test_the_key_of_this_users_farm_is_not_sent_to_another_host(
    run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DART_STATE_DIR", str(tmp_path))
    (tmp_path / "farm.key").write_text("dart_own_admin")
    answers.give("/v1/farm", FARM)
    for url, key in (("https://farm.example", None), ("http://127.0.0.1:8700", "Bearer dart_own_admin")):
        monkeypatch.setenv("DART_FARM_URL", url)
        run("status")
        assert answers.asked[-1].headers.get("authorization") == key


def test_names_cannot_lead_to_other_routes(run: Run, answers: Answers) -> None:
    run("leases", "release", "../farm?x=1", code=1)
    assert answers.asked[-1].url.raw_path == b"/v1/leases/..%2Ffarm%3Fx%3D1"


def test_draining_waits_for_the_last_lease(run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers.give("/v1/farm/drain", {"draining": True}, method="POST")
    answers.give("/v1/farm", FARM)
    assert "1 leases are held" in run("drain").stdout
    refused = run("drain", "--wait", "--timeout-s", "0", code=1)
    assert "1 leases are still held" in refused.stderr
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        answers.give("/v1/farm", {**FARM, "leases_active": 0})

    monkeypatch.setattr("time.sleep", sleep)
    assert json.loads(run("drain", "--wait", "--json").stdout) == {"draining": True, "leases_active": 0}
    assert len(looks) == 1
    assert "do not go together" in run("drain", "--wait", "--undo", code=2).stderr


@pytest.mark.parametrize(
    "argv", [["leases"], ["top", "--once"], ["claims", "cancel", "x"], ["drain"], ["desktops"], ["events"]]
)
def test_a_farm_that_does_not_run_is_one_sentence_and_exit_code_1(run: Run, answers: Answers, argv: list[str]) -> None:
    answers.away = True
    said = run(*argv, code=1).stderr
    assert said.startswith("dart-farm: no farm is running")
    assert "dart-farm serve" in said
    assert len(said.splitlines()) == 1
    told = json.loads(run(*argv, "--json", code=1).stderr)
    assert told["error"] == "unreachable"
    assert set(told) == {"error", "detail", "hint"}


def test_a_refusal_shows_detail_and_hint_as_a_sentence_or_as_json(run: Run, answers: Answers) -> None:
    body = {"error": "forbidden", "detail": "this key may not do that", "hint": "Use another.", "request_id": "r"}
    answers.give("/v1/leases", body, status=403)
    said = run("leases", code=1).stderr
    assert said == "dart-farm: the farm refused: this key may not do that. Use another.\n"
    told = json.loads(run("leases", "--json", code=1).stderr)
    assert (told["error"], told["hint"]) == ("forbidden", "Use another.")
    answers.give("/v1/leases", {**body, "error": "invalid"}, status=422)
    run("leases", code=2)
    answers.known["GET", "/v1/leases"] = httpx.Response(502, text="<html>")
    assert "status 502" in run("leases", code=1).stderr


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["keys", "add", "x", "--scope", "god"], "--scope"),
        (["keys", "add", "x", "--weight", "0"], "--weight"),
        (["keys", "add", "x", "--max-leases", "-1"], "--max-leases"),
        (["keys", "add", "x", "--expires-at", "soon"], "--expires-at"),
        (["keys", "add", "x", "--expires-at", "2030-01-01T00:00:00"], "--expires-at"),
        (["keys", "add", "x" * 65], "NAME"),
        (["keys", "add", "x", "--expires-at", "2030-01-01T00:00:00Z", "--expires-in-days", "1"], "not both"),
        (["keys", "add", "x", "--expires-in-days", "1e12"], "too far"),
        (["keys", "add", "x", "--expires-in-days", "-1"], "time is over"),
        (["pools", "set", "x", "--label", "calc"], "NAME=VALUE"),
        (["pools", "set", "x", "--resolution", "big"], "1920x1080"),
        (["pools", "set", "x", "--warm", "3", "--max", "2"], "must fit into max"),
        (["pools", "set", "../farm"], "is no name of a pool"),
        (["pools", "set", "x", "--snapshot", "a", "--setup-key", "0" * 64], "not of both"),
        (["events", "--limit", "0"], "--limit"),
        (["events", "--latest", "--before", "9"], "do not go together"),
        (["top", "--interval-s", "0"], "--interval-s"),
    ],
)
def test_wrong_input_is_refused_with_exit_code_2(run: Run, answers: Answers, argv: list[str], said: str) -> None:
    answers.away = True
    assert said in run(*argv, code=2).stderr


@pytest.mark.parametrize(
    ("argv", "said", "hint"),
    [
        (["status", "--bogus"], "--bogus", "status --help"),
        (["nope"], "'nope'", "dart-farm --help"),
        (["keys", "nope"], "'nope'", "keys --help"),
        (["leases", "release"], "LEASE", "leases release --help"),
        (["top", "--interval-s", "soon"], "--interval-s", "top --help"),
        (["serve", "--port", "x"], "--port", "serve --help"),
        (["status", "more"], "more", "status --help"),
    ],
)
def test_a_wrong_command_line_is_json_where_that_is_asked_for(run: Run, argv: list[str], said: str, hint: str) -> None:
    result = run(*argv, "--json", code=2)
    told = json.loads(result.stderr)
    assert told["error"] == "invalid"
    assert said in told["detail"]
    assert hint in told["hint"]
    assert result.stdout == ""
    assert "Usage" in run(*argv, code=2).stderr


def test_an_address_that_is_none_is_wrong_input(run: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx, "HTTPTransport", HTTP_TRANSPORT)
    monkeypatch.setenv("DART_FARM_URL", "gopher://farm")
    assert "is not the address of a farm" in run("leases", code=2).stderr


def test_what_tenants_write_cannot_steer_the_terminal(run: Run, answers: Answers) -> None:
    answers.give("/v1/leases", [{**LEASE, "labels": {"x": "\x1b]0;owned\x07"}}])
    assert "\x1b" not in run("leases").stdout
    answers.give("/v1/snapshots", [{"snapshot_id": "snap_1", "description": "\x9b2J"}])
    assert "\x9b" not in run("snapshots").stdout


def test_keys_are_made_listed_and_revoked_without_a_farm(run: Run, answers: Answers) -> None:
    answers.away = True
    secret = run("keys", "add", "rollouts", "--max-leases", "3", "--expires-in-days", "30").stdout.strip()
    made = json.loads(run("keys", "add", "boss", "--scope", "admin", "--json").stdout)
    assert made["secret"] != secret
    rows = {row["name"]: row for row in json.loads(run("keys", "list", "--json").stdout)}
    assert (rows["rollouts"]["max_leases"], rows["rollouts"]["scope"]) == (3, "lease")
    assert secret not in json.dumps(rows)
    assert "rollouts" in run("keys").stdout
    run("keys", "revoke", rows["rollouts"]["key_id"])
    rows = {row["name"]: row for row in json.loads(run("keys", "--json").stdout)}
    assert rows["rollouts"]["revoked_at"] is not None
    last = run("keys", "revoke", made["key_id"], code=2)
    assert "last key of scope admin" in last.stderr
    assert "there is no key" in run("keys", "revoke", "key_none", code=1).stderr


def test_the_old_form_of_making_a_key_still_works(run: Run, answers: Answers) -> None:
    answers.away = True
    assert run("key", "dashboard", "--scope", "read").stdout.strip()
    assert [row["scope"] for row in json.loads(run("keys", "--json").stdout)] == ["read"]


def test_a_pool_is_set_and_told_in_a_few_words(run: Run, answers: Answers) -> None:
    answers.give("/v1/pools/calc", POOL, method="PUT")
    wanted = ["--snapshot", "calc", "--label", "app=calc", "--warm", "2", "--standby", "1", "--resolution", "640x400"]
    assert json.loads(run("pools", "set", "calc", *wanted, "--max", "4", "--json").stdout) == POOL
    sent = json.loads(answers.asked[-1].content)
    assert (sent["warm"], sent["max"], sent["labels"], sent["snapshot_id"]) == (2, 4, {"app": "calc"}, "calc")
    assert sent["shape"]["resolution"] == [640, 400]
    answers.give("/v1/pools", [POOL])
    line = run("pools").stdout.splitlines()[1].split()
    assert line[1:6] == ["basic", "640x400", "calc", "1/2", "0/1"]
    answers.give("/v1/pools/calc", POOL)
    assert "calc" in run("pools", "show", "calc").stdout


def test_a_running_farm_is_asked_for_keys(run: Run, answers: Answers) -> None:
    answers.give("/v1/keys", {"key_id": "key_1", "secret": "dart_shown_once"}, method="POST", status=201)
    assert run("keys", "add", "x", "--weight", "2").stdout.strip() == "dart_shown_once"
    assert json.loads(answers.asked[-1].content)["weight"] == 2


def test_a_ledger_that_cannot_be_used_is_one_sentence(run: Run, answers: Answers, tmp_path: Path) -> None:
    answers.away = True
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "farm.db").write_bytes(b"this is no database" * 100)
    said = run("keys", code=2).stderr
    assert "farm.db cannot be used" in said
    assert len(said.splitlines()) == 1


def test_top_shows_everything_once_where_nobody_watches(run: Run, answers: Answers) -> None:
    answers.give("/v1/farm", FARM)
    answers.give("/v1/leases", [{**LEASE, "lease_id": f"lease_{n}"} for n in range(40)])
    answers.give("/v1/desktops", [{"desktop_id": "desk_1", "state": "leased"}])
    answers.give("/v1/claims", [])
    answers.give("/v1/pools", [POOL])
    answers.give("/v1/events", [EVENT])
    text = run("top").stdout
    assert "leases (the first 15 of 40)" in text
    assert "lease_granted" in text
    look = json.loads(run("top", "--once", "--json").stdout)
    assert (look["farm"], len(look["leases"])) == (FARM, 40)


def test_the_tables_of_a_terminal_hold_the_same(answers: Answers) -> None:
    from rich.console import Console

    from dart_server.cli.status import _screen

    look: dict[str, Any] = {
        "farm": FARM,
        "pools": [POOL],
        "claims": [],
        "leases": [LEASE],
        "desktops": [],
        "events": [EVENT],
    }
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(_screen(look))
    text = console.export_text()
    assert "lease_1" in text
    assert "2026-01-01 00:00:00Z" in text


@pytest.mark.parametrize("argv", [["--help"], ["keys", "--help"], ["leases", "--help"], ["drain", "--help"]])
def test_help_needs_nothing(run: Run, answers: Answers, argv: list[str]) -> None:
    assert "Usage" in run(*argv).stdout
    assert answers.asked == []


def test_the_program_starts_as_a_process_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from dart_server.cli import app;"
        "print(sorted({'fastapi','sqlalchemy','uvicorn','httpx','rich.live','pydantic'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    done = subprocess.run(
        [sys.executable, "-m", "dart_server.cli", "keys", "add", "x", "--scope", "god", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert json.loads(done.stderr)["error"] == "invalid"
    assert done.stdout == ""
