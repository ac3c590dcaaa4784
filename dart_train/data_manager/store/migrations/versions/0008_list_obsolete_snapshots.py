"""List the snapshots of desktops that no unfinished rollout is continued on any more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "trajectories_0008"
down_revision = "trajectories_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table("obsolete_snapshots", sa.Column("snapshot_id", sa.String(), primary_key=True))


def downgrade() -> None:
    """Undo the revision."""
    op.drop_table("obsolete_snapshots")
