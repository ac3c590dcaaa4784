"""Tables of the farm's database. Rule: no SQL and no behaviour; `repository` is the only reader and writer.

Times are seconds since 1970 (float). A shape is stored as its canonical JSON. `image_digest` is `sha256:…`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, String, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class FarmTable(DeclarativeBase):
    """Root of the tables."""


class DesktopRow(FarmTable):
    """One desktop slot; `fencing_token` only grows, `reset_id` is the reset that it comes from.

    A row is written before the desktop is made and kept after it is gone.
    """

    __tablename__ = "desktops"

    desktop_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    shape: Mapped[str] = mapped_column(String(512))
    image_digest: Mapped[str] = mapped_column(String(80))
    provider: Mapped[str] = mapped_column(String(32))
    state: Mapped[str] = mapped_column(String(16), index=True)
    fencing_token: Mapped[int] = mapped_column(Integer)
    reset_id: Mapped[str | None] = mapped_column(String(64))
    lease_id: Mapped[str | None] = mapped_column(String(64))
    snapshot_id: Mapped[str | None] = mapped_column(String(64))
    setup_key: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float, index=True)


class LeaseRow(FarmTable):
    """One lease, from its grant to its end; its token is never stored. The `gang_size` leases of one claim share `claim_id`."""

    __tablename__ = "leases"
    __table_args__ = (UniqueConstraint("owner", "client_request_id", name="uq_leases_owner_request"),)

    lease_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64), index=True)
    client_request_id: Mapped[str] = mapped_column(String(64))
    token_sha256: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16), index=True)
    desktop_id: Mapped[str | None] = mapped_column(String(64))
    fencing_token: Mapped[int] = mapped_column(Integer)
    shape: Mapped[str] = mapped_column(String(512))
    image_digest: Mapped[str] = mapped_column(String(80))
    setup_key: Mapped[str | None] = mapped_column(String(64))
    ttl_s: Mapped[float] = mapped_column(Float)
    created_at: Mapped[float] = mapped_column(Float)
    expires_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float, index=True)
    labels: Mapped[dict[str, str]] = mapped_column(JSON)
    claim_id: Mapped[str | None] = mapped_column(String(64), index=True)
    priority: Mapped[int] = mapped_column(Integer, server_default="0")
    gang_size: Mapped[int] = mapped_column(Integer, server_default="1")


class SnapshotRow(FarmTable):
    """One live snapshot. `state`: writing, ready, quarantined, deleted; `reason` and `ended_at` tell why and when it left `ready`.

    `files_bytes` is the part of `bytes` that descendants stand on; `quarantine_path` is where a person finds a quarantined one.
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
    quarantine_path: Mapped[str | None] = mapped_column(String(500))
    ended_at: Mapped[float | None] = mapped_column(Float)


class SetupRow(FarmTable):
    """One attempt to build a prepared state. `state`: building, ready, abandoned."""

    __tablename__ = "setups"
    __table_args__ = (Index("ix_setups_owner_key", "owner", "key"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    owner: Mapped[str] = mapped_column(String(64))
    key: Mapped[str] = mapped_column(String(64))
    lease_id: Mapped[str] = mapped_column(String(64), ForeignKey("leases.lease_id"), index=True)
    grant_sha256: Mapped[str] = mapped_column(String(64), index=True)
    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(500))
    started_at: Mapped[float] = mapped_column(Float)
    ended_at: Mapped[float | None] = mapped_column(Float)


class KeyRow(FarmTable):
    """A bearer key: its hash and what it may do.

    A quota of None is no quota; `weight` is its share when many wait, `max_priority` the highest that its claims may have.
    """

    __tablename__ = "keys"

    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    scope: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float] = mapped_column(Float)
    revoked_at: Mapped[float | None] = mapped_column(Float)
    expires_at: Mapped[float | None] = mapped_column(Float)
    max_leases: Mapped[int | None] = mapped_column(Integer)
    max_waiting: Mapped[int | None] = mapped_column(Integer)
    weight: Mapped[float] = mapped_column(Float, server_default="1")
    max_priority: Mapped[int] = mapped_column(Integer, server_default="0")
    last_used_at: Mapped[float | None] = mapped_column(Float)


class PoolRow(FarmTable):
    """Ready desktops that are wanted, by name. `spec` is `wire.PoolSpec` as JSON."""

    __tablename__ = "pools"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[float] = mapped_column(Float)
    updated_at: Mapped[float] = mapped_column(Float)


class WriterRow(FarmTable):
    """Who writes here: the farm, and whoever does so beside it. `number` is that of its last transaction, made `at` that time."""

    __tablename__ = "writers"

    writer_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[float] = mapped_column(Float)


class EventRow(FarmTable):
    """One line of the append-only history."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(Float)
    kind: Mapped[str] = mapped_column(String(48), index=True)
    desktop_id: Mapped[str | None] = mapped_column(String(64), index=True)
    lease_id: Mapped[str | None] = mapped_column(String(64), index=True)
    fencing_token: Mapped[int | None] = mapped_column(Integer)
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
