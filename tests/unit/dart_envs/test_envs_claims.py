"""Claims, attaching and asking again, against a farm that loses answers, breaks streams off and says when to come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_farm_server import KEY, FakeFarmServer, serving

from dart_envs.errors import (
    ClaimCancelledError,
    FarmDrainingError,
    FarmUnreachableError,
    LeaseExpiredError,
    LeaseLostError,
    NoCapacityError,
    NotFoundError,
    QuotaExceededError,
    SnapshotNotFoundError,
    StaleFencingTokenError,
)
from dart_envs.farm import AsyncFarmClient, FarmClient, RetryPolicy
from dart_envs.farm.loop import EventLoopThread
from dart_envs.farm.retry import call_with_retries
from dart_server.wire import ClaimState, ErrorCode

GRANTED = {"state": "granted", "position": None}


class QuickClock:
    """Real time, but nobody sleeps longer than an instant; `asked` are the pauses that were asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + sum(self.asked)

    def time(self) -> float:
        return 0.0

    async def sleep(self, delay_s: float) -> None:
        if delay_s >= 10:  # a heartbeat's: not in these tests
            await asyncio.Event().wait()
        self.asked.append(delay_s)
        await asyncio.sleep(0.001)


@pytest.fixture
def clock() -> QuickClock:
    return QuickClock()


@pytest.fixture
def server() -> FakeFarmServer:
    return FakeFarmServer()


@pytest.fixture
async def url(server: FakeFarmServer, tmp_path: Path) -> AsyncIterator[str]:
    async with serving(server, tmp_path / "farm.sock") as url:
        yield url


@pytest.fixture
async def client(url: str, clock: QuickClock) -> AsyncIterator[AsyncFarmClient]:
    async with await AsyncFarmClient.connect(url, KEY, clock=clock) as client:
        yield client


def granted(server: FakeFarmServer, *lease_ids: str) -> dict[str, object]:
    leases = [server.granted(lease_id, claim_id="claim_1") for lease_id in lease_ids]
    return {**GRANTED, "lease_ids": list(lease_ids), "leases": leases}


async def test_a_gang_is_waited_for_by_events(client: AsyncFarmClient, server: FakeFarmServer) -> None:
    claim = await client.claim(2)
    assert (claim.state, claim.position, claim.view.count) == (ClaimState.WAITING, 2, 2)
    server.claim_updates = [{"position": 1}, {"position": 0}, granted(server, "lease_1", "lease_2")]
    told: list[int | None] = []
    leases = await claim.wait(30, on_progress=lambda view: told.append(view.position))
    assert told == [2, 1, 0, None]
    assert [lease.lease_id for lease in leases] == ["lease_1", "lease_2"]
    assert {lease.claim_id for lease in leases} == {"claim_1"}
    assert [id(lease) for lease in await claim.wait()] == [id(lease) for lease in leases]
    assert "claim_events" in server.requests
    await client.aclose()
    assert server.requests.count("release") == 2
    assert "cancel" not in server.requests


@pytest.mark.parametrize("broken", ["no stream", "breaks off"])
async def test_long_polls_take_over_where_events_cannot_be_had(
    client: AsyncFarmClient, server: FakeFarmServer, broken: str
) -> None:
    server.streams = broken != "no stream"
    claim = await client.claim()
    server.claim_updates = [{"position": 1}]
    states = []
    async for view in claim.progress():
        states.append((view.state, view.position))
        if view.position == 1:
            server.claim_updates = [granted(server, "lease_1")]
    assert states == [("waiting", 2), ("waiting", 1), ("granted", None)]
    assert len(await claim.wait()) == 1


async def test_a_poll_outlives_a_lost_answer(
    client: AsyncFarmClient, server: FakeFarmServer, clock: QuickClock
) -> None:
    server.streams = False
    claim = await client.claim()
    server.claim_updates = [granted(server, "lease_1")]
    server.drop_responses = {"claim_view"}
    assert len(await claim.wait()) == 1
    assert clock.asked, "it waited before it asked again"


@pytest.mark.parametrize("route", ["queue", "claim"])
async def test_a_claim_whose_answer_is_lost_is_repeated_under_its_id(
    client: AsyncFarmClient, server: FakeFarmServer, route: str
) -> None:
    server.drop_responses = {route}
    if route == "queue":
        await client.claim()
    else:
        await client.lease()
    assert len(server.client_request_ids) == 2
    assert len(set(server.client_request_ids)) == 1


async def test_a_claim_that_a_new_farm_forgot_is_made_again_under_its_id(
    client: AsyncFarmClient, server: FakeFarmServer
) -> None:
    server.streams = False
    claim = await client.claim(2)
    server.claim = {"position": 5, **granted(server, "lease_1", "lease_2"), "claim_id": "claim_2"}
    server.error("claim_view", ErrorCode.NOT_FOUND)
    assert len(await claim.wait()) == 2
    assert claim.claim_id == "claim_2"
    assert len(server.client_request_ids) == 2
    assert len(set(server.client_request_ids)) == 1


async def test_cancelling_a_claim_that_is_forgotten_is_no_error(
    client: AsyncFarmClient, server: FakeFarmServer
) -> None:
    claim = await client.claim()
    server.error("cancel", ErrorCode.NOT_FOUND)
    await claim.cancel()
    assert claim.state is ClaimState.CANCELLED


async def test_a_request_id_of_ones_own_is_the_same_claim_again(
    client: AsyncFarmClient, server: FakeFarmServer
) -> None:
    await client.claim(client_request_id="my-rollout-17")
    assert server.client_request_ids == ["my-rollout-17"]


async def test_retry_after_is_honoured(client: AsyncFarmClient, server: FakeFarmServer, clock: QuickClock) -> None:
    server.retry_after_s = 7
    server.error("queue", ErrorCode.QUOTA_EXCEEDED)
    server.error("queue", ErrorCode.DRAINING)
    claim = await client.claim()
    assert claim.state is ClaimState.WAITING
    assert clock.asked == [7, 7]


async def test_a_wait_longer_than_the_callers_patience_is_not_begun(
    client: AsyncFarmClient, server: FakeFarmServer, clock: QuickClock
) -> None:
    server.retry_after_s = 45
    server.error("claim", ErrorCode.QUOTA_EXCEEDED)
    with pytest.raises(QuotaExceededError) as full:
        await client.lease(wait_s=10)
    assert full.value.retry_after_s == 45
    assert clock.asked == []


@pytest.mark.parametrize(("attempts", "away_s", "answered"), [(4, 50.0, True), (4, 70.0, False), (1, 0.1, False)])
async def test_an_outage_is_waited_out_for_as_long_as_the_claim_may_wait(
    clock: QuickClock, attempts: int, away_s: float, answered: bool
) -> None:
    back_s = clock.monotonic() + away_s

    async def ask() -> str:
        if clock.monotonic() < back_s:
            raise FarmUnreachableError("away", code="unreachable")
        return "granted"

    asked = call_with_retries(ask, RetryPolicy(attempts=attempts), clock, retry_timeout_s=60.0, outage_timeout_s=60.0)
    if answered:
        assert await asked == "granted"
    else:
        with pytest.raises(FarmUnreachableError):
            await asked


async def test_who_wants_no_retries_gets_none(url: str, server: FakeFarmServer, clock: QuickClock) -> None:
    server.retry_after_s = 1
    async with await AsyncFarmClient.connect(url, KEY, clock=clock, retries=RetryPolicy(attempts=1)) as client:
        server.error("queue", ErrorCode.DRAINING)
        with pytest.raises(FarmDrainingError):
            await client.claim()


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        ({"state": "expired", "error": {"error": "no_capacity", "detail": "too long"}}, NoCapacityError),
        ({"state": "expired"}, NoCapacityError),
        ({"state": "cancelled"}, ClaimCancelledError),
        ({"state": "refused", "error": {"error": "snapshot_missing", "detail": "gone"}}, SnapshotNotFoundError),
    ],
)
async def test_a_claim_that_came_to_nothing_says_why(
    client: AsyncFarmClient, server: FakeFarmServer, ended: dict[str, object], error: type[Exception]
) -> None:
    claim = await client.claim()
    server.claim_updates = [{"position": None, **ended}]
    with pytest.raises(error):
        await claim.wait()
    await client.aclose()
    assert "cancel" not in server.requests


async def test_leaving_the_context_cancels_the_claim(client: AsyncFarmClient, server: FakeFarmServer) -> None:
    async with await client.claim() as claim:
        pass
    assert claim.state is ClaimState.CANCELLED
    await claim.cancel()
    with pytest.raises(ClaimCancelledError):
        await claim.wait()


async def test_closing_the_client_cancels_what_waits(client: AsyncFarmClient, server: FakeFarmServer) -> None:
    await client.claim()
    await client.aclose()
    assert server.requests.count("cancel") == 1


async def test_a_found_claim_stays_its_owners(client: AsyncFarmClient, server: FakeFarmServer, url: str) -> None:
    claim = await client.claim()
    async with await AsyncFarmClient.connect(url, KEY) as other, await other.find_claim(claim.claim_id) as found:
        server.claim_updates = [granted(server, "lease_1")]
        assert [lease.lease_id for lease in await found.wait()] == ["lease_1"]
    assert not {"cancel", "release"} & set(server.requests)
    server.error("claim_view", ErrorCode.NOT_FOUND)
    with pytest.raises(NotFoundError):
        await client.find_claim("claim_none")


async def test_a_lease_is_attached_to_by_its_reference(
    client: AsyncFarmClient, server: FakeFarmServer, url: str
) -> None:
    lease = await client.lease()
    reference = lease.reference()
    assert reference == f"{url}#lease_1"
    assert "secret" not in reference
    async with await AsyncFarmClient.connect(url, KEY) as other:
        async with await other.attach(reference) as same:
            assert (same.lease_id, same.fencing_token) == (lease.lease_id, lease.fencing_token)
        assert same.lost
        with pytest.raises(LeaseLostError, match="detached"):
            await same.health()
        taken = await other.attach("lease_1", takeover=True)
        assert taken.fencing_token == lease.fencing_token + 1
        server.error("health", ErrorCode.FENCED)
        with pytest.raises(StaleFencingTokenError):
            await lease.health()
    assert "release" not in server.requests


async def test_renewing_changes_the_time_to_live(client: AsyncFarmClient) -> None:
    lease = await client.lease(ttl_s=60)
    assert (await lease.renew(120)).year == 2031
    assert lease.ttl_s == 120


async def test_a_lease_that_expired_and_one_that_is_fenced_are_told_apart(
    client: AsyncFarmClient, server: FakeFarmServer
) -> None:
    lease = await client.lease()
    server.error("execute", ErrorCode.LEASE_EXPIRED)
    with pytest.raises(LeaseExpiredError):
        await lease.exec(["true"])
    assert lease.lost


async def test_a_desktop_that_cannot_be_given_back_is_reported_once(
    client: AsyncFarmClient, server: FakeFarmServer, caplog: pytest.LogCaptureFixture
) -> None:
    lease = await client.lease()
    with caplog.at_level(logging.WARNING):
        for attempt in (lease.release, lease.give_back_again, lease.give_back_again):
            server.error("release", ErrorCode.DATABASE_UNAVAILABLE)
            await attempt()
    assert lease.unreleased
    assert [message for message in caplog.messages if "could not be released" in message] == caplog.messages[:1]
    await lease.give_back_again()
    assert not lease.unreleased


async def test_reads_are_asked_again_when_the_farm_was_away(client: AsyncFarmClient, server: FakeFarmServer) -> None:
    server.drop_responses = {"farm"}
    assert (await client.view()).provider == "x"
    assert server.requests.count("farm") == 2


@contextmanager
def in_thread(path: Path) -> Iterator[tuple[FakeFarmServer, str]]:
    """The farm on an event loop of its own."""
    server, loop = FakeFarmServer(), EventLoopThread()
    context = serving(server, path)
    url = loop.run(context.__aenter__())
    try:
        yield server, url
    finally:
        loop.run(context.__aexit__(None, None, None))
        loop.stop()


def test_the_synchronous_client_tells_of_its_progress(tmp_path: Path) -> None:
    with in_thread(tmp_path / "farm.sock") as (server, url), FarmClient.connect(url, KEY) as farm:
        with farm.claim(2) as claim:
            server.claim_updates = [{"position": 0}, granted(server, "lease_1", "lease_2")]
            assert [view.position for view in claim.progress()] == [2, 0, None]
            leases = claim.wait()
            assert [lease.lease_id for lease in leases] == ["lease_1", "lease_2"]
            assert claim.wait()[0] is leases[0]
        assert all(lease.lost for lease in leases)
        with farm.attach("lease_9") as attached:
            assert attached.reference() == f"{url}#lease_9"
        assert attached.lost
    assert server.requests.count("release") == 2
