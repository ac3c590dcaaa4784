"""Resets: which one a desktop's fencing token comes from, so that its client goes on where it has no answer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("desktops", schema=None) as batch_op:
        batch_op.add_column(sa.Column("reset_id", sa.String(length=64), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("desktops", schema=None) as batch_op:
        batch_op.drop_column("reset_id")
