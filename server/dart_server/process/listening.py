"""Where the farm listens: its socket or port, TLS, and how many connections it takes.

Rule: what cannot be listened on is a `FarmConfigError` in one sentence. Non-goals: greeting clients (`http.ingress`).
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import ssl
from pathlib import Path

from dart_server.errors import FarmConfigError
from dart_server.http.ingress.certificate import ReloadingCertificate
from dart_server.settings import FarmSettings

log = logging.getLogger(__name__)
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
SOCKET_PATH_LIMIT = 100
"""Bytes of a Unix socket's path; the kernel takes 107."""
SPARE_DESCRIPTORS = 128
"""Descriptors for all that is no client's connection: the database, files, children."""


def require_tls(settings: FarmSettings) -> None:
    """Beyond loopback only under TLS, or where that was waived. Raises `FarmConfigError`."""
    if settings.host in LOOPBACK or settings.tls_cert is not None:
        return
    if not settings.insecure_plain_http:
        raise FarmConfigError(
            f"the farm listens on {settings.host} only with TLS: give --tls-cert and --tls-key, use an SSH tunnel,"
            " or waive it with --insecure-plain-http."
        )
    log.warning("plain HTTP on %s: keys and screens cross the network readable by others", settings.host)


def tls_context(settings: FarmSettings) -> ssl.SSLContext | None:
    """TLS 1.2 or later with the farm's certificate; None without one. Raises `FarmConfigError`."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:
        raise FarmConfigError(
            f"the certificate {settings.tls_cert} or its key cannot be used: {error}. Both are PEM, the key without a password."
        ) from error
    return context


def certificate_of(settings: FarmSettings) -> ReloadingCertificate | None:
    """The farm's certificate, which is taken up again when its files change; None without one. Raises `FarmConfigError`."""

    def make() -> ssl.SSLContext:
        made = tls_context(settings)
        assert made is not None
        return made

    files = tuple(path for path in (settings.tls_cert, settings.tls_key) if path is not None)
    return ReloadingCertificate(make, files) if files else None


def _no_password() -> str:
    raise ValueError("the key has a password")


def effective_max_connections(settings: FarmSettings) -> int:
    """As many connections as the settings say, and as this process may open: each may need a second descriptor, to its desktop."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * settings.max_connections + SPARE_DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(8, min(settings.max_connections, (soft - SPARE_DESCRIPTORS) // 2))


def bind(settings: FarmSettings) -> socket.socket:
    """The bound socket that the farm will listen on. Raises `FarmConfigError`."""
    if settings.uds is not None:
        return _bind_unix(settings.uds)
    require_tls(settings)
    bound = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((settings.host, settings.port))
        bound.listen()
    except OSError as error:
        bound.close()
        raise FarmConfigError(
            f"port {settings.port} on {settings.host} is in use ({error.strerror}); choose another with --port."
        ) from error
    return bound


def _bind_unix(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise FarmConfigError(
            f"the socket path {path} is too long for a Unix socket; set DART_RUNTIME_DIR to a shorter one."
        )
    if path.exists():
        if not path.is_socket():
            raise FarmConfigError(f"{path} exists and is not a socket; choose another with --uds.")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(os.fspath(path))
            except OSError:
                path.unlink()
            else:
                raise FarmConfigError(f"{path} is in use by another server; stop it, or choose another with --uds.")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        bound.bind(os.fspath(path))
    except OSError as error:
        bound.close()
        raise FarmConfigError(f"{path} cannot be made: {error.strerror}. Choose another with --uds.") from error
    finally:
        os.umask(mask)
    return bound
