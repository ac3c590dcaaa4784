"""Claims over a real socket on the sim provider: streams of events, hanging up, and a farm that is killed in between."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_farm_sim import SHAPE, Daemon

LIMIT_S = 60.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    tmp_path.chmod(0o700)
    daemon = Daemon(tmp_path, max_desktops="3", warm_desktops="0", tick_interval_s="0.1", claim_event_interval_s="0.1")
    daemon.start()
    yield daemon
    daemon.stop()


def submit(client: httpx.Client, name: str, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/claims", json={"client_request_id": f"request-{name}", "shape": SHAPE, **fields})
    assert reply.status_code == 202, reply.text
    claim: dict[str, Any] = reply.json()
    return claim


def wait_for(client: httpx.Client, claim: dict[str, Any], state: str) -> dict[str, Any]:
    """The claim in this state, by long polls."""
    reply = client.get(f"/v1/claims/{claim['claim_id']}", params={"wait_s": LIMIT_S}, timeout=2 * LIMIT_S)
    assert reply.json()["state"] == state, reply.text
    found: dict[str, Any] = reply.json()
    return found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def waiting(client: httpx.Client) -> int:
    return len(client.get("/v1/claims").json())


def test_a_gang_waits_in_a_stream_of_events_until_it_is_granted(daemon: Daemon) -> None:
    with daemon.client() as client:
        blocker = wait_for(client, submit(client, "blocker"), "granted")["leases"][0]
        gang = submit(client, "gang", count=3)
        events: list[tuple[str, dict[str, Any]]] = []
        with client.stream("GET", f"/v1/claims/{gang['claim_id']}/events", timeout=2 * LIMIT_S) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    events.append((line.removeprefix("event: "), {}))
                if line.startswith("data: "):
                    events[-1] = (events[-1][0], json.loads(line.removeprefix("data: ")))
                    if len(events) == 1:
                        assert client.delete(f"/v1/leases/{blocker['lease_id']}").status_code == 204
        assert [kind for kind, _ in events] == ["position", "granted"]
        assert len({lease["desktop_id"] for lease in events[-1][1]["leases"]}) == 3
        assert client.delete(f"/v1/claims/{gang['claim_id']}").status_code == 204
        until(lambda: not client.get("/v1/leases").json())


def test_hanging_up_leaves_the_queue_but_not_a_submitted_claim(daemon: Daemon) -> None:
    with daemon.client() as client:
        gang = wait_for(client, submit(client, "all", count=3), "granted")
        submitted = submit(client, "stays")

        def impatient() -> None:
            with daemon.client() as other, pytest.raises(httpx.ReadTimeout):
                other.post("/v1/leases", json={"client_request_id": "hangs-up", "shape": SHAPE}, timeout=1.0)

        caller = threading.Thread(target=impatient)
        caller.start()
        until(lambda: waiting(client) == 2)
        caller.join()
        until(lambda: waiting(client) == 1)
        client.delete(f"/v1/leases/{gang['lease_ids'][0]}")
        wait_for(client, submitted, "granted")
        assert len(client.get("/v1/leases").json()) == 3


def test_after_a_kill_the_same_requests_have_the_same_leases(daemon: Daemon) -> None:
    with daemon.client() as client:
        gang = wait_for(client, submit(client, "survives", count=2, ttl_s=600), "granted")
        single = client.post(
            "/v1/leases", json={"client_request_id": "single-one", "shape": SHAPE, "ttl_s": 600}
        ).json()
        lost = submit(client, "still-waits")
    daemon.stop()
    daemon.start()
    with daemon.client() as client:
        again = submit(client, "survives", count=2, ttl_s=600)
        assert again["claim_id"] == gang["claim_id"]
        assert [lease["token"] for lease in again["leases"]] == [lease["token"] for lease in gang["leases"]]
        repeated = client.post("/v1/leases", json={"client_request_id": "single-one", "shape": SHAPE}).json()
        assert (repeated["lease_id"], repeated["token"]) == (single["lease_id"], single["token"])
        attached = client.post(f"/v1/leases/{single['lease_id']}/attach", json={"takeover": True}).json()
        assert attached["fencing_token"] > single["fencing_token"]
        assert client.get(f"/v1/claims/{lost['claim_id']}").status_code == 404
        claim = submit(client, "still-waits")
        assert claim["state"] == "waiting"
        for lease in client.get("/v1/leases").json():
            client.delete(f"/v1/leases/{lease['lease_id']}")
        wait_for(client, claim, "granted")
