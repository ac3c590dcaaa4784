"""The certificate of a farm that speaks TLS: read at the start, and again whenever its files have changed.

Role: holds the context that new connections are greeted with. Rule: a renewed certificate is taken up while the farm runs, and connections
that are open go on under the old one; files that do not fit together, as while they are being written, leave the old one in use, which is
logged once, and they are tried again at every look. Non-goals: accepting (`http.ingress.tls`), what a certificate must be
(`daemon.tls_context`), getting a new one.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dart_server.errors import FarmConfigError

log = logging.getLogger(__name__)
POLL_INTERVAL_S = 30.0
EXPIRY_WARNING_PERIOD = timedelta(days=14)
NOTICE_S = 86_400.0
"""How often a certificate that ends soon is logged."""
State = tuple[tuple[int, ...], ...]


class ReloadingCertificate:
    """`make` reads the files into a new context and raises `FarmConfigError` when they cannot be used.

    `files` are the chain, then the key if it is not with it.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], files: tuple[Path, ...]) -> None:
        self._make = make
        self._files = files
        self._used = self._failed = self._state()
        self._noticed_at_s = float("-inf")
        self.context = make()
        self.expires_at = self._end_in_file()
        """When the certificate in use ends, None when that could not be read."""

    def _end_in_file(self) -> datetime | None:
        try:
            return certificate_expiry(self._files[0].read_text(encoding="ascii", errors="replace"))
        except (OSError, ValueError):
            return None

    def reload_if_changed(self) -> bool:
        """Take up files that have changed; whether they were."""
        now = self._state()
        if now == self._used:
            return False
        expires_at = self._end_in_file()
        try:
            self.context = self._make()
        except FarmConfigError as error:
            if now != self._failed:
                log.warning("the certificate stays as it was: %s", error)
            self._failed = now
            return False
        self._used, self.expires_at = now, expires_at
        log.info("took up the certificate in %s, good until %s", self._files[0], self.expires_at)
        return True

    async def watch(self, on_expiry_known: Callable[[float], None]) -> None:
        """Look for ever. `on_expiry_known` is told when the certificate ends, in seconds since 1970."""
        loop = asyncio.get_running_loop()
        while True:
            self.reload_if_changed()
            if (expires_at := self.expires_at) is not None:
                on_expiry_known(expires_at.timestamp())
                soon = expires_at - datetime.now(UTC) < EXPIRY_WARNING_PERIOD
                if soon and loop.time() - self._noticed_at_s >= NOTICE_S:
                    self._noticed_at_s = loop.time()
                    log.warning(
                        "the certificate in %s ends on %s; put a new one there, it is taken up",
                        self._files[0],
                        expires_at,
                    )
            await asyncio.sleep(POLL_INTERVAL_S)

    def _state(self) -> State:
        """What changes when a file is written or replaced; links are followed."""
        return tuple(_mark(path) for path in self._files)


def _mark(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def certificate_expiry(pem: str) -> datetime:
    """When the first certificate of a PEM text ends. Raises `ValueError`."""
    begin = pem.find(ssl.PEM_HEADER)
    end = pem.find(ssl.PEM_FOOTER, begin)
    if begin < 0 or end < 0:
        raise ValueError("it holds no certificate")
    der = ssl.PEM_cert_to_DER_cert(pem[begin : end + len(ssl.PEM_FOOTER)])
    _, certificate, _ = _element(der)
    _, signed, _ = _element(certificate)
    tag, _, rest = _element(signed)
    # Version (only where there is one), serial number, algorithm, issuer; then the validity.
    for _ in range(3 if tag == 0xA0 else 2):
        _, _, rest = _element(rest)
    _, validity, _ = _element(rest)
    _, _, ends = _element(validity)
    kind, text, _ = _element(ends)
    form = "%y%m%d%H%M%SZ" if kind == 0x17 else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _element(der: bytes) -> tuple[int, bytes, bytes]:
    """Tag, content and rest of DER data (ITU-T X.690, 8.1)."""
    if len(der) < 2:
        raise ValueError("the certificate is cut short")
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if len(der) < start + length:
        raise ValueError("the certificate is cut short")
    return der[0], der[start : start + length], der[start + length :]
