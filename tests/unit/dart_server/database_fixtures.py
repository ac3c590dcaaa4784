"""What tests of the database share: records to write, and a lock that keeps the farm out of its own SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dart_server.database.engine import parse_url
from dart_server.records import LeaseRecord, Slot
from dart_server.wire import DesktopShape, DesktopState

SHAPE = DesktopShape(resolution=(640, 400))


def slot(name: str) -> Slot:
    return Slot(f"desktop_{name}", SHAPE, "sha256:00", "sim", 1.0, state=DesktopState.LEASED, fencing_token=3)


def lease(name: str, on: Slot, *, request: str | None = None, claim_id: str | None = None) -> LeaseRecord:
    on.lease_id = f"lease_{name}"
    return LeaseRecord(
        lease_id=f"lease_{name}",
        owner="key_1",
        client_request_id=request or name,
        token_sha256="00",
        shape=SHAPE,
        image_digest="sha256:00",
        setup_key=None,
        ttl_s=60.0,
        created_at=1.0,
        expires_at=61.0,
        deadline_s=0.0,
        labels={"team": "ä"},
        slot=on,
        desktop_id=on.desktop_id,
        fencing_token=on.fencing_token,
        claim_id=claim_id,
        priority=-7,
        gang_size=2,
    )


@contextmanager
def locked(url: str) -> Iterator[None]:
    """While inside, another process (as it seems to the farm) writes to its SQLite file and does not end."""
    other = sqlite3.connect(Path(parse_url(url).database or ""), isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        other.close()
