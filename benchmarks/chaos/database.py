"""A PostgreSQL server of a chaos run's own, whose connections are cut and which is stopped and killed.

Role: `own_database` starts one (`server/deploy/postgres_server.py`) and removes it; `OwnDatabase.cut` ends every connection to it. Rule:
never the system's server. Non-goals: when it is struck (`chaos_faults`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postgres_server import Cluster

DEPLOY = Path(__file__).parents[2] / "server" / "deploy"
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@dataclass(frozen=True, slots=True)
class OwnDatabase:
    """A server with one empty database, and how a farm reaches it."""

    server: Cluster

    @property
    def url(self) -> str:
        return self.server.url

    def cut(self) -> int:
        """End every connection; how many there were."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            return len(connection.execute(CUT).fetchall())


@contextmanager
def own_database() -> Iterator[OwnDatabase]:
    """A running server, which is removed at the end. Its programs are installed from the distribution when they are missing."""
    sys.path.append(str(DEPLOY))
    from postgres_server import find_programs, private_cluster

    with private_cluster(find_programs()) as server:
        yield OwnDatabase(server)
