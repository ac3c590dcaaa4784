"""Logs: each line names the request, lease and desktop that it belongs to, in both formats, and holds no secret."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from farm_harness import Api

from dart_server.observability import logs
from dart_server.pool.background import BackgroundTaskSet

log = logging.getLogger("dart_server.test")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Every line of the farm's loggers, from DEBUG on, as JSON."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logs.JsonFormatter())
    ours = logging.getLogger("dart_server")
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield text
    ours.removeHandler(handler)
    ours.setLevel(before)


def parsed(text: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in text.getvalue().splitlines()]


async def test_the_lines_of_a_request_carry_its_ids(api: Api, lines: io.StringIO) -> None:
    lease = await api.create_lease()
    path = f"/v1/leases/{lease['lease_id']}/execute"
    await api.call("POST", path, lease=lease, json={"argv": []}, headers={"x-request-id": "mine-1"})
    [line] = [line for line in parsed(lines) if line.get("request_id") == "mine-1"]
    assert line["level"] == "info"
    assert line["lease_id"] == lease["lease_id"]
    assert " 422 " in line["message"]
    assert lease["lease_id"] not in line["message"]


async def test_access_lines_are_told_from_info_on_for_failures_only(api: Api, lines: io.StringIO) -> None:
    await api.call("GET", "/v1/farm", headers={"x-request-id": "fine"})
    await api.call("GET", "/v1/leases/lease_none", headers={"x-request-id": "bad"})
    levels = {line["request_id"]: line["level"] for line in parsed(lines) if "request_id" in line}
    assert (levels["fine"], levels["bad"]) == ("debug", "info")


async def test_no_secret_is_logged(api: Api, lines: io.StringIO) -> None:
    lease = await api.create_lease()
    await api.call("POST", f"/v1/leases/{lease['lease_id']}/step", lease=lease, json={"seq": 1, "events": [{"no": 1}]})
    await api.client.get("/v1/farm", headers={"authorization": "Bearer dart_wrong_secret"})
    text = lines.getvalue()
    assert " 401 " in text
    for secret in (api.key, lease["token"], "dart_wrong_secret"):
        assert secret not in text


async def test_ids_end_with_the_block_and_go_into_what_it_starts(lines: io.StringIO) -> None:
    async def part() -> None:
        log.info("part")

    with logs.bound(request_id="req_1"):
        logs.bind(lease_id="lease_1")
        await asyncio.create_task(part())
        log.info("own", extra={"lease_id": "lease_2"})
    log.info("after")
    told = {line["message"]: (line.get("request_id"), line.get("lease_id")) for line in parsed(lines)}
    assert told == {"part": ("req_1", "lease_1"), "own": ("req_1", "lease_2"), "after": (None, None)}


async def test_background_work_is_nobodys_request(lines: io.StringIO) -> None:
    async def part() -> None:
        log.info("in the background")

    background = BackgroundTaskSet()
    with logs.bound(request_id="req_1", lease_id="lease_1"):
        background.start(part())
    await background.wait_all()
    [line] = parsed(lines)
    assert "request_id" not in line
    assert "lease_id" not in line


def test_text_lines_end_with_the_ids_before_the_trace() -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        record = log.makeRecord(log.name, logging.ERROR, "f", 1, "it failed", (), (type(error), error, None))
    with logs.bound(request_id="req_1", desktop_id="desk_1"):
        text = logs.TextFormatter("%(levelname)s %(message)s").format(record)
    assert text.splitlines()[0] == "ERROR it failed request_id=req_1 desktop_id=desk_1"
    assert "ValueError: broken" in text
