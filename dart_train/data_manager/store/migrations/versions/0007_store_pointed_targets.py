"""Store the targets that an action head found, with their log-probs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "trajectories_0007"
down_revision = "trajectories_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    with op.batch_alter_table("steps", schema=None) as batch_op:
        batch_op.add_column(sa.Column("pointers", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Undo the revision."""
    with op.batch_alter_table("steps", schema=None) as batch_op:
        batch_op.drop_column("pointers")
