"""How high a key's claims may stand in the queue: no higher than everybody's, unless an administrator says so."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.add_column(sa.Column("max_priority", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("keys", schema=None) as batch_op:
        batch_op.drop_column("max_priority")
