"""The ledger: desktops, leases, snapshots, setups, keys, events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "desktops",
        sa.Column("desktop_id", sa.String(length=64), nullable=False),
        sa.Column("shape", sa.String(length=512), nullable=False),
        sa.Column("image_digest", sa.String(length=80), nullable=False),
        sa.Column("provider", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("lease_id", sa.String(length=64), nullable=True),
        sa.Column("snapshot_id", sa.String(length=64), nullable=True),
        sa.Column("setup_key", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("desktop_id"),
    )
    with op.batch_alter_table("desktops", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_desktops_state"), ["state"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=48), nullable=False),
        sa.Column("desktop_id", sa.String(length=64), nullable=True),
        sa.Column("lease_id", sa.String(length=64), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_kind"), ["kind"], unique=False)

    op.create_table(
        "keys",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("key_id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_table(
        "leases",
        sa.Column("lease_id", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("client_request_id", sa.String(length=64), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("desktop_id", sa.String(length=64), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("shape", sa.String(length=512), nullable=False),
        sa.Column("image_digest", sa.String(length=80), nullable=False),
        sa.Column("setup_key", sa.String(length=64), nullable=True),
        sa.Column("ttl_s", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("lease_id"),
        sa.UniqueConstraint("owner", "client_request_id", name="uq_leases_owner_request"),
    )
    with op.batch_alter_table("leases", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_leases_owner"), ["owner"], unique=False)
        batch_op.create_index(batch_op.f("ix_leases_state"), ["state"], unique=False)

    op.create_table(
        "snapshots",
        sa.Column("snapshot_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("setup_key", sa.String(length=64), nullable=True),
        sa.Column("shape", sa.String(length=512), nullable=False),
        sa.Column("image_digest", sa.String(length=80), nullable=False),
        sa.Column("parent", sa.String(length=64), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("last_used_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("snapshot_id"),
    )
    with op.batch_alter_table("snapshots", schema=None) as batch_op:
        batch_op.create_index("ix_snapshots_owner_key", ["owner", "setup_key"], unique=False)
        batch_op.create_index(batch_op.f("ix_snapshots_state"), ["state"], unique=False)

    op.create_table(
        "setups",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("lease_id", sa.String(length=64), nullable=False),
        sa.Column("grant_sha256", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["lease_id"],
            ["leases.lease_id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("setups", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_setups_grant_sha256"), ["grant_sha256"], unique=False)
        batch_op.create_index("ix_setups_owner_key", ["owner", "key"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("setups", schema=None) as batch_op:
        batch_op.drop_index("ix_setups_owner_key")
        batch_op.drop_index(batch_op.f("ix_setups_grant_sha256"))

    op.drop_table("setups")
    with op.batch_alter_table("snapshots", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_snapshots_state"))
        batch_op.drop_index("ix_snapshots_owner_key")

    op.drop_table("snapshots")
    with op.batch_alter_table("leases", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_leases_state"))
        batch_op.drop_index(batch_op.f("ix_leases_owner"))

    op.drop_table("leases")
    op.drop_table("keys")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_kind"))

    op.drop_table("events")
    with op.batch_alter_table("desktops", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_desktops_state"))

    op.drop_table("desktops")
