"""The data manager over TCP: only with the key, only on loopback, beside its Unix socket."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from data_manager_harness import DataManagerHarness, FakeTaskCatalog
from pydantic import ValidationError

from dart_agent.data_client.address import DataManagerAddress
from dart_agent.data_client.client import DataManagerClient, DataManagerError
from dart_agent.errors import ConfigError
from dart_agent.key_file import make_key_file, read_key_file
from dart_envs.clock import SystemClock
from dart_train.config import RecipeError, load_recipe
from dart_train.data_manager.__main__ import open_store
from dart_train.data_manager.app import create_app
from dart_train.data_manager.serving import KeyGuard, serve_app, tcp_listener, unix_listener
from dart_train.data_manager.store.postgres import SERVER_SETTINGS, DatabaseInUseError
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.run.components import data_manager_address, image_location
from dart_train.run.paths import RunPaths
from dart_train.run.preflight import data_problems

DEMO = Path(__file__).parents[4] / "dart_train" / "recipes" / "demo.toml"


async def test_tcp_needs_the_key_and_the_unix_socket_does_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    harness = DataManagerHarness(tmp_path)
    key = make_key_file(tmp_path / "key")
    app = create_app(harness.manager)
    with unix_listener(harness.config.socket) as local, tcp_listener("127.0.0.1:0") as remote:
        url = f"http://127.0.0.1:{remote.getsockname()[1]}"
        serving = asyncio.create_task(serve_app(app, [(app, local), (KeyGuard(app, key), remote)]))
        address = DataManagerAddress(data_url=url, data_key_file=tmp_path / "key")
        async with (
            DataManagerClient(harness.config.socket, harness.images) as beside,
            DataManagerClient(address.known_data_address, harness.images, key=address.read_data_key()) as far,
            DataManagerClient(url, harness.images, key="wrong") as stranger,
            DataManagerClient(url, harness.images) as nobody,
        ):
            assert (await beside.stats()).trajectories == 0
            assert await far.latest_version() is None
            for client in (stranger, nobody):
                with pytest.raises(
                    DataManagerError, match="the key of the data manager is missing or wrong"
                ) as refused:
                    await client.latest_version()
                assert refused.value.status == 401
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(serving, 10)
    assert key not in caplog.text
    harness.store.close()


def test_a_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "key"
    key = make_key_file(path)
    assert (path.stat().st_mode & 0o777, len(key) >= 40, make_key_file(path)) == (0o600, True, key)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="others may read it: run chmod 600") as refused:
        read_key_file(path)
    assert key not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key_file(tmp_path / "none")


def test_an_address_that_would_show_the_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="beyond loopback"):
        tcp_listener("0.0.0.0:0")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        tcp_listener("8790")
    with tcp_listener("127.0.0.1:0") as taken, pytest.raises(ConfigError, match="choose another port"):
        tcp_listener(f"127.0.0.1:{taken.getsockname()[1]}")
    tcp_listener("0.0.0.0:0", insecure_plain_http=True).close()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"socket": "s", "data_url": "http://h:1", "data_key_file": "k"},
        {"data_url": "http://h:1"},
        {"data_url": "http://user@h:1", "data_key_file": "k"},
        {"data_url": "h:1", "data_key_file": "k"},
        {"data_url": "http://h:1", "data_key_file": "k"},
    ],
)
def test_components_are_told_one_address(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        DataManagerAddress.model_validate(given)


@pytest.mark.parametrize(
    ("url", "insecure_plain_http"),
    [
        ("http://127.0.0.1:1", False),
        ("http://localhost:1", False),
        ("http://[::1]:1", False),
        ("https://h", False),
        ("http://h:1", True),
    ],
)
def test_a_key_goes_to_loopback_or_over_tls_unless_that_was_waived(
    tmp_path: Path, url: str, insecure_plain_http: bool
) -> None:
    settings = ("run.name='r'", "data.listen='127.0.0.1:1'", f"data.url='{url}'")
    waiver = f"data.insecure_plain_http={str(insecure_plain_http).lower()}"
    address = data_manager_address(load_recipe(DEMO, (*settings, waiver)), RunPaths(tmp_path / "r"))
    assert DataManagerAddress.model_validate(address).known_data_address == url


@pytest.mark.parametrize("setting", ["data.url='http://gpu-head:8790'", "data.listen='gpu-head:8790'"])
def test_a_recipe_whose_key_others_could_read_is_refused(setting: str) -> None:
    with pytest.raises(RecipeError, match=r"http://gpu-head:8790 is beyond loopback.*https"):
        load_recipe(DEMO, ("data.listen='127.0.0.1:8790'", setting))


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:0", "localhost:abc", "localhost", ":8790"])
def test_an_address_without_a_port_is_refused_before_anything_starts(address: str) -> None:
    with pytest.raises(RecipeError, match=r"data.listen.*is not of the form HOST:PORT"):
        load_recipe(DEMO, (f"data.listen={address!r}",))


async def test_no_proxy_of_the_environment_gets_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readline())
        writer.close()

    proxy = await asyncio.start_server(note, "127.0.0.1", 0)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with proxy, DataManagerClient("http://127.0.0.1:1", tmp_path, key="k", retry_timeout_s=0.0) as client:
        with pytest.raises(DataManagerError):
            await client.latest_version()
    assert seen == []


def test_a_recipe_with_an_address_is_followed_by_every_component(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "r")
    local = load_recipe(DEMO, ("run.name='r'",))
    assert data_manager_address(local, paths) == {"socket": paths.data_socket}
    assert image_location(local, paths) == str(paths.images)
    shared = load_recipe(DEMO, ("run.name='r'", "data.listen='127.0.0.1:8790'", "data.images_url='s3://bucket/path/'"))
    assert data_manager_address(shared, paths) == {"data_url": "http://127.0.0.1:8790", "data_key_file": paths.data_key}
    paths.make()
    location = image_location(shared, paths)
    assert re.fullmatch("s3://bucket/path/r-[0-9a-f]{16}", location)
    paths.make()
    assert image_location(shared, paths) == location, "a run that goes on finds its images"
    other = RunPaths(tmp_path / "elsewhere" / "r")
    other.make()
    assert image_location(shared, other) != location, "another run of the same name has its own"
    assert data_problems(local, paths) == []
    unknown = load_recipe(DEMO, ("data.images_url='nosuchscheme://x'",))
    assert "cannot be used" in data_problems(unknown, paths)[0]
    proxied = load_recipe(DEMO, ("data.listen='127.0.0.1:8790'", "data.url='https://data.example'"))
    assert proxied.data.client_url == "https://data.example"
    for wrong in ("data.url='https://data.example'", "data.images_url='s3://k:hidden@b/x'", "data.images_url='bucket'"):
        with pytest.raises(RecipeError, match="data"):
            load_recipe(DEMO, (wrong,))


class _PassingClock(SystemClock):
    """Time passes while somebody sleeps, at once."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.now_s += delay_s


async def test_the_start_waits_until_a_server_must_have_noticed_that_a_host_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = DataManagerHarness(tmp_path)
    clock = _PassingClock()
    opened = TrajectoryStore.open
    harness.store.close()
    ends_s = SERVER_SETTINGS["tcp_keepalives_idle"] + (
        SERVER_SETTINGS["tcp_keepalives_interval"] * SERVER_SETTINGS["tcp_keepalives_count"]
    )

    def open_when_noticed(*args: Any, **kwargs: Any) -> TrajectoryStore:
        if clock.now_s <= ends_s:
            raise DatabaseInUseError("another data manager writes to this database")
        return opened(*args, **kwargs)

    monkeypatch.setattr(TrajectoryStore, "open", open_when_noticed)
    (await open_store(harness.config, FakeTaskCatalog(), lambda: None, clock)).close()
    assert capsys.readouterr().err.count("another one holds the database") == 1
    ends_s = 1_000
    with pytest.raises(DatabaseInUseError):
        await open_store(harness.config, FakeTaskCatalog(), lambda: None, clock)
