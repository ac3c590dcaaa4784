"""Many tenants: keys with quotas and an end, claims of gangs, pools, the history by desktop and by lease."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ADDED = {
    "keys": ("expires_at", "max_leases", "max_waiting", "weight", "last_used_at"),
    "leases": ("claim_id", "priority", "gang_size"),
    "desktops": ("ended_at",),
}


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        # A busy farm writes a thousand events per second: 32 bits would last a month.
        op.alter_column("events", "id", type_=sa.BigInteger(), existing_type=sa.Integer())
        op.execute("ALTER SEQUENCE events_id_seq AS bigint")
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.add_column(sa.Column("expires_at", sa.Float(), nullable=True))
        batch_op.add_column(sa.Column("max_leases", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("max_waiting", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("weight", sa.Float(), nullable=False, server_default="1"))
        batch_op.add_column(sa.Column("last_used_at", sa.Float(), nullable=True))
    with op.batch_alter_table("leases", schema=None) as batch_op:
        batch_op.add_column(sa.Column("claim_id", sa.String(length=64), nullable=True))
        batch_op.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("gang_size", sa.Integer(), nullable=False, server_default="1"))
        batch_op.create_index(batch_op.f("ix_leases_claim_id"), ["claim_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_leases_ended_at"), ["ended_at"], unique=False)
    with op.batch_alter_table("desktops", schema=None) as batch_op:
        batch_op.add_column(sa.Column("ended_at", sa.Float(), nullable=True))
        batch_op.create_index(batch_op.f("ix_desktops_ended_at"), ["ended_at"], unique=False)
    with op.batch_alter_table("setups", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_setups_lease_id"), ["lease_id"], unique=False)
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_desktop_id"), ["desktop_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_events_lease_id"), ["lease_id"], unique=False)
    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def downgrade() -> None:
    op.drop_table("pools")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_lease_id"))
        batch_op.drop_index(batch_op.f("ix_events_desktop_id"))
    with op.batch_alter_table("setups", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_setups_lease_id"))
    with op.batch_alter_table("desktops", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_desktops_ended_at"))
    with op.batch_alter_table("leases", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_leases_ended_at"))
        batch_op.drop_index(batch_op.f("ix_leases_claim_id"))
    for table, columns in ADDED.items():
        with op.batch_alter_table(table, schema=None) as batch_op:
            for column in reversed(columns):
                batch_op.drop_column(column)
