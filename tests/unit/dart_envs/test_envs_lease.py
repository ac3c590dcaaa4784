"""The lease client against a farm that misbehaves: owners of failures, late answers, heartbeats, cancelled
claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_farm_server import KEY, FakeFarmServer, pack, serving

from dart_envs.errors import (
    DartEnvError,
    DesktopFailedError,
    FarmDatabaseUnavailableError,
    FarmError,
    FarmTimeoutError,
    GuestError,
    HostFaultError,
    LeaseLostError,
    StaleFencingTokenError,
)
from dart_envs.farm import guest_calls
from dart_envs.farm import lease as lease_module
from dart_envs.farm.client import AsyncFarmClient
from dart_envs.farm.lease import AsyncLease
from dart_envs.farm.transport import Address, parse_address, resolve_api_key
from dart_server.wire import (
    DesktopHealthView,
    DesktopShape,
    ErrorBody,
    ErrorCode,
    FaultOwner,
    MoveEvent,
    SettleSpec,
    StepRequest,
    TextEvent,
    WaitEvent,
)
from dart_server.wire.desktop import step_limit_s

SHAPE = DesktopShape(resolution=(64, 64))
POLICY_DEATH = DesktopHealthView(alive=False, cause="oom", fault_owner=FaultOwner.POLICY)


class ManualClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.now_s + delay_s, woken))
        await woken

    async def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for due_s, woken in [sleeper for sleeper in self.sleepers if sleeper[0] <= self.now_s]:
            self.sleepers.remove((due_s, woken))
            if not woken.done():
                woken.set_result(None)
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server() -> FakeFarmServer:
    return FakeFarmServer()


@pytest.fixture
async def client(server: FakeFarmServer, clock: ManualClock, tmp_path: Path) -> AsyncIterator[AsyncFarmClient]:
    async with (
        serving(server, tmp_path / "farm.sock") as url,
        await AsyncFarmClient.connect(url, KEY, clock=clock) as client,
    ):
        yield client


@pytest.fixture
async def lease(client: AsyncFarmClient) -> AsyncLease:
    return await client.lease(SHAPE, ttl_s=30)


async def _until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - a test looks from outside
            await asyncio.sleep(0.005)


async def test_steps_share_a_channel_and_frames_are_theirs(lease: AsyncLease, server: FakeFarmServer) -> None:
    first = await lease.step([MoveEvent(x=1, y=1)], SettleSpec())
    second = await lease.step([])
    assert first.image.shape == (64, 64, 3)
    assert (int(first.image[0, 0, 0]), int(second.image[0, 0, 0])) == (0, 1)
    assert server.requests.count("channel") == 1
    assert first.image.flags.writeable
    assert server.steps[0]["seq"] != server.steps[1]["seq"]


async def test_a_picture_that_came_ahead_counts_only_where_the_frame_says_so(
    lease: AsyncLease, server: FakeFarmServer
) -> None:
    server.drafts = [True, False]
    shown = [int((await lease.step([], SettleSpec())).image[0, 0, 0]) for _ in range(3)]
    assert shown == [200, 1, 2]


HONEST = {"seq": 1, "width": 64, "height": 64, "encoding": "raw", "settled": True, "settle_ms": 0.0, "grab_ms": 0.0}


@pytest.mark.parametrize(
    "fields",
    [{"height": -1}, {"width": 65}, {"encoding": "png"}, {"cursor": [10**400, 0]}, {"settle_ms": "soon"}],
    ids=["negative height", "another size", "another encoding", "no pointer", "no duration"],
)
async def test_a_malformed_frame_is_the_policys_fault(
    lease: AsyncLease, server: FakeFarmServer, fields: dict[str, object]
) -> None:
    payload = bytes(64 * 64 * 3)
    server.frames = [pack({**HONEST, "cursor": [0, 0], "nbytes": len(payload), **fields}, payload)]
    with pytest.raises(DesktopFailedError) as failed:
        await lease.step([])
    assert (failed.value.fault_owner, failed.value.cause) == (FaultOwner.POLICY, "malformed_answer")
    assert lease.lost is False


@pytest.mark.parametrize(
    "message",
    [b"", b"\0\0", (2**31).to_bytes(4, "big"), (200_000).to_bytes(4, "big") + b"[" * 200_000, pack({"nbytes": 3}, b"")],
    ids=["empty", "short", "cut off", "deep", "another length"],
)
async def test_what_is_no_frame_ends_the_channel_and_not_the_release(
    lease: AsyncLease, server: FakeFarmServer, message: bytes
) -> None:
    server.frames = [message]
    with pytest.raises(FarmError) as broken:
        await lease.step([MoveEvent(x=1, y=1)])
    assert broken.value.code == "channel_lost"
    await lease.step([])
    await lease.release()
    assert "release" in server.requests


async def test_an_error_of_the_farm_that_the_desktop_wrote_is_not_believed(
    lease: AsyncLease, server: FakeFarmServer
) -> None:
    server.error("windows", ErrorCode.LEASE_EXPIRED)
    server.from_guest.add("windows")
    assert (await lease.guest("GET", "/v1/windows")).from_guest
    assert lease.lost is False
    server.from_guest.clear()
    server.error("windows", ErrorCode.LEASE_EXPIRED)
    with pytest.raises(LeaseLostError):
        await lease.guest("GET", "/v1/windows")


async def test_a_late_answer_is_never_taken_for_another(
    lease: AsyncLease, server: FakeFarmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "client_limit_s", lambda _farm_limit_s: 0.05)
    server.unanswered_steps = {0}
    with pytest.raises(GuestError) as late:
        await lease.step([MoveEvent(x=1, y=1)])
    assert late.value.code == "timeout"
    frame = await lease.step([])
    assert int(frame.image[0, 0, 0]) == 1
    assert frame.header.seq == server.steps[1]["seq"]


async def test_who_does_not_answer_in_time_is_told_by_the_desktops_health(
    lease: AsyncLease, server: FakeFarmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "client_limit_s", lambda _farm_limit_s: 0.05)
    server.unanswered_steps = {0, 1, 2}
    with pytest.raises(GuestError, match="The desktop is alive") as slow:
        await lease.step([MoveEvent(x=1, y=1)])
    assert slow.value.code == "timeout"
    server.error("health", ErrorCode.HOST_FAULT)
    with pytest.raises(HostFaultError):
        await lease.step([MoveEvent(x=1, y=1)])
    server.health = {"alive": False, "cause": "oom", "fault_owner": "policy"}
    with pytest.raises(DesktopFailedError, match="oom"):
        await lease.step([MoveEvent(x=1, y=1)])


async def test_a_program_that_does_not_answer_in_time_is_the_desktops_and_a_reset_the_farms(
    lease: AsyncLease, server: FakeFarmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.delay_s = {"execute": 2.0, "reset": 2.0, "windows": 2.0}
    monkeypatch.setattr(guest_calls, "client_limit_s", lambda _farm_limit_s: 0.05)
    monkeypatch.setattr(lease_module, "RESET_TIMEOUT_S", 0.05)
    for call in (lease.exec(["true"]), lease.guest("GET", "/v1/windows")):
        with pytest.raises(GuestError) as slow:
            await call
        assert slow.value.code == "timeout"
    with pytest.raises(FarmTimeoutError):
        await lease.reset()


async def test_a_file_that_is_too_large_is_the_desktops(lease: AsyncLease, server: FakeFarmServer) -> None:
    server.error("read", ErrorCode.GUEST_ERROR)
    server.status["read"] = 413
    with pytest.raises(GuestError) as large:
        await lease.read_file("/a")
    assert large.value.code == "too_large"


async def test_a_read_is_repeated_while_others_have_the_room(
    lease: AsyncLease, server: FakeFarmServer, clock: ManualClock
) -> None:
    server.files["/a"] = b"read"
    server.error("read", ErrorCode.TOO_MANY_REQUESTS)
    reading = asyncio.create_task(lease.read_file("/a"))
    await _until(lambda: server.requests.count("read") == 1 and len(clock.sleepers) == 2)
    await clock.pass_time(1.0)
    assert await reading == b"read"
    assert server.requests.count("read") == 2


async def test_overlapping_steps_get_their_own_answers(lease: AsyncLease, server: FakeFarmServer) -> None:
    frames_ = await asyncio.gather(*(lease.step([]) for _ in range(8)))
    by_seq = {step["seq"]: number for number, step in enumerate(server.steps)}
    assert all(int(frame.image[0, 0, 0]) == by_seq[frame.header.seq] for frame in frames_)


async def test_reset_grows_the_fencing_token_and_opens_a_new_channel(lease: AsyncLease, server: FakeFarmServer) -> None:
    await lease.step([])
    reply = await lease.reset("a" * 64)
    await lease.step([])
    assert (
        (lease.fencing_token, lease.desktop_id, lease.setup_key)
        == (2, "desk_2", "a" * 64)
        == (reply.fencing_token, "desk_2", reply.setup_key)
    )
    assert [step["fencing_token"] for step in server.steps] == ["1", "2"]


FAILED_RESETS = [ErrorCode.HOST_FAULT, ErrorCode.DATABASE_UNAVAILABLE, "lost", "late", "cancelled"]


async def fail_a_reset(
    lease: AsyncLease, server: FakeFarmServer, monkeypatch: pytest.MonkeyPatch, how: ErrorCode | str
) -> None:
    """A reset that the farm begins and that does not succeed: refused, without an answer, or given up by its caller."""
    grown, answered = server.fencing_token + 1, asyncio.Event()
    if isinstance(how, ErrorCode):
        server.reset_failures.append(ErrorBody(error=how, detail="It failed.", request_id="r"))
    elif how == "lost":
        server.drop_responses = {"reset"}
    with monkeypatch.context() as patched:
        if how in ("late", "cancelled"):
            server.held_answers["reset"] = answered
        if how == "late":
            patched.setattr(lease_module, "RESET_TIMEOUT_S", 0.5)
        resetting = asyncio.create_task(lease.reset())
        await _until(lambda: server.fencing_token == grown)
        if how == "cancelled":
            resetting.cancel()
        with pytest.raises((DartEnvError, asyncio.CancelledError)):
            await resetting
    server.held_answers.clear()
    answered.set()
    assert not lease.lost
    assert lease.fencing_token < server.fencing_token


@pytest.mark.parametrize("how", FAILED_RESETS)
async def test_a_lease_goes_on_after_a_reset_that_failed_with_a_grown_fencing_token(
    lease: AsyncLease, server: FakeFarmServer, monkeypatch: pytest.MonkeyPatch, how: ErrorCode | str
) -> None:
    for _ in range(2):
        await fail_a_reset(lease, server, monkeypatch, how)
    with pytest.raises(FarmError, match="Reset the lease again") as refused:
        await lease.exec(["true"])
    assert refused.value.code == "reset_unfinished"
    reply = await lease.reset()
    assert lease.fencing_token == reply.fencing_token == server.fencing_token
    await lease.exec(["true"])
    await lease.release()
    assert server.requests.count("release") == 1


@pytest.mark.parametrize("how", FAILED_RESETS)
@pytest.mark.parametrize("call", ["reset", "exec"])
async def test_a_takeover_after_a_failed_reset_fences_off(
    client: AsyncFarmClient,
    lease: AsyncLease,
    server: FakeFarmServer,
    monkeypatch: pytest.MonkeyPatch,
    how: ErrorCode | str,
    call: str,
) -> None:
    await fail_a_reset(lease, server, monkeypatch, how)
    other = await client.attach(lease.reference(), takeover=True)
    with pytest.raises(StaleFencingTokenError):
        await (lease.reset() if call == "reset" else lease.exec(["true"]))
    assert lease.lost
    await other.exec(["true"])


async def test_a_reset_of_another_process_after_a_failed_one_fences_off(
    client: AsyncFarmClient, lease: AsyncLease, server: FakeFarmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_a_reset(lease, server, monkeypatch, ErrorCode.HOST_FAULT)
    await (await client.attach(lease.reference())).reset()
    with pytest.raises(StaleFencingTokenError):
        await lease.reset()
    assert lease.lost


async def test_whether_a_lease_is_lost_is_not_told_while_the_farm_does_not_tell(
    lease: AsyncLease, server: FakeFarmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fail_a_reset(lease, server, monkeypatch, ErrorCode.HOST_FAULT)
    server.error("view", ErrorCode.DATABASE_UNAVAILABLE)
    with pytest.raises(FarmDatabaseUnavailableError):
        await lease.exec(["true"])
    assert not lease.lost
    await lease.reset()


async def test_a_dropped_channel_repeats_only_what_is_safe(lease: AsyncLease, server: FakeFarmServer) -> None:
    server.drop = {0}
    frame = await lease.step([])
    assert int(frame.image[0, 0, 0]) == 1
    server.drop = {2}
    with pytest.raises(FarmError) as lost:
        await lease.step([TextEvent(text="once")])
    assert lost.value.code == "channel_lost"
    assert sum(bool(step["events"]) for step in server.steps) == 1


@pytest.mark.parametrize(
    ("health", "owner"),
    [
        ({"alive": False, "cause": "oom", "fault_owner": "policy"}, FaultOwner.POLICY),
        ({"alive": False, "cause": "killed_from_outside", "fault_owner": "host"}, FaultOwner.HOST),
        ({"alive": False, "cause": "unknown", "fault_owner": "none"}, FaultOwner.HOST),
    ],
)
async def test_the_health_of_a_dead_desktop_names_the_owner(
    lease: AsyncLease, server: FakeFarmServer, health: dict[str, object], owner: FaultOwner
) -> None:
    server.health = health
    server.drop = {0}
    with pytest.raises(DesktopFailedError) as gone:
        await lease.step([MoveEvent(x=1, y=1)])
    assert (gone.value.fault_owner, gone.value.cause) == (owner, health["cause"])
    server.error("execute", ErrorCode.DESKTOP_FAILED)
    with pytest.raises(DesktopFailedError) as again:
        await lease.exec(["true"])
    assert again.value.fault_owner is owner


async def test_an_owner_that_comes_with_the_error_needs_no_question(lease: AsyncLease, server: FakeFarmServer) -> None:
    server.error("execute", ErrorCode.DESKTOP_FAILED, desktop=POLICY_DEATH)
    with pytest.raises(DesktopFailedError) as gone:
        await lease.exec(["true"])
    assert gone.value.fault_owner is FaultOwner.POLICY
    assert "health" not in server.requests
    server.channel_error = {
        "error": "desktop_failed",
        "detail": "died",
        "status": 502,
        "desktop": POLICY_DEATH.model_dump(mode="json"),
    }
    with pytest.raises(DesktopFailedError, match="oom"):
        await lease.step([])


async def test_a_refused_step_leaves_the_channel_open(lease: AsyncLease, server: FakeFarmServer) -> None:
    server.channel_error = {"error": "guest_error", "detail": "unknown_key: hyper", "status": 400}
    with pytest.raises(GuestError, match="unknown_key") as refused:
        await lease.step([MoveEvent(x=1, y=1)])
    assert refused.value.code == "bad_request"
    await lease.step([])
    assert server.requests.count("channel") == 1


@pytest.mark.parametrize("code", [ErrorCode.FENCED, ErrorCode.LEASE_EXPIRED])
async def test_a_lost_lease_stays_lost(lease: AsyncLease, server: FakeFarmServer, code: ErrorCode) -> None:
    server.error("execute", code)
    with pytest.raises(LeaseLostError):
        await lease.exec(["true"])
    assert lease.lost
    with pytest.raises(LeaseLostError):
        await lease.step([])
    with pytest.raises(LeaseLostError):
        await lease.health()
    await lease.release()
    assert "release" not in server.requests


async def test_heartbeats_at_a_third_of_the_ttl_until_release(
    lease: AsyncLease, server: FakeFarmServer, clock: ManualClock
) -> None:
    await asyncio.sleep(0)
    await clock.pass_time(9.9)
    assert server.requests.count("heartbeat") == 0
    await clock.pass_time(0.2)
    await _until(lambda: server.requests.count("heartbeat") == 1 and clock.sleepers)
    server.error("heartbeat", ErrorCode.HOST_FAULT)
    await clock.pass_time(10)
    await _until(lambda: server.requests.count("heartbeat") == 2 and clock.sleepers)
    assert not lease.lost
    await lease.release()
    await clock.pass_time(100)
    assert server.requests.count("heartbeat") == 2


@pytest.mark.parametrize("code", [ErrorCode.FENCED, ErrorCode.LEASE_EXPIRED])
async def test_a_lost_lease_is_kept_alive_no_longer(
    client: AsyncFarmClient, lease: AsyncLease, server: FakeFarmServer, clock: ManualClock, code: ErrorCode
) -> None:
    await _until(lambda: clock.sleepers)
    server.error("execute", code)
    with pytest.raises(LeaseLostError):
        await lease.exec(["true"])
    await pass_ttls(client, clock)
    assert server.requests.count("heartbeat") == 0


@pytest.mark.parametrize("end", ["lost", "released", "detached"])
async def test_a_renewal_under_way_at_the_end_begins_no_heartbeats(
    client: AsyncFarmClient, lease: AsyncLease, server: FakeFarmServer, clock: ManualClock, end: str
) -> None:
    server.held_answers["renew"] = asyncio.Event()
    renewing = asyncio.create_task(lease.renew(20))
    await _until(lambda: "renew" in server.requests)
    if end == "lost":
        server.error("execute", ErrorCode.FENCED)
        with pytest.raises(LeaseLostError):
            await lease.exec(["true"])
    else:
        await (lease.release() if end == "released" else lease.detach())
    server.held_answers["renew"].set()
    await renewing
    await pass_ttls(client, clock)
    assert server.requests.count("heartbeat") == 0


async def pass_ttls(client: AsyncFarmClient, clock: ManualClock) -> None:
    """Let several TTLs pass, with time for heartbeats to reach the farm."""
    for _ in range(5):
        await clock.pass_time(30)
        await client.view()


@pytest.mark.parametrize("code", [ErrorCode.LEASE_EXPIRED, ErrorCode.NOT_FOUND])
async def test_a_heartbeat_that_comes_too_late_fails_the_step_in_flight(
    lease: AsyncLease, server: FakeFarmServer, clock: ManualClock, code: ErrorCode
) -> None:
    server.unanswered_steps = {0}
    step = asyncio.create_task(lease.step([MoveEvent(x=1, y=1)]))
    await _until(lambda: server.steps)
    server.error("heartbeat", code)
    await clock.pass_time(11)
    with pytest.raises(LeaseLostError):
        await step


async def test_release_is_idempotent_and_survives_cancellation(lease: AsyncLease, server: FakeFarmServer) -> None:
    releasing = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    await lease.release()
    await lease.release()
    assert server.requests.count("release") == 1


async def test_a_release_that_fails_is_not_an_error(lease: AsyncLease, server: FakeFarmServer) -> None:
    server.error("release", ErrorCode.HOST_FAULT)
    await lease.release()
    assert lease.lost


async def test_a_cancelled_claim_gives_its_desktop_back(client: AsyncFarmClient, server: FakeFarmServer) -> None:
    server.claim_delay_s = 0.05
    claiming = asyncio.create_task(client.lease(SHAPE))
    await _until(lambda: server.client_request_ids)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await client.aclose()
    assert server.requests.count("release") == 1


async def test_closing_the_farm_releases_every_lease(
    client: AsyncFarmClient, lease: AsyncLease, server: FakeFarmServer
) -> None:
    await client.aclose()
    await client.aclose()
    assert server.requests.count("release") == 1
    assert lease.lost


async def test_refusals_carry_their_code_and_hint(client: AsyncFarmClient, server: FakeFarmServer) -> None:
    server.error("claim", ErrorCode.NO_CAPACITY, hint="Raise --max-desktops.")
    with pytest.raises(FarmError, match="Raise --max-desktops") as full:
        await client.lease(SHAPE)
    assert full.value.code == ErrorCode.NO_CAPACITY


@pytest.mark.parametrize(
    ("message", "hint", "text"),
    [
        ("there is no image", "build it", "there is no image; build it"),
        ("there is no room", "Raise the limit.", "there is no room. Raise the limit."),
        ("There is none.", "Start one.", "There is none. Start one."),
        ("It ends with\na log\n", "Look.", "It ends with\na log\n Look."),
        ("alone", None, "alone"),
    ],
)
def test_a_sentence_ends_before_its_cure(message: str, hint: str | None, text: str) -> None:
    assert str(FarmError(message, hint=hint)) == text


async def test_a_wrong_key_is_said_at_once_also_on_the_channel(
    server: FakeFarmServer, tmp_path: Path, lease: AsyncLease
) -> None:
    server.error("channel", ErrorCode.FENCED)
    with pytest.raises(LeaseLostError, match="fenced"):
        await lease.step([])
    async with serving(server, tmp_path / "other.sock") as url, await AsyncFarmClient.connect(url, "wrong") as stranger:
        with pytest.raises(FarmError) as refused:
            await stranger.lease(SHAPE)
        assert refused.value.code == ErrorCode.UNAUTHENTICATED


async def test_programs_files_and_windows(lease: AsyncLease, server: FakeFarmServer) -> None:
    said = await lease.exec(["ls", "a b; rm"], env={"A": "1"}, stdin="x", timeout_s=3)
    assert '"argv": ["ls", "a b; rm"]' in said.stdout
    assert await lease.read_file("/a") is None
    await lease.write_file("/a", b"\0\xff")
    assert await lease.read_file("/a") == b"\0\xff"
    assert await lease.activate_window("Editor")
    assert not await lease.activate_window("Editor", strict=True)
    assert await lease.activate_window("note.txt - Editor", strict=True)
    assert not await lease.activate_window("Nothing")
    assert not await lease.activate_window("closing")
    server.error("read", ErrorCode.NOT_FOUND)
    with pytest.raises(FarmError, match="not_found"):
        await lease.read_file("/a")


async def test_a_tunnel_relays_on_loopback_and_ends_with_its_context(lease: AsyncLease) -> None:
    async with lease.tunnel(9222) as (host, port):
        assert host == "127.0.0.1"
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"ping")
        assert await reader.readexactly(9) == b"9222:ping"
        writer.close()
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await asyncio.open_connection(host, port)


async def test_a_farm_that_is_not_there(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(FarmError, match="dart-farm serve") as nobody:
        await AsyncFarmClient.connect(f"unix://{tmp_path}/none.sock", KEY, clock=clock)
    assert nobody.value.code == "unreachable"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8700/", Address("http://127.0.0.1:8700")),
        ("https://farm.example", Address("https://farm.example")),
        ("unix:///run/farm.sock", Address("http://farm", "/run/farm.sock")),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert parse_address(url) == address
    assert address.ws_url.startswith("ws")


@pytest.mark.parametrize("url", ["", "farm", "ftp://x", "unix://relative", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(FarmError, match="DART_FARM_URL"):
        parse_address(url)


def test_the_key_is_found_beside_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DART_API_KEY", raising=False)
    beside = Address("http://farm", str(tmp_path / "farm.sock"))
    assert resolve_api_key(beside, None) is None
    (tmp_path / "farm.key").write_text("k1\n")
    assert resolve_api_key(beside, None) == "k1"
    monkeypatch.setenv("DART_API_KEY", "k2")
    assert resolve_api_key(beside, None) == "k2"
    assert resolve_api_key(beside, "k3") == "k3"


def test_a_step_is_given_the_time_that_its_events_need() -> None:
    quick = step_limit_s(StepRequest())
    assert step_limit_s(StepRequest(events=[WaitEvent(ms=30_000)])) == pytest.approx(quick + 30, abs=0.1)
    assert step_limit_s(StepRequest(settle=SettleSpec(cap_ms=2_000))) == quick + 2
    assert step_limit_s(StepRequest(events=[TextEvent(text="a" * 1000)])) > quick + 10
    assert step_limit_s(StepRequest(events=[MoveEvent(x=1, y=1)] * 100)) == pytest.approx(quick + 5)
