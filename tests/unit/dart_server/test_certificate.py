"""A renewed certificate is taken up while the farm runs: new connections get it, open ones go on; half a renewal changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from dart_server.http.ingress.tls import TlsListener
from dart_server.process.listening import certificate_of
from dart_server.settings import FarmSettings

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here to make certificates")


def issue(place: Path, name: str, days: int = 90) -> tuple[Path, Path]:
    """(certificate, key), self-signed."""
    cert, key = place / f"{name}.pem", place / f"{name}.key"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    new += ["-days", str(days), "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(new, check=True, capture_output=True)
    return cert, key


class Echo(asyncio.Protocol):
    """Answers with what it is sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def knock(port: int) -> tuple[Connection, bytes]:
    """An open connection, and the certificate that it was greeted with."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    return (reader, writer), writer.get_extra_info("ssl_object").getpeercert(binary_form=True)


async def alive(connection: Connection) -> bool:
    reader, writer = connection
    writer.write(b"still there")
    return await reader.readexactly(11) == b"still there"


def shown(cert: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(cert.read_text(encoding="ascii"))


async def test_a_renewed_certificate_is_taken_up_and_open_connections_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cert, key = issue(tmp_path, "farm")
    first, second = shown(cert), issue(tmp_path, "renewed", days=30)
    certificate = certificate_of(FarmSettings(runtime_dir=tmp_path, provider="sim", tls_cert=cert, tls_key=key))
    assert certificate is not None
    in_use = certificate.expires_at
    assert in_use is not None
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        door = TlsListener(listening, certificate, Echo, 10)
        door.open()
        old, seen = await knock(port)
        assert seen == first
        assert not certificate.reload_if_changed(), "nothing has changed"
        os.replace(second[0], cert)
        assert not certificate.reload_if_changed(), "the key is still the old one's"
        assert certificate.expires_at == in_use, "what is told is the end of what connections are greeted with"
        assert not certificate.reload_if_changed()
        assert caplog.text.count("stays as it was") == 1
        between, seen = await knock(port)
        assert seen == first
        os.replace(second[1], key)
        assert certificate.reload_if_changed()
        assert certificate.expires_at is not None
        assert certificate.expires_at < in_use
        new, seen = await knock(port)
        assert seen == shown(cert) != first
        for connection in (old, between, new):
            assert await alive(connection)
            connection[1].close()
        await door.close()


async def test_the_end_of_a_certificate_is_told_and_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = issue(tmp_path, "short", days=3)
    certificate = certificate_of(FarmSettings(runtime_dir=tmp_path, provider="sim", tls_cert=cert, tls_key=key))
    assert certificate is not None
    expires_at = certificate.expires_at
    assert expires_at is not None
    told: list[float] = []
    watching = asyncio.ensure_future(certificate.watch(told.append))
    while not told:  # noqa: ASYNC110 - it looks at once
        await asyncio.sleep(0)
    watching.cancel()
    assert told == [expires_at.timestamp()]
    assert "put a new one there" in caplog.text


def test_a_farm_without_tls_has_none(tmp_path: Path) -> None:
    assert certificate_of(FarmSettings(runtime_dir=tmp_path, provider="sim")) is None
