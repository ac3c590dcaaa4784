"""The database: the only place with SQL.

Rule: what is written is what holds at the call; the returned receipt is awaited by those for whom it must be on disk first. Nothing here
decides anything. Non-goals: live state (that is `records`, in memory), batches and connections (`db`).
"""

from __future__ import annotations

from dart_server.database.repository.base import NewEvent, shape_json
from dart_server.database.repository.desktops import DesktopStatements
from dart_server.database.repository.events import EventStatements
from dart_server.database.repository.keys import KeyStatements
from dart_server.database.repository.leases import LeaseStatements
from dart_server.database.repository.pools import PoolStatements
from dart_server.database.repository.retention import RetentionStatements
from dart_server.database.repository.setups import SetupStatements
from dart_server.database.repository.snapshots import SnapshotStatements

__all__ = ["NewEvent", "Repository", "shape_json"]


class Repository(
    DesktopStatements,
    LeaseStatements,
    SnapshotStatements,
    SetupStatements,
    KeyStatements,
    PoolStatements,
    EventStatements,
    RetentionStatements,
):
    """Reads and writes of the database."""
