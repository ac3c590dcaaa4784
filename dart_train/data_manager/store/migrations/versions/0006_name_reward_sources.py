"""Name what judged each trajectory; until now it was always the task's evaluator."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "trajectories_0006"
down_revision = "trajectories_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    with op.batch_alter_table("trajectories", schema=None) as batch_op:
        batch_op.add_column(sa.Column("reward_source", sa.String(), nullable=False, server_default="evaluator"))


def downgrade() -> None:
    """Undo the revision."""
    with op.batch_alter_table("trajectories", schema=None) as batch_op:
        batch_op.drop_column("reward_source")
