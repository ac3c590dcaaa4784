"""Create the trajectory database.

The revision id is not that of the schema before the first release, so that a database of that time is refused.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "trajectories_0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply the revision."""
    op.create_table(
        "batches",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("trainer_version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("done_s", sa.Double(), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("batch_id"),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_batches_state"), ["state"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "phases",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("task_ids", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("n_tasks", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "tasks",
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("split", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_id"),
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tasks_family"), ["family"], unique=False)

    op.create_table(
        "versions",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )
    op.create_table(
        "batch_members",
        sa.Column("batch_id", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("trainable", sa.JSON(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"],
            ["batches.batch_id"],
        ),
        sa.PrimaryKeyConstraint("batch_id", "group_id", "rollout_id", "index"),
    )
    op.create_table(
        "groups",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("opened_s", sa.Double(), nullable=False),
        sa.Column("closed_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["phase"],
            ["phases.name"],
        ),
        sa.ForeignKeyConstraint(
            ["task_id"],
            ["tasks.task_id"],
        ),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("group_id"),
    )
    with op.batch_alter_table("groups", schema=None) as batch_op:
        batch_op.create_index("ix_groups_phase_state", ["phase", "state"], unique=False)
        batch_op.create_index("ix_groups_purpose_state", ["purpose", "state"], unique=False)
        batch_op.create_index(batch_op.f("ix_groups_task_id"), ["task_id"], unique=False)

    op.create_table(
        "rollouts",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("worker_id", sa.String(), nullable=True),
        sa.Column("request_id", sa.String(), nullable=True),
        sa.Column("deadline_s", sa.Double(), nullable=True),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("max_steps", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["groups.group_id"],
        ),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("rollout_id"),
    )
    with op.batch_alter_table("rollouts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rollouts_group_id"), ["group_id"], unique=False)
        batch_op.create_index("ix_rollouts_phase_repeat", ["phase", "task_id", "repeat"], unique=False)
        batch_op.create_index(batch_op.f("ix_rollouts_request_id"), ["request_id"], unique=False)
        batch_op.create_index("ix_rollouts_state_phase", ["state", "phase", "seq"], unique=False)

    op.create_table(
        "trajectories",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("group_id", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("end", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=True),
        sa.Column("started_at_s", sa.Double(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("stored_s", sa.Double(), nullable=False),
        sa.Column("info", sa.JSON(), nullable=False),
        sa.Column("n_steps", sa.Integer(), nullable=False),
        sa.Column("version_min", sa.Integer(), nullable=True),
        sa.Column("version_max", sa.Integer(), nullable=True),
        sa.CheckConstraint("purpose IN ('train', 'demo', 'eval')", name="purpose_known"),
        sa.ForeignKeyConstraint(
            ["rollout_id"],
            ["rollouts.rollout_id"],
        ),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("rollout_id"),
    )
    with op.batch_alter_table("trajectories", schema=None) as batch_op:
        batch_op.create_index("ix_trajectories_family", ["purpose", "family", "seq"], unique=False)
        batch_op.create_index(batch_op.f("ix_trajectories_group_id"), ["group_id"], unique=False)
        batch_op.create_index("ix_trajectories_phase", ["phase", "seq"], unique=False)
        batch_op.create_index("ix_trajectories_task", ["purpose", "task_id", "seq"], unique=False)

    op.create_table(
        "steps",
        sa.Column("rollout_id", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("version_spans", sa.JSON(), nullable=False),
        sa.Column("image_sha256", sa.JSON(), nullable=False),
        sa.Column("image_hw", sa.JSON(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("action", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("parse_error", sa.String(), nullable=True),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=False),
        sa.Column("model_s", sa.Double(), nullable=False),
        sa.Column("env_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["rollout_id"],
            ["trajectories.rollout_id"],
        ),
        sa.PrimaryKeyConstraint("rollout_id", "index"),
    )


def downgrade() -> None:
    """Undo the revision."""
    for table in (
        "steps",
        "trajectories",
        "rollouts",
        "groups",
        "batch_members",
        "versions",
        "tasks",
        "phases",
        "events",
        "batches",
    ):
        op.drop_table(table)
