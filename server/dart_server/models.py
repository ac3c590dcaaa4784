"""Tables of the farm's ledger. Rule: no SQL and no behaviour; `repository` is the only reader and writer.

Times are seconds since 1970 (float). A shape is stored as its canonical JSON. `image_digest` is `sha256:…`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Root of the tables."""


class DesktopRow(Base):
    """One desktop slot; `fence` only grows. A row is written before the desktop is made and kept after it is gone."""

    __tablename__ = "desktops"

    desktop_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    shape: Mapped[str] = mapped_column(String(512))
    image_digest: Mapped[str] = mapped_column(String(80))
    provider: Mapped[str] = mapped_column(String(32))
    state: Mapped[str] = mapped_column(String(16), index=True)
    fence: Mapped[int] = mapped_column(Integer)
    lease_id: Mapped[str | None] = mapped_column(String(64))
    snapshot_id: Mapped[str | None] = mapped_column(String(64))
    setup_key: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Float)


class LeaseRow(Base):
    """One claim, from its grant to its end. The token itself is never stored."""

    __tablename__ = "leases"
    __table_args__ = (UniqueConstraint("owner", "client_request_id", name="uq_leases_owner_request"),)

    lease_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    client_request_id: Mapped[str] = mapped_column(String(64))
    token_sha256: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16), index=True)
    desktop_id: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int] = mapped_column(Integer)
    shape: Mapped[str] = mapped_column(String(512))
    image_digest: Mapped[str] = mapped_column(String(80))
    setup_key: Mapped[str | None] = mapped_column(String(64))
    ttl_s: Mapped[float] = mapped_column(Float)
    created_at: Mapped[float] = mapped_column(Float)
    expires_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)
    labels: Mapped[dict[str, str]] = mapped_column(JSON)


class SnapshotRow(Base):
    """One live snapshot. `state`: writing, ready, quarantined, deleted; `reason` and `ended_at` tell why and when it left `ready`.

    `files_bytes` is the part of `bytes` that descendants stand on; `place` is where a person finds a quarantined one.
    """

    __tablename__ = "snapshots"
    __table_args__ = (Index("ix_snapshots_owner_key", "owner", "setup_key"),)

    snapshot_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    state: Mapped[str] = mapped_column(String(16), index=True)
    name: Mapped[str | None] = mapped_column(String(128))
    owner: Mapped[str] = mapped_column(String(64))
    setup_key: Mapped[str | None] = mapped_column(String(64))
    shape: Mapped[str] = mapped_column(String(512))
    image_digest: Mapped[str] = mapped_column(String(80))
    parent: Mapped[str | None] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(Float)
    last_used_at: Mapped[float] = mapped_column(Float)
    description: Mapped[str | None] = mapped_column(String(500))
    files_bytes: Mapped[int] = mapped_column(BigInteger, server_default="0")
    processes: Mapped[int | None] = mapped_column(Integer)
    pause_s: Mapped[float | None] = mapped_column(Float)
    reason: Mapped[str | None] = mapped_column(String(500))
    place: Mapped[str | None] = mapped_column(String(500))
    ended_at: Mapped[float | None] = mapped_column(Float)


class SetupRow(Base):
    """One attempt to build a prepared state. `state`: building, ready, abandoned."""

    __tablename__ = "setups"
    __table_args__ = (Index("ix_setups_owner_key", "owner", "key"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    owner: Mapped[str] = mapped_column(String(64))
    key: Mapped[str] = mapped_column(String(64))
    lease_id: Mapped[str] = mapped_column(String(64), ForeignKey("leases.lease_id"))
    grant_sha256: Mapped[str] = mapped_column(String(64), index=True)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(500))
    started_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)


class KeyRow(Base):
    """A bearer key: its hash and what it may do."""

    __tablename__ = "keys"

    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scope: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)


class EventRow(Base):
    """One line of the append-only history."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(Float)
    kind: Mapped[str] = mapped_column(String(48), index=True)
    desktop_id: Mapped[str | None] = mapped_column(String(64))
    lease_id: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int | None] = mapped_column(Integer)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
