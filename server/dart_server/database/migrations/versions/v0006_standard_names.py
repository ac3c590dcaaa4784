"""Standard names: fencing tokens, the path of a quarantined snapshot, and the kinds of events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

COLUMNS = {
    "desktops": ("fence", "fencing_token"),
    "leases": ("fence", "fencing_token"),
    "events": ("fence", "fencing_token"),
    "snapshots": ("place", "quarantine_path"),
}
EVENT_KINDS = {
    "ledger_back": "database_recovered",
    "key_made": "key_created",
    "snapshot_made": "snapshot_created",
}


def upgrade() -> None:
    for table, (old, new) in COLUMNS.items():
        op.alter_column(table, old, new_column_name=new)
    _rename_events(EVENT_KINDS)


def downgrade() -> None:
    for table, (old, new) in COLUMNS.items():
        op.alter_column(table, new, new_column_name=old)
    _rename_events({new: old for old, new in EVENT_KINDS.items()})


def _rename_events(kinds: dict[str, str]) -> None:
    events = sa.table("events", sa.column("kind", sa.String))
    for old, new in kinds.items():
        op.execute(events.update().where(events.c.kind == old).values(kind=new))
