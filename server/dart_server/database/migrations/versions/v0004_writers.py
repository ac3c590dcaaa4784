"""Writers: which transaction was made last, so that none is made twice after a lost connection."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "writers",
        sa.Column("writer_id", sa.String(length=64), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("writer_id"),
    )
    # Those that went before their end was written down would never be forgotten.
    op.execute("UPDATE desktops SET ended_at = created_at WHERE state = 'gone' AND ended_at IS NULL")


def downgrade() -> None:
    op.drop_table("writers")
