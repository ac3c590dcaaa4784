"""Snapshots as objects: what they hold, how long taking them held their desktop, why they ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = ("description", "files_bytes", "processes", "pause_s", "reason", "place", "ended_at")


def upgrade() -> None:
    with op.batch_alter_table("snapshots", schema=None) as batch_op:
        batch_op.add_column(sa.Column("description", sa.String(length=500), nullable=True))
        batch_op.add_column(sa.Column("files_bytes", sa.BigInteger(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("processes", sa.Integer(), nullable=True))
        batch_op.add_column(sa.Column("pause_s", sa.Float(), nullable=True))
        batch_op.add_column(sa.Column("reason", sa.String(length=500), nullable=True))
        batch_op.add_column(sa.Column("place", sa.String(length=500), nullable=True))
        batch_op.add_column(sa.Column("ended_at", sa.Float(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("snapshots", schema=None) as batch_op:
        for column in reversed(COLUMNS):
            batch_op.drop_column(column)
