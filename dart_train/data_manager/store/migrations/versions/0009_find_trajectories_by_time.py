"""Find the trajectories that were stored in an interval of time."""

from __future__ import annotations

from alembic import op

revision = "trajectories_0009"
down_revision = "trajectories_0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_index("ix_trajectories_stored", "trajectories", ["purpose", "stored_s"], unique=False)


def downgrade() -> None:
    """Undo the revision."""
    op.drop_index("ix_trajectories_stored", table_name="trajectories")
