"""Give versions an identity, batches a cause of failure, and steps a quarantine."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "trajectories_0003"
down_revision = "trajectories_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    for table, names in (("versions", ("digest", "parent")), ("batches", ("trainer_digest", "cause"))):
        with op.batch_alter_table(table, schema=None) as batch_op:
            for name in names:
                batch_op.add_column(sa.Column(name, sa.String(), nullable=True))
    op.create_table(
        "quarantined_steps",
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.batch_id"]),
        sa.PrimaryKeyConstraint("rollout_id", "index"),
    )


def downgrade() -> None:
    """Undo the revision."""
    op.drop_table("quarantined_steps")
    for table, names in (("versions", ("digest", "parent")), ("batches", ("trainer_digest", "cause"))):
        with op.batch_alter_table(table, schema=None) as batch_op:
            for name in names:
                batch_op.drop_column(name)
