"""Planted secrets come out nowhere: API keys, lease tokens, session cookies, what tasks expect. A farm in a process of its own on `sim` at
its most talkative; what it says in logs, events, metrics, refusals, its API's description and its database is searched for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_farm import free_port, served_farm

ANSWER = "canary-answer-7391"
"""What an evaluator of a task would compare with: it comes as the content of a file, an argument, and text that is typed."""
GUESS = "dart_canary-guess-5150"


class Told:
    """Everything that the farm said, by where."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.texts: dict[str, str] = {}

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A request whose answer is searched; headers, too."""
        reply = self.client.request(method, path, **options)
        self.texts[f"{method} {path} → {reply.status_code} ({len(self.texts)})"] = f"{reply.headers}\n{reply.text}"
        return reply

    def where(self, secret: str) -> list[str]:
        return [place for place, text in self.texts.items() if secret in text]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "farm"
    place.mkdir()
    return place


@pytest.fixture
def url(place: Path) -> Iterator[str]:
    environment = {"DART_LOG_LEVEL": "debug", "DART_LOG_FORMAT": "json"}
    with served_farm(place, provider="sim", max_desktops=2, port=free_port(), environment=environment) as url:
        yield url


def test_planted_secrets_come_out_nowhere(url: str, place: Path) -> None:
    admin = {"authorization": f"Bearer {(place / 'farm.key').read_text().strip()}"}
    with httpx.Client(base_url=url, timeout=60) as client:
        made = client.post("/v1/keys", json={"name": "tenant", "scope": "lease"}, headers=admin).json()
        key = {"authorization": f"Bearer {made['secret']}"}
        body = {"client_request_id": "canaries-1", "ttl_s": 600, "wait_s": 60, "labels": {"task": "t1"}}
        lease = client.post("/v1/leases", json=body, headers=key).json()
        mine = key | {"X-Dart-Lease-Token": lease["token"], "X-Dart-Fencing-Token": str(lease["fencing_token"])}
        origin = {"origin": url}
        logged_in = client.post("/dashboard/api/login", json={"key": made["secret"]}, headers=origin)
        session = next(value for name, value in logged_in.cookies.items() if name.startswith("dart_session_"))
        secrets = {
            "the tenant's key": made["secret"],
            "the admin's key": admin["authorization"].split()[1],
            "the lease's token": lease["token"],
            "the session": session,
            "the session's token": logged_in.json()["csrf"],
            "a wrong key": GUESS,
            "the task's answer": ANSWER,
        }
        told = Told(client)
        at = f"/v1/leases/{lease['lease_id']}"
        # A task is worked on: its answer passes through in every way there is.
        typed = {"events": [{"type": "text", "text": ANSWER}]}
        assert client.post(f"{at}/step", json=typed, headers=mine).status_code == 200
        assert client.put(f"{at}/files?path=/home/user/{ANSWER}", content=ANSWER, headers=mine).status_code == 204
        client.post(f"{at}/execute", json={"argv": ["echo", ANSWER]}, headers=mine)
        client.get(f"{at}/guest/{ANSWER}", headers=mine)
        # Everything that can be wrong with a request, with secrets in it.
        told.ask("GET", "/v1/farm", headers={"authorization": f"Bearer {GUESS}"})
        told.ask("GET", "/v1/leases", headers={"authorization": f"Basic {made['secret']}"})
        told.ask("POST", f"{at}/step", json=typed, headers=mine | {"X-Dart-Lease-Token": made["secret"]})
        told.ask("POST", f"{at}/step", json=typed, headers=mine | {"X-Dart-Fencing-Token": lease["token"]})
        told.ask("POST", f"{at}/step", json=typed, headers=mine | {"X-Dart-Fencing-Token": "999"})
        told.ask("POST", f"{at}/step", json={"events": [{"type": "text", "text": [ANSWER]}]}, headers=mine)
        told.ask("POST", f"{at}/execute", json={"argv": [], "env": {"ANSWER": ANSWER}}, headers=mine)
        told.ask("POST", "/v1/leases", json={"client_request_id": 1, "labels": [ANSWER]}, headers=key)
        told.ask(
            "POST", "/v1/leases", content=b'{"' + ANSWER.encode(), headers=key | {"content-type": "application/json"}
        )
        told.ask("PUT", f"{at}/files?path=relative-{ANSWER}", content=ANSWER, headers=mine)
        told.ask("POST", "/dashboard/api/login", json={"key": GUESS}, headers=origin)
        told.ask("POST", "/dashboard/api/login", json={"key": GUESS, "more": made["secret"]}, headers=origin)
        told.ask("POST", "/dashboard/api/logout", headers={"origin": "http://evil.example", "x-dart-csrf": GUESS})
        # And what is told to those who may look.
        for path in (
            "/v1/farm",
            "/v1/leases",
            at,
            f"{at}/events",
            "/v1/desktops",
            "/v1/claims",
            "/v1/snapshots",
            "/v1/keys",
        ):
            assert told.ask("GET", path, headers=admin).status_code == 200
        events = told.ask("GET", "/v1/events?limit=5000", headers=admin)
        assert "lease_granted" in events.text
        assert "dart_" in told.ask("GET", "/metrics", headers=admin).text
        document = told.ask("GET", "/openapi.json")
        for path in ("overview", f"desktops/{lease['desktop_id']}"):
            assert told.ask("GET", f"/dashboard/api/{path}").status_code == 200
        client.delete(f"/v1/keys/{made['key_id']}", headers=admin)
        told.ask("POST", f"{at}/step", json=typed, headers=mine)
    told.texts["the log"] = log = (place / "log").read_text()
    assert f'"lease_id": "{lease["lease_id"]}"' in log, "it is a talkative one"
    for file in place.rglob("farm.db*"):
        told.texts[f"the database ({file.name})"] = file.read_bytes().decode("latin-1")
    assert {what: told.where(secret) for what, secret in secrets.items() if told.where(secret)} == {}
    assert told.where(lease["lease_id"]), "the search finds what is there"
    examples = json.dumps(document.json())
    assert not [one for one in secrets.values() if one in examples]
