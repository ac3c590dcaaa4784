"""TLS: a client that knows the certificate is served, others refuse it; plain HTTP on the port is told so; wrong files end the start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from served_farm import free_port
from websockets.asyncio.client import connect

from dart_envs.errors import FarmError, InvalidRequestError
from dart_envs.farm import AsyncFarmClient

START_S = 60.0


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, made here."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here to make a certificate with")
    place = tmp_path_factory.mktemp("tls")
    cert, key = place / "cert.pem", place / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    command += [
        "-subj",
        "/CN=dart test farm",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(cert),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def command(place: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    names = {"DART_RUNTIME_DIR": str(place), "DART_HOME": str(place), "DART_SNAPSHOT_DIR": str(place / "snapshots")}
    return [sys.executable, "-m", "dart_server.cli", "serve", "--provider", "sim", *options], {**os.environ, **names}


@pytest.fixture(scope="module")
def farm(certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str, Path]]:
    """(port, admin key, log)."""
    place, port = tmp_path_factory.mktemp("farm"), free_port()
    cert, key = certificate
    argv, environment = command(place, "--port", str(port), "--tls-cert", str(cert), "--tls-key", str(key))
    with (place / "log").open("w") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + START_S
        while "the farm serves" not in (place / "log").read_text():
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < deadline_s, (place / "log").read_text()
            time.sleep(0.05)
        yield port, (place / "farm.key").read_text().strip(), place / "log"
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def trusting(cert: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(cert))


async def test_a_client_that_verifies_is_served(certificate: tuple[Path, Path], farm: tuple[int, str, Path]) -> None:
    port, key, _ = farm
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{port}", verify=trusting(certificate[0]), headers=headers
    ) as client:
        reply = await client.get("/v1/farm")
        assert (reply.status_code, reply.json()["provider"]) == (200, "sim")
        assert "max-age" in reply.headers["strict-transport-security"]
        assert (await client.get("/healthz")).status_code == 200, "the connection is kept"
        assert "dart_certificate_expiry_timestamp_seconds 1" in (await client.get("/metrics")).text
        body = {"client_request_id": "under-tls", "wait_s": 60, "shape": {"resolution": [320, 240]}}
        lease = (await client.post("/v1/leases", json=body, timeout=90)).json()
    headers |= {"X-Dart-Lease-Token": lease["token"], "X-Dart-Fencing-Token": str(lease["fencing_token"])}
    channel = f"wss://127.0.0.1:{port}/v1/leases/{lease['lease_id']}/channel"
    async with connect(channel, additional_headers=headers, ssl=trusting(certificate[0]), max_size=None) as stepping:
        await stepping.send('{"frame": {"encoding": "raw"}}')
        assert len(await stepping.recv()) > 320 * 240 * 3


async def test_a_client_that_does_not_know_the_certificate_refuses_it(farm: tuple[int, str, Path]) -> None:
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(f"https://127.0.0.1:{farm[0]}/healthz")


async def test_a_plain_request_is_told_so(farm: tuple[int, str, Path]) -> None:
    port, key, log = farm
    async with httpx.AsyncClient() as client:
        reply = await client.get(f"http://127.0.0.1:{port}/v1/farm", headers={"authorization": f"Bearer {key}"})
    assert (reply.status_code, reply.json()["error"]) == (400, "invalid")
    assert "TLS" in reply.json()["detail"]
    assert "https://" in reply.json()["hint"]
    assert key not in log.read_text()


async def test_who_says_nothing_or_nonsense_holds_nobody_up(
    certificate: tuple[Path, Path], farm: tuple[int, str, Path]
) -> None:
    silent = [socket.create_connection(("127.0.0.1", farm[0])) for _ in range(20)]
    silent[0].sendall(b"\x16\x03\x01\x02\x00nonsense")
    silent[1].sendall(b"\x16")
    async with httpx.AsyncClient(verify=trusting(certificate[0])) as client:
        assert (await client.get(f"https://127.0.0.1:{farm[0]}/healthz", timeout=5)).status_code == 200
    for one in silent:
        one.close()
    assert "Traceback" not in farm[2].read_text()


def test_commands_find_the_farm_where_it_listens(certificate: tuple[Path, Path], farm: tuple[int, str, Path]) -> None:
    argv, environment = command(farm[2].parent)
    ask = [*argv[:3], "status", "--json"]

    def asked(**more: str) -> subprocess.CompletedProcess[str]:
        given = {**environment, **more}
        return subprocess.run(ask, env=given, capture_output=True, text=True, timeout=60, check=False)

    assert json.loads(asked(SSL_CERT_FILE=str(certificate[0])).stdout)["running"] is True
    stranger = asked()
    assert (stranger.returncode, json.loads(stranger.stderr)["error"]) == (1, "untrusted")
    known = {"SSL_CERT_FILE": str(certificate[0])}
    misnamed = asked(DART_FARM_URL=f"https://localhost:{farm[0]}", **known)
    assert (misnamed.returncode, json.loads(misnamed.stderr)["error"]) == (1, "wrong_name")
    assert "does not name localhost" in json.loads(misnamed.stderr)["detail"]
    plain = asked(DART_FARM_URL=f"http://127.0.0.1:{farm[0]}", **known)
    assert (plain.returncode, json.loads(plain.stderr)["error"]) == (2, "invalid")


@pytest.mark.parametrize(
    ("scheme", "host", "knows", "error", "words"),
    [
        ("https", "127.0.0.1", False, FarmError, "is not known here. Name the certificate that signed it"),
        ("https", "localhost", True, FarmError, "does not name localhost. Call the farm by a name that it names"),
        ("http", "127.0.0.1", True, InvalidRequestError, "https://"),
    ],
)
async def test_a_python_client_says_what_the_commands_say(
    certificate: tuple[Path, Path],
    farm: tuple[int, str, Path],
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    host: str,
    knows: bool,
    error: type[FarmError],
    words: str,
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if knows:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with pytest.raises(error, match=words):
        await AsyncFarmClient.connect(f"{scheme}://{host}:{farm[0]}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tls-cert", "/nowhere/cert.pem"), "/nowhere/cert.pem"),
        (("--tls-cert", "{key}"), "cannot be used"),
        (("--tls-key", "{key}"), "tls_key is given without tls_cert"),
        (("--host", "0.0.0.0"), "--tls-cert"),
    ],
)
def test_wrong_files_are_one_sentence_and_exit_code_2(
    certificate: tuple[Path, Path], tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    chosen = [option.format(key=certificate[1]) for option in options]
    place = tmp_path / "farm"
    place.mkdir(mode=0o700)
    argv, environment = command(place, "--port", "0", *chosen)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("20")]
    assert len(lines) == 1, done.stderr
    assert words in lines[0]
    assert "Traceback" not in done.stderr
